//! A clock that can be set while its process runs: a few lines of C before the C library, which read
//! from a file how far off the time of day is.
//!
//! Not libfaketime: it asks for memory to answer its first question, and Redis' allocator asks for
//! the time to give it. The monotonic clock is left alone, as when an administrator or NTP sets the
//! time.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The clock of one process.
#[derive(Debug)]
pub struct Clock {
    file: File,
    path: PathBuf,
    library: PathBuf,
}

impl Clock {
    /// One that is right, in a file of this name.
    pub fn new(directory: &Path, name: &str) -> Self {
        let path = directory.join(format!("{name}.clock"));
        let options = OpenOptions::new().create_new(true).write(true).clone();
        let clock = Self {
            file: options.open(&path).expect("make a clock"),
            library: library(directory),
            path,
        };
        clock.set(0);
        clock
    }

    /// From now on it is so many seconds ahead, or behind.
    pub fn set(&self, seconds: i64) {
        // Eight bytes at their place are one store to whoever has them mapped.
        self.file.write_all_at(&seconds.to_ne_bytes(), 0).expect("set a clock");
    }

    /// What its process has to have in its environment.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", self.library.display().to_string()),
            ("CLOCK_FILE", self.path.display().to_string()),
        ]
    }
}

/// The C, compiled once a directory.
fn library(directory: &Path) -> PathBuf {
    let (source, library) = (directory.join("clock.c"), directory.join("clock.so"));
    if !library.exists() {
        fs::write(&source, include_str!("clock.c")).expect("write the source of the clock");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
        let compiled = compiler.arg(&library).arg(&source).output().expect("run cc");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    }
    library
}
