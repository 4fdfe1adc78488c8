//! The concurrency limiter: finds by experiments the concurrency at which the backend is busy and
//! nothing queues there.
//!
//! In a closed loop Little's law says all: with `n` under way and a mean latency `r` the goodput is
//! `n/r`. Below the knee more in flight brings as much more goodput at the same latency; above it
//! only latency. So two limits, measured one after the other, tell where the knee is: at what the
//! larger one carried, times the latency of the smaller one.
//!
//! - **Start** (`start`): the limit doubles until the latency rises.
//! - **Rest** (here): the latency is watched.
//! - **Up** (`experiment`), every second to every few: a limit a little higher, kept as far as it
//!   brought goodput; 3 % is the least. While it brings all of it, a bigger step follows at once.
//! - **Down**, when the latency is above its base, at once when far above, and twice a minute
//!   anyhow: a lower limit. If the goodput falls with it there was no queue: the base has risen,
//!   and the limit comes back.
//!
//! So the base is a minimum that rises only by measurement, or where nothing of ours can queue:
//! never by waiting, which would make a standing queue the new normal. Latencies vary, by a third
//! on a busy machine and by more than their mean in most backends: each step is as big, and each
//! window as long, as the measured noise asks for. The limit never grows unless it is what keeps
//! more from being under way.
//!
//! From Vegas (Brakmo 1994; Netflix concurrency-limits) are the queue estimate and the slow start,
//! from BBR (Cardwell 2016) the probing in both directions, from Envoy the measured minimum. Ours is
//! that a cut is an experiment, too, and that errors decide. The first form, a limit of
//! `L·(1 − base/p50)` per window, took noise for a queue (the minimum of many noisy windows is no
//! base) and a backend that had become slower for a full one.

mod experiment;
mod start;
mod trouble;

use std::time::Duration;

use crate::Sample;
use crate::window::{BUSY, Level, Tally, Window, count};
use trouble::Trouble;

/// A latency above the base by this (of its logarithm) is worth an experiment.
const EXCESS: f64 = 0.15;
/// By this, in two slices, at once.
const ALARM: f64 = 0.34;
/// Closed slices before anything is decided at rest, and how long they last together at least.
const SLICES_REST: f64 = 4.0;
const REST_SHORTEST: Duration = Duration::from_millis(200);
/// Between two attempts at more, if the last one brought something; half as much more each time.
const WAIT_FIRST: Duration = Duration::from_millis(1000);
/// At most: four times the capacity must be found within ten seconds.
const WAIT_LONGEST: Duration = Duration::from_secs(4);
/// Between two looks at less that nothing asked for.
const LOWER_EVERY: Duration = Duration::from_secs(30);
/// After one that was right.
const LOWER_AGAIN: Duration = Duration::from_secs(10);
/// Neither more often than once in so many round trips.
const RAISE_TRIPS: u32 = 4;
const LOWER_TRIPS: u32 = 64;
/// A window at rest begins anew when it is so old: what it says must be recent. Or at
/// [`REST_LONGEST`], as long as it is not exact enough for a step of a quarter.
const REST: Duration = Duration::from_secs(2);
const REST_LONGEST: Duration = Duration::from_secs(8);
/// Exact enough.
const REST_ERROR: f64 = 0.06;
/// A step (of the logarithm) that is not bigger for the noise, and the biggest upwards.
const STEP_SMALL: f64 = 0.12;
const STEP_BIG: f64 = 0.25;

/// Searches the concurrency that carries the most goodput without a queue.
#[derive(Debug)]
pub struct ConcurrencyLimiter {
    min: usize,
    max: usize,
    limit: usize,
    phase: Phase,
    window: Window,
    /// Logarithm of the latency with no queue.
    base: Option<f64>,
    /// Variance of one sample, in squares of the mean.
    noise: f64,
    /// Slices in a row far above the base.
    alarms: u32,
    /// About how long a delivery takes; kept when all else is forgotten.
    latency: Duration,
    wait: Duration,
    rested_at: Duration,
    lowered_at: Duration,
    trouble: Trouble,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// What was measured while nothing queued.
    Start {
        quiet: Tally,
    },
    Rest,
    /// What was measured at `from`, the limit before, and the window to go on with there.
    Up {
        low: Level,
        from: usize,
        rest: Window,
    },
    /// What was measured just before, unless that was in the midst of a change; `from`: the limit
    /// to which to return if there was no queue.
    Down {
        high: Option<Level>,
        from: usize,
    },
}

impl ConcurrencyLimiter {
    pub fn new(min: usize, max: usize) -> Self {
        let (min, max) = (min.max(1), max.max(min).max(1));
        Self {
            min,
            max,
            limit: min,
            phase: Phase::Start { quiet: Tally::default() },
            window: Window::counting(Duration::ZERO),
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

    /// How many may be under way.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// About how long a delivery takes.
    pub fn latency(&self) -> Duration {
        self.latency
    }

    /// Whether what began then began under the present limit, as far as trouble goes.
    pub fn is_news(&self, began: Duration) -> bool {
        began >= self.trouble.acted_at()
    }

    /// Begins again with one: after a pause nothing is known any more.
    pub fn restart(&mut self, now: Duration) {
        self.limit = self.min;
        self.base = None;
        self.alarms = 0;
        self.phase = Phase::Start { quiet: Tally::default() };
        // What is still under way saw another load.
        self.window = Window::settling(now);
        self.trouble.acted(now);
    }

    /// One more could be under way but for the limit.
    pub fn limited(&mut self) {
        self.window.limited();
    }

    /// A delivery was refused for want of room, or never answered.
    pub fn troubled(&mut self, sample: &Sample, now: Duration) {
        if !self.trouble.is_more(sample.began, self.latency(), now) {
            return;
        }
        self.trouble.acted(now);
        let limit = match self.phase {
            Phase::Start { quiet } => {
                self.base = (quiet.count > 0.0).then(|| quiet.latency());
                self.limit / 2
            }
            Phase::Up { from, .. } => from,
            Phase::Rest | Phase::Down { .. } => (self.limit * 3) / 4,
        };
        self.wait = (self.wait * 3 / 2).min(WAIT_LONGEST);
        self.rest(limit, now);
    }

    /// A delivery was answered.
    pub fn done(&mut self, sample: &Sample, now: Duration) {
        self.trouble.none();
        let took = now.saturating_sub(sample.began);
        self.latency = if self.latency.is_zero() { took } else { (self.latency * 31 + took) / 32 };
        let slice = self.window.add(sample, self.latency, now);
        match (self.phase, slice) {
            (Phase::Start { quiet }, _) => self.start(quiet, now),
            (_, None) => {}
            (Phase::Rest, Some(slice)) => self.watch(slice, now),
            (Phase::Up { low, from, rest }, Some(_)) => self.judge_up(low, from, rest, now),
            (Phase::Down { high, from }, Some(_)) => self.judge_down(high, from, now),
        }
    }

    /// At rest: looks whether the latency asks for less, and whether it is time to try more.
    fn watch(&mut self, slice: Tally, now: Duration) {
        if self.is_alarming(slice) {
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
        let is_high = level.latency - base > EXCESS + 2.0 * level.error;
        let is_busy = level.busy >= BUSY;
        let rested = now.saturating_sub(self.rested_at);
        let is_lower_due = is_high || (is_busy && self.is_lower_due(now));
        if is_lower_due && self.limit > self.min {
            self.lower(Some(level), level.latency, level.in_flight, now);
        } else if is_busy
            && self.limit < self.max
            && rested >= self.wait.max(self.latency * RAISE_TRIPS)
        {
            let step = step(&level).min(STEP_BIG).exp_m1();
            self.raise(level, round(count(self.limit) * step), now);
        } else if age >= REST_LONGEST || (age >= REST && level.error <= REST_ERROR) {
            self.window = Window::counting(now);
        }
    }

    /// What the window says. A drain that sends in bursts finds few under way when it begins the
    /// next: what is under way at once is the limit all the same, if that is what stopped it.
    fn level(&self) -> Level {
        let level = self.window.level();
        if level.busy < BUSY { level } else { Level { in_flight: count(self.limit), ..level } }
    }

    fn is_lower_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.lowered_at) >= LOWER_EVERY.max(self.latency * LOWER_TRIPS)
    }

    fn is_alarming(&mut self, slice: Tally) -> bool {
        let Some(base) = self.base else { return false };
        let error = (self.noise / slice.count).sqrt();
        let is_high = slice.latency() - base > ALARM + 3.0 * error && self.limit > self.min;
        self.alarms = if is_high { self.alarms + 1 } else { 0 };
        self.alarms >= 2
    }

    /// Learns the base and the noise from a window at rest.
    fn note(&mut self, level: &Level) {
        // Bounded: a window in which the latency jumped looks as if all had been noise.
        self.noise += 0.3 * (level.noise.min(4.0 * self.noise + 0.01) - self.noise);
        let is_alone = level.in_flight <= 1.05 || self.limit == self.min;
        self.base = Some(match self.base {
            // Nothing of ours queues: this is the base, whichever way it went.
            Some(base) if is_alone && (level.latency - base).abs() > 3.0 * level.error => {
                level.latency
            }
            Some(base) if is_alone => base + 0.3 * (level.latency - base),
            Some(base) => base.min(level.latency + level.error),
            None => level.latency,
        });
    }

    fn rest(&mut self, limit: usize, now: Duration) {
        self.phase = Phase::Rest;
        self.rested_at = now;
        self.alarms = 0;
        self.set(limit, now);
    }

    fn set(&mut self, limit: usize, now: Duration) {
        self.limit = limit.clamp(self.min, self.max);
        self.window = Window::settling(now);
    }
}

/// How far apart (of the logarithm) two limits must be for the noise not to hide it.
fn step(level: &Level) -> f64 {
    let window = 0.6_f64.max(4.0 * level.latency.exp());
    (16.0 * level.noise / (level.rate * window)).sqrt().max(STEP_SMALL)
}

/// To a whole limit, rather up: one too few costs goodput, one too many a little latency.
fn round(limit: f64) -> usize {
    // Limits are small and positive.
    (limit - 0.2).ceil().max(0.0) as usize
}
