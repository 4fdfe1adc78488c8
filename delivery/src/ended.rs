//! The end of an attempt: delivered, tried again later, or given up.

use std::time::Duration;

use spillway_limiter::{Sample, Signal};
use spillway_webhook::position::Position;

use crate::attempts::{Attempt, AttemptId};
use crate::backoff::jittered;
use crate::core::Core;
use crate::event::{AttemptEnd, Scope, Verdict};
use crate::give_up::AttemptFailure;
use crate::lane::{FAILURES_KNOWN, Failures, Suspect};
use crate::ledger::{Ended, Finished};
use crate::resource::{HeadState, Step};
use crate::retry::RetryState;
use crate::sorted::Content;
use crate::time::About;

/// Longest wait between two attempts of a suspect lane. A lane that has recovered is found within a
/// minute.
const SUSPECT_LONGEST: Duration = Duration::from_secs(60);

/// Time for which a delivery of another lane shows that a failing lane's problem is its own.
const SERVED_LATELY: Duration = Duration::from_secs(600);

/// Reason of a dead letter whose time for retries is over.
const RETRIES_EXHAUSTED: &str = "retries_exhausted";

/// True if the backend failed and did not request a pause.
fn is_failure(signal: Signal) -> bool {
    match signal {
        Signal::Done | Signal::Failed => false,
        Signal::Overloaded { retry_after } | Signal::Unavailable { retry_after } => {
            retry_after.is_none()
        }
        Signal::TimedOut | Signal::Broken => true,
    }
}

impl<C: Content> Core<C> {
    pub(crate) fn ended(&mut self, end: AttemptEnd<C::Evidence>) {
        let Some(attempt) = self.attempts.end(end.id) else { return };
        let is_delivered = end.verdict == Verdict::Delivered;
        self.freed(&attempt, end.took, is_delivered && !attempt.is_suspect);
        self.report_to_limiter(&attempt, &end);
        match end.verdict {
            Verdict::Delivered => self.delivered(&attempt),
            Verdict::NotSent => self.retry(&attempt, attempt.number - 1, Duration::ZERO, None),
            Verdict::Dead { reason, is_refusal } => {
                if is_refusal {
                    self.refused(&attempt);
                }
                let pause = Duration::ZERO;
                let evidence = end.evidence;
                self.give_up(AttemptFailure { attempt, pause, reason, is_refusal, evidence });
            }
            Verdict::Retry { pause, scope, is_refusal } => {
                self.failed(&attempt, &end, scope, is_refusal);
                let reason = if is_refusal { "refused" } else { RETRIES_EXHAUSTED };
                let evidence = end.evidence;
                let failure = AttemptFailure { attempt, pause, reason, is_refusal, evidence };
                self.retry_or_give_up(failure, scope);
            }
        }
    }

    /// Handles an attempt that was cut off so that others get its slot. It counts as failed.
    /// Otherwise a webhook that hangs would be tried forever while others wait.
    pub(crate) fn was_cut_off(&mut self, id: AttemptId) {
        let Some(attempt) = self.attempts.end(id) else { return };
        let took = self.session.now.at.saturating_sub(attempt.began);
        self.freed(&attempt, took, false);
        self.backend.probes.was_cut(took);
        if self.backend.is_refusing() {
            self.backend.probed(self.session.now.at);
        }
        self.suspect(&attempt, false);
        self.counts.cut_off += 1;
        let now = self.session.now.at;
        let chance = self.chance();
        let most = self.config.tuning.breaker_failures;
        let lane = self.queue.lanes.get_mut(attempt.lane);
        let has_timed_out = lane.is_some_and(|lane| {
            lane.breaker.failed((false, most), attempt.began, now, chance);
            lane.flow.suspect.is_some_and(|suspect| suspect.has_timed_out)
        });
        // This is no evidence yet if the lane never had the full timeout, or if its leader ends.
        if self.session.is_stopping || !has_timed_out {
            self.retry(&attempt, attempt.number, Duration::ZERO, Some(false));
            return;
        }
        let failure = AttemptFailure {
            attempt,
            pause: Duration::ZERO,
            reason: RETRIES_EXHAUSTED,
            is_refusal: false,
            evidence: C::Evidence::default(),
        };
        self.retry_or_give_up(failure, None);
    }

    /// Frees the slot of an attempt.
    fn freed(&mut self, attempt: &Attempt, took: Duration, is_usual: bool) {
        if let Some(lane) = self.queue.lanes.get_mut(attempt.lane) {
            lane.flow.in_flight -= 1;
            if attempt.is_slow && !lane.flow.has_succeeded_since(attempt.began) {
                lane.flow.stalled = lane.flow.stalled.saturating_sub(1);
            }
        }
        if attempt.is_suspect {
            self.attempts.suspects.ended(took, self.session.now.at);
        }
        self.queue.shops.ended(attempt.shop, took, is_usual, attempt.is_long);
    }

    /// Passes the result to the limiter, unless it is evidence about the lane rather than about the
    /// backend.
    fn report_to_limiter(&mut self, attempt: &Attempt, end: &AttemptEnd<C::Evidence>) {
        let others_flow = self.attempts.has_other_succeeded(attempt.lane, attempt.began);
        // A request to pause everything always counts.
        let is_outright = matches!(end.verdict, Verdict::Retry { scope: Some(Scope::All), .. })
            && !is_failure(end.signal);
        let is_own_matter = attempt.is_suspect || (end.signal == Signal::TimedOut && others_flow);
        let is_lanes = is_own_matter
            || self.is_alone_in_failing(attempt, end.signal)
            || self.is_known_to_fail(attempt, end)
            || self.is_failed_probe(end.signal);
        if is_lanes && !is_outright {
            return;
        }
        if end.verdict == Verdict::NotSent {
            return;
        }
        let sample =
            Sample { began: attempt.began, in_flight: attempt.in_flight, signal: end.signal };
        let chance = self.chance();
        self.limiter.ended(&sample, self.session.now.at, chance);
    }

    /// True for a failure of a lane that is known to fail while the backend serves others. Failures
    /// of other lanes show if the backend is full or needs a pause.
    fn is_known_to_fail(&self, attempt: &Attempt, end: &AttemptEnd<C::Evidence>) -> bool {
        let Verdict::Retry { pause, scope: None, is_refusal: false } = end.verdict else {
            return false;
        };
        // A missing connection is never the fault of one lane. While the backend is stopped, the
        // pauses that it requests count.
        if end.is_unconnected || (!pause.is_zero() && self.backend.is_stopped()) {
            return false;
        }
        // A requested pause counts only for the first failure of a lane.
        let least = if pause.is_zero() { FAILURES_KNOWN } else { 1 };
        let lane = self.queue.lanes.get(attempt.lane);
        let since = lane.and_then(|lane| lane.flow.failures.since(least));
        let lately = self.session.now.at.saturating_sub(SERVED_LATELY);
        since
            .is_some_and(|since| self.attempts.has_other_succeeded(attempt.lane, since.max(lately)))
    }

    /// True for a failure while the backend is stopped. Its probes have their own pace and must not
    /// wait for the limiter as well.
    fn is_failed_probe(&self, signal: Signal) -> bool {
        self.backend.is_stopped() && is_failure(signal)
    }

    /// True for a further failure of the only shop that fails, of a backend that serves others. It
    /// is no evidence about the capacity of the backend.
    fn is_alone_in_failing(&self, attempt: &Attempt, signal: Signal) -> bool {
        let shop = self.queue.shops.get(attempt.shop).map_or(0, |shop| shop.hash);
        is_failure(signal)
            && self.backend.is_only_failing(shop)
            && self.backend.has_served_other(shop)
    }

    fn delivered(&mut self, attempt: &Attempt) {
        let now = self.session.now.at;
        let shop = self.queue.shops.get(attempt.shop).map_or(0, |shop| shop.hash);
        let was_stopped = self.backend.is_stopped();
        self.backend.succeeded(shop, now);
        if was_stopped && !self.backend.is_stopped() {
            self.counts.backend.came_back += 1;
            self.probe_all();
        }
        self.attempts.succeeded(attempt, now);
        if !attempt.is_slow {
            self.attempts.proven.succeeded(shop, now);
        } else if attempt.is_suspect {
            self.attempts.suspects.succeeded(now.saturating_sub(attempt.began));
        }
        if let Some(lane) = self.queue.lanes.get_mut(attempt.lane) {
            let was_open = lane.breaker.succeeded();
            let was_failing = lane.clock.succeeded();
            lane.flow.succeeded_at = Some(now);
            lane.flow.failures = Failures::default();
            lane.flow.stalled = 0;
            lane.flow.is_left = false;
            let was_suspect = lane.flow.suspect.take().is_some();
            if was_open || was_suspect || was_failing {
                self.ledger.changed.push(attempt.lane);
            }
        }
        self.counts.delivered += 1;
        self.counts.coalesced += u64::from(attempt.sent.older);
        let fingerprint = attempt.sent.fingerprint;
        let attempts = attempt.number;
        let end = Ended::Delivered;
        self.finish(Finished { resource: attempt.resource, end, fingerprint, attempts });
    }

    /// Lets every lane probe at once, because the backend has come back.
    fn probe_all(&mut self) {
        let now = self.session.now.at;
        let mut shops = Vec::new();
        for (_, lane) in self.queue.lanes.iter_mut() {
            lane.breaker.probe_now(now);
            if let Some(suspect) = &mut lane.flow.suspect {
                suspect.until = now;
            }
            shops.push(lane.shop);
        }
        shops.into_iter().for_each(|shop| self.queue.shops.give_turns(shop));
    }

    fn refused(&mut self, attempt: &Attempt) {
        let shop = self.queue.shops.get(attempt.shop).map_or(0, |shop| shop.hash);
        if self.backend.refused(shop, self.session.now.at) {
            self.counts.backend.refusals_opened += 1;
        }
    }

    /// Notes a failure for the backend as a whole and for the lane, unless the backend requested a
    /// narrower pause.
    fn failed(
        &mut self,
        attempt: &Attempt,
        end: &AttemptEnd<C::Evidence>,
        scope: Option<Scope>,
        is_refusal: bool,
    ) {
        let now = self.session.now.at;
        let is_first = attempt.number == 1;
        if end.is_unconnected {
            self.backend.unconnected();
        }
        let is_narrow = matches!(scope, Some(Scope::Resource | Scope::Shop));
        if is_refusal {
            self.refused(attempt);
        } else if is_narrow {
            self.backend.probed(now);
        } else {
            let lane = self.queue.lanes.get(attempt.lane).map_or(0, |lane| lane.hash);
            let shop = self.queue.shops.get(attempt.shop).map_or(0, |shop| shop.hash);
            self.counts.backend.went_down +=
                u64::from(self.backend.failed(lane, shop, is_first, now));
            if attempt.is_slow {
                self.backend.probes.failed(end.took);
            }
        }
        // A full backend is no evidence about one lane, unless others succeed.
        let is_full = matches!(end.signal, Signal::Overloaded { .. } | Signal::Unavailable { .. });
        let is_lanes = !is_full
            || self.attempts.has_other_succeeded(attempt.lane, attempt.began)
            || self.is_known_to_fail(attempt, end);
        if let Some(lane) = self.queue.lanes.get_mut(attempt.lane) {
            if is_refusal || is_narrow {
                lane.flow.failures.began(attempt.began);
            } else {
                lane.flow.failures.add(attempt.began, now);
            }
        }
        if !is_refusal && let Some(lane) = self.queue.lanes.get_mut(attempt.lane) {
            lane.clock.failed_with_others();
        }
        if scope.is_none() && is_lanes && !end.is_unconnected {
            let active = self.active();
            let chance = self.chance();
            let most = self.config.tuning.breaker_failures;
            if let Some(lane) = self.queue.lanes.get_mut(attempt.lane) {
                lane.clock.failed(active, is_refusal);
                let opens = lane.breaker.failed((is_first, most), attempt.began, now, chance);
                self.counts.breakers_opened += u64::from(opens);
            }
            self.ledger.changed.push(attempt.lane);
        } else if scope == Some(Scope::Shop) && !is_refusal {
            self.shop_is_left_alone(attempt);
        }
        if end.signal == Signal::TimedOut {
            self.suspect(attempt, true);
            self.attempts.suspects.failed(usize::from(attempt.is_suspect));
        }
    }

    /// Notes that the backend requested a pause for a shop. The lane counts as failing. It gets few
    /// attempts, so its circuit breaker opens by time.
    fn shop_is_left_alone(&mut self, attempt: &Attempt) {
        let now = self.session.now.at;
        let active = self.active();
        let opens_after = self.config.tuning.breaker_opens_after;
        if let Some(lane) = self.queue.lanes.get_mut(attempt.lane) {
            lane.clock.failed(active, false);
        }
        let has_failed_for_long = self.failing(attempt.lane) >= opens_after;
        let Some(lane) = self.queue.lanes.get_mut(attempt.lane) else { return };
        let opens = has_failed_for_long && lane.breaker.trip(now);
        self.counts.breakers_opened += u64::from(opens);
        self.ledger.changed.push(attempt.lane);
    }

    /// Limits the lane of an attempt that timed out or was cut off to one attempt at a time.
    fn suspect(&mut self, attempt: &Attempt, has_timed_out: bool) {
        let now = self.session.now.at;
        let chance = self.chance();
        let backoff = self.config.backoff;
        let active = self.active();
        let opens_after = self.config.tuning.breaker_opens_after;
        let Some(lane) = self.queue.lanes.get_mut(attempt.lane) else { return };
        let before = lane.flow.suspect;
        if lane.flow.has_succeeded_since(attempt.began) {
            return;
        }
        lane.clock.failed(active, false);
        lane.flow.failures.began(attempt.began);
        let wait = before.map_or(backoff.first, |suspect| suspect.wait.max(backoff.first));
        let wait = wait.min(SUSPECT_LONGEST);
        let until = now + jittered(wait, chance);
        let wait = (wait * 2).min(backoff.longest).min(SUSPECT_LONGEST);
        let since = before.map_or(active, |suspect| suspect.since);
        let probes = before.map_or(0, |suspect| suspect.probes.saturating_add(1));
        let has_timed_out = has_timed_out || before.is_some_and(|suspect| suspect.has_timed_out);
        lane.flow.suspect = Some(Suspect { until, wait, since, probes, has_timed_out });
        let opens = active.saturating_sub(since) >= opens_after && lane.breaker.trip(now);
        self.counts.breakers_opened += u64::from(opens);
        // The row is written each time, because a leader may be killed and the next one knows the
        // failing time only from it.
        self.ledger.changed.push(attempt.lane);
    }

    fn retry_or_give_up(&mut self, failure: AttemptFailure<C::Evidence>, scope: Option<Scope>) {
        let attempt = failure.attempt;
        let head = self.queue.index.head(attempt.resource).unwrap_or(attempt.position);
        let is_refusal = Some(failure.is_refusal);
        let wait = self.note_attempt(&attempt, attempt.number, failure.pause, is_refusal);
        if scope == Some(Scope::Shop) {
            let pause = if failure.pause.is_zero() { wait } else { failure.pause };
            self.queue.shops.pause(attempt.shop, self.session.now.at + pause);
        }
        if self.is_spent(&attempt, head, failure.is_refusal) && !self.backend.is_stopped() {
            self.give_up(failure);
        } else {
            self.wait(&attempt);
        }
    }

    /// True if the time for retries of a webhook is over.
    fn is_spent(&self, attempt: &Attempt, head: Position, is_refusal: bool) -> bool {
        let retry_for = self.config.retry_for;
        let refused_for = self.config.retry_refused_for;
        let about = self.about_sent(attempt.resource, attempt.position);
        let newest = attempt.position;
        let spent = self.spent(attempt.lane, head, newest, about);
        if is_refusal {
            self.refused_for(attempt.lane, head, newest, about) >= refused_for
                || spent >= retry_for.max(refused_for)
        } else {
            spent >= retry_for
        }
    }

    /// True if an attempt that fails is the last one of its webhook, and no attempt of its lane had
    /// the full timeout.
    pub(crate) fn is_last(&self, attempt: &Attempt) -> bool {
        let suspect =
            self.queue.lanes.get(attempt.lane).and_then(|lane| lane.flow.suspect.as_ref());
        let head = self.queue.index.head(attempt.resource).unwrap_or(attempt.position);
        !suspect.is_some_and(|suspect| suspect.has_timed_out)
            && self.spent(attempt.lane, head, attempt.position, About::Shop)
                >= self.config.retry_for
    }

    /// Counts an attempt and the time up to now, and schedules the next one. Returns the wait.
    /// `is_refusal` is `None` if the attempt did not fail.
    fn note_attempt(
        &mut self,
        attempt: &Attempt,
        attempts: u32,
        pause: Duration,
        is_refusal: Option<bool>,
    ) -> Duration {
        let chance = self.chance();
        let wait = self.config.backoff.wait(attempt.number, chance).max(pause);
        let head = self.queue.index.head(attempt.resource).unwrap_or(attempt.position);
        let is_replay = self.queue.index.is_replay(attempt.resource);
        let is_in_main = !is_replay && self.queue.main.is_after_cursor(head);
        let before = self.queue.retries.get(head).copied();
        let mut state = before.unwrap_or_else(|| RetryState::new(attempt.began_active, is_in_main));
        let about = self.about_sent(attempt.resource, attempt.position);
        let active = self.active();
        let time = |from| self.time_of(attempt.lane, about, from, active);
        let passed = time(state.since);
        let of_attempt = time(attempt.began_active);
        state.go_on(passed, active);
        if let Some(is_refusal) = is_refusal {
            state.failed(is_refusal, of_attempt);
        }
        (state.attempts, state.due) = (attempts, self.session.now.at + wait);
        match self.queue.retries.get_mut(head) {
            Some(retry) => *retry = state,
            None => self.queue.retries.insert(head, state),
        }
        if !is_replay {
            self.ledger.retries.insert(head, attempt.lane);
        }
        wait
    }

    /// Schedules another attempt of a webhook.
    pub(crate) fn retry(
        &mut self,
        attempt: &Attempt,
        attempts: u32,
        pause: Duration,
        is_refusal: Option<bool>,
    ) {
        self.note_attempt(attempt, attempts, pause, is_refusal);
        self.wait(attempt);
    }

    /// Makes the resource of an attempt wait for its next one.
    fn wait(&mut self, attempt: &Attempt) {
        self.step(attempt.resource, Step::Ended);
        self.ledger.sent.remove(&attempt.resource);
        self.controls.look_again.push(attempt.resource);
        let head = self.queue.index.head(attempt.resource).unwrap_or(attempt.position);
        let due = self.queue.retries.get(head).map_or(self.session.now.at, |retry| retry.due);
        debug_assert_eq!(self.queue.index.state(attempt.resource), Some(HeadState::Retrying));
        if self.queue.index.reorder(attempt.resource) {
            // A replay that arrived during the attempt goes first. A barrier that waited after its
            // own resource would wait forever.
            self.reading.forget(attempt.resource);
            self.release(attempt.resource);
            return;
        }
        self.queue.retries.schedule(due, attempt.resource);
    }
}
