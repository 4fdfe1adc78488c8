//! Runs test binaries, several at the same time.

use std::collections::VecDeque;
use std::io;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::build::TestBinary;
use crate::report::Report;

/// Runs the binaries in their order, `at_once` of them at the same time, and reports each when it
/// ends.
pub(crate) fn side_by_side(binaries: Vec<TestBinary>, at_once: usize, report: &Report) {
    let waiting = Mutex::new(VecDeque::from(binaries));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(|| {
                while let Some(binary) = next() {
                    let began = Instant::now();
                    let ended = run(&binary);
                    report.add(&binary.name, began.elapsed(), ended);
                }
            });
        }
    });
}

/// Runs one binary as cargo does, in the directory of its crate.
fn run(binary: &TestBinary) -> io::Result<Output> {
    Command::new(&binary.path)
        .current_dir(&binary.directory)
        .env("CARGO_MANIFEST_DIR", &binary.directory)
        .stdin(Stdio::null())
        .output()
}
