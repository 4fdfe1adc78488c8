//! What the latency is at one limit: the logarithm of its mean, and how far off that may be.
//!
//! The mean, because Little's law holds for it and for nothing else: a median does not see the half
//! of the work that is heavy, and a geometric mean takes a small queue for a large one. The
//! logarithm of it, because only ratios of latencies matter.
//!
//! Samples are gathered into slices of a round trip; the error is estimated from how much the
//! slices differ, too, because noise that lasts longer than a request makes samples alike. Counted
//! is all that ends once the last change of the limit has taken effect: who counted only what began
//! since would count the short ones first. A few sums: no memory.

use std::time::Duration;

use crate::Sample;

/// A slice is at least so long: the noise of a machine comes in such pieces.
const SLICE: Duration = Duration::from_millis(20);
/// Latencies below this are all the same.
const LATENCY_MIN: f64 = 1e-5;
/// A limit that was reached in this part of the slices is used.
pub const BUSY: f64 = 0.8;
/// No measurement is more exact than this.
const ERROR_MIN: f64 = 0.005;

/// Sums over samples.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub count: f64,
    latency: f64,
    squares: f64,
    in_flight: f64,
}

impl Tally {
    fn add(&mut self, latency: f64, in_flight: f64) {
        self.count += 1.0;
        self.latency += latency;
        self.squares += latency * latency;
        self.in_flight += in_flight;
    }

    /// Both together.
    pub fn with(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            latency: self.latency + other.latency,
            squares: self.squares + other.squares,
            in_flight: self.in_flight + other.in_flight,
        }
    }

    /// The logarithm of the mean latency in seconds.
    pub fn latency(&self) -> f64 {
        self.mean().max(LATENCY_MIN).ln()
    }

    fn mean(&self) -> f64 {
        self.latency / self.count.max(1.0)
    }

    /// How many were under way on the average when one began, itself included.
    pub fn in_flight(&self) -> f64 {
        self.in_flight / self.count.max(1.0)
    }

    /// The variance of one sample, in squares of the mean.
    pub fn variance(&self) -> f64 {
        let mean = self.mean().max(LATENCY_MIN);
        let spread = self.squares / (mean * mean) - self.count;
        (spread / (self.count - 1.0).max(1.0)).max(0.0)
    }
}

/// What was measured at one limit.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// Logarithm of the mean latency.
    pub latency: f64,
    /// Its standard error.
    pub error: f64,
    /// Mean of what was under way.
    pub in_flight: f64,
    /// Deliveries a second.
    pub rate: f64,
    /// The part of the slices in which only the limit kept more from being under way.
    pub busy: f64,
    /// The variance of one sample that the error comes from, in squares of the mean.
    pub noise: f64,
}

/// Where a window stands.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Waits for the first that began after the change to end, and for most that began before.
    Settling {
        changed_at: Duration,
    },
    Counting,
}

/// So many round trips after a change most of what began before it has ended.
const SETTLED: f64 = 2.5;

/// Gathers samples since a change of the limit.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    stage: Stage,
    opened_at: Duration,
    /// How long it had been counting when it was last opened.
    counted: Duration,
    slice_opened_at: Duration,
    slice: Tally,
    total: Tally,
    /// Closed slices, the mean and the sum of squared differences of their latencies.
    slices: f64,
    slices_mean: f64,
    slices_spread: f64,
    slices_limited: f64,
    is_limited: bool,
    last_at: Duration,
}

impl Window {
    /// Counts what ends after `from`.
    pub fn counting(from: Duration) -> Self {
        Self {
            stage: Stage::Counting,
            opened_at: from,
            counted: Duration::ZERO,
            slice_opened_at: from,
            slice: Tally::default(),
            total: Tally::default(),
            slices: 0.0,
            slices_mean: 0.0,
            slices_spread: 0.0,
            slices_limited: 0.0,
            is_limited: false,
            last_at: from,
        }
    }

    /// Counts what ends once a change at `changed_at` has taken effect.
    pub fn settling(changed_at: Duration) -> Self {
        Self { stage: Stage::Settling { changed_at }, ..Self::counting(changed_at) }
    }

    /// Goes on with what it has, once the limit is back where it was.
    pub fn resettle(&mut self, changed_at: Duration) {
        self.counted = self.age();
        self.slice = Tally::default();
        (self.opened_at, self.last_at) = (changed_at, changed_at);
        self.stage = Stage::Settling { changed_at };
    }

    /// Adds a sample; gives the slice that it closes. `round_trip`: about how long one takes.
    pub fn add(&mut self, sample: &Sample, round_trip: Duration, now: Duration) -> Option<Tally> {
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
        // A request of the length of the slice may be measured a little short.
        let is_over = (now.saturating_sub(self.slice_opened_at)).as_secs_f64() >= length * 0.99;
        is_over.then(|| self.close(now))
    }

    /// More could be under way but for the limit.
    pub fn limited(&mut self) {
        self.is_limited = true;
    }

    /// Whether that was so of late.
    pub fn was_limited(&self) -> bool {
        self.is_limited || self.slices_limited > 0.0
    }

    /// Whether that was so nearly all the time, the slice that is open included.
    pub fn was_busy(&self) -> bool {
        let open = f64::from(u8::from(self.is_limited));
        self.slices_limited + open >= BUSY * (self.slices + open) && self.was_limited()
    }

    fn close(&mut self, now: Duration) -> Tally {
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

    /// Closed slices.
    pub fn slices(&self) -> f64 {
        self.slices
    }

    /// How long it has been counting.
    pub fn age(&self) -> Duration {
        self.counted + self.last_at.saturating_sub(self.opened_at)
    }

    /// All samples so far.
    pub fn tally(&self) -> Tally {
        self.total.with(self.slice)
    }

    /// What the closed slices say.
    pub fn level(&self) -> Level {
        let samples = self.total.variance() / self.total.count.max(1.0);
        let mean = self.slices_mean.max(LATENCY_MIN);
        let spread = self.slices_spread / (mean * mean);
        let slices = spread / (self.slices - 1.0).max(1.0) / self.slices.max(1.0);
        let age = self.age().as_secs_f64().max(1e-6);
        Level {
            latency: self.total.latency(),
            error: samples.max(slices).sqrt().max(ERROR_MIN),
            in_flight: self.total.in_flight(),
            rate: self.total.count / age,
            busy: self.slices_limited / self.slices.max(1.0),
            noise: samples.max(slices) * self.total.count,
        }
    }
}

/// A count as a number to reckon with.
pub fn count(number: usize) -> f64 {
    // Exact up to 2^53, far above any concurrency.
    number as f64
}
