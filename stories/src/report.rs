//! Figures and logs for the reader of a test run.
//!
//! Written to the real standard error: the test runner hides the output of a passing test, and the
//! figures matter most when a test passes.

use std::fs;
use std::io::Write;
use std::path::Path;

/// Bytes of a log's end that are shown: the last seconds of a server that logs each error.
const LOG_TAIL_BYTES: usize = 16 * 1024;

/// Prints one line, even if the test runner captures output.
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
