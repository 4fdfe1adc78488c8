//! A fixed concurrency limit, as from a configuration file.

use std::time::Duration;

use spillway_limiter::Sample;

use super::Algorithm;

pub(super) struct Fixed(pub usize);

impl Algorithm for Fixed {
    fn admit(&mut self, in_flight: usize, _: Duration) -> bool {
        in_flight < self.0
    }

    fn wakes_at(&self, _: Duration) -> Option<Duration> {
        None
    }

    fn ended(&mut self, _: &Sample, _: Duration, _: f64) {}

    fn concurrency(&self, _: Duration) -> usize {
        self.0
    }
}
