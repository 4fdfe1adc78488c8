//! A clock that can be set while its process runs.
//!
//! Not libfaketime: it asks for memory to answer its first question, and Redis' allocator asks for
//! the time to give it. The monotonic clock is left alone, as when an administrator or NTP sets the
//! time.

use std::path::Path;

use crate::preload::{LIBRARY, Number, library};

/// The clock of one process.
#[derive(Debug)]
pub struct Clock {
    ahead_s: Number,
    library: String,
}

impl Clock {
    /// One that is right, in a file of this name.
    pub fn new(directory: &Path, name: &str) -> Self {
        let file = directory.join(format!("{name}.clock"));
        Self { ahead_s: Number::new(file), library: library(directory) }
    }

    /// From now on it is so many seconds ahead, or behind.
    pub fn set(&self, seconds: i64) {
        self.ahead_s.set(seconds);
    }

    /// What its process has to have in its environment.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![(LIBRARY, self.library.clone()), ("CLOCK_FILE", self.ahead_s.path())]
    }
}
