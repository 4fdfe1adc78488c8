//! The circuit breaker of a lane.
//!
//! | state | first failure | other failure | give-up | success |
//! |---|---|---|---|---|
//! | Closed, few in a row | Closed, one more | same | same | Closed, none |
//! | Closed, the last of as many as it bears | Open | | | |
//! | Open | wait doubles | wait doubles | wait halves | Closed |
//!
//! A lane that hangs gets few attempts: [`LaneBreaker::trip`] opens its breaker by time.
//! While it is open, one attempt at a time probes. Waits are jittered: lanes of one endpoint open
//! together, and must not probe together. Pure: time and chance are arguments.

use std::time::Duration;

use crate::backoff::jittered;

/// First wait for a probe: soon, because what failed may be a few resources of many.
const WAIT_FIRST: Duration = Duration::from_millis(50);
/// So many probes in a row prefer a webhook that was never tried. After them, every other one does.
const FRESH_PROBES: u32 = 16;
/// Longest wait: a lane that has recovered is found within a minute.
const WAIT_LONGEST: Duration = Duration::from_secs(60);
/// Wait at least, after give-ups: overdue webhooks are given up at up to this rate.
const WAIT_LEAST: Duration = Duration::from_millis(5);
/// Part of the time it has been open that a wait may last.
const PART: u32 = 4;

/// State of the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Attempts flow.
    Closed {
        /// First failures in a row.
        failures: u32,
    },
    /// One attempt at a time probes.
    Open {
        /// When it opened.
        since: Duration,
        /// No probe before.
        probe_at: Duration,
        /// Wait before the next probe but one.
        wait: Duration,
        /// Whether the next probe prefers a webhook that was never tried.
        is_fresh_next: bool,
        /// Probes that failed.
        probes: u32,
    },
}

/// Circuit breaker of a lane.
#[derive(Debug, Clone, Copy)]
pub struct LaneBreaker(State);

impl LaneBreaker {
    /// A closed breaker of a lane that has not failed.
    pub fn new() -> Self {
        Self(State::Closed { failures: 0 })
    }

    /// The leader before had opened it.
    pub fn restore(&mut self, now: Duration) {
        self.open(now, now);
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        matches!(self.0, State::Open { .. })
    }

    /// Whether anything failed since the last success.
    pub fn has_failed(&self) -> bool {
        self.0 != State::Closed { failures: 0 }
    }

    /// Has the next probe go out at once.
    pub fn probe_now(&mut self, now: Duration) {
        if let State::Open { probe_at, .. } = &mut self.0 {
            *probe_at = now;
        }
    }

    /// When a probe may go out; `None` while it is closed.
    pub fn probe_at(&self) -> Option<Duration> {
        match self.0 {
            State::Closed { .. } => None,
            State::Open { probe_at, .. } => Some(probe_at),
        }
    }

    /// Whether the next probe prefers a webhook that was never tried; `None` while it is closed.
    pub fn prefers_fresh(&self) -> Option<bool> {
        match self.0 {
            State::Closed { .. } => None,
            State::Open { is_fresh_next, .. } => Some(is_fresh_next),
        }
    }

    /// A delivery succeeded. Returns whether that closes it.
    pub fn succeeded(&mut self) -> bool {
        let was_open = self.is_open();
        *self = Self::new();
        was_open
    }

    /// An attempt that began at `began` failed. Returns whether that opens it: so many first failures in a row do.
    /// `chance` is uniform in [0, 1): the probe is due in the upper half of the wait.
    pub fn failed(
        &mut self,
        (is_first, most): (bool, u32),
        began: Duration,
        now: Duration,
        chance: f64,
    ) -> bool {
        match &mut self.0 {
            State::Closed { failures } => {
                *failures += u32::from(is_first);
                let opens = *failures >= most;
                if opens {
                    self.open(now, now + jittered(WAIT_FIRST, chance));
                }
                opens
            }
            State::Open { since, probe_at, wait, is_fresh_next, probes } => {
                if began >= *since {
                    *probe_at = now + jittered(*wait, chance);
                    let most = (now.saturating_sub(*since) / PART).max(WAIT_FIRST);
                    *wait = (*wait * 2).min(most).min(WAIT_LONGEST);
                    *probes += 1;
                    *is_fresh_next = *probes < FRESH_PROBES || !*is_fresh_next;
                }
                false
            }
        }
    }

    /// Opens it, if it is closed. Returns whether it was.
    pub fn trip(&mut self, now: Duration) -> bool {
        let was_closed = !self.is_open();
        if was_closed {
            self.open(now, now + WAIT_FIRST);
        }
        was_closed
    }

    /// A webhook of the lane was given up, after an attempt that failed and doubled the wait.
    pub fn gave_up(&mut self, now: Duration) {
        if let State::Open { probe_at, wait, .. } = &mut self.0 {
            *wait = (*wait / 4).max(WAIT_LEAST);
            *probe_at = now + *wait;
        }
    }

    fn open(&mut self, since: Duration, probe_at: Duration) {
        let wait = WAIT_FIRST;
        self.0 = State::Open { since, probe_at, wait, is_fresh_next: true, probes: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole wait.
    const LATEST: f64 = 1.0;
    const SECOND: Duration = Duration::from_secs(1);
    const MOST: u32 = 16;

    #[test]
    fn sixteen_first_failures_in_a_row_open_it_and_a_success_closes_it() {
        let mut breaker = LaneBreaker::new();
        for _ in 0..15 {
            assert!(!breaker.failed((true, MOST), SECOND, SECOND, LATEST));
        }
        assert!(!breaker.failed((false, MOST), SECOND, SECOND, LATEST));
        breaker.succeeded();
        for _ in 0..15 {
            assert!(!breaker.failed((true, MOST), SECOND, SECOND, LATEST));
        }
        assert!(breaker.failed((true, MOST), SECOND, SECOND, LATEST) && breaker.is_open());
        assert!(breaker.succeeded() && !breaker.is_open());
    }

    #[test]
    fn waits_double_up_to_a_minute_and_halve_with_each_give_up() {
        let mut breaker = LaneBreaker::new();
        let opened =
            (0..16).filter(|_| breaker.failed((true, MOST), SECOND, SECOND, LATEST)).count();
        assert_eq!(opened, 1);
        let mut now = SECOND;
        for _ in 0..400 {
            now = breaker.probe_at().expect("it is open");
            breaker.failed((false, MOST), now, now, LATEST);
        }
        assert_eq!(breaker.probe_at(), Some(now + WAIT_LONGEST));
        for _ in 0..20 {
            breaker.failed((false, MOST), now, now, LATEST);
            breaker.gave_up(now);
        }
        assert_eq!(breaker.probe_at(), Some(now + WAIT_LEAST));
    }

    #[test]
    fn lanes_that_open_together_are_not_probed_together() {
        let probed_at = |chance| {
            let mut breaker = LaneBreaker::new();
            for _ in 0..16 {
                breaker.failed((true, MOST), SECOND, SECOND, chance);
            }
            (0..8).fold(SECOND, |_, _| {
                let now = breaker.probe_at().expect("it is open");
                breaker.failed((false, MOST), now, now, chance);
                now - SECOND
            })
        };
        let (first, last) = (probed_at(0.0), probed_at(LATEST));
        assert!(first < last.mul_f64(0.7), "{first:?}, {last:?}");
    }

    #[test]
    fn sixteen_webhooks_that_were_never_tried_are_probed_within_seconds() {
        let mut breaker = LaneBreaker::new();
        for _ in 0..16 {
            breaker.failed((true, MOST), SECOND, SECOND, LATEST);
        }
        for _ in 0..FRESH_PROBES {
            assert_eq!(breaker.prefers_fresh(), Some(true));
            let now = breaker.probe_at().expect("it is open");
            assert!(now < 6 * SECOND, "{now:?}");
            breaker.failed((true, MOST), now, now, LATEST);
        }
        let now = breaker.probe_at().expect("it is open");
        let was_fresh = breaker.prefers_fresh();
        breaker.failed((false, MOST), now, now, LATEST);
        assert_ne!(breaker.prefers_fresh(), was_fresh);
    }
}
