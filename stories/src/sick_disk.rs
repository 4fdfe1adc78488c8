//! A disk that stalls or fails on demand, for one process and the files below one directory.

use std::path::Path;

use crate::preload::{LIBRARY, Number, library};

/// State of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The disk works.
    Well = 0,
    /// Writes, syncs, reads and removals wait until the state changes.
    Stalls = 1,
    /// Writes and syncs fail with EIO.
    Fails = 2,
}

/// A disk with a controlled state.
#[derive(Debug)]
pub struct SickDisk {
    health: Number,
    library: String,
    below: String,
}

impl SickDisk {
    /// Creates a working disk for everything below `below`. Its own files lie in `directory`.
    pub fn new(directory: &Path, below: &Path) -> Self {
        Self {
            health: Number::new(directory.join("disk")),
            library: library(directory),
            below: below.display().to_string(),
        }
    }

    /// Sets the state.
    pub fn is(&self, health: Health) {
        self.health.set(health as i64);
    }

    /// Environment variables that the process needs.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            (LIBRARY, self.library.clone()),
            ("DISK_FILE", self.health.path()),
            ("DISK_BELOW", self.below.clone()),
        ]
    }
}
