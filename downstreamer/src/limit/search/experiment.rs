//! The experiments: a limit higher or lower for a moment, and what comes of it.

use std::time::Duration;

use super::{ALARM, GAIN, Phase, Search, WAIT_FIRST, WAIT_LONGEST, round};
use crate::limit::window::{Level, count};

/// Closed slices of an experiment at least.
const SLICES: f64 = 3.0;
/// An experiment that is still undecided then is decided by what it has.
const LONGEST: Duration = Duration::from_secs(3);
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

    /// Whether it is clear on which side of `part` the rise lies.
    fn is_clear(&self, part: f64) -> bool {
        self.error <= 0.2 * self.more || (self.rise - part * self.more).abs() > 2.0 * self.error
    }

    /// What the high limit carried at the low one's latency.
    fn knee(&self, high: &Level) -> f64 {
        high.in_flight * (self.error - self.rise).exp()
    }
}

impl Search {
    pub(super) fn judge_up(&mut self, low: Level, from: usize, now: Duration) {
        if self.window.slices() < SLICES {
            return;
        }
        let high = self.window.level();
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
            self.rest(from, now);
            return;
        }
        if !contrast.is_clear(1.0 - GAIN) && !self.is_time_up() {
            return;
        }
        if contrast.rise > (1.0 - GAIN) * contrast.more {
            self.wait = (self.wait * 3 / 2).min(WAIT_LONGEST);
            self.rest(from, now);
            return;
        }
        self.wait = WAIT_FIRST;
        if contrast.rise < GAIN * contrast.more && self.limit < self.max {
            let step = 2 * (self.limit - from);
            self.phase = Phase::Up { low: high, from: self.limit };
            self.set(self.limit + step.min(self.limit), now);
        } else {
            let knee = round(contrast.knee(&high));
            self.rest(knee.clamp(from, self.limit), now);
        }
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
        let less = round(in_flight * (base - latency).exp().max(CUT_MOST));
        self.phase = Phase::Down { high, from };
        self.lowered_at = now;
        self.set(less.min(self.limit - 1), now);
    }

    pub(super) fn judge_down(&mut self, high: Option<Level>, from: usize, now: Duration) {
        if self.window.slices() < SLICES {
            return;
        }
        let low = self.window.level();
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
        if !contrast.is_clear(GAIN) && !self.is_time_up() {
            return;
        }
        if contrast.rise < (GAIN * contrast.more).max(contrast.error) {
            // Less in flight, and as slow: there is no queue.
            self.base = Some(low.latency + low.error);
            self.rest(from, now);
        } else if is_high && self.limit > self.min {
            self.lower(Some(low), low.latency, low.in_flight, now);
        } else {
            let knee = round(contrast.knee(&high)).min(round(high.in_flight));
            self.rest(knee.max(self.limit), now);
        }
    }

    fn is_time_up(&self) -> bool {
        self.window.slices() > SLICES && self.window.age() >= LONGEST
    }
}
