//! Changes of one kind of stored record.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::position::Position;

/// Retry states to write, and positions of those to delete.
pub type RetryChanges = Changes<(Position, StoredRetry), Position>;

/// Retry state of a webhook as Redis holds it: `<attempts>:<spent ms>`, and `:<refused ms>` behind it unless that is
/// zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredRetry {
    /// Attempts made.
    pub attempts: u32,
    /// Time spent on retries.
    pub spent: Duration,
    /// The last part of that time, in which all attempts were refused.
    pub refused: Duration,
}

/// Text that is no retry state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRetry;

impl StoredRetry {
    /// So much more time was spent, after the last attempt that it knows of.
    pub fn go_on(&mut self, time: Duration) {
        self.spent += time;
        if !self.refused.is_zero() {
            self.refused += time;
        }
    }
}

impl fmt::Display for StoredRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.attempts, self.spent.as_millis())?;
        match self.refused.as_millis() {
            0 => Ok(()),
            refused => write!(f, ":{refused}"),
        }
    }
}

impl FromStr for StoredRetry {
    type Err = NoRetry;

    fn from_str(text: &str) -> Result<Self, NoRetry> {
        let mut parts = text.split(':');
        let attempts = parts.next().and_then(|part| part.parse().ok()).ok_or(NoRetry)?;
        let mut time = || parts.next().map(|part| part.parse().map(Duration::from_millis));
        let spent = time().and_then(Result::ok).ok_or(NoRetry)?;
        let refused = time().unwrap_or(Ok(Duration::ZERO)).map_err(|_| NoRetry)?;
        if parts.next().is_some() { Err(NoRetry) } else { Ok(Self { attempts, spent, refused }) }
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

    /// Whether nothing changes.
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
        let short = StoredRetry { attempts: 4, spent: ms(1_500), refused: ms(0) };
        let long = StoredRetry { refused: ms(20), ..short };
        assert_eq!((short.to_string(), long.to_string()), ("4:1500".into(), "4:1500:20".into()));
        assert_eq!(("4:1500".parse(), "4:1500:20".parse()), (Ok(short), Ok(long)));
        for bad in ["", "4", "4:", "many:5", "4:5:", "4:5:x", "4:5:6:7", "-1:5"] {
            assert_eq!(bad.parse::<StoredRetry>(), Err(NoRetry), "{bad}");
        }
    }
}
