//! The experiments: a limit that is higher or lower for a moment, and the conclusion from it.
//!
//! Each lasts until its outcome is clear in spite of the measured noise, or for [`LONGEST`]. Only
//! measurements of a stable queue are compared: while a queue grows or drains, the latency carries
//! no information.

use std::time::Duration;

use super::{
    ALARM, ConcurrencyLimiter, EXCESS, LOWER_AGAIN, LOWER_EVERY, SearchPhase, WAIT_FIRST,
    WAIT_LONGEST, excess, is_good, round, step,
};
use crate::window::{LimitSample, SampleWindow, count};

/// Minimum number of closed slices of an experiment.
const SLICES: f64 = 3.0;
/// Maximum length of an experiment. If it is still undecided then, its present data decides.
const LONGEST: Duration = Duration::from_secs(3);
/// Maximum raise, as a multiple of the limit that the latency justifies (Vegas' estimate).
const RAISE_MOST: f64 = 1.2;
/// Maximum cut, as a part of the limit: a cut may turn out to be needless.
const CUT_MOST: f64 = 0.5;

/// Comparison of two levels.
struct Contrast {
    /// Logarithm of the ratio of the numbers under way.
    more: f64,
    /// Logarithm of the ratio of the latencies.
    rise: f64,
    error: f64,
}

impl Contrast {
    fn of(low: &LimitSample, high: &LimitSample) -> Self {
        Self {
            more: (high.in_flight / low.in_flight).ln(),
            rise: high.latency - low.latency,
            error: low.error.hypot(high.error),
        }
    }

    /// Minimum gain of goodput that justifies a bigger limit: 3 %, and a tenth of the step.
    fn worth(&self) -> f64 {
        0.03 + 0.1 * self.more
    }

    /// True if it is clear on which side of `bound` the rise lies.
    fn is_clear(&self, bound: f64) -> bool {
        self.error <= 0.2 * self.more || (self.rise - bound).abs() > 2.5 * self.error
    }

    /// Number under way that the throughput of the high limit needs at the latency of the low one.
    fn knee(&self, high: &LimitSample) -> f64 {
        high.in_flight * (0.5 * self.error - self.rise).exp()
    }
}

impl ConcurrencyLimiter {
    /// Tries a limit that is higher by `step`. `low` was measured at the present one. The step is
    /// smaller if the latency shows that deliveries would queue.
    pub(super) fn raise(&mut self, low: LimitSample, step: usize, now: Duration) {
        let excess = excess(low.latency, self.base.unwrap_or(low.latency));
        let times = if excess > EXCESS / 3.0 + low.error { RAISE_MOST } else { 2.0 };
        let most = round(count(self.limit) * (-excess).exp() * times);
        let target = (self.limit + step).min(most).max(self.limit + 1);
        self.phase = SearchPhase::Up { low, from: self.limit, rest: self.window };
        self.set(target, now);
    }

    pub(super) fn judge_up(
        &mut self,
        low: LimitSample,
        from: usize,
        rest: SampleWindow,
        now: Duration,
    ) {
        if self.window.slices() < SLICES {
            return;
        }
        let high = self.level();
        let contrast = Contrast::of(&low, &high);
        let base = self.base.unwrap_or(low.latency);
        if excess(high.latency, base) > ALARM + contrast.more + 2.0 * contrast.error {
            // The step cannot have caused that much.
            self.wait = WAIT_FIRST;
            self.rest(from, now);
            self.lower(None, high.latency, count(from), now);
            return;
        }
        if contrast.more < 0.5 * (count(self.limit) / count(from)).ln() {
            // There was too little to send.
            self.back(from, rest, now);
            return;
        }
        if is_good(high.latency) {
            self.wait = WAIT_FIRST;
            if self.limit < self.bounds.max {
                self.raise(high, (self.limit - from) * 3 / 2 + 1, now);
            } else {
                self.rest(self.limit, now);
            }
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
            // More in flight at the same latency: nothing queued before.
            self.base = Some(base.max(low.latency));
        }
        let base = self.base.unwrap_or(base);
        let is_quiet = excess(high.latency, base) < 0.5 * EXCESS + high.error;
        if contrast.rise < 0.5 * contrast.more && is_quiet && self.limit < self.bounds.max {
            let step = (self.limit - from) * 3 / 2 + 1;
            self.raise(high, step, now);
        } else {
            let knee = round(contrast.knee(&high));
            self.rest(knee.clamp(from, self.limit), now);
        }
    }

    /// Returns to the old limit, and to the window that was measured there.
    fn back(&mut self, from: usize, rest: SampleWindow, now: Duration) {
        self.rest(from, now);
        self.window = rest;
        self.window.resettle(now);
    }

    /// Tries a lower limit, because `latency` is above the base while `in_flight` are under way.
    pub(super) fn lower(
        &mut self,
        high: Option<LimitSample>,
        latency: f64,
        in_flight: f64,
        now: Duration,
    ) {
        let from = match self.phase {
            SearchPhase::Down { from, .. } => from,
            _ => self.limit,
        };
        let base = self.base.unwrap_or(latency);
        let least = high.as_ref().map_or(0.0, step);
        let less = in_flight * (-excess(latency, base)).min(-least).exp().max(CUT_MOST);
        self.phase = SearchPhase::Down { high, from };
        self.lowered_at = now;
        self.set((less as usize).min(self.limit - 1), now);
    }

    pub(super) fn judge_down(&mut self, high: Option<LimitSample>, from: usize, now: Duration) {
        if self.window.slices() < SLICES {
            return;
        }
        let low = self.level();
        let excess = excess(low.latency, self.base.unwrap_or(low.latency));
        let is_high = excess > ALARM + 2.0 * low.error;
        let Some(high) = high else {
            // There is nothing to compare with: the measurement before was taken during a change.
            if is_high && self.limit > self.bounds.min {
                self.lower(Some(low), low.latency, low.in_flight, now);
            } else {
                self.wait = WAIT_FIRST / 2;
                self.rest(self.limit, now);
            }
            return;
        };
        if is_good(high.latency) {
            self.rest(from, now);
            return;
        }
        let contrast = Contrast::of(&low, &high);
        if !contrast.is_clear(contrast.worth()) && !self.is_time_up() {
            return;
        }
        if contrast.rise < contrast.worth().max(contrast.error) {
            // Less in flight at the same latency: there is no queue.
            self.base = Some(low.latency + low.error);
            self.rest(from, now);
        } else if is_high && self.limit > self.bounds.min {
            self.lower(Some(low), low.latency, low.in_flight, now);
        } else {
            let knee = round(contrast.knee(&high)).min(round(high.in_flight)).max(self.limit);
            if knee < from {
                // The limit was too high. Check again soon if it still is.
                self.lowered_at = now.saturating_sub(LOWER_EVERY - LOWER_AGAIN);
            }
            self.rest(knee, now);
        }
    }

    fn is_time_up(&self) -> bool {
        self.window.slices() > SLICES && self.window.age() >= LONGEST
    }
}
