//! Stand-in until the adaptive limiter is here: as many as are allowed.
use std::time::Duration;
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub concurrency_min: usize,
    pub concurrency_max: usize,
    pub rate_max: Option<f64>,
}
#[derive(Debug)]
pub struct Limiter {
    bounds: Bounds,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Done,
    Failed,
    Overloaded { retry_after: Option<Duration> },
    Unavailable { retry_after: Option<Duration> },
    TimedOut,
    Broken,
}
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub began: Duration,
    pub in_flight: usize,
    pub signal: Signal,
}
impl Limiter {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds }
    }
    pub fn admit(&mut self, in_flight: usize, _now: Duration) -> bool {
        in_flight < self.bounds.concurrency_max
    }
    pub fn wakes_at(&self, _now: Duration) -> Option<Duration> {
        None
    }
    pub fn ended(&mut self, _sample: &Sample, _now: Duration, _chance: f64) {}
    pub fn concurrency(&self, _now: Duration) -> usize {
        self.bounds.concurrency_max
    }
    pub fn is_paused(&self, _now: Duration) -> bool {
        false
    }
}
