//! Additive increase, multiplicative decrease, as in TCP Reno. The limit grows by one each round
//! trip while it is used, and is halved at a sign of overload, at most once a round trip. Latency
//! does not count.

use std::time::Duration;

use spillway_limiter::{Sample, Signal};

use super::Algorithm;

pub(super) struct Aimd {
    limit: f64,
    max: f64,
    cut_at: Duration,
}

impl Aimd {
    pub(super) fn new(max: usize) -> Self {
        Self { limit: 1.0, max: max as f64, cut_at: Duration::ZERO }
    }
}

impl Algorithm for Aimd {
    fn admit(&mut self, in_flight: usize, now: Duration) -> bool {
        in_flight < self.concurrency(now)
    }

    fn wakes_at(&self, _: Duration) -> Option<Duration> {
        None
    }

    fn ended(&mut self, sample: &Sample, now: Duration, _: f64) {
        match sample.signal {
            Signal::Done if sample.in_flight >= self.limit as usize => {
                self.limit = (self.limit + 1.0 / self.limit).min(self.max);
            }
            Signal::Done | Signal::Failed => {}
            Signal::Overloaded { .. }
            | Signal::Unavailable { .. }
            | Signal::TimedOut
            | Signal::Broken => {
                if sample.began >= self.cut_at {
                    self.limit = (self.limit / 2.0).max(1.0);
                    self.cut_at = now;
                }
            }
        }
    }

    fn concurrency(&self, _: Duration) -> usize {
        self.limit as usize
    }
}
