//! A disk that stalls or fails when it is told to: for one process, and for what lies below one directory.

use std::path::Path;

use crate::preload::{LIBRARY, Number, library};

/// How a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does what it is asked for.
    Well = 0,
    /// Writes, syncs, reads and removals wait until it is well, or fails.
    Stalls = 1,
    /// Writes and syncs fail with EIO.
    Fails = 2,
}

/// The disk.
#[derive(Debug)]
pub struct SickDisk {
    health: Number,
    library: String,
    below: String,
}

impl SickDisk {
    /// One that is well: all below `below`. Its own files lie in `directory`.
    pub fn new(directory: &Path, below: &Path) -> Self {
        Self {
            health: Number::new(directory.join("disk")),
            library: library(directory),
            below: below.display().to_string(),
        }
    }

    /// From now on it is so.
    pub fn is(&self, health: Health) {
        self.health.set(health as i64);
    }

    /// What its process has to have in its environment.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            (LIBRARY, self.library.clone()),
            ("DISK_FILE", self.health.path()),
            ("DISK_BELOW", self.below.clone()),
        ]
    }
}
