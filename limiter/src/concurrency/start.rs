//! The start: the limit doubles until the latency rises clearly. What was measured while it did not
//! is the base; at what limit it would not have risen is where the limiter rests.

use std::time::Duration;

use super::{ALARM, ConcurrencyLimiter, EXCESS, LOWER_AGAIN, LOWER_EVERY, Phase, round};
use crate::window::{Tally, Window, count};

/// Deliveries that each step measures at least.
const SAMPLES: usize = 5;
/// And so long: the noise of a machine lasts about that.
const SHORTEST: Duration = Duration::from_millis(10);

impl ConcurrencyLimiter {
    pub(super) fn start(&mut self, quiet: Tally, now: Duration) {
        let tally = self.window.tally();
        if tally.count < count(self.limit.max(SAMPLES)) || self.window.age() < SHORTEST {
            return;
        }
        if !self.window.was_busy() {
            // There is too little to send to learn from, or there was until just now: what was
            // measured while less was under way says nothing about this limit.
            self.window = Window::counting(now);
            return;
        }
        let (rise, error) = rise(&quiet, &tally);
        // With no queue it is 0, with twice too many 0.69, then 1.39: what is not clear yet will be.
        let is_queueing = rise > ALARM + 2.0 * error;
        if !is_queueing && self.limit < self.max {
            let is_alike = rise < EXCESS.max(0.5 * error);
            let quiet = if is_alike { quiet.with(tally) } else { quiet };
            self.phase = Phase::Start { quiet };
            self.set(self.limit * 2, now);
            return;
        }
        self.noise = quiet.variance().max(tally.variance());
        self.base = Some(if quiet.count > 0.0 { quiet.latency() } else { tally.latency() });
        // What seemed quiet may not have been: look soon.
        self.lowered_at = now.saturating_sub(LOWER_EVERY - LOWER_AGAIN);
        let part = if is_queueing { (error - rise).exp().max(0.25) } else { 1.0 };
        self.rest(round(count(self.limit) * part), now);
    }
}

/// By how much the logarithm of the latency rose, and how far off that may be.
fn rise(quiet: &Tally, tally: &Tally) -> (f64, f64) {
    if quiet.count == 0.0 {
        return (0.0, 0.0);
    }
    let variance = quiet.variance().max(tally.variance());
    let error = (variance / quiet.count + variance / tally.count).sqrt();
    // A variance of few samples may be far too small itself.
    let few = 1.0 + 2.0 / quiet.count.min(tally.count);
    (tally.latency() - quiet.latency(), error * few)
}
