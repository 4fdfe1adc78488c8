//! Time of a lane that counts for its retries: when nothing of it succeeded, and no operator paused it.
//!
//! Times are active times of this leader; what was before is kept as spans of wall-clock time. Where not all is known,
//! less counts rather than more. Pure: time is an argument.

use std::time::Duration;

use spillway_webhook::Spans;

/// Pauses that are kept apart.
const PAUSES_MAX: usize = 16;

/// When something was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// In milliseconds since the Unix epoch.
    pub ms: u64,
    /// As active time of this leader; zero if it was before.
    pub active: Duration,
    /// Whether it was before this leader.
    pub is_before: bool,
}

/// Retry clock of a lane.
#[derive(Debug, Default)]
pub struct LaneClock {
    /// When it failed before this leader.
    before: Option<Box<Spans>>,
    /// First failure since the last success.
    failing_since: Option<Duration>,
    /// First of the refusals that no other failure and no success came after.
    refused_since: Option<Duration>,
    /// When an operator paused it, oldest first.
    pauses: Box<[(Duration, Duration)]>,
}

impl LaneClock {
    /// Takes over what the leader before knew.
    pub fn restore(&mut self, failing: &Spans) {
        self.failing_since = (!failing.is_empty()).then_some(Duration::ZERO);
        self.before = (!failing.is_empty()).then(|| Box::new(failing.clone()));
    }

    /// An attempt failed, was refused, or did not end in time.
    pub fn failed(&mut self, active: Duration, is_refusal: bool) {
        self.failing_since.get_or_insert(active);
        if is_refusal {
            self.refused_since.get_or_insert(active);
        } else {
            self.refused_since = None;
        }
    }

    /// An attempt failed, and that says nothing of the lane.
    pub fn failed_with_others(&mut self) {
        self.refused_since = None;
    }

    /// A delivery succeeded.
    pub fn succeeded(&mut self) {
        (self.before, self.failing_since, self.refused_since) = (None, None, None);
    }

    /// True if it failed since the last success.
    pub fn is_failing(&self) -> bool {
        self.failing_since.is_some()
    }

    /// An operator paused it in this time.
    pub fn pause(&mut self, from: Duration, to: Duration) {
        let from = self.pauses.last().map_or(from, |(_, end)| from.max(*end));
        if from >= to {
            return;
        }
        let mut pauses = std::mem::take(&mut self.pauses).into_vec();
        match pauses.last_mut().filter(|(_, end)| *end == from) {
            Some((_, end)) => *end = to,
            None => pauses.push((from, to)),
        }
        if pauses.len() > PAUSES_MAX {
            // The time between those two does not count either.
            let between = |at: &usize| pauses[*at + 1].0.saturating_sub(pauses[*at].1);
            if let Some(at) = (0..pauses.len() - 1).min_by_key(between) {
                let (_, end) = pauses.remove(at + 1);
                pauses[at].1 = end;
            }
        }
        self.pauses = pauses.into_boxed_slice();
    }

    /// The part of a time in which it was not paused.
    pub fn unpaused(&self, from: Duration, to: Duration) -> Duration {
        let paused = self
            .pauses
            .iter()
            .map(|(began, end)| (*end).min(to).saturating_sub((*began).max(from)));
        to.saturating_sub(from).saturating_sub(paused.sum())
    }

    /// Time from the first failure on in which nothing of the lane succeeded.
    pub fn failing(&self, active: Duration) -> Duration {
        let before = self.before.as_ref().map_or(Duration::ZERO, |before| before.total());
        before + self.since(self.failing_since, Duration::ZERO, active)
    }

    /// The part of it since a webhook was accepted.
    pub fn failing_of(&self, accepted: Accepted, active: Duration) -> Duration {
        let before = self.before.as_ref().filter(|_| accepted.is_before);
        let before = before.map_or(Duration::ZERO, |before| before.after(accepted.ms));
        before + self.since(self.failing_since, accepted.active, active)
    }

    /// The last part of that, in which all attempts were refused, since this leader began.
    pub fn refused_of(&self, accepted: Accepted, active: Duration) -> Duration {
        self.since(self.refused_since, accepted.active, active)
    }

    fn since(&self, since: Option<Duration>, from: Duration, active: Duration) -> Duration {
        since.map_or(Duration::ZERO, |since| self.unpaused(since.max(from), active))
    }

    /// When it failed, for the next leader. `spans` says when an active time was.
    pub fn spans(
        &self,
        active: Duration,
        spans: impl Fn(Duration, Duration) -> Vec<(u64, Duration)>,
    ) -> Spans {
        let mut all = self.before.as_deref().cloned().unwrap_or_default();
        let Some(mut from) = self.failing_since else { return all };
        for (began, end) in self.pauses.iter().copied().chain([(active, active)]) {
            for (began_ms, time) in spans(from, began.min(active)) {
                all.push(began_ms, time);
            }
            from = from.max(end);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn accepted(second: u32) -> Accepted {
        Accepted {
            ms: 100_000 + u64::from(second) * 1_000,
            active: second * SECOND,
            is_before: false,
        }
    }

    fn before(ms: u64) -> Accepted {
        Accepted { ms, active: Duration::ZERO, is_before: true }
    }

    /// The leader began at 100 s, and never stopped.
    fn spans(from: Duration, to: Duration) -> Vec<(u64, Duration)> {
        let ms = u64::try_from(from.as_millis()).expect("it is small");
        vec![(100_000 + ms, to.saturating_sub(from))]
    }

    #[test]
    fn the_failing_time_ends_with_a_success() {
        let mut clock = LaneClock::default();
        clock.failed(8 * SECOND, false);
        clock.failed(9 * SECOND, false);
        assert_eq!(clock.failing(12 * SECOND), 4 * SECOND);
        assert_eq!(clock.failing_of(accepted(1), 12 * SECOND), 4 * SECOND);
        assert_eq!(clock.failing_of(accepted(10), 12 * SECOND), 2 * SECOND);
        clock.succeeded();
        assert_eq!(clock.failing(12 * SECOND), Duration::ZERO);
    }

    #[test]
    fn only_refusals_in_a_row_count_as_refused() {
        let mut clock = LaneClock::default();
        let refused =
            |clock: &LaneClock, second: u32| clock.refused_of(accepted(0), second * SECOND);
        clock.failed(SECOND, true);
        clock.failed(4 * SECOND, true);
        clock.pause(4 * SECOND, 5 * SECOND);
        assert_eq!(refused(&clock, 6), 4 * SECOND);
        assert_eq!(clock.refused_of(accepted(3), 6 * SECOND), 2 * SECOND);
        clock.failed(6 * SECOND, false);
        assert_eq!(refused(&clock, 7), Duration::ZERO);
        assert_eq!(clock.failing(7 * SECOND), 5 * SECOND);
        clock.failed(7 * SECOND, true);
        clock.failed_with_others();
        assert_eq!(refused(&clock, 9), Duration::ZERO);
        clock.failed(9 * SECOND, true);
        clock.succeeded();
        assert_eq!(refused(&clock, 12), Duration::ZERO);
    }

    #[test]
    fn pauses_count_for_no_webhook_whenever_it_came() {
        let mut clock = LaneClock::default();
        clock.pause(Duration::ZERO, 5 * SECOND);
        assert_eq!(clock.failing(6 * SECOND), Duration::ZERO);
        clock.failed(10 * SECOND, false);
        clock.pause(14 * SECOND, 20 * SECOND);
        // The end of one is the beginning of the next, and one is told again.
        clock.pause(20 * SECOND, 22 * SECOND);
        clock.pause(14 * SECOND, 22 * SECOND);
        let parts =
            [0, 12, 15, 21, 23].map(|second| clock.failing_of(accepted(second), 26 * SECOND));
        assert_eq!(parts, [8, 6, 4, 4, 3].map(|seconds| seconds * SECOND));
        for number in 2..40 {
            clock.pause(number * 20 * SECOND, (number * 20 + 10) * SECOND);
        }
        assert!(clock.failing(1_000 * SECOND) <= (1_000 - 10 - 8 - 380) * SECOND);
        assert_eq!(clock.failing_of(accepted(800), 1_000 * SECOND), 200 * SECOND);
    }

    #[test]
    fn the_failing_time_goes_on_over_leaders_and_what_lies_between_counts_for_nothing() {
        let mut clock = LaneClock::default();
        clock.failed(2 * SECOND, false);
        clock.pause(4 * SECOND, 6 * SECOND);
        let mut known = clock.spans(8 * SECOND, spans);
        assert_eq!(known.total(), 4 * SECOND);
        known.push(200_000, 10 * SECOND);
        let mut clock = LaneClock::default();
        clock.restore(&known);
        assert_eq!(clock.failing(SECOND), 15 * SECOND);
        let of = |ms| clock.failing_of(before(ms), SECOND);
        assert_eq!(
            [100_000, 103_000, 105_000, 150_000, 205_000, 900_000].map(of),
            [15, 14, 13, 11, 6, 1].map(|seconds| seconds * SECOND)
        );
        assert_eq!(clock.failing_of(accepted(5), 8 * SECOND), 3 * SECOND);
        clock.succeeded();
        assert!(clock.spans(9 * SECOND, spans).is_empty());
    }
}
