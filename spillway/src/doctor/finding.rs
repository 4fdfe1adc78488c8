//! One thing that was looked at: how it is, and what to do about it.

use std::fmt;

use crate::out::printable;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, but not as well or as safely as it could.
    Warning,
    /// It does not work.
    Problem,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was looked at, and how it is.
    pub what: String,
    /// What to do; empty where nothing is to be done.
    pub fix: String,
}

impl Finding {
    /// As it should be.
    pub fn ok(what: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.into(), fix: String::new() }
    }

    /// Could be better.
    pub fn warning(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Warning, what: what.into(), fix: fix.into() }
    }

    /// Does not work.
    pub fn problem(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Problem, what: what.into(), fix: fix.into() }
    }
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

impl Finding {
    /// For a script.
    pub fn json(&self) -> serde_json::Value {
        let Self { level, what, fix } = self;
        serde_json::json!({ "level": level.word(), "what": what, "fix": fix })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = self.level.word();
        write!(f, "{level:<8} {}", printable(self.what.as_bytes()))?;
        if self.fix.is_empty() { Ok(()) } else { write!(f, "\n         -> {}", self.fix) }
    }
}
