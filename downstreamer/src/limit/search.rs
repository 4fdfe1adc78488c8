//! The concurrency at which the backend is busy and nothing queues there, found by experiments.
//!
//! In a closed loop Little's law says all: with `n` under way and latency `r` the goodput is `n/r`.
//! Below the knee more in flight brings as much more goodput at the same latency; above it only
//! latency. So two neighbouring limits, measured one after the other, tell where the knee is: at
//! what the larger one carried, times the latency of the smaller one.
//!
//! - **Start**: the limit doubles each round trip until the latency rises.
//! - **Rest**: the latency is watched.
//! - **Up**, every second to every few: a limit a little higher, kept only as far as it brought
//!   goodput; while it brings all of it, twice as big a step follows at once.
//! - **Down**, when the latency is above its base, and twice a minute anyhow: a lower limit. If the
//!   goodput falls with it there was no queue: the base has risen, and the limit comes back.
//!
//! So the base is a minimum that rises only by measurement: never by waiting, which would make a
//! standing queue the new normal, and a backend that has become slower isn't throttled for it. A
//! latency of 1 ms may vary by a third on a busy machine: each step is as big, and each window as
//! long, as the noise asks for.
//!
//! Vegas' queue estimate and slow start (Brakmo 1994; Netflix concurrency-limits) with BBR's probing
//! (Cardwell 2016) and Envoy's measured minimum; the step and the decision by the measured error are
//! ours: a limit of `L·(1 − base/p50)` alone took noise for a queue and a slower backend for a full
//! one.

mod experiment;
mod trouble;

use std::time::Duration;

use super::Sample;
use super::window::{Level, Tally, Window, count};
use trouble::Trouble;

/// A latency above the base by this (of its logarithm) is worth an experiment.
const EXCESS: f64 = 0.15;
/// By this, in two slices, at once.
const ALARM: f64 = 0.34;
/// The part of a bigger limit's promise that must come as goodput.
const GAIN: f64 = 0.3;
/// Closed slices before anything is decided at rest, and how long they last together at least.
const SLICES_REST: f64 = 4.0;
const REST_SHORTEST: Duration = Duration::from_millis(200);
/// Between two attempts at more, if the last one brought something; half as much more each time.
const WAIT_FIRST: Duration = Duration::from_millis(1000);
/// At most: four times the capacity must be found within ten seconds.
const WAIT_LONGEST: Duration = Duration::from_secs(4);
/// Between two looks at less that nothing asked for.
const LOWER_EVERY: Duration = Duration::from_secs(30);
/// A window at rest begins anew when it is so old: what it says must be recent. Or at
/// [`REST_LONGEST`], as long as it is not exact enough for a step of a quarter.
const REST: Duration = Duration::from_secs(2);
const REST_LONGEST: Duration = Duration::from_secs(8);
/// Exact enough.
const REST_ERROR: f64 = 0.06;
/// A step that is not bigger for the noise, and the biggest (of the logarithm).
const STEP_SMALL: f64 = 0.12;
const STEP_BIG: f64 = 0.25;

#[derive(Debug)]
pub struct Search {
    min: usize,
    max: usize,
    limit: usize,
    phase: Phase,
    window: Window,
    /// Logarithm of the latency with no queue.
    base: Option<f64>,
    /// Variance of one sample's logarithm.
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
    /// What was measured at `from`, the limit before.
    Up {
        low: Level,
        from: usize,
    },
    /// What was measured just before, unless that was in the midst of a change; `from`: the limit
    /// to which to return if there was no queue.
    Down {
        high: Option<Level>,
        from: usize,
    },
}

impl Search {
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
        self.phase = Phase::Start { quiet: Tally::default() };
        self.window = Window::counting(now);
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
            Phase::Start { .. } => self.limit / 2,
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
        self.latency = if self.latency.is_zero() { took } else { (self.latency * 15 + took) / 16 };
        let slice = self.window.add(sample, now);
        match (self.phase, slice) {
            (Phase::Start { quiet }, _) => self.start(quiet, now),
            (_, None) => {}
            (Phase::Rest, Some(slice)) => self.watch(slice, now),
            (Phase::Up { low, from }, Some(_)) => self.judge_up(low, from, now),
            (Phase::Down { high, from }, Some(_)) => self.judge_down(high, from, now),
        }
    }

    /// Doubles the limit until the latency rises.
    fn start(&mut self, quiet: Tally, now: Duration) {
        let tally = self.window.tally();
        if tally.count < count(self.limit.max(3)) || self.window.age() < Duration::from_millis(10) {
            return;
        }
        if !self.window.was_limited() {
            // There is too little to send to learn from.
            self.window.reopen(now);
            return;
        }
        let rise = if quiet.count > 0.0 { tally.latency() - quiet.latency() } else { 0.0 };
        let variance = quiet.variance().max(tally.variance());
        let error = (variance / quiet.count.max(1.0) + variance / tally.count).sqrt();
        if rise > ALARM + 2.0 * error {
            self.base = Some(quiet.latency());
            self.noise = variance;
            let knee = tally.in_flight() * (error - rise).exp();
            self.rest(round(knee.max(tally.in_flight() / 4.0)), now);
        } else if self.limit == self.max {
            self.base = Some(quiet.with(tally).latency());
            self.noise = variance;
            self.rest(self.limit, now);
        } else {
            self.phase = Phase::Start { quiet: quiet.with(tally) };
            self.set(self.limit * 2, now);
        }
    }

    /// At rest: looks whether the latency asks for less, and whether it is time to try more.
    fn watch(&mut self, slice: Tally, now: Duration) {
        if self.is_alarming(slice) {
            self.lower(None, slice.latency(), slice.in_flight(), now);
            return;
        }
        let age = self.window.age();
        if self.window.slices() < SLICES_REST || age < REST_SHORTEST {
            return;
        }
        let level = self.window.level();
        self.note(&level);
        let base = self.base.unwrap_or(level.latency);
        let is_high = level.latency - base > EXCESS + 2.0 * level.error;
        let is_busy = level.busy >= 0.8;
        let rested = now.saturating_sub(self.rested_at);
        if is_high && self.limit > self.min {
            self.lower(Some(level), level.latency, level.in_flight, now);
        } else if is_busy && self.limit > self.min && now >= self.lowered_at + LOWER_EVERY {
            let less = level.latency.min(base) + self.step_size(&level);
            self.lower(Some(level), less, level.in_flight, now);
        } else if is_busy && self.limit < self.max && rested >= self.wait {
            let step = round(count(self.limit) * self.step_size(&level).exp_m1());
            self.phase = Phase::Up { low: level, from: self.limit };
            self.set(self.limit + step.max(1), now);
        } else if age >= REST_LONGEST || (age >= REST && level.error <= REST_ERROR) {
            self.window.reopen(now);
        }
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

    /// How far apart (of the logarithm) two limits must be for the noise not to hide it.
    fn step_size(&self, level: &Level) -> f64 {
        (16.0 * level.noise / (level.rate * 0.6)).sqrt().clamp(STEP_SMALL, STEP_BIG)
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

/// To a whole limit.
fn round(limit: f64) -> usize {
    // Limits are small and positive.
    limit.round().max(0.0) as usize
}
