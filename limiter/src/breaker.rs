//! The circuit breaker: pauses, as the backend asks for, or when nothing succeeds any more.
//!
//! As many failures in a row as may be under way (from [`STREAK_LEAST`] to [`STREAK`]) trip it.
//! Then there is a pause, one attempt, a pause twice as long, and so on, until one succeeds. What
//! began before the limit was last cut, or before it tripped, says nothing new. The usual circuit
//! breaker, but that its half-open state is one delivery, and that a pause is never longer than a
//! quarter of the outage so far: a backend that comes back is found in a quarter of the time it was
//! away.

use std::time::Duration;

/// So many failures without a success between them are no accident.
const STREAK: usize = 8;
/// Of one at a time, too, more than one: an accident must not cost the rest.
const STREAK_LEAST: usize = 3;
/// The first pause: short, because most that trip it are over in a moment.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// The part of the outage so far that a pause may last.
const PAUSE_PART: f64 = 0.25;
/// The longest: a backend that has come back is found within a minute.
const PAUSE_LONGEST: Duration = Duration::from_secs(60);

/// Pauses deliveries, and probes with one at a time after a pause that failures caused.
#[derive(Debug, Default)]
pub struct CircuitBreaker {
    paused_until: Duration,
    tripped_at: Duration,
    succeeded_at: Duration,
    streak: usize,
    /// Pauses since the last success; one attempt at a time if any.
    trips: u32,
}

impl CircuitBreaker {
    /// When the pause ends that holds at `now`.
    pub fn pause_ends(&self, now: Duration) -> Option<Duration> {
        (now < self.paused_until).then_some(self.paused_until)
    }

    /// Whether only one attempt at a time may be under way.
    pub fn is_probing(&self) -> bool {
        self.trips > 0
    }

    /// The backend asked to be left alone.
    pub fn pause(&mut self, pause: Duration, now: Duration) {
        self.paused_until = self.paused_until.max(now + pause);
        self.streak = 0;
    }

    /// A delivery that began then succeeded; tells whether that ends the probing.
    pub fn succeeded(&mut self, began: Duration, now: Duration) -> bool {
        self.streak = 0;
        self.succeeded_at = now;
        let is_news = self.trips > 0 && began >= self.tripped_at;
        if is_news {
            self.trips = 0;
        }
        is_news
    }

    /// A delivery failed that began after the last cut, while `limit` were allowed. Tells whether
    /// that trips it. It does not if something else succeeded a moment ago (`silence`): then the
    /// backend refuses what is too much for it, and that is for the limit to learn.
    pub fn failed(&mut self, failure: &Failure, now: Duration, chance: f64) -> bool {
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
        // The upper half, so that several that failed together do not return together.
        let pause = bound.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0);
        self.paused_until = self.paused_until.max(now + pause);
        self.trips += 1;
        self.tripped_at = now;
        self.streak = 0;
        true
    }
}

/// A delivery that failed.
pub struct Failure {
    pub began: Duration,
    /// How many were allowed.
    pub limit: usize,
    /// How long nothing must have succeeded for it to count.
    pub silence: Duration,
}
