//! Vector's adaptive request concurrency, from its public description (the blog post of that name
//! and the documentation of `request.adaptive_concurrency`), with its defaults. The limit begins
//! with one and is at most 200. Once a round trip it grows by one if it was reached and the latency
//! is no longer than before. It shrinks by a tenth if there was a retriable error, or if the
//! latency exceeds its moving average (0.4 of each new one) by 2.5 of its deviations. Latencies
//! that differ by less than 0.1 % count as equal. Otherwise rounding would decide if nothing varies
//! and the deviation is 0.

use std::time::Duration;

use spillway_limiter::{Sample, Signal};

use super::Algorithm;

const DECREASE_RATIO: f64 = 0.9;
const EWMA_ALPHA: f64 = 0.4;
const RTT_DEVIATION_SCALE: f64 = 2.5;
const EQUAL: f64 = 1.001;
const CONCURRENCY_MAX: usize = 200;

pub(super) struct Vector {
    limit: usize,
    max: usize,
    /// Moving average and variance of the latency, in seconds.
    past: Option<(f64, f64)>,
    sum: f64,
    count: f64,
    was_reached: bool,
    had_back_pressure: bool,
    next_at: Duration,
}

impl Vector {
    pub(super) fn new(max: usize) -> Self {
        Self {
            limit: 1,
            max: max.min(CONCURRENCY_MAX),
            past: None,
            sum: 0.0,
            count: 0.0,
            was_reached: false,
            had_back_pressure: false,
            next_at: Duration::ZERO,
        }
    }

    fn adjust(&mut self, now: Duration) {
        let current = self.sum / self.count;
        let (mean, variance) = self.past.unwrap_or((current, 0.0));
        let threshold = variance.sqrt() * RTT_DEVIATION_SCALE;
        if self.had_back_pressure || current > mean * EQUAL + threshold {
            self.limit = ((self.limit as f64 * DECREASE_RATIO) as usize).max(1);
        } else if self.was_reached && current <= mean * EQUAL {
            self.limit = (self.limit + 1).min(self.max);
        }
        let off = current - mean;
        let mean = mean + EWMA_ALPHA * off;
        self.past = Some((mean, (1.0 - EWMA_ALPHA) * (variance + EWMA_ALPHA * off * off)));
        self.next_at = now + Duration::from_secs_f64(mean);
        (self.sum, self.count) = (0.0, 0.0);
        (self.was_reached, self.had_back_pressure) = (false, false);
    }
}

impl Algorithm for Vector {
    fn admit(&mut self, in_flight: usize, _: Duration) -> bool {
        in_flight < self.limit
    }

    fn wakes_at(&self, _: Duration) -> Option<Duration> {
        None
    }

    fn ended(&mut self, sample: &Sample, now: Duration, _: f64) {
        self.had_back_pressure |= sample.signal != Signal::Done;
        self.was_reached |= sample.in_flight >= self.limit;
        self.sum += now.saturating_sub(sample.began).as_secs_f64();
        self.count += 1.0;
        if now >= self.next_at {
            self.adjust(now);
        }
    }

    fn concurrency(&self, _: Duration) -> usize {
        self.limit
    }
}
