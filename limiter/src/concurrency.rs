//! The concurrency limiter: finds, by experiments, the concurrency at which the backend is busy and
//! nothing queues there.
//!
//! Little's law is the base: in a closed loop with `n` deliveries under way and a mean latency `r`,
//! the goodput is `n/r`. Below the knee, more in flight brings proportionally more goodput at the
//! same latency. Above the knee it brings only latency. So two limits, measured one after the
//! other, show the knee: it is the concurrency of the larger limit, scaled by the ratio of the
//! smaller limit's latency to the larger one's.
//!
//! - **Start** (`start`): the limit doubles until the latency rises.
//! - **Rest** (this file): the latency is watched.
//! - **Up** (`experiment`), every second to every few seconds: a slightly higher limit is tried. It
//!   is kept as far as it brought goodput, at least 3 %. If all of it did, a bigger step follows at
//!   once.
//! - **Down**: a lower limit is tried when the latency is above its base, at once if far above, and
//!   twice a minute in any case. If the goodput falls with the limit, there was no queue: then the
//!   base has risen, and the limit returns.
//!
//! So the base is a minimum that rises only by measurement, or when none of our deliveries can
//! queue. It never rises by waiting, which would turn a standing queue into the new normal.
//! Latencies vary, by a third on a busy machine and by more than their mean in most backends: each
//! step is as big, and each window as long, as the measured noise requires. The limit grows only if
//! nothing else keeps more from being under way.
//!
//! The queue estimate and the slow start come from Vegas (Brakmo 1994; Netflix concurrency-limits),
//! the probing in both directions from BBR (Cardwell 2016), the measured minimum from Envoy. New is
//! that a cut is an experiment too, and that measured errors decide. A first version, with a limit
//! of `L·(1 − base/p50)` per window, took noise for a queue (the minimum of many noisy windows is
//! no base) and a backend that had become slower for a full one.

mod experiment;
mod start;
mod trouble;

use std::time::Duration;

use crate::Sample;
use crate::window::{BUSY, LimitSample, SampleSums, SampleWindow, count};
use trouble::Trouble;

/// Latencies below this, in seconds, are equally good: nobody waits for so little, and what varies there
/// is who gets the processor next as much as a queue. Up to it, the limit grows without a gain, and is
/// never lowered.
const GOOD: f64 = 0.003;
/// Excess of the latency over the base, as a logarithm, that justifies an experiment.
const EXCESS: f64 = 0.15;
/// Excess that justifies a cut at once, if two slices in a row show it.
const ALARM: f64 = 0.34;
/// Minimum number of closed slices before a decision at rest. [`REST_SHORTEST`] is the minimum of
/// their total length.
const SLICES_REST: f64 = 4.0;
const REST_SHORTEST: Duration = Duration::from_millis(200);
/// Wait between two raises of the limit, after one that brought goodput. Each one that brought none
/// makes it 1.5 times as long.
const WAIT_FIRST: Duration = Duration::from_millis(1000);
/// Maximum wait: four times the capacity must be found within ten seconds.
const WAIT_LONGEST: Duration = Duration::from_secs(4);
/// Time between two routine experiments with a lower limit.
const LOWER_EVERY: Duration = Duration::from_secs(30);
/// Time until the next one, after one that was justified.
const LOWER_AGAIN: Duration = Duration::from_secs(10);
/// Minimum number of round trips between two raises. [`LOWER_TRIPS`] is that between two routine
/// experiments with a lower limit.
const RAISE_TRIPS: u32 = 4;
const LOWER_TRIPS: u32 = 64;
/// Age at which a window at rest starts again, so that its measurement is recent. While it is not
/// exact enough for a step of a quarter, it goes on until [`REST_LONGEST`].
const REST: Duration = Duration::from_secs(2);
const REST_LONGEST: Duration = Duration::from_secs(8);
/// Error up to which a window is exact enough.
const REST_ERROR: f64 = 0.06;
/// Smallest step, as a logarithm, for low noise. [`STEP_BIG`] is the biggest step upwards.
const STEP_SMALL: f64 = 0.12;
const STEP_BIG: f64 = 0.25;

/// Range of the limit: at least 1, and not empty.
#[derive(Debug, Clone, Copy)]
struct LimitBounds {
    min: usize,
    max: usize,
}

/// Searches for the concurrency that carries the most goodput without a queue.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimiter {
    bounds: LimitBounds,
    limit: usize,
    phase: SearchPhase,
    window: SampleWindow,
    /// Logarithm of the latency without a queue.
    base: Option<f64>,
    /// Variance of one sample, in squares of the mean.
    noise: f64,
    /// Number of slices in a row far above the base.
    alarms: u32,
    /// Approximate latency of a delivery. It survives a restart of the search.
    latency: Duration,
    wait: Duration,
    rested_at: Duration,
    lowered_at: Duration,
    trouble: Trouble,
}

#[derive(Debug, Clone, Copy)]
enum SearchPhase {
    /// Doubles the limit. `quiet` was measured while nothing queued.
    Start {
        quiet: SampleSums,
    },
    Rest,
    /// Tries a higher limit. `low` was measured at `from`, the limit before. `rest` is the window
    /// to continue with there.
    Up {
        low: LimitSample,
        from: usize,
        rest: SampleWindow,
    },
    /// Tries a lower limit. `high` was measured just before, unless that was during a change.
    /// `from` is the limit to return to if there was no queue.
    Down {
        high: Option<LimitSample>,
        from: usize,
    },
}

impl ConcurrencyLimiter {
    pub(crate) fn new(min: usize, max: usize) -> Self {
        let min = min.max(1);
        let max = max.max(min);
        Self {
            bounds: LimitBounds { min, max },
            limit: min,
            phase: SearchPhase::Start { quiet: SampleSums::default() },
            window: SampleWindow::counting(Duration::ZERO),
            base: None,
            noise: 0.0,
            alarms: 0,
            latency: Duration::ZERO,
            wait: WAIT_FIRST,
            rested_at: Duration::ZERO,
            lowered_at: Duration::ZERO,
            trouble: Trouble::default(),
        }
    }

    /// Maximum number of deliveries that may be under way.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Approximate latency of a delivery.
    pub(crate) fn latency(&self) -> Duration {
        self.latency
    }

    /// True if a delivery that began at `began` began after the last reaction to trouble.
    pub(crate) fn is_news(&self, began: Duration) -> bool {
        began >= self.trouble.acted_at()
    }

    /// Starts the search again from the minimum: after a pause, nothing is known any more.
    pub(crate) fn restart(&mut self, now: Duration) {
        self.limit = self.bounds.min;
        self.base = None;
        self.alarms = 0;
        self.phase = SearchPhase::Start { quiet: SampleSums::default() };
        // Deliveries that are still under way saw another load.
        self.window = SampleWindow::settling(now);
        self.trouble.acted(now);
    }

    /// Records that only the limit kept a delivery from beginning.
    pub(crate) fn limited(&mut self) {
        self.window.limited();
    }

    /// Records a delivery that was refused for lack of capacity, or was never answered.
    pub(crate) fn troubled(&mut self, sample: &Sample, now: Duration) {
        if !self.trouble.record(sample.began, self.latency(), now) {
            return;
        }
        self.trouble.acted(now);
        let limit = match self.phase {
            SearchPhase::Start { quiet } => {
                self.base = (quiet.count > 0.0).then(|| quiet.latency());
                self.limit / 2
            }
            SearchPhase::Up { from, .. } => from,
            SearchPhase::Rest | SearchPhase::Down { .. } => (self.limit * 3) / 4,
        };
        self.wait = (self.wait * 3 / 2).min(WAIT_LONGEST);
        self.rest(limit, now);
    }

    /// Records a delivery that was answered.
    pub(crate) fn done(&mut self, sample: &Sample, now: Duration) {
        self.trouble.none();
        let took = now.saturating_sub(sample.began);
        self.latency = if self.latency.is_zero() { took } else { (self.latency * 31 + took) / 32 };
        let slice = self.window.add(sample, self.latency, now);
        match (self.phase, slice) {
            (SearchPhase::Start { quiet }, _) => self.start(quiet, now),
            (_, None) => {}
            (SearchPhase::Rest, Some(slice)) => self.watch(slice, now),
            (SearchPhase::Up { low, from, rest }, Some(_)) => self.judge_up(low, from, rest, now),
            (SearchPhase::Down { high, from }, Some(_)) => self.judge_down(high, from, now),
        }
    }

    /// Checks, at rest, if the latency requires a lower limit, and if it is time to try a higher
    /// one.
    fn watch(&mut self, slice: SampleSums, now: Duration) {
        if self.raises_alarm(slice) {
            let in_flight =
                if self.window.was_limited() { count(self.limit) } else { slice.in_flight() };
            self.lower(None, slice.latency(), in_flight, now);
            return;
        }
        let age = self.window.age();
        if self.window.slices() < SLICES_REST || age < REST_SHORTEST {
            return;
        }
        let level = self.level();
        self.note(&level);
        let base = self.base.unwrap_or(level.latency);
        let is_high = excess(level.latency, base) > EXCESS + 2.0 * level.error;
        let is_busy = level.busy >= BUSY;
        let rested = now.saturating_sub(self.rested_at);
        let is_lower_due =
            is_high || (is_busy && !is_good(level.latency) && self.is_lower_due(now));
        if is_lower_due && self.limit > self.bounds.min {
            self.lower(Some(level), level.latency, level.in_flight, now);
        } else if is_busy
            && self.limit < self.bounds.max
            && rested >= self.wait.max(self.latency * RAISE_TRIPS)
        {
            let step = step(&level).min(STEP_BIG).exp_m1();
            self.raise(level, round(count(self.limit) * step), now);
        } else if age >= REST_LONGEST || (age >= REST && level.error <= REST_ERROR) {
            self.window = SampleWindow::counting(now);
        }
    }

    /// Measurement of the window. A sender that works in bursts finds few deliveries under way when
    /// it begins the next one. If the limit stopped it, the number under way is the limit all the
    /// same.
    fn level(&self) -> LimitSample {
        let level = self.window.level();
        if level.busy < BUSY {
            level
        } else {
            LimitSample { in_flight: count(self.limit), ..level }
        }
    }

    fn is_lower_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.lowered_at) >= LOWER_EVERY.max(self.latency * LOWER_TRIPS)
    }

    fn raises_alarm(&mut self, slice: SampleSums) -> bool {
        let Some(base) = self.base else { return false };
        let error = (self.noise / slice.count).sqrt();
        let is_high =
            excess(slice.latency(), base) > ALARM + 3.0 * error && self.limit > self.bounds.min;
        self.alarms = if is_high { self.alarms + 1 } else { 0 };
        self.alarms >= 2
    }

    /// Updates the base and the noise from a window at rest.
    fn note(&mut self, level: &LimitSample) {
        // Bounded: a window in which the latency jumped looks like one full of noise.
        self.noise += 0.3 * (level.noise.min(4.0 * self.noise + 0.01) - self.noise);
        let is_alone = level.in_flight <= 1.05 || self.limit == self.bounds.min;
        self.base = Some(match self.base {
            // None of our deliveries queues, so this is the base, whether it rose or fell.
            Some(base) if is_alone && (level.latency - base).abs() > 3.0 * level.error => {
                level.latency
            }
            Some(base) if is_alone => base + 0.3 * (level.latency - base),
            Some(base) => base.min(level.latency + level.error),
            None => level.latency,
        });
    }

    fn rest(&mut self, limit: usize, now: Duration) {
        self.phase = SearchPhase::Rest;
        self.rested_at = now;
        self.alarms = 0;
        self.set(limit, now);
    }

    fn set(&mut self, limit: usize, now: Duration) {
        self.limit = limit.clamp(self.bounds.min, self.bounds.max);
        self.window = SampleWindow::settling(now);
    }
}

/// Logarithm of the ratio of a latency to the base, which are logarithms themselves. Both count as
/// at least [`GOOD`].
fn excess(latency: f64, base: f64) -> f64 {
    latency.max(GOOD.ln()) - base.max(GOOD.ln())
}

/// True if a latency, which is a logarithm, is as good as any lower one.
fn is_good(latency: f64) -> bool {
    latency < GOOD.ln()
}

/// Distance, as a logarithm, that two limits need for noise not to hide the difference.
fn step(level: &LimitSample) -> f64 {
    let window = 0.6_f64.max(4.0 * level.latency.exp());
    (16.0 * level.noise / (level.rate * window)).sqrt().max(STEP_SMALL)
}

/// Rounds to a whole limit, rather up: one too few costs goodput, one too many costs little
/// latency.
fn round(limit: f64) -> usize {
    // Limits are small and positive.
    (limit - 0.2).ceil().max(0.0) as usize
}
