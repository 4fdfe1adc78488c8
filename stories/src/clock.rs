//! A clock that can be set while its process runs.
//!
//! This is not libfaketime. That library allocates memory for its first answer, while Redis'
//! allocator asks for the time before it allocates. The monotonic clock is not changed, as when an
//! administrator or NTP sets the time.

use std::path::Path;

use crate::preload::{LIBRARY, Number, library};

/// The clock of one process.
#[derive(Debug)]
pub struct Clock {
    ahead_s: Number,
    library: String,
}

impl Clock {
    /// Creates a clock with the right time, controlled by a file of this name.
    pub fn new(directory: &Path, name: &str) -> Self {
        let file = directory.join(format!("{name}.clock"));
        Self { ahead_s: Number::new(file), library: library(directory) }
    }

    /// Sets the offset of the clock; a negative number of seconds sets it back.
    pub fn set(&self, seconds: i64) {
        self.ahead_s.set(seconds);
    }

    /// Environment variables that the process needs.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![(LIBRARY, self.library.clone()), ("CLOCK_FILE", self.ahead_s.path())]
    }
}
