//! Some C that is loaded before the C library, and does what a test tells it: it changes what a process is
//! told of the time, and what a disk does for it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variable of the environment that names [`library`].
pub const LIBRARY: &str = "LD_PRELOAD";

/// A number in a file, which the C has mapped.
#[derive(Debug)]
pub struct Number {
    file: File,
    path: PathBuf,
}

impl Number {
    /// Zero, in a file that is made.
    pub fn new(path: PathBuf) -> Self {
        let mut options = OpenOptions::new();
        let file = options.create_new(true).write(true).open(&path).expect("make a number");
        let number = Self { file, path };
        number.set(0);
        number
    }

    /// Changes it.
    pub fn set(&self, number: i64) {
        // Eight bytes at their place are one store to whoever has them mapped.
        self.file.write_all_at(&number.to_ne_bytes(), 0).expect("set a number");
    }

    /// Path of its file.
    pub fn path(&self) -> String {
        self.path.display().to_string()
    }
}

/// The C, compiled once a directory.
pub fn library(directory: &Path) -> String {
    let (source, library) = (directory.join("preload.c"), directory.join("preload.so"));
    if !library.exists() {
        fs::write(&source, include_str!("preload.c")).expect("write the C");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
        let compiled = compiler.arg(&library).arg(&source).output().expect("run cc");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    }
    library.display().to_string()
}
