//! The circuit breaker. It pauses deliveries when the backend asks for it, or when nothing succeeds
//! any more.
//!
//! The breaker trips after as many failures in a row as deliveries may be under way, but at least
//! [`STREAK_LEAST`] and at most [`STREAK`]. Then follow a pause, one attempt, a pause twice as
//! long, and so on, until an attempt succeeds. Deliveries that began before the limit was last cut,
//! or before the breaker tripped, carry no new information. It differs from the usual circuit
//! breaker in two points. Its half-open state is one delivery. A pause lasts at most a quarter of
//! the outage so far, so that the breaker finds a backend that is back after at most a quarter of
//! the outage.

use std::time::Duration;

/// Maximum streak: this many failures in a row are no accident.
const STREAK: usize = 8;
/// Minimum streak, even with one delivery at a time: one accidental failure must not stop the
/// others.
const STREAK_LEAST: usize = 3;
/// First pause. It is short, because most outages that trip the breaker are over in a moment.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// Maximum length of a pause, as a part of the outage so far.
const PAUSE_PART: f64 = 0.25;
/// Longest pause: a backend that is back is found within a minute.
const PAUSE_LONGEST: Duration = Duration::from_secs(60);

/// Pauses deliveries, and probes with one at a time after a pause that failures caused.
#[derive(Debug, Default)]
pub(crate) struct CircuitBreaker {
    paused_until: Duration,
    tripped_at: Duration,
    succeeded_at: Duration,
    streak: usize,
    /// Pauses since the last success. If there were any, one attempt at a time may be under way.
    trips: u32,
}

impl CircuitBreaker {
    /// End of the pause that holds at `now`.
    pub(crate) fn pause_ends(&self, now: Duration) -> Option<Duration> {
        (now < self.paused_until).then_some(self.paused_until)
    }

    /// True if only one attempt at a time may be under way.
    pub(crate) fn is_probing(&self) -> bool {
        self.trips > 0
    }

    /// Starts a pause that the backend asked for.
    pub(crate) fn pause(&mut self, pause: Duration, now: Duration) {
        self.paused_until = self.paused_until.max(now + pause);
        self.streak = 0;
    }

    /// Records the success of a delivery that began at `began`. Returns true if that ends the
    /// probing.
    pub(crate) fn succeeded(&mut self, began: Duration, now: Duration) -> bool {
        self.streak = 0;
        self.succeeded_at = now;
        let is_news = self.trips > 0 && began >= self.tripped_at;
        if is_news {
            self.trips = 0;
        }
        is_news
    }

    /// Records a failure of a delivery that began after the last cut. Returns true if that trips
    /// the breaker. It does not if another delivery succeeded less than `silence` ago: then the
    /// backend only refuses what is too much for it, which is up to the concurrency limiter.
    pub(crate) fn failed(&mut self, failure: &FailedDelivery, now: Duration, chance: f64) -> bool {
        if failure.began < self.tripped_at {
            return false;
        }
        self.streak += 1;
        let outage = now.saturating_sub(self.succeeded_at);
        if self.trips == 0
            && (self.streak < failure.limit.clamp(STREAK_LEAST, STREAK) || outage < failure.silence)
        {
            return false;
        }
        let doubled = PAUSE_FIRST.saturating_mul(1 << self.trips.min(16)).min(PAUSE_LONGEST);
        let bound = doubled.min(outage.mul_f64(PAUSE_PART).max(PAUSE_FIRST));
        // The upper half of the range is random, so that limiters that failed together do not
        // return together.
        let pause = bound.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0);
        self.paused_until = self.paused_until.max(now + pause);
        self.trips += 1;
        self.tripped_at = now;
        self.streak = 0;
        true
    }
}

/// A delivery that failed.
pub(crate) struct FailedDelivery {
    pub began: Duration,
    /// Number of deliveries that were allowed.
    pub limit: usize,
    /// Minimum time without a success for the failure to trip the breaker.
    pub silence: Duration,
}
