//! Result of one check: the state, and what to do about it.

use std::fmt;

use crate::out::{Colour, coloured, printable};

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Nothing is wrong.
    Ok,
    /// The thing checked works, but not as well or as safely as it could.
    Warning,
    /// The thing checked does not work.
    Problem,
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Severity.
    pub level: Severity,
    /// The thing checked, and its state.
    pub what: String,
    /// Instructions to fix it; empty if nothing needs to be done.
    pub fix: String,
}

impl Finding {
    /// A finding without a problem.
    pub(super) fn ok(what: impl Into<String>) -> Self {
        Self { level: Severity::Ok, what: what.into(), fix: String::new() }
    }

    /// A finding that works, but could be better.
    pub(super) fn warning(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Severity::Warning, what: what.into(), fix: fix.into() }
    }

    /// A finding that does not work.
    pub(super) fn problem(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Severity::Problem, what: what.into(), fix: fix.into() }
    }
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }

    fn colour(self) -> Colour {
        match self {
            Self::Ok => Colour::Green,
            Self::Warning => Colour::Yellow,
            Self::Problem => Colour::Red,
        }
    }
}

impl Finding {
    /// The finding as JSON, for scripts.
    pub(super) fn json(&self) -> serde_json::Value {
        let Self { level, what, fix } = self;
        serde_json::json!({ "level": level.word(), "what": what, "fix": fix })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = coloured(&format!("{:<8}", self.level.word()), self.level.colour());
        write!(f, "{level} {}", printable(self.what.as_bytes()))?;
        if self.fix.is_empty() { Ok(()) } else { write!(f, "\n         -> {}", self.fix) }
    }
}
