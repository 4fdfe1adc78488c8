//! Limits how many deliveries may be under way at a backend, and how many may begin a second, by
//! what its answers say.
//!
//! Three parts, each with a rule of its own; the strictest wins:
//!
//! - the concurrency limiter (`concurrency.rs`) finds the concurrency at which the backend is busy
//!   and nothing queues there, by experiments on the latency;
//! - the pacer (`pacer.rs`) is a token bucket: `MAX_RATE`, and a cap that many 429 set;
//! - the circuit breaker (`breaker.rs`) pauses: as long as `Retry-After` asks, or, when nothing
//!   succeeds any more, for a time that doubles, with one attempt at a time between.
//!
//! Never more than `concurrency_max`, nor `rate_max`. A 5xx other than 503 changes nothing: it says
//! nothing about room, and one resource that always fails must not slow the others. Pure: time and
//! chance are arguments. Each sample costs the same few operations and no memory.

mod breaker;
mod concurrency;
mod pacer;
mod window;

use std::time::Duration;

use breaker::{CircuitBreaker, Failure};
use concurrency::ConcurrencyLimiter;
use pacer::Pacer;

/// A quota that is counted by the second refuses everything for most of one. Only a longer silence
/// is for the circuit breaker.
const QUOTA_SILENCE: Duration = Duration::from_millis(1500);

/// What the operator allows.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The concurrency limiter goes no lower. A pause does, and so does a backend that is probed.
    pub concurrency_min: usize,
    /// Nothing goes higher.
    pub concurrency_max: usize,
    /// Per second.
    pub rate_max: Option<f64>,
}

/// A delivery that ended.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// When it was admitted.
    pub began: Duration,
    /// How many were under way when it began, itself included.
    pub in_flight: usize,
    /// How it ended.
    pub signal: Signal,
}

/// What a delivery's end says about the backend's room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The backend did its work: 2xx, and 3xx or 4xx that refuse the webhook.
    Done,
    /// A 5xx other than 503: it says nothing about room.
    Failed,
    /// 429.
    Overloaded {
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// 503.
    Unavailable {
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// No answer in time.
    TimedOut,
    /// The connection was refused or reset.
    Broken,
}

/// Decides how much may be under way. Times are durations since an arbitrary start.
#[derive(Debug)]
pub struct Limiter {
    concurrency: ConcurrencyLimiter,
    pacer: Pacer,
    breaker: CircuitBreaker,
}

impl Limiter {
    /// Knows nothing yet: it begins with one at a time, or `concurrency_min`.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            concurrency: ConcurrencyLimiter::new(bounds.concurrency_min, bounds.concurrency_max),
            pacer: Pacer::new(bounds.rate_max),
            breaker: CircuitBreaker::default(),
        }
    }

    /// Whether a delivery may begin at `now` while `in_flight` are under way. If so it counts
    /// against the rate. To be asked only when there is something to send: a refusal tells that more
    /// could be under way, and only then is more tried.
    pub fn admit(&mut self, in_flight: usize, now: Duration) -> bool {
        let has_room = in_flight < self.concurrency(now);
        if !has_room && !self.is_paused(now) {
            self.concurrency.limited();
        }
        has_room && self.pacer.take(now)
    }

    /// What was admitted last was not sent after all.
    pub fn unused(&mut self) {
        self.pacer.give_back();
    }

    /// When time alone will change the answer: a pause ends, or the rate allows another.
    pub fn wakes_at(&self, now: Duration) -> Option<Duration> {
        self.breaker.pause_ends(now).or_else(|| self.pacer.refills_at(now))
    }

    /// How many may be under way at `now`; none in a pause.
    pub fn concurrency(&self, now: Duration) -> usize {
        if self.is_paused(now) {
            0
        } else if self.breaker.is_probing() {
            1
        } else {
            self.concurrency.limit()
        }
    }

    /// Whether nothing may begin at `now`.
    pub fn is_paused(&self, now: Duration) -> bool {
        self.breaker.pause_ends(now).is_some()
    }

    /// A delivery that was admitted ended. `chance` is uniform in [0, 1).
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
        // A 429 is the rate's: that bounds what is under way, too, by Little's law. Cutting both
        // keeps the quota no better and the rate lower.
        if !matches!(sample.signal, Signal::Overloaded { .. }) {
            self.concurrency.troubled(sample, now);
        }
        // Nobody listens at all where connections break; a backend that answers may be just full.
        let is_full = sample.signal != Signal::Broken;
        let silence = match sample.signal {
            Signal::Broken => Duration::ZERO,
            Signal::Overloaded { .. } => QUOTA_SILENCE.max(2 * self.concurrency.latency()),
            _ => 2 * self.concurrency.latency(),
        };
        let failure = Failure { began: sample.began, limit, silence };
        if (is_news || is_full) && self.breaker.failed(&failure, now, chance) {
            self.concurrency.restart(now);
        }
    }
}

#[cfg(test)]
mod tests;
