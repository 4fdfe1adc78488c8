//! Measurement of the latency at one limit: the logarithm of its mean, and the error of that.
//!
//! The mean is used because Little's law holds for the mean only. A median ignores a heavy half of
//! the work, and a geometric mean takes a small queue for a large one. The logarithm is used
//! because only ratios of latencies matter.
//!
//! Samples are gathered into slices of a round trip. The error is also estimated from the
//! differences between slices, because noise that lasts longer than a request makes samples alike.
//! Every delivery that ends after the last change of the limit has taken effect is counted:
//! counting only those that began since then would count the short ones first. A window is a few
//! sums and allocates no memory.

use std::time::Duration;

use crate::Sample;

/// Minimum length of a slice. The noise of a machine lasts about as long.
const SLICE: Duration = Duration::from_millis(20);
/// Latencies below this, in seconds, count as equal.
const LATENCY_MIN: f64 = 1e-5;
/// Part of the slices in which the limit must have been reached for it to count as used.
pub(crate) const BUSY: f64 = 0.8;
/// Minimum error: no measurement is more exact.
const ERROR_MIN: f64 = 0.005;

/// Sums over samples.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SampleSums {
    pub count: f64,
    latency: f64,
    squares: f64,
    in_flight: f64,
}

impl SampleSums {
    fn add(&mut self, latency: f64, in_flight: f64) {
        self.count += 1.0;
        self.latency += latency;
        self.squares += latency * latency;
        self.in_flight += in_flight;
    }

    /// Sums of both tallies.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            latency: self.latency + other.latency,
            squares: self.squares + other.squares,
            in_flight: self.in_flight + other.in_flight,
        }
    }

    /// Logarithm of the mean latency in seconds.
    pub(crate) fn latency(&self) -> f64 {
        self.mean().max(LATENCY_MIN).ln()
    }

    fn mean(&self) -> f64 {
        self.latency / self.count.max(1.0)
    }

    /// Mean number of deliveries under way when one began, including itself.
    pub(crate) fn in_flight(&self) -> f64 {
        self.in_flight / self.count.max(1.0)
    }

    /// Variance of one sample, in squares of the mean.
    pub(crate) fn variance(&self) -> f64 {
        let mean = self.mean().max(LATENCY_MIN);
        let spread = self.squares / (mean * mean) - self.count;
        (spread / (self.count - 1.0).max(1.0)).max(0.0)
    }
}

/// Measurement at one limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitSample {
    /// Logarithm of the mean latency.
    pub latency: f64,
    /// Standard error of `latency`.
    pub error: f64,
    /// Mean number of deliveries under way.
    pub in_flight: f64,
    /// Deliveries per second.
    pub rate: f64,
    /// Part of the slices in which only the limit kept more from being under way.
    pub busy: f64,
    /// Variance of one sample, from which the error is derived, in squares of the mean.
    pub noise: f64,
}

/// Stage of a window.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Waits until the first delivery that began after the change ends, and until most of those
    /// from before have ended.
    Settling {
        changed_at: Duration,
    },
    Counting,
}

/// Round trips after a change until most deliveries from before it have ended.
const SETTLED: f64 = 2.5;

/// Gathers samples since a change of the limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleWindow {
    stage: Stage,
    opened_at: Duration,
    /// Time for which it had been counting when it was last opened.
    counted: Duration,
    slice_opened_at: Duration,
    slice: SampleSums,
    total: SampleSums,
    /// Closed slices: their number here, then the mean and the sum of squared differences of their
    /// latencies.
    slices: f64,
    slices_mean: f64,
    slices_spread: f64,
    slices_limited: f64,
    is_limited: bool,
    last_at: Duration,
}

impl SampleWindow {
    /// Creates a window that counts deliveries that end after `from`.
    pub(crate) fn counting(from: Duration) -> Self {
        Self {
            stage: Stage::Counting,
            opened_at: from,
            counted: Duration::ZERO,
            slice_opened_at: from,
            slice: SampleSums::default(),
            total: SampleSums::default(),
            slices: 0.0,
            slices_mean: 0.0,
            slices_spread: 0.0,
            slices_limited: 0.0,
            is_limited: false,
            last_at: from,
        }
    }

    /// Creates a window that counts deliveries that end once a change at `changed_at` has taken
    /// effect.
    pub(crate) fn settling(changed_at: Duration) -> Self {
        Self { stage: Stage::Settling { changed_at }, ..Self::counting(changed_at) }
    }

    /// Continues with the present sums, once the limit is back at its old value.
    pub(crate) fn resettle(&mut self, changed_at: Duration) {
        self.counted = self.age();
        self.slice = SampleSums::default();
        (self.opened_at, self.last_at) = (changed_at, changed_at);
        self.stage = Stage::Settling { changed_at };
    }

    /// Adds a sample. Returns the slice that it closes, if any. `round_trip` is about the time of
    /// one delivery.
    pub(crate) fn add(
        &mut self,
        sample: &Sample,
        round_trip: Duration,
        now: Duration,
    ) -> Option<SampleSums> {
        if let Stage::Settling { changed_at } = self.stage {
            if sample.began >= changed_at && now >= changed_at + round_trip.mul_f64(SETTLED) {
                self.stage = Stage::Counting;
                self.opened_at = now;
                self.slice_opened_at = now;
                self.last_at = now;
            }
            return None;
        }
        let latency = now.saturating_sub(sample.began).as_secs_f64();
        self.slice.add(latency, count(sample.in_flight.max(1)));
        self.last_at = now;
        let length = SLICE.as_secs_f64().max(self.slice.mean());
        // A request as long as the slice may be measured slightly too short.
        let is_over = (now.saturating_sub(self.slice_opened_at)).as_secs_f64() >= length * 0.99;
        is_over.then(|| self.close(now))
    }

    /// Records that only the limit kept a delivery from beginning.
    pub(crate) fn limited(&mut self) {
        self.is_limited = true;
    }

    /// True if the limit kept a delivery from beginning at least once in this window.
    pub(crate) fn was_limited(&self) -> bool {
        self.is_limited || self.slices_limited > 0.0
    }

    /// True if the limit did so in at least [`BUSY`] of the slices, including the open one.
    pub(crate) fn was_busy(&self) -> bool {
        let open = f64::from(u8::from(self.is_limited));
        self.slices_limited + open >= BUSY * (self.slices + open) && self.was_limited()
    }

    fn close(&mut self, now: Duration) -> SampleSums {
        self.slices_limited += f64::from(u8::from(std::mem::take(&mut self.is_limited)));
        let slice = std::mem::take(&mut self.slice);
        self.total = self.total.with(slice);
        self.slices += 1.0;
        let off = slice.mean() - self.slices_mean;
        self.slices_mean += off / self.slices;
        self.slices_spread += off * (slice.mean() - self.slices_mean);
        self.slice_opened_at = now;
        slice
    }

    /// Number of closed slices.
    pub(crate) fn slices(&self) -> f64 {
        self.slices
    }

    /// Time for which the window has been counting.
    pub(crate) fn age(&self) -> Duration {
        self.counted + self.last_at.saturating_sub(self.opened_at)
    }

    /// Sums over all samples so far.
    pub(crate) fn tally(&self) -> SampleSums {
        self.total.with(self.slice)
    }

    /// Measurement from the closed slices.
    pub(crate) fn level(&self) -> LimitSample {
        let samples = self.total.variance() / self.total.count.max(1.0);
        let mean = self.slices_mean.max(LATENCY_MIN);
        let spread = self.slices_spread / (mean * mean);
        let slices = spread / (self.slices - 1.0).max(1.0) / self.slices.max(1.0);
        let age = self.age().as_secs_f64().max(1e-6);
        LimitSample {
            latency: self.total.latency(),
            error: samples.max(slices).sqrt().max(ERROR_MIN),
            in_flight: self.total.in_flight(),
            rate: self.total.count / age,
            busy: self.slices_limited / self.slices.max(1.0),
            noise: samples.max(slices) * self.total.count,
        }
    }
}

/// Converts a count to a floating-point number.
pub(crate) fn count(number: usize) -> f64 {
    // Exact up to 2^53, far above any concurrency.
    number as f64
}
