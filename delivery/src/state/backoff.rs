//! Wait before the next attempt: doubling, bounded and jittered. Pure: the random number is an
//! argument.

use std::time::Duration;

/// Bounds of the wait.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// Longest wait before the second attempt.
    pub first: Duration,
    /// Longest wait before any attempt.
    pub longest: Duration,
}

impl Backoff {
    /// Returns the wait after `attempts` failed attempts. `chance` is uniform in [0, 1). The wait
    /// lies in the upper half of its bound, so that resources that failed together do not return
    /// together.
    pub fn wait(&self, attempts: u32, chance: f64) -> Duration {
        let doublings = attempts.saturating_sub(1).min(32);
        let bound = self.first.saturating_mul(2u32.saturating_pow(doublings)).min(self.longest);
        jittered(bound, chance)
    }
}

/// Returns a time in the upper half of `wait`. `chance` is uniform in [0, 1).
pub(crate) fn jittered(wait: Duration, chance: f64) -> Duration {
    wait.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(600) };
        let bound = |attempts| backoff.wait(attempts, 1.0).as_secs();
        assert_eq!([1, 2, 3, 4, 10, 11, 40].map(bound), [1, 2, 4, 8, 512, 600, 600]);
        assert_eq!(backoff.wait(1, 0.0), Duration::from_millis(500));
    }
}
