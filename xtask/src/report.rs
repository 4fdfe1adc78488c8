//! Prints each test binary's output once it has ended, and a summary.

use std::io::{self, Write};
use std::process::{ExitCode, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Binaries in the list of the slowest.
const SLOWEST: usize = 10;

/// Results of test binaries that run side by side.
#[derive(Debug)]
pub(crate) struct Report {
    began: Instant,
    expected: usize,
    ended: Mutex<Vec<Ended>>,
}

#[derive(Debug)]
struct Ended {
    name: String,
    took: Duration,
    /// Tests that passed and tests that failed, as the binary counted them.
    passed: u64,
    failed: u64,
    is_success: bool,
}

impl Report {
    /// Creates a report of `expected` test binaries.
    pub(crate) fn of(expected: usize) -> Self {
        Self { began: Instant::now(), expected, ended: Mutex::default() }
    }

    /// Prints the output of a binary, and counts its tests.
    pub(crate) fn add(
        &self,
        name: &str,
        took: Duration,
        output: &[u8],
        status: io::Result<ExitStatus>,
    ) {
        let mut text = String::from_utf8_lossy(output).into_owned();
        let is_success = status.as_ref().is_ok_and(ExitStatus::success);
        match status {
            Ok(status) if !is_success => text.push_str(&format!("{name}: {status}\n")),
            Ok(_) => {}
            Err(error) => text.push_str(&format!("cannot run {name}: {error}\n")),
        }
        let (passed, failed) = counts(&text);
        let mut all = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Ended { name: name.to_owned(), took, passed, failed, is_success });
        let header = format!("\n## {name} ({}/{}), {:.1?}", all.len(), self.expected, took);
        // A reader that has gone away is no reason to end the tests.
        writeln!(io::stdout().lock(), "{header}\n{text}").ok();
    }

    /// Prints the summary. The exit status is a failure unless every binary succeeded.
    pub(crate) fn conclude(self) -> ExitCode {
        let mut ended = self.ended.into_inner().unwrap_or_else(PoisonError::into_inner);
        ended.sort_by_key(|one| std::cmp::Reverse(one.took));
        let slowest = ended.iter().take(SLOWEST);
        let slowest: Vec<String> =
            slowest.map(|one| format!("{} {:.0?}", one.name, one.took)).collect();
        println!("\nslowest: {}", slowest.join(", "));
        let passed: u64 = ended.iter().map(|one| one.passed).sum();
        let failed: u64 = ended.iter().map(|one| one.failed).sum();
        println!(
            "{passed} passed, {failed} failed, in {} test binaries and {:.0?}",
            ended.len(),
            self.began.elapsed()
        );
        let failures: Vec<&str> =
            ended.iter().filter(|one| !one.is_success).map(|one| one.name.as_str()).collect();
        if failures.is_empty() {
            return ExitCode::SUCCESS;
        }
        println!("failed: {}", failures.join(", "));
        ExitCode::FAILURE
    }
}

/// Sums of the lines `test result: ok. 3 passed; 0 failed; ...`.
fn counts(text: &str) -> (u64, u64) {
    let results = text.lines().filter_map(|line| line.strip_prefix("test result: "));
    let of = |line: &str, what: &str| {
        let words: Vec<&str> = line.split([' ', ';']).filter(|word| !word.is_empty()).collect();
        let at = words.iter().position(|word| *word == what)?;
        words.get(at.checked_sub(1)?)?.parse::<u64>().ok()
    };
    results.fold((0, 0), |(passed, failed), line| {
        (passed + of(line, "passed").unwrap_or(0), failed + of(line, "failed").unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_by_the_lines_of_the_test_harness() {
        let text = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
            test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out\n";
        assert_eq!(counts(text), (7, 2));
        assert_eq!(counts("killed before it said anything"), (0, 0));
    }
}
