//! Circuit breaker of a lane.
//!
//! | state | first failure | other failure | give-up | success |
//! |---|---|---|---|---|
//! | Closed, few in a row | Closed, one more | same | same | Closed, none |
//! | Closed, the last of as many as it bears | Open | | | |
//! | Open | wait doubles | wait doubles | wait halves | Closed |
//!
//! A lane that hangs gets few attempts, so [`LaneBreaker::trip`] opens its breaker by time. While
//! the breaker is open, one attempt at a time probes. Waits are jittered, because breakers of lanes
//! of one endpoint open together and must not probe together. Pure: time and chance are arguments.

use std::time::Duration;

use crate::state::backoff::jittered;

/// First wait for a probe. It is short, because perhaps only a few of many resources fail.
const WAIT_FIRST: Duration = Duration::from_millis(50);
/// Number of first probes in a row that prefer a webhook that was never tried. After them, every
/// other probe does.
const FRESH_PROBES: u32 = 16;
/// Longest wait: a lane that has recovered is found within a minute.
const WAIT_LONGEST: Duration = Duration::from_secs(60);
/// Shortest wait after give-ups. It limits the rate at which overdue webhooks are given up.
const WAIT_LEAST: Duration = Duration::from_millis(5);
const _: () = assert!(
    WAIT_LEAST.as_millis() <= WAIT_FIRST.as_millis()
        && WAIT_FIRST.as_millis() <= WAIT_LONGEST.as_millis()
);
/// A wait may last 1/`PART` of the time for which the breaker has been open.
const PART: u32 = 4;

/// State of the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BreakerState {
    /// Attempts are not limited.
    Closed {
        /// Number of consecutive first failures.
        failures: u32,
    },
    /// One attempt at a time probes.
    Open {
        /// Time at which the breaker opened.
        since: Duration,
        /// Time before which there is no probe.
        probe_at: Duration,
        /// Wait after the next failed probe.
        wait: Duration,
        /// True if the next probe prefers a webhook that was never tried.
        is_fresh_next: bool,
        /// Number of failed probes.
        probes: u32,
    },
}

/// Circuit breaker of a lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneBreaker(BreakerState);

impl LaneBreaker {
    /// Creates a closed breaker of a lane that has not failed.
    pub(crate) fn new() -> Self {
        Self(BreakerState::Closed { failures: 0 })
    }

    /// Opens the breaker as the previous leader had it.
    pub(crate) fn restore(&mut self, now: Duration) {
        self.open(now, now);
    }

    /// True if the breaker is open.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.0, BreakerState::Open { .. })
    }

    /// True if an attempt failed since the last success.
    pub(crate) fn has_failed(&self) -> bool {
        self.0 != BreakerState::Closed { failures: 0 }
    }

    /// Makes the next probe due at once.
    pub(crate) fn probe_now(&mut self, now: Duration) {
        if let BreakerState::Open { probe_at, .. } = &mut self.0 {
            *probe_at = now;
        }
    }

    /// Time at which a probe may begin; `None` while the breaker is closed.
    pub(crate) fn probe_at(&self) -> Option<Duration> {
        match self.0 {
            BreakerState::Closed { .. } => None,
            BreakerState::Open { probe_at, .. } => Some(probe_at),
        }
    }

    /// True if the next probe prefers a webhook that was never tried; `None` while the breaker is
    /// closed.
    pub(crate) fn prefers_fresh(&self) -> Option<bool> {
        match self.0 {
            BreakerState::Closed { .. } => None,
            BreakerState::Open { is_fresh_next, .. } => Some(is_fresh_next),
        }
    }

    /// Notes a successful delivery. Returns true if that closes the breaker.
    pub(crate) fn succeeded(&mut self) -> bool {
        let was_open = self.is_open();
        *self = Self::new();
        was_open
    }

    /// Notes the failure of an attempt that began at `began`. Returns true if that opens the
    /// breaker, which `most` first failures in a row do. `chance` is uniform in [0, 1): the probe
    /// is due in the upper half of the wait.
    pub(crate) fn failed(
        &mut self,
        (is_first, most): (bool, u32),
        began: Duration,
        now: Duration,
        chance: f64,
    ) -> bool {
        match &mut self.0 {
            BreakerState::Closed { failures } => {
                *failures += u32::from(is_first);
                let opens = *failures >= most;
                if opens {
                    self.open(now, now + jittered(WAIT_FIRST, chance));
                }
                opens
            }
            BreakerState::Open { since, probe_at, wait, is_fresh_next, probes } => {
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

    /// Opens the breaker. Returns true if it was closed.
    pub(crate) fn trip(&mut self, now: Duration) -> bool {
        let was_closed = !self.is_open();
        if was_closed {
            self.open(now, now + WAIT_FIRST);
        }
        was_closed
    }

    /// Notes that a webhook of the lane was given up, after an attempt that failed and doubled the
    /// wait.
    pub(crate) fn gave_up(&mut self, now: Duration) {
        if let BreakerState::Open { probe_at, wait, .. } = &mut self.0 {
            *wait = (*wait / 4).max(WAIT_LEAST);
            *probe_at = now + *wait;
        }
    }

    fn open(&mut self, since: Duration, probe_at: Duration) {
        let wait = WAIT_FIRST;
        self.0 = BreakerState::Open { since, probe_at, wait, is_fresh_next: true, probes: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chance for the full wait.
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
        let first = probed_at(0.0);
        let last = probed_at(LATEST);
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
