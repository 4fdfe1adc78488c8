//! Figures and logs for the reader of a test run.
//!
//! Written to the real standard error: the test runner's capture swallows what a passing test
//! prints, and the figures matter most when it passes.

use std::fs;
use std::io::Write;
use std::path::Path;

/// How much of a log's end is shown: enough for the last seconds of a server that logs each error.
const LOG_TAIL_BYTES: usize = 16 * 1024;

/// Prints one line, whether or not the test runner captures output.
pub fn say(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").ok();
}

/// Prints the end of a log file under a heading.
pub fn show_log(name: &str, path: &Path) {
    let log = fs::read(path).unwrap_or_default();
    let tail = &log[log.len().saturating_sub(LOG_TAIL_BYTES)..];
    say(&format!("---- {name} ({} bytes of output) ----", log.len()));
    say(&String::from_utf8_lossy(tail));
}
