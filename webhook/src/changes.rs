//! Changes of one kind of stored record.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::position::Position;

/// Retry states to write, and positions of those to delete.
pub type RetryChanges = Changes<(Position, StoredRetry), Position>;

/// Retry state of a webhook as Redis holds it: `<attempts>:<spent ms>:<refused ms>@<Unix ms>`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredRetry {
    /// Attempts made.
    pub attempts: u32,
    /// Time spent on retries.
    pub spent: Duration,
    /// The last part of that time, in which all attempts were refused.
    pub refused: Duration,
    /// Time at which these figures were taken, in milliseconds since the Unix epoch. Time on
    /// retries after it is not included.
    pub as_of_ms: u64,
}

/// Text that is no retry state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRetry;

impl fmt::Display for StoredRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spent = self.spent.as_millis();
        let refused = self.refused.as_millis();
        write!(f, "{}:{spent}:{refused}@{}", self.attempts, self.as_of_ms)
    }
}

impl FromStr for StoredRetry {
    type Err = NoRetry;

    fn from_str(text: &str) -> Result<Self, NoRetry> {
        let parsed = || {
            let (state, as_of) = text.split_once('@')?;
            let (attempts, times) = state.split_once(':')?;
            let (spent, refused) = times.split_once(':')?;
            let time = |text: &str| text.parse().ok().map(Duration::from_millis);
            Some(Self {
                attempts: attempts.parse().ok()?,
                spent: time(spent)?,
                refused: time(refused)?,
                as_of_ms: as_of.parse().ok()?,
            })
        };
        parsed().ok_or(NoRetry)
    }
}

/// Records to write and records to delete. Writing comes first: what is in both is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes<Record, Key> {
    /// Records to write.
    pub written: Vec<Record>,
    /// Keys of records to delete.
    pub deleted: Vec<Key>,
}

impl<Record, Key> Changes<Record, Key> {
    /// Records to write, none to delete.
    pub fn write(records: impl IntoIterator<Item = Record>) -> Self {
        Self { written: records.into_iter().collect(), deleted: Vec::new() }
    }

    /// Keys of records to delete, none to write.
    pub fn delete(keys: impl IntoIterator<Item = Key>) -> Self {
        Self { written: Vec::new(), deleted: keys.into_iter().collect() }
    }

    /// True if nothing changes.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty() && self.deleted.is_empty()
    }
}

impl<Record, Key> Default for Changes<Record, Key> {
    fn default() -> Self {
        Self { written: Vec::new(), deleted: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_state_is_read_as_it_was_written() {
        let ms = Duration::from_millis;
        let state = StoredRetry { attempts: 4, spent: ms(1_500), refused: ms(20), as_of_ms: 77 };
        assert_eq!(state.to_string(), "4:1500:20@77");
        assert_eq!("4:1500:20@77".parse(), Ok(state));
        for bad in ["", "4", "4:5", "4:5:6", "4:5@6", "4:5:6@", "4:5:6@x", "4:5:6:7@8", "-1:5:6@7"]
        {
            assert_eq!(bad.parse::<StoredRetry>(), Err(NoRetry), "{bad}");
        }
    }
}
