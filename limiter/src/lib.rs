//! Limits the number of deliveries to a backend that are under way, and the number that begin each
//! second, by the backend's answers.
//!
//! There are three parts, each with its own rule. The strictest one wins:
//!
//! - The concurrency limiter (`concurrency.rs`) finds the concurrency at which the backend is busy
//!   and nothing queues there, by experiments on the latency.
//! - The pacer (`pacer.rs`) is a token bucket. Its rate is `MAX_RATE`, or a cap that many 429 set.
//! - The circuit breaker (`breaker.rs`) pauses: as long as `Retry-After` asks, or, when nothing
//!   succeeds any more, for a time that doubles, with one attempt at a time between pauses.
//!
//! `concurrency_max` and `rate_max` are never exceeded. A 5xx other than 503 changes nothing: it
//! carries no information about capacity, and one resource that always fails must not slow the
//! others. The crate is pure: time and random numbers are arguments. Each sample costs the same few
//! operations and no memory.

mod breaker;
mod concurrency;
mod pacer;
mod window;

use std::time::Duration;

use breaker::{CircuitBreaker, FailedDelivery};
use concurrency::ConcurrencyLimiter;
use pacer::Pacer;

/// A quota that is counted by the second refuses everything for most of a second. The circuit
/// breaker counts 429s only after a silence longer than that.
const QUOTA_SILENCE: Duration = Duration::from_millis(1500);

/// Bounds that the operator sets.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Minimum of the concurrency limiter. A pause goes below it, and so does probing.
    pub concurrency_min: usize,
    /// Maximum number of deliveries under way.
    pub concurrency_max: usize,
    /// Maximum number of deliveries that begin per second.
    pub rate_max: Option<f64>,
}

/// Result of a delivery that ended.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Time at which it was admitted.
    pub began: Duration,
    /// Number of deliveries under way when it began, including itself.
    pub in_flight: usize,
    /// Outcome of the delivery.
    pub signal: Signal,
}

/// Outcome of a delivery, as far as it shows the backend's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The backend did its work: 2xx, and 3xx or 4xx that refuse the webhook.
    Done,
    /// A 5xx other than 503, a 408 or 425, or nothing was sent: this says nothing about capacity.
    Failed,
    /// 429.
    Overloaded {
        /// Pause that the backend asks for.
        retry_after: Option<Duration>,
    },
    /// 503.
    Unavailable {
        /// Pause that the backend asks for.
        retry_after: Option<Duration>,
    },
    /// No answer in time.
    TimedOut,
    /// The connection was refused or reset.
    Broken,
}

/// Decides how many deliveries may be under way. Times are durations since an arbitrary start.
#[derive(Debug)]
pub struct Limiter {
    concurrency: ConcurrencyLimiter,
    pacer: Pacer,
    breaker: CircuitBreaker,
}

impl Limiter {
    /// Creates a limiter without knowledge. It begins with one delivery at a time, or
    /// `concurrency_min`.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            concurrency: ConcurrencyLimiter::new(bounds.concurrency_min, bounds.concurrency_max),
            pacer: Pacer::new(bounds.rate_max),
            breaker: CircuitBreaker::default(),
        }
    }

    /// Returns true if a delivery may begin at `now` while `in_flight` are under way. An admitted
    /// delivery counts against the rate. Call this only when there is something to send: a refusal
    /// shows that more could be under way, and only then a higher limit is tried.
    pub fn admit(&mut self, in_flight: usize, now: Duration) -> bool {
        let has_room = in_flight < self.concurrency(now);
        if !has_room && !self.is_paused(now) {
            self.concurrency.limited();
        }
        has_room && self.pacer.take(now)
    }

    /// Takes back the last admission, whose delivery was not sent.
    pub fn unused(&mut self) {
        self.pacer.give_back();
    }

    /// Returns the time at which the answer changes without an event: a pause ends, or the rate
    /// allows another delivery.
    pub fn wakes_at(&self, now: Duration) -> Option<Duration> {
        self.breaker.pause_ends(now).or_else(|| self.pacer.refills_at(now))
    }

    /// Number of deliveries that may be under way at `now`; 0 in a pause.
    pub fn concurrency(&self, now: Duration) -> usize {
        if self.is_paused(now) {
            0
        } else if self.breaker.is_probing() {
            1
        } else {
            self.concurrency.limit()
        }
    }

    /// True if nothing may begin at `now`.
    pub fn is_paused(&self, now: Duration) -> bool {
        self.breaker.pause_ends(now).is_some()
    }

    /// Records the end of an admitted delivery. `chance` is uniform in [0, 1).
    pub fn ended(&mut self, sample: &Sample, now: Duration, chance: f64) {
        match sample.signal {
            Signal::Done => {
                self.pacer.done(now);
                if self.breaker.succeeded(sample.began, now) {
                    self.concurrency.restart(now);
                }
                self.concurrency.done(sample, now);
            }
            Signal::Failed => {}
            Signal::Overloaded { retry_after } => {
                self.pacer.refused(sample.began, now);
                self.failed(sample, retry_after, now, chance);
            }
            Signal::Unavailable { retry_after } => self.failed(sample, retry_after, now, chance),
            Signal::TimedOut | Signal::Broken => self.failed(sample, None, now, chance),
        }
    }

    fn failed(
        &mut self,
        sample: &Sample,
        retry_after: Option<Duration>,
        now: Duration,
        chance: f64,
    ) {
        if let Some(pause) = retry_after {
            self.breaker.pause(pause, now);
            self.concurrency.restart(now);
            return;
        }
        let limit = self.concurrency.limit();
        let is_news = self.concurrency.is_news(sample.began);
        // A 429 is handled by the rate, which by Little's law also bounds what is under way.
        // Cutting both does not keep the quota better, and lowers the rate.
        if !matches!(sample.signal, Signal::Overloaded { .. }) {
            self.concurrency.troubled(sample, now);
        }
        // If connections break, no process listens. A backend that answers may just be full.
        let is_full = sample.signal != Signal::Broken;
        let silence = match sample.signal {
            Signal::Broken => Duration::ZERO,
            Signal::Overloaded { .. } => QUOTA_SILENCE.max(2 * self.concurrency.latency()),
            _ => 2 * self.concurrency.latency(),
        };
        let failure = FailedDelivery { began: sample.began, limit, silence };
        if (is_news || is_full) && self.breaker.failed(&failure, now, chance) {
            self.concurrency.restart(now);
        }
    }
}

#[cfg(test)]
mod tests;
