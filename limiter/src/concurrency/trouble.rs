//! Decides if refusals and time-outs are more than chance, and reacts once.
//!
//! A cut answers the share of them, as DCTCP does (RFC 8257), at most once per round trip:
//! deliveries that began before the last cut were sent under the old limit.

use std::time::Duration;

/// Weight of one answer in the share.
const WEIGHT: f64 = 1.0 / 64.0;
/// Share of trouble that is no accident. A backend that fails a tenth of all deliveries, in any
/// way, is not full.
const SHARE: f64 = 0.2;

#[derive(Debug, Default)]
pub(super) struct Trouble {
    share: f64,
    acted_at: Duration,
}

impl Trouble {
    /// Records an answer without trouble.
    pub(super) fn none(&mut self) {
        self.share -= self.share * WEIGHT;
    }

    /// Records trouble with a delivery that began at `began`. Returns true if a cut is required. A
    /// refusal is quick, but the load that caused it lasts a `round_trip`.
    pub(super) fn record(&mut self, began: Duration, round_trip: Duration, now: Duration) -> bool {
        self.share += (1.0 - self.share) * WEIGHT;
        let is_news = began >= self.acted_at && now >= self.acted_at + round_trip;
        self.share >= SHARE && is_news
    }

    /// Time of the last reaction.
    pub(super) fn acted_at(&self) -> Duration {
        self.acted_at
    }

    /// Records a reaction at `now`.
    pub(super) fn acted(&mut self, now: Duration) {
        self.acted_at = now;
    }
}
