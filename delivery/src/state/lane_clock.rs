//! Retry clock of a lane: the time in which no delivery of the lane succeeded. It counts for the
//! retries of the webhooks that wait in the lane.
//!
//! Times are active times of this leader. Earlier times are kept as spans of wall-clock time. The
//! `time` arguments return how much of an active time counts. Pure.

use std::time::Duration;

use spillway_webhook::Spans;

/// Returns the part of the active time between two moments that counts for a webhook.
pub(crate) type CountedTime<'a> = &'a dyn Fn(Duration, Duration) -> Duration;

/// Time at which a webhook was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcceptTime {
    /// Milliseconds since the Unix epoch.
    pub ms: u64,
    /// Active time of this leader; zero if the webhook was accepted before this leader began.
    pub active: Duration,
    /// True if the webhook was accepted before this leader began.
    pub is_before: bool,
}

/// Retry clock of a lane.
#[derive(Debug, Default)]
pub(crate) struct LaneClock {
    /// Failing times before this leader.
    before: Option<Box<Spans>>,
    /// First failure since the last success.
    failing_since: Option<Duration>,
    /// First of the latest refusals that no other failure and no success followed.
    refused_since: Option<Duration>,
}

impl LaneClock {
    /// Takes over the failing times of the previous leader.
    pub(crate) fn restore(&mut self, failing: &Spans) {
        self.failing_since = (!failing.is_empty()).then_some(Duration::ZERO);
        self.before = (!failing.is_empty()).then(|| Box::new(failing.clone()));
    }

    /// Notes an attempt that failed, was refused, or timed out.
    pub(crate) fn failed(&mut self, active: Duration, is_refusal: bool) {
        self.failing_since.get_or_insert(active);
        if is_refusal {
            self.refused_since.get_or_insert(active);
        } else {
            self.refused_since = None;
        }
    }

    /// Notes a failed attempt that is no evidence about this lane.
    pub(crate) fn failed_with_others(&mut self) {
        self.refused_since = None;
    }

    /// Notes a successful delivery. Returns true if the lane had failed before.
    pub(crate) fn succeeded(&mut self) -> bool {
        std::mem::take(self).failing_since.is_some()
    }

    /// True if the last attempts were refused, even if earlier ones failed for other reasons.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused_since.is_some()
    }

    /// True if an attempt failed since the last success.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing_since.is_some()
    }

    /// Time since the first failure in which no delivery of the lane succeeded.
    pub(crate) fn failing(
        &self,
        active: Duration,
        time: impl Fn(Duration, Duration) -> Duration,
    ) -> Duration {
        let before = self.before.as_ref().map_or(Duration::ZERO, |before| before.total());
        before + self.failing_since.map_or(Duration::ZERO, |since| time(since, active))
    }

    /// Part of the failing time since a webhook was accepted.
    pub(crate) fn failing_of(
        &self,
        accepted: AcceptTime,
        active: Duration,
        time: CountedTime<'_>,
    ) -> Duration {
        let before = self.before.as_ref().filter(|_| accepted.is_before);
        let before = before.map_or(Duration::ZERO, |before| before.after(accepted.ms));
        let since = self.failing_since.map(|since| since.max(accepted.active));
        before + since.map_or(Duration::ZERO, |since| time(since, active))
    }

    /// Last part of that time in which all attempts were refused, since this leader began.
    pub(crate) fn refused_of(
        &self,
        accepted: AcceptTime,
        active: Duration,
        time: CountedTime<'_>,
    ) -> Duration {
        let since = self.refused_since.map(|since| since.max(accepted.active));
        since.map_or(Duration::ZERO, |since| time(since, active))
    }

    /// Returns the failing times for the next leader. `spans` converts an active time to wall-clock
    /// times, as far as it counts.
    pub(crate) fn spans(
        &self,
        active: Duration,
        spans: impl Fn(Duration, Duration) -> Vec<(u64, Duration)>,
    ) -> Spans {
        let mut all = self.before.as_deref().cloned().unwrap_or_default();
        for (began_ms, time) in self.failing_since.map_or(Vec::new(), |since| spans(since, active))
        {
            all.push(began_ms, time);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn accepted(second: u32) -> AcceptTime {
        let ms = 100_000 + u64::from(second) * 1_000;
        AcceptTime { ms, active: second * SECOND, is_before: false }
    }

    fn before(ms: u64) -> AcceptTime {
        AcceptTime { ms, active: Duration::ZERO, is_before: true }
    }

    /// Counts all time except the fifth second.
    fn time(from: Duration, to: Duration) -> Duration {
        let pause = to.min(5 * SECOND).saturating_sub(from.max(4 * SECOND));
        to.saturating_sub(from).saturating_sub(pause)
    }

    #[test]
    fn the_failing_time_ends_with_a_success() {
        let mut clock = LaneClock::default();
        assert!(!clock.succeeded());
        clock.failed(2 * SECOND, false);
        clock.failed(9 * SECOND, false);
        assert_eq!(clock.failing(12 * SECOND, time), 9 * SECOND);
        let of = |second| clock.failing_of(accepted(second), 12 * SECOND, &time);
        assert_eq!([1, 3, 5, 10].map(of), [9, 8, 7, 2].map(|seconds| seconds * SECOND));
        assert!(clock.succeeded());
        assert_eq!(clock.failing(12 * SECOND, time), Duration::ZERO);
    }

    #[test]
    fn only_refusals_in_a_row_count_as_refused() {
        let mut clock = LaneClock::default();
        let refused =
            |clock: &LaneClock, from, to: u32| clock.refused_of(accepted(from), to * SECOND, &time);
        clock.failed(SECOND, true);
        clock.failed(3 * SECOND, true);
        assert_eq!(refused(&clock, 0, 6), 4 * SECOND);
        assert_eq!(refused(&clock, 3, 6), 2 * SECOND);
        clock.failed(6 * SECOND, false);
        assert_eq!(refused(&clock, 0, 7), Duration::ZERO);
        assert_eq!(clock.failing(7 * SECOND, time), 5 * SECOND);
        clock.failed(7 * SECOND, true);
        clock.failed_with_others();
        assert_eq!(refused(&clock, 0, 9), Duration::ZERO);
        clock.failed(9 * SECOND, true);
        clock.succeeded();
        assert_eq!(refused(&clock, 0, 12), Duration::ZERO);
    }

    #[test]
    fn the_failing_time_goes_on_over_leaders_and_what_lies_between_counts_for_nothing() {
        let mut clock = LaneClock::default();
        clock.failed(2 * SECOND, false);
        let spans = |_, _| vec![(102_000, 2 * SECOND), (105_000, 2 * SECOND)];
        let mut known = clock.spans(7 * SECOND, spans);
        known.push(200_000, 10 * SECOND);
        let mut clock = LaneClock::default();
        clock.restore(&known);
        assert_eq!(clock.failing(SECOND, time), 15 * SECOND);
        let of = |ms| clock.failing_of(before(ms), SECOND, &time);
        let ms = [100_000, 103_000, 104_500, 150_000, 205_000, 900_000];
        assert_eq!(ms.map(of), [15, 14, 13, 11, 6, 1].map(|seconds| seconds * SECOND));
        assert_eq!(clock.failing_of(accepted(6), 8 * SECOND, &time), 2 * SECOND);
        clock.succeeded();
        assert!(clock.spans(9 * SECOND, spans).is_empty());
    }
}
