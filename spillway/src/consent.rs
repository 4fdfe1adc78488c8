//! Confirmation of commands that cannot be undone: without it, they are a dry run.

use clap::Args;
use spillway_webhook::shopify::is_compliance;

use crate::out::count;

/// Flag that every command takes that cannot be undone.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Confirmation {
    /// Do it. Without this flag, the command is a dry run: it reports what it would do, and changes
    /// nothing
    #[arg(short, long)]
    pub yes: bool,
}

/// Flags that every `drop` takes.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Consent {
    /// Drop all of them if no filter is given
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub confirmation: Confirmation,
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
}

/// Output of a dry run: `effect` is what the command would do, `action` what `--yes` is for.
pub(crate) fn dry_run(effect: &str, action: &str) -> String {
    format!("{effect}\ndry run: nothing was changed; add --yes to {action}")
}
