//! A C library that is loaded before the C standard library. It changes the time that a process
//! sees, and how a disk behaves for it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable that names [`library`].
pub const LIBRARY: &str = "LD_PRELOAD";

/// A number in a file, which the library has mapped.
#[derive(Debug)]
pub struct Number {
    file: File,
    path: PathBuf,
}

impl Number {
    /// Creates the file with the number zero.
    pub fn new(path: PathBuf) -> Self {
        let mut options = OpenOptions::new();
        let file = options.create_new(true).write(true).open(&path).expect("make a number");
        let number = Self { file, path };
        number.set(0);
        number
    }

    /// Changes the number.
    pub fn set(&self, number: i64) {
        // An aligned write of eight bytes is one store for a process that has the file mapped.
        self.file.write_all_at(&number.to_ne_bytes(), 0).expect("set a number");
    }

    /// Path of the file.
    pub fn path(&self) -> String {
        self.path.display().to_string()
    }
}

/// Path of the library, which is compiled once per directory.
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
