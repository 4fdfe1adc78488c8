//! The start: the limit doubles until the latency rises clearly. The latency measured before the
//! rise is the base. The limiter rests at the limit at which it would not have risen.

use std::time::Duration;

use super::{
    ALARM, ConcurrencyLimiter, EXCESS, LOWER_AGAIN, LOWER_EVERY, SearchPhase, excess, round,
};
use crate::window::{SampleSums, SampleWindow, count};

/// Minimum number of deliveries that each step measures.
const SAMPLES: usize = 5;
/// Minimum length of a step. The noise of a machine lasts about as long.
const SHORTEST: Duration = Duration::from_millis(10);

impl ConcurrencyLimiter {
    pub(super) fn start(&mut self, quiet: SampleSums, now: Duration) {
        let tally = self.window.tally();
        if tally.count < count(self.limit.max(SAMPLES)) || self.window.age() < SHORTEST {
            return;
        }
        if !self.window.was_busy() {
            // There is too little to send to learn from, or there was until just now. A measurement
            // with less under way says nothing about this limit.
            self.window = SampleWindow::counting(now);
            return;
        }
        let (rise, error) = rise(&quiet, &tally);
        // The rise is 0 without a queue, 0.69 with twice too many, then 1.39: a rise that is not
        // clear yet will become clear.
        let queued = if quiet.count > 0.0 { excess(tally.latency(), quiet.latency()) } else { 0.0 };
        let is_queueing = queued > ALARM + 2.0 * error;
        if !is_queueing && self.limit < self.bounds.max {
            let is_alike = rise < EXCESS.max(0.5 * error);
            let quiet = if is_alike { quiet.with(tally) } else { quiet };
            self.phase = SearchPhase::Start { quiet };
            self.set(self.limit * 2, now);
            return;
        }
        self.noise = quiet.variance().max(tally.variance());
        self.base = Some(if quiet.count > 0.0 { quiet.latency() } else { tally.latency() });
        // A level that seemed quiet may not have been so. Check it soon.
        self.lowered_at = now.saturating_sub(LOWER_EVERY - LOWER_AGAIN);
        let part = if is_queueing { (error - queued).exp().max(0.25) } else { 1.0 };
        self.rest(round(count(self.limit) * part), now);
    }
}

/// Rise of the logarithm of the latency, and the error of that.
fn rise(quiet: &SampleSums, tally: &SampleSums) -> (f64, f64) {
    if quiet.count == 0.0 {
        return (0.0, 0.0);
    }
    let variance = quiet.variance().max(tally.variance());
    let error = (variance / quiet.count + variance / tally.count).sqrt();
    // A variance from few samples may itself be far too small.
    let few = 1.0 + 2.0 / quiet.count.min(tally.count);
    (tally.latency() - quiet.latency(), error * few)
}
