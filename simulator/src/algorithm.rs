//! The limiters that are compared.

mod aimd;
mod fixed;
mod vector;

use std::time::Duration;

use spillway_limiter::{Bounds, Limiter, Sample};

use crate::scenario::Client;

/// What the drain asks of a limiter; as of [`Limiter`].
pub trait Algorithm {
    /// Whether one more may begin.
    fn admit(&mut self, in_flight: usize, now: Duration) -> bool;
    /// When time alone changes that.
    fn wakes_at(&self, now: Duration) -> Option<Duration>;
    /// One ended.
    fn ended(&mut self, sample: &Sample, now: Duration, chance: f64);
    /// How many may be under way.
    fn concurrency(&self, now: Duration) -> usize;
}

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The downstreamer's.
    Spillway,
    /// 32 at once, whatever happens.
    Fixed,
    /// One more each round trip, half after a failure.
    Aimd,
    /// Vector's adaptive request concurrency.
    Vector,
}

impl Kind {
    /// All, ours first.
    pub const ALL: [Self; 4] = [Self::Spillway, Self::Fixed, Self::Aimd, Self::Vector];

    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spillway => "spillway",
            Self::Fixed => "fixed 32",
            Self::Aimd => "AIMD",
            Self::Vector => "Vector ARC",
        }
    }

    /// A new one within the client's bounds.
    pub fn build(self, client: &Client) -> Box<dyn Algorithm> {
        match self {
            Self::Spillway => Box::new(Limiter::new(Bounds {
                concurrency_min: client.concurrency_min,
                concurrency_max: client.concurrency_max,
                rate_max: client.rate_max,
            })),
            Self::Fixed => Box::new(fixed::Fixed(32.min(client.concurrency_max))),
            Self::Aimd => Box::new(aimd::Aimd::new(client.concurrency_max)),
            Self::Vector => Box::new(vector::Vector::new(client.concurrency_max)),
        }
    }
}

impl Algorithm for Limiter {
    fn admit(&mut self, in_flight: usize, now: Duration) -> bool {
        self.admit(in_flight, now)
    }

    fn wakes_at(&self, now: Duration) -> Option<Duration> {
        self.wakes_at(now)
    }

    fn ended(&mut self, sample: &Sample, now: Duration, chance: f64) {
        self.ended(sample, now, chance);
    }

    fn concurrency(&self, now: Duration) -> usize {
        self.concurrency(now)
    }
}
