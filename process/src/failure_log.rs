//! Bounds the log lines of what fails again and again.

use std::time::Duration;

use tokio::time::Instant;

/// Time between two lines about the same failure: a person who looks finds a recent one, and an hour
/// of failures is 120 lines.
const REPEAT_EVERY: Duration = Duration::from_secs(30);

/// Decides which failures are logged: the first one, then one in `REPEAT_EVERY`.
#[derive(Debug, Default)]
pub struct FailureLog {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl FailureLog {
    /// Counts a failure at `now`. Returns the number of failures since the last line, if another
    /// one is due.
    pub fn on_failure(&mut self, now: Instant) -> Option<u64> {
        self.unlogged += 1;
        if self.logged_at.is_some_and(|at| now.duration_since(at) < REPEAT_EVERY) {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }

    /// Ends the failures: the next one is logged at once. Returns true if there were some.
    pub fn on_success(&mut self) -> bool {
        self.unlogged = 0;
        self.logged_at.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_logged_and_then_one_in_thirty_seconds() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut log = FailureLog::default();
        assert!(!log.on_success());
        let lines: Vec<u64> = (0..600).filter_map(|n| log.on_failure(at(100 * n))).collect();
        assert_eq!(lines, [1, 300]);
        assert!(log.on_success() && !log.on_success());
        assert_eq!(log.on_failure(at(60_000)), Some(1), "a new failure");
    }
}
