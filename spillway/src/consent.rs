//! What has to be said before something is dropped for good.

use clap::Args;
use spillway_webhook::shopify::is_compliance;

use crate::failure::Failure;
use crate::out::count;

/// Of every `drop`.
#[derive(Debug, Clone, Copy, Args)]
pub struct Consent {
    /// Without a filter: all of them
    #[arg(long)]
    pub all: bool,
    /// Do it
    #[arg(long)]
    yes: bool,
    /// Drop those of the compliance topics too, which are a legal duty to someone
    #[arg(long)]
    force: bool,
}

impl Consent {
    /// Whether what is of `topic` stays, however much it matches.
    pub fn keeps(&self, topic: &str) -> bool {
        !self.force && is_compliance(topic.as_bytes())
    }

    /// Says how many of `what` stay because of their topic.
    pub fn tell_kept(&self, kept: u64, what: &str) {
        if kept > 0 {
            let kept = count(kept, what);
            eprintln!(
                "{kept} of a compliance topic stay: they are a legal duty; --force drops them"
            );
        }
    }

    /// Goes on only with a yes to so many of `what` from `drain`.
    pub fn given(&self, number: u64, what: &str, drain: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        let number = count(number, what);
        Err(Failure::Usage(format!("{number} would be dropped for {drain}, for good; add --yes")))
    }
}
