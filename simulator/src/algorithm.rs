//! Limiters that are compared with each other.

mod aimd;
mod fixed;
mod vector;

use std::time::Duration;

use spillway_limiter::{Bounds, Limiter, Sample};

use crate::scenario::Client;

/// Operations that the consumer needs of a limiter; see [`Limiter`].
pub trait Algorithm {
    /// Returns true if one more request may begin.
    fn admit(&mut self, in_flight: usize, now: Duration) -> bool;
    /// Time at which that changes without any event.
    fn wakes_at(&self, now: Duration) -> Option<Duration>;
    /// Notes that a request ended.
    fn ended(&mut self, sample: &Sample, now: Duration, chance: f64);
    /// Number of requests that may be under way.
    fn concurrency(&self, now: Duration) -> usize;
}

/// Kind of limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The limiter of the downstreamer.
    Spillway,
    /// A fixed limit of 32.
    Fixed,
    /// Additive increase, multiplicative decrease: one more each round trip, half after a failure.
    Aimd,
    /// Vector's adaptive request concurrency.
    Vector,
}

impl Kind {
    /// All kinds, the downstreamer's first.
    pub const ALL: [Self; 4] = [Self::Spillway, Self::Fixed, Self::Aimd, Self::Vector];

    /// Name in the reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spillway => "spillway",
            Self::Fixed => "fixed 32",
            Self::Aimd => "AIMD",
            Self::Vector => "Vector ARC",
        }
    }

    /// Creates a limiter of this kind within the client's bounds.
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
