//! Limit on the rate of lookups that a stranger can cause.

use std::time::Duration;

/// Bounded lookups that may begin at once, as a multiple of those in a second.
const BURST_SECONDS: f64 = 10.0;

/// Token bucket.
#[derive(Debug)]
pub(super) struct LookupBudget {
    tokens: f64,
    counted_at: Duration,
}

impl LookupBudget {
    /// A bucket that is full.
    pub(super) fn full(a_second: f64) -> Self {
        Self { tokens: a_second * BURST_SECONDS, counted_at: Duration::ZERO }
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&mut self, a_second: f64, now: Duration) -> bool {
        let since = now.saturating_sub(self.counted_at).as_secs_f64();
        self.counted_at = self.counted_at.max(now);
        self.tokens = (self.tokens + since * a_second).min(a_second * BURST_SECONDS);
        let has_one = self.tokens >= 1.0;
        if has_one {
            self.tokens -= 1.0;
        }
        has_one
    }
}
