//! How much may be under way at the backend at once, and how fast: learnt from its answers.
//!
//! Three parts, each with its own rule, and the strictest wins:
//!
//! - `search` finds the concurrency at which the backend is busy and nothing queues there, by
//!   experiments on the latency;
//! - `pace` is a token bucket: `MAX_RATE`, and a cap that many 429 arm;
//! - `breaker` pauses: as long as `Retry-After` asks, or, when nothing succeeds any more, for a
//!   time that doubles, with one attempt at a time between.
//!
//! Never more than `concurrency_max`, nor `rate_max`. A 5xx other than 503 changes nothing: it says
//! nothing about room, and one resource that always fails must not slow the others. Pure: time and
//! chance are arguments. Each sample costs the same few operations and no memory.

mod breaker;
mod pace;
mod search;
mod window;

use std::time::Duration;

use breaker::{Breaker, Failure};
use pace::Pace;
use search::Search;

/// What the operator allows.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The search goes no lower. A pause does, and so does a backend that is probed.
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
    search: Search,
    pace: Pace,
    breaker: Breaker,
}

impl Limiter {
    /// Knows nothing yet: it begins with one at a time, or `concurrency_min`.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            search: Search::new(bounds.concurrency_min, bounds.concurrency_max),
            pace: Pace::new(bounds.rate_max),
            breaker: Breaker::default(),
        }
    }

    /// Whether a delivery may begin at `now` while `in_flight` are under way. If so it counts
    /// against the rate. To be asked only when there is something to send: a refusal tells that more
    /// could be under way, and only then is more tried.
    pub fn admit(&mut self, in_flight: usize, now: Duration) -> bool {
        let has_room = in_flight < self.concurrency(now);
        if !has_room && !self.is_paused(now) {
            self.search.limited();
        }
        has_room && self.pace.take(now)
    }

    /// What was admitted last was not sent after all.
    pub fn unused(&mut self) {
        self.pace.give_back();
    }

    /// When time alone will change the answer: a pause ends, or the rate allows another.
    pub fn wakes_at(&self, now: Duration) -> Option<Duration> {
        self.breaker.pause_ends(now).or_else(|| self.pace.refills_at(now))
    }

    /// How many may be under way at `now`; none in a pause.
    pub fn concurrency(&self, now: Duration) -> usize {
        if self.is_paused(now) {
            0
        } else if self.breaker.is_probing() {
            1
        } else {
            self.search.limit()
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
                self.pace.done(now);
                if self.breaker.succeeded(sample.began, now) {
                    self.search.restart(now);
                }
                self.search.done(sample, now);
            }
            Signal::Failed => {}
            Signal::Overloaded { retry_after } => {
                self.pace.refused(sample.began, now);
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
            self.search.restart(now);
            return;
        }
        let limit = self.search.limit();
        let is_news = self.search.is_news(sample.began);
        // A 429 is the rate's: that bounds what is under way, too, by Little's law. Cutting both
        // keeps the quota no better and the rate lower.
        if !matches!(sample.signal, Signal::Overloaded { .. }) {
            self.search.troubled(sample, now);
        }
        // Nobody listens at all where connections break; who still answers may be just full.
        let is_full = sample.signal != Signal::Broken;
        let silence = if is_full { 2 * self.search.latency() } else { Duration::ZERO };
        let failure = Failure { began: sample.began, limit, silence };
        if (is_news || is_full) && self.breaker.failed(&failure, now, chance) {
            self.search.restart(now);
        }
    }
}

#[cfg(test)]
mod tests;
