//! A lock on the machine: tests that load it run alone; the others share it.

use std::fs::File;

use crate::binaries;

/// Permission to use the machine, which ends when the value is dropped.
#[derive(Debug)]
pub struct Turn {
    _lock: File,
}

/// Waits until no other test runs, in this process or another one.
pub fn alone() -> Turn {
    let lock = open();
    lock.lock().expect("lock the machine for one test");
    Turn { _lock: lock }
}

/// Waits until no test runs that must be alone.
pub fn shared() -> Turn {
    let lock = open();
    lock.lock_shared().expect("lock the machine for a small test");
    Turn { _lock: lock }
}

fn open() -> File {
    let path = binaries::directory().join("stories.lock");
    File::options()
        .create(true)
        .append(true)
        .open(&path)
        .unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()))
}
