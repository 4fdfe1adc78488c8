//! Changes of one kind of stored record.

use std::time::Duration;

use crate::position::Position;

/// Retry states to write: position, attempts, time spent; and those to delete.
pub type RetryChanges = Changes<(Position, u32, Duration), Position>;

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
