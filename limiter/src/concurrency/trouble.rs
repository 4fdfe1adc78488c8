//! Whether refusals and time-outs are more than chance, and answered once.
//!
//! Cut in answer to the share of them, as DCTCP does (RFC 8257), at most once per round trip: what
//! began before the last cut was sent under the old limit.

use std::time::Duration;

/// How much one answer weighs.
const WEIGHT: f64 = 1.0 / 64.0;
/// A share of this many is no accident: a backend that fails a tenth of all it gets, in every way,
/// is not full.
const SHARE: f64 = 0.2;

#[derive(Debug, Default)]
pub struct Trouble {
    share: f64,
    acted_at: Duration,
}

impl Trouble {
    /// An answer without trouble.
    pub fn none(&mut self) {
        self.share -= self.share * WEIGHT;
    }

    /// Trouble with a delivery that began then: whether that asks for a cut. A refusal is quick, and
    /// what it was refused for lasts a `round_trip`.
    pub fn is_more(&mut self, began: Duration, round_trip: Duration, now: Duration) -> bool {
        self.share += (1.0 - self.share) * WEIGHT;
        let is_news = began >= self.acted_at && now >= self.acted_at + round_trip;
        self.share >= SHARE && is_news
    }

    /// When it was last answered.
    pub fn acted_at(&self) -> Duration {
        self.acted_at
    }

    /// It was answered.
    pub fn acted(&mut self, now: Duration) {
        self.acted_at = now;
    }
}
