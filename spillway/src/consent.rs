//! Confirmation that is required before something is dropped for good.

use clap::Args;
use spillway_webhook::shopify::is_compliance;

use crate::failure::Failure;
use crate::out::count;

/// Flags that every `drop` takes.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Consent {
    /// Drop all of them if no filter is given
    #[arg(long)]
    pub all: bool,
    /// Confirm the drop; without it, only the number that would be dropped is reported
    #[arg(long)]
    yes: bool,
    /// Also drop those of the compliance topics, which are a legal duty
    #[arg(long)]
    force: bool,
}

impl Consent {
    /// True if webhooks of `topic` are kept although they match the filter.
    pub(crate) fn keeps(&self, topic: &str) -> bool {
        !self.force && is_compliance(topic.as_bytes())
    }

    /// Reports how many of `what` are kept because of their topic.
    pub(crate) fn tell_kept(&self, kept: u64, what: &str) {
        if kept > 0 {
            let kept = count(kept, what);
            eprintln!(
                "kept {kept} of a compliance topic, because handling them is a legal duty; --force drops them"
            );
        }
    }

    /// Requires `--yes` before `number` of `what` are dropped from `consumer`.
    pub(crate) fn given(&self, number: u64, what: &str, consumer: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        let number = count(number, what);
        Err(Failure::Usage(format!(
            "{number} would be dropped for {consumer}, for good; add --yes"
        )))
    }
}
