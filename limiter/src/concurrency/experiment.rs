//! The experiments: a limit higher or lower for a moment, and what comes of it.
//!
//! Each lasts until its outcome is clear for the noise that was measured, or [`LONGEST`]. Only what
//! was measured at rest is compared: while a queue grows or drains, the latency says nothing.

use std::time::Duration;

use super::{
    ALARM, ConcurrencyLimiter, EXCESS, LOWER_AGAIN, LOWER_EVERY, Phase, WAIT_FIRST, WAIT_LONGEST,
    round, step,
};
use crate::window::{Level, Window, count};

/// Closed slices of an experiment at least.
const SLICES: f64 = 3.0;
/// An experiment that is still undecided then is decided by what it has.
const LONGEST: Duration = Duration::from_secs(3);
/// Above this many times what the latency says is needed (Vegas' estimate) no more is tried.
const RAISE_MOST: f64 = 1.2;
/// A cut is at most to a half: it may be for nothing.
const CUT_MOST: f64 = 0.5;

/// Two levels beside each other.
struct Contrast {
    /// Logarithm of how many times as many were under way.
    more: f64,
    /// Of how many times as long it took.
    rise: f64,
    error: f64,
}

impl Contrast {
    fn of(low: &Level, high: &Level) -> Self {
        Self {
            more: (high.in_flight / low.in_flight).ln(),
            rise: high.latency - low.latency,
            error: low.error.hypot(high.error),
        }
    }

    /// How much more goodput is worth a bigger limit: 3 %, and a tenth of the step.
    fn worth(&self) -> f64 {
        0.03 + 0.1 * self.more
    }

    /// Whether it is clear on which side of `bound` the rise lies.
    fn is_clear(&self, bound: f64) -> bool {
        self.error <= 0.2 * self.more || (self.rise - bound).abs() > 2.5 * self.error
    }

    /// What the high limit carried at the low one's latency.
    fn knee(&self, high: &Level) -> f64 {
        high.in_flight * (0.5 * self.error - self.rise).exp()
    }
}

impl ConcurrencyLimiter {
    /// Tries `step` more than now, where `low` was measured: fewer if the latency says that they
    /// would queue.
    pub(super) fn raise(&mut self, low: Level, step: usize, now: Duration) {
        let excess = low.latency - self.base.unwrap_or(low.latency);
        let times = if excess > EXCESS / 3.0 + low.error { RAISE_MOST } else { 2.0 };
        let most = round(count(self.limit) * (-excess).exp() * times);
        let target = (self.limit + step).min(most).max(self.limit + 1);
        self.phase = Phase::Up { low, from: self.limit, rest: self.window };
        self.set(target, now);
    }

    pub(super) fn judge_up(&mut self, low: Level, from: usize, rest: Window, now: Duration) {
        if self.window.slices() < SLICES {
            return;
        }
        let high = self.level();
        let contrast = Contrast::of(&low, &high);
        let base = self.base.unwrap_or(low.latency);
        if high.latency - base > ALARM + contrast.more + 2.0 * contrast.error {
            // That is more than the step can have done.
            self.wait = WAIT_FIRST;
            self.rest(from, now);
            self.lower(None, high.latency, count(from), now);
            return;
        }
        if contrast.more < 0.5 * (count(self.limit) / count(from)).ln() {
            // There was not enough to send.
            self.back(from, rest, now);
            return;
        }
        if !contrast.is_clear(contrast.more - contrast.worth()) && !self.is_time_up() {
            return;
        }
        if contrast.rise > contrast.more - contrast.worth() {
            self.wait = (self.wait * 3 / 2).min(WAIT_LONGEST);
            self.back(from, rest, now);
            return;
        }
        self.wait = WAIT_FIRST;
        if contrast.rise + contrast.error < 0.5 * contrast.more {
            // More in flight, and as fast: nothing queued before.
            self.base = Some(base.max(low.latency));
        }
        let base = self.base.unwrap_or(base);
        let is_quiet = high.latency - base < 0.5 * EXCESS + high.error;
        if contrast.rise < 0.5 * contrast.more && is_quiet && self.limit < self.max {
            let step = (self.limit - from) * 3 / 2 + 1;
            self.raise(high, step, now);
        } else {
            let knee = round(contrast.knee(&high));
            self.rest(knee.clamp(from, self.limit), now);
        }
    }

    /// Back to where it was, with what was measured there.
    fn back(&mut self, from: usize, rest: Window, now: Duration) {
        self.rest(from, now);
        self.window = rest;
        self.window.resettle(now);
    }

    /// Tries less, because `latency` is above the base while `in_flight` are under way.
    pub(super) fn lower(
        &mut self,
        high: Option<Level>,
        latency: f64,
        in_flight: f64,
        now: Duration,
    ) {
        let from = match self.phase {
            Phase::Down { from, .. } => from,
            _ => self.limit,
        };
        let base = self.base.unwrap_or(latency);
        let least = high.as_ref().map_or(0.0, step);
        let less = in_flight * (base - latency).min(-least).exp().max(CUT_MOST);
        self.phase = Phase::Down { high, from };
        self.lowered_at = now;
        self.set((less as usize).min(self.limit - 1), now);
    }

    pub(super) fn judge_down(&mut self, high: Option<Level>, from: usize, now: Duration) {
        if self.window.slices() < SLICES {
            return;
        }
        let low = self.level();
        let excess = low.latency - self.base.unwrap_or(low.latency);
        let is_high = excess > ALARM + 2.0 * low.error;
        let Some(high) = high else {
            // What was before was in the midst of a change: there is nothing to compare with.
            if is_high && self.limit > self.min {
                self.lower(Some(low), low.latency, low.in_flight, now);
            } else {
                self.wait = WAIT_FIRST / 2;
                self.rest(self.limit, now);
            }
            return;
        };
        let contrast = Contrast::of(&low, &high);
        if !contrast.is_clear(contrast.worth()) && !self.is_time_up() {
            return;
        }
        if contrast.rise < contrast.worth().max(contrast.error) {
            // Less in flight, and as slow: there is no queue.
            self.base = Some(low.latency + low.error);
            self.rest(from, now);
        } else if is_high && self.limit > self.min {
            self.lower(Some(low), low.latency, low.in_flight, now);
        } else {
            let knee = round(contrast.knee(&high)).min(round(high.in_flight)).max(self.limit);
            if knee < from {
                // It was too much: look again soon whether it still is.
                self.lowered_at = now.saturating_sub(LOWER_EVERY - LOWER_AGAIN);
            }
            self.rest(knee, now);
        }
    }

    fn is_time_up(&self) -> bool {
        self.window.slices() > SLICES && self.window.age() >= LONGEST
    }
}
