//! Bound of the speed: a bucket that is filled with time, and that the webhooks of one second fill.

use std::time::Duration;

/// Parts of a webhook: with each microsecond, a bucket gets as many as there are webhooks in a second.
const PARTS: u64 = 1_000_000;

/// Webhooks that may be fed. A replay that waited does not make up for it: at most those of a second are saved up.
#[derive(Debug)]
pub(super) struct RateBucket {
    /// Webhooks per second; `None`: no bound.
    rate: Option<u32>,
    parts: u64,
    filled: Duration,
}

impl RateBucket {
    /// A bucket with one webhook.
    pub(super) fn new(rate: Option<u32>, now: Duration) -> Self {
        Self { rate, parts: PARTS, filled: now }
    }

    /// Number of webhooks that may be fed now.
    pub(super) fn due(&mut self, now: Duration) -> usize {
        let Some(rate) = self.rate.map(u64::from) else { return usize::MAX };
        let since = now.saturating_sub(self.filled).as_micros();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.filled = now;
        self.parts = self.parts.saturating_add(since.saturating_mul(rate)).min(rate * PARTS);
        usize::try_from(self.parts / PARTS).unwrap_or(usize::MAX)
    }

    /// Takes out what was fed.
    pub(super) fn take(&mut self, webhooks: u64) {
        self.parts = self.parts.saturating_sub(webhooks.saturating_mul(PARTS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_rate_is_kept_and_a_pause_is_not_made_up_for() {
        let mut bucket = RateBucket::new(Some(50), at(0));
        assert_eq!(bucket.due(at(0)), 1);
        bucket.take(1);
        assert_eq!(bucket.due(at(19)), 0);
        assert_eq!(bucket.due(at(20)), 1);
        let mut fed = 0;
        for now in 20..=10_020 {
            let due = bucket.due(at(now)) as u64;
            bucket.take(due);
            fed += due;
        }
        assert_eq!(fed, 501);
        assert_eq!(bucket.due(at(3_600_000)), 50);
        assert_eq!(RateBucket::new(None, at(0)).due(at(0)), usize::MAX);
    }
}
