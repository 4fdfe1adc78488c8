//! State of the backend as a whole: up, down, or refusing everything.
//!
//! The backend counts as down if no connection can be made, or if first attempts fail in several
//! lanes and nothing succeeds. The latter must last for a second with ten first failures, or for
//! half a minute. Retries are no evidence, because they may belong to a few webhooks that never
//! succeed. One failing lane is no evidence either, nor is one shop of a backend that has served
//! others. While the backend is down or refuses, the retry clock stands still. One attempt per
//! second probes, or a few at a time if they hang. Pure: time is an argument.

use std::collections::HashSet;
use std::time::Duration;

use crate::state::refusals::RefusalBreaker;

/// Number of first failures in a row that count as down.
const FIRST_FAILURES_DOWN: usize = 10;
/// Time without a success after which they count. While deliveries succeed, ten failing shops can
/// have their turns in a row by chance.
const FIRST_FAILURES_AFTER: Duration = Duration::from_secs(1);
/// Time of failures of any kind, without a success, that counts as down.
const SILENCE_DOWN: Duration = Duration::from_secs(30);
/// Number of lanes that must fail.
const LANES_DOWN: usize = 3;
/// Time between two probes of a backend that is down.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Time between two probes of a backend that refuses. Each probe may cost a webhook.
const PROBE_REFUSING_EVERY: Duration = Duration::from_secs(10);
const _: () = assert!(
    FIRST_FAILURES_AFTER.as_millis() < SILENCE_DOWN.as_millis(),
    "failures tell sooner than silence"
);
const _: () = assert!(
    PROBE_EVERY.as_millis() < PROBE_REFUSING_EVERY.as_millis(),
    "a probe of a backend that refuses costs a webhook an attempt"
);

/// Kind of attempts that may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// Nothing new.
    Nothing,
    /// One delivery, if nothing else is under way.
    Probe,
    /// Everything that the limiter admits.
    All,
}

/// Times of the probes of a backend that is down.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    /// Total time of the probes cut off since the last one that had its full time.
    sliced: Duration,
    /// Time of that last full probe.
    whole: Duration,
}

impl Probes {
    /// Notes that a probe was cut off after `took`.
    pub(crate) fn was_cut(&mut self, took: Duration) {
        self.sliced += took;
    }

    /// Notes that a slow attempt failed after `took` and was not cut off.
    pub(crate) fn failed(&mut self, took: Duration) {
        self.sliced = Duration::ZERO;
        self.whole = took;
    }

    /// True if a single probe at a time is to have its full time. Such probes get half of the time.
    pub(crate) fn is_whole_due(&self) -> bool {
        self.sliced >= self.whole
    }
}

/// Most starts of active time that are remembered.
const RUNS_MAX: usize = 64;

/// State of the backend. Times are durations since the start.
#[derive(Debug)]
pub(crate) struct BackendHealth {
    refusals: RefusalBreaker,
    failing: Failing,
    /// Shops with a delivery that ever succeeded.
    served: Several,
    succeeded_at: Duration,
    probe_at: Duration,
    /// Time at which the backend last went down or began to refuse.
    stopped_at: Duration,
    /// Active time when the clock last stopped.
    active: Duration,
    /// Times at which the clock started, with the active time at each. The first one is the start
    /// of the leader.
    runs: Vec<(Duration, Duration)>,
    is_down: bool,
    /// True if there is a lease. Without one nothing is sent and no time counts.
    has_lease: bool,
    /// Probes while the backend is down.
    pub probes: Probes,
}

/// Failures since the last success.
#[derive(Debug, Default)]
struct Failing {
    /// Number of failed first attempts.
    firsts: usize,
    /// Some of the lanes with a failed first attempt.
    lanes: HashSet<u64>,
    shops: Several,
    is_unconnected: bool,
}

/// Set of shops that knows only the first one, and if there are others.
#[derive(Debug, Default)]
struct Several {
    first: Option<u64>,
    has_others: bool,
}

impl Several {
    fn add(&mut self, shop: u64) {
        self.has_others |= *self.first.get_or_insert(shop) != shop;
    }

    /// True if the set contains another shop than `shop`.
    fn has_other(&self, shop: u64) -> bool {
        self.has_others || self.first.is_some_and(|first| first != shop)
    }
}

impl Default for BackendHealth {
    fn default() -> Self {
        Self {
            refusals: RefusalBreaker::default(),
            failing: Failing::default(),
            served: Several::default(),
            succeeded_at: Duration::ZERO,
            probe_at: Duration::ZERO,
            stopped_at: Duration::ZERO,
            active: Duration::ZERO,
            runs: vec![(Duration::ZERO, Duration::ZERO)],
            is_down: false,
            has_lease: true,
            probes: Probes::default(),
        }
    }
}

impl BackendHealth {
    /// Kind of attempts that may begin at `now`.
    pub(crate) fn allows(&self, now: Duration) -> Allowed {
        match (self.is_stopped(), now < self.probe_at) {
            (false, _) => Allowed::All,
            (true, true) => Allowed::Nothing,
            (true, false) => Allowed::Probe,
        }
    }

    /// Time of the next probe, if it must be waited for.
    pub(crate) fn probes_at(&self, now: Duration) -> Option<Duration> {
        (self.allows(now) == Allowed::Nothing).then_some(self.probe_at)
    }

    /// True if the backend is down or refuses everything.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_down || self.is_refusing()
    }

    /// Time at which the backend last stopped.
    pub(crate) fn stopped_at(&self) -> Duration {
        self.stopped_at
    }

    /// Notes a probe that is no evidence about the backend. The backend requested a pause for one
    /// shop or resource only, or the probe was cut off while the backend refuses.
    pub(crate) fn probed(&mut self, now: Duration) {
        if self.is_stopped() {
            self.probe_at = self.probe_at.max(now + self.probes_every());
        }
    }

    fn probes_every(&self) -> Duration {
        if self.is_refusing() { PROBE_REFUSING_EVERY } else { PROBE_EVERY }
    }

    /// True if the backend refuses everything. Then nothing is given up.
    pub(crate) fn is_refusing(&self) -> bool {
        self.refusals.is_open()
    }

    /// True if the backend is down.
    pub(crate) fn is_down(&self) -> bool {
        self.is_down
    }

    /// Takes the credit to give up a webhook of `shop`. Returns true if there is any. The credit
    /// keeps a bad deploy from making dead letters of everything.
    pub(crate) fn take_credit(&mut self, shop: u64) -> bool {
        let may = self.refusals.may_give_up(shop);
        if may {
            self.refusals.mark_given_up(shop);
        }
        may
    }

    /// Active time: all time except while the backend was stopped or the leader had no lease.
    pub(crate) fn active(&self, now: Duration) -> Duration {
        let (at, active) = self.runs.last().copied().unwrap_or_default();
        if self.is_still() { self.active } else { active + now.saturating_sub(at) }
    }

    /// True if no time counts at present.
    fn is_still(&self) -> bool {
        self.is_stopped() || !self.has_lease
    }

    /// Notes that the lease ended at `at` and was not renewed.
    pub(crate) fn lease_ended(&mut self, at: Duration) {
        if std::mem::replace(&mut self.has_lease, false) && !self.is_stopped() {
            let (began, active) = self.runs.last().copied().unwrap_or_default();
            self.active = active + at.saturating_sub(began);
        }
    }

    /// Notes that there is a lease.
    pub(crate) fn lease_renewed(&mut self, now: Duration) {
        if !std::mem::replace(&mut self.has_lease, true) && !self.is_stopped() {
            self.goes_on(now);
        }
    }

    /// Active time at a moment that is not after `now`.
    pub(crate) fn active_at(&self, moment: Duration, now: Duration) -> Duration {
        let next = self.runs.partition_point(|(at, _)| *at <= moment);
        let (at, active) = self.runs[next.saturating_sub(1)];
        let most = self.runs.get(next).map_or_else(|| self.active(now), |(_, active)| *active);
        (active + moment.saturating_sub(at)).min(most)
    }

    /// Pieces of active time: the moment at which each began, and its duration.
    pub(crate) fn pieces(&self, from: Duration, to: Duration) -> Vec<(Duration, Duration)> {
        let starts = self
            .runs
            .iter()
            .map(|(_, active)| *active)
            .filter(|active| *active > from && *active < to);
        let starts: Vec<Duration> = [from].into_iter().chain(starts).collect();
        let ends = starts.iter().skip(1).copied().chain([to]);
        starts
            .iter()
            .zip(ends)
            .map(|(start, end)| (self.moment_after(*start), end.saturating_sub(*start)))
            .collect()
    }

    /// Last moment with this active time.
    fn moment_after(&self, active: Duration) -> Duration {
        let next = self.runs.partition_point(|(_, before)| *before <= active).max(1);
        let (at, before) = self.runs[next - 1];
        at + active.saturating_sub(before)
    }

    /// Starts the clock again. If there are too many stops, the shortest one is forgotten: times
    /// during or before it then seem later.
    fn goes_on(&mut self, now: Duration) {
        self.runs.push((now, self.active));
        if self.runs.len() > RUNS_MAX {
            let stop = |at: &usize| {
                let ((before, active_before), (at, active)) = (self.runs[*at - 1], self.runs[*at]);
                at.saturating_sub(before).saturating_sub(active.saturating_sub(active_before))
            };
            if let Some(shortest) = (1..self.runs.len() - 1).min_by_key(stop) {
                self.runs.remove(shortest);
            }
        }
    }

    /// Notes that a delivery for `shop` succeeded.
    pub(crate) fn succeeded(&mut self, shop: u64, now: Duration) {
        let was_stopped = self.is_stopped();
        self.refusals.on_success(shop, now);
        self.served.add(shop);
        self.answered(now);
        self.is_down = false;
        if was_stopped && !self.is_still() {
            self.goes_on(now);
        }
    }

    /// Notes that a delivery for `shop` was refused, for now or for good. Returns true if the
    /// backend now counts as refusing.
    pub(crate) fn refused(&mut self, shop: u64, now: Duration) -> bool {
        let active = self.active(now);
        // The backend works: it examined the webhook and refused it.
        self.answered(now);
        if std::mem::take(&mut self.is_down) && !self.is_still() {
            self.goes_on(now);
        }
        let has_opened = self.refusals.on_refusal(shop, now);
        if has_opened {
            self.active = active;
            self.stopped_at = now;
        }
        if self.refusals.is_open() {
            self.probe_at = now + PROBE_REFUSING_EVERY;
        }
        has_opened
    }

    /// Notes that no connection could be made. That is never the fault of one lane.
    pub(crate) fn unconnected(&mut self) {
        self.failing.is_unconnected = true;
    }

    /// True once a delivery of another shop than `shop` has succeeded.
    pub(crate) fn has_served_other(&self, shop: u64) -> bool {
        self.served.has_other(shop)
    }

    /// True if `shop` is the only shop that has failed since the last success.
    pub(crate) fn is_only_failing(&self, shop: u64) -> bool {
        self.failing.shops.first == Some(shop) && !self.failing.shops.has_others
    }

    /// Notes that a delivery for `lane` of `shop` failed. `is_first` is true for the first attempt
    /// of a webhook. Returns true if that makes the backend count as down.
    pub(crate) fn failed(&mut self, lane: u64, shop: u64, is_first: bool, now: Duration) -> bool {
        self.failing.shops.add(shop);
        self.failing.firsts += usize::from(is_first);
        // A webhook that failed before is no new evidence.
        if is_first && self.failing.lanes.len() < LANES_DOWN {
            self.failing.lanes.insert(lane);
        }
        let silence = now.saturating_sub(self.succeeded_at);
        let is_silent = silence >= SILENCE_DOWN;
        let are_failures_many =
            self.failing.firsts >= FIRST_FAILURES_DOWN && silence >= FIRST_FAILURES_AFTER;
        let are_shops_several = self.failing.shops.has_others || !self.served.has_other(shop);
        let has_several = (self.failing.lanes.len() >= LANES_DOWN && are_shops_several)
            || self.failing.is_unconnected;
        let goes_down = !self.is_down && has_several && (is_silent || are_failures_many);
        if goes_down {
            self.probes = Probes::default();
            self.active = self.active(now);
            self.is_down = true;
            self.stopped_at = now;
        }
        self.probed(now);
        goes_down
    }

    fn answered(&mut self, now: Duration) {
        self.failing = Failing::default();
        self.succeeded_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A backend that is down in the second half of each span of ten seconds.
    fn down_in_halves(spans: u32) -> BackendHealth {
        let mut backend = BackendHealth::default();
        for number in 0..spans {
            backend.unconnected();
            for _ in 0..FIRST_FAILURES_DOWN {
                backend.failed(1, 1, true, (number * 10 + 5) * SECOND);
            }
            assert!(backend.is_down());
            backend.succeeded(1, (number * 10 + 10) * SECOND);
        }
        backend
    }

    #[test]
    fn each_moment_has_its_active_time() {
        let backend = down_in_halves(2);
        let now = 23 * SECOND;
        let at = |second: u32| backend.active_at(second * SECOND, now);
        let actives = [0, 3, 5, 7, 10, 12, 16, 20, 22, 23, 90].map(at);
        assert_eq!(actives, [0, 3, 5, 5, 5, 7, 10, 10, 12, 13, 13].map(|active| active * SECOND));
        let pieces = backend.pieces(3 * SECOND, 12 * SECOND);
        let expected = [(3, 2), (10, 5), (20, 2)];
        assert_eq!(pieces, expected.map(|(moment, time)| (moment * SECOND, time * SECOND)));
        assert_eq!(backend.pieces(5 * SECOND, 6 * SECOND), [(10 * SECOND, SECOND)]);
    }

    #[test]
    fn of_too_many_stops_some_are_forgotten_and_nothing_seems_older_than_it_is() {
        let backend = down_in_halves(200);
        assert_eq!(backend.runs.len(), RUNS_MAX);
        let now = 2_003 * SECOND;
        for second in 0..2_003 {
            let exact = (second / 10 * 5 + (second % 10).min(5)) * SECOND;
            let active = backend.active_at(second * SECOND, now);
            assert!(active >= exact, "{second}: {active:?}, not {exact:?}");
        }
        assert_eq!(backend.active_at(1_999 * SECOND, now), 1_000 * SECOND);
    }
}
