//! The end of an attempt: delivered, tried again later, or given up.

use std::time::Duration;

use spillway_limiter::{Sample, Signal};

use crate::classified::Content;
use crate::event::{AttemptEnd, Scope, Verdict};
use crate::state::Core;
use crate::state::attempts::{Attempt, AttemptId, Sent};
use crate::state::backoff::jittered;
use crate::state::lane::{FAILURES_KNOWN, Failures, Suspect};
use crate::state::ledger::{Finished, HeadEnd};
use crate::state::retry::{RetryKey, key_of_head};
use crate::steps::give_up::AttemptFailure;
use crate::steps::{compare, finish, give_up, retries, spent, time};

/// Longest wait between two attempts of a suspect lane. A lane that has recovered is found within a
/// minute.
const SUSPECT_LONGEST: Duration = Duration::from_secs(60);

/// Time for which a delivery of another lane shows that a failing lane's problem is its own.
const SERVED_LATELY: Duration = Duration::from_secs(600);

/// Reason of a dead letter whose time for retries is over.
const RETRIES_EXHAUSTED: &str = "retries_exhausted";

/// True if the whole backend may be in trouble: it did not answer in time or at all, or answered 429 or
/// 503 without a pause. Another 5xx may be one webhook's own.
fn is_trouble(signal: Signal) -> bool {
    match signal {
        Signal::Done | Signal::Failed => false,
        Signal::Overloaded { retry_after } | Signal::Unavailable { retry_after } => {
            retry_after.is_none()
        }
        Signal::TimedOut | Signal::Broken => true,
    }
}

pub(crate) fn attempt_ended<C: Content>(core: &mut Core<C>, end: AttemptEnd<C::Evidence>) {
    let Some(attempt) = core.attempts.end(end.id) else { return };
    compare::end_attempt(core, &attempt);
    let is_delivered = end.verdict == Verdict::Delivered;
    freed(core, &attempt, end.took, is_delivered && !attempt.is_suspect);
    report_to_limiter(core, &attempt, &end);
    match end.verdict {
        Verdict::Delivered => delivered(core, &attempt),
        Verdict::NotSent => {
            retries::retry(core, &attempt, attempt.number - 1, Duration::ZERO, None)
        }
        Verdict::Dead { reason, is_refusal } => {
            if is_refusal {
                refused(core, &attempt);
            }
            let pause = Duration::ZERO;
            let evidence = end.evidence;
            give_up::give_up(core, AttemptFailure { attempt, pause, reason, is_refusal, evidence });
        }
        Verdict::Retry { pause, scope, is_refusal } => {
            failed(core, &attempt, &end, scope, is_refusal);
            let reason = if is_refusal { "refused" } else { RETRIES_EXHAUSTED };
            let evidence = end.evidence;
            let failure = AttemptFailure { attempt, pause, reason, is_refusal, evidence };
            retry_or_give_up(core, failure, scope);
        }
    }
}

/// Handles an attempt that was cut off so that others get its slot. It counts as failed.
/// Otherwise a webhook that hangs would be tried forever while others wait.
pub(crate) fn was_cut_off<C: Content>(core: &mut Core<C>, id: AttemptId) {
    let Some(attempt) = core.attempts.end(id) else { return };
    compare::end_attempt(core, &attempt);
    let took = core.session.now.at.saturating_sub(attempt.began);
    freed(core, &attempt, took, false);
    core.backend.probes.was_cut(took);
    if core.backend.is_refusing() {
        core.backend.probed(core.session.now.at);
    }
    suspect(core, &attempt, false);
    core.counts.cut_off += 1;
    let now = core.session.now.at;
    let chance = core.session.chance();
    let most = core.config.tuning.breaker_failures;
    let lane = core.queue.lanes.get_mut(attempt.lane);
    let has_timed_out = lane.is_some_and(|lane| {
        lane.breaker.failed((false, most), attempt.began, now, chance);
        lane.flow.suspect.is_some_and(|suspect| suspect.has_timed_out)
    });
    // This is no evidence yet if the lane never had the full timeout, or if its leader ends.
    if core.session.is_stopping || !has_timed_out {
        retries::retry(core, &attempt, attempt.number, Duration::ZERO, Some(false));
        return;
    }
    let failure = AttemptFailure {
        attempt,
        pause: Duration::ZERO,
        reason: RETRIES_EXHAUSTED,
        is_refusal: false,
        evidence: C::Evidence::default(),
    };
    retry_or_give_up(core, failure, None);
}

/// Frees the slot of an attempt.
fn freed<C: Content>(core: &mut Core<C>, attempt: &Attempt, took: Duration, is_usual: bool) {
    if let Some(lane) = core.queue.lanes.get_mut(attempt.lane) {
        lane.flow.in_flight -= 1;
        if attempt.is_slow && !lane.flow.has_succeeded_since(attempt.began) {
            lane.flow.stalled = lane.flow.stalled.saturating_sub(1);
        }
    }
    if attempt.is_suspect {
        core.attempts.suspects.ended(took, core.session.now.at);
    }
    core.queue.shops.ended(attempt.shop, took, is_usual, attempt.is_long);
}

/// Passes the result to the limiter, unless it is evidence about the lane rather than about the
/// backend.
fn report_to_limiter<C: Content>(
    core: &mut Core<C>,
    attempt: &Attempt,
    end: &AttemptEnd<C::Evidence>,
) {
    let others_flow = core.attempts.has_other_succeeded(attempt.lane, attempt.began);
    // A request to pause everything always counts.
    let is_outright = matches!(end.verdict, Verdict::Retry { scope: Some(Scope::All), .. })
        && !is_trouble(end.signal);
    let is_own_matter = attempt.is_suspect || (end.signal == Signal::TimedOut && others_flow);
    let is_lanes = is_own_matter
        || is_alone_in_failing(core, attempt, end.signal)
        || is_known_to_fail(core, attempt, end)
        || is_failed_probe(core, end.signal);
    if is_lanes && !is_outright {
        return;
    }
    if end.verdict == Verdict::NotSent {
        return;
    }
    // The time in which a payload was fetched is no latency of the backend.
    let began = attempt.began + end.fetching;
    let sample = Sample { began, in_flight: attempt.in_flight, signal: end.signal };
    let chance = core.session.chance();
    core.limiter.ended(&sample, core.session.now.at, chance);
}

/// True for a failure of a lane that is known to fail while the backend serves others. Failures
/// of other lanes show if the backend is full or needs a pause.
fn is_known_to_fail<C: Content>(
    core: &Core<C>,
    attempt: &Attempt,
    end: &AttemptEnd<C::Evidence>,
) -> bool {
    let Verdict::Retry { pause, scope: None, is_refusal: false } = end.verdict else {
        return false;
    };
    // A missing connection is never the fault of one lane. While the backend is stopped, the
    // pauses that it requests count.
    if end.is_unconnected || (!pause.is_zero() && core.backend.is_stopped()) {
        return false;
    }
    // A requested pause counts only for the first failure of a lane.
    let least = if pause.is_zero() { FAILURES_KNOWN } else { 1 };
    let lane = core.queue.lanes.get(attempt.lane);
    let since = lane.and_then(|lane| lane.flow.failures.since(least));
    let lately = core.session.now.at.saturating_sub(SERVED_LATELY);
    since.is_some_and(|since| core.attempts.has_other_succeeded(attempt.lane, since.max(lately)))
}

/// True for a failure while the backend is stopped. Its probes have their own pace and must not
/// wait for the limiter as well.
fn is_failed_probe<C: Content>(core: &Core<C>, signal: Signal) -> bool {
    core.backend.is_stopped() && is_trouble(signal)
}

/// True for a further failure of the only shop that fails, of a backend that serves others. It
/// is no evidence about the capacity of the backend.
fn is_alone_in_failing<C: Content>(core: &Core<C>, attempt: &Attempt, signal: Signal) -> bool {
    let shop = core.queue.shops.get(attempt.shop).map_or(0, |shop| shop.hash);
    is_trouble(signal) && core.backend.is_only_failing(shop) && core.backend.has_served_other(shop)
}

fn delivered<C: Content>(core: &mut Core<C>, attempt: &Attempt) {
    let now = core.session.now.at;
    let shop = core.queue.shops.get(attempt.shop).map_or(0, |shop| shop.hash);
    let was_stopped = core.backend.is_stopped();
    core.backend.succeeded(shop, now);
    if was_stopped && !core.backend.is_stopped() {
        core.counts.backend.came_back += 1;
        probe_all(core);
    }
    core.attempts.succeeded(attempt, now);
    if !attempt.is_slow {
        core.attempts.proven.succeeded(shop, now);
    } else if attempt.is_suspect {
        core.attempts.suspects.succeeded(now.saturating_sub(attempt.began));
    }
    if let Some(lane) = core.queue.lanes.get_mut(attempt.lane) {
        let was_open = lane.breaker.succeeded();
        let was_failing = lane.clock.succeeded();
        lane.flow.succeeded_at = Some(now);
        lane.flow.failures = Failures::default();
        lane.flow.stalled = 0;
        lane.flow.is_left = false;
        let was_suspect = lane.flow.suspect.take().is_some();
        if was_open || was_suspect || was_failing {
            core.ledger.changed.push(attempt.lane);
        }
    }
    core.counts.delivered += 1;
    core.counts.undelivered.coalesced += u64::from(attempt.sent.older);
    let Sent { fingerprint, update, .. } = attempt.sent;
    let Attempt { resource, number: attempts, .. } = *attempt;
    let end = HeadEnd::Delivered;
    finish::finish(core, Finished { resource, end, fingerprint, attempts, update });
}

/// Lets every lane probe at once, because the backend has come back.
fn probe_all<C: Content>(core: &mut Core<C>) {
    let now = core.session.now.at;
    let mut shops = Vec::new();
    for (_, lane) in core.queue.lanes.iter_mut() {
        lane.breaker.probe_now(now);
        if let Some(suspect) = &mut lane.flow.suspect {
            suspect.until = now;
        }
        shops.push(lane.shop);
    }
    shops.into_iter().for_each(|shop| core.queue.shops.give_turns(shop));
}

fn refused<C: Content>(core: &mut Core<C>, attempt: &Attempt) {
    let shop = core.queue.shops.get(attempt.shop).map_or(0, |shop| shop.hash);
    if core.backend.refused(shop, core.session.now.at) {
        core.counts.backend.refusals_opened += 1;
    }
}

/// Notes a failure for the backend as a whole and for the lane, unless the backend requested a
/// narrower pause.
fn failed<C: Content>(
    core: &mut Core<C>,
    attempt: &Attempt,
    end: &AttemptEnd<C::Evidence>,
    scope: Option<Scope>,
    is_refusal: bool,
) {
    let now = core.session.now.at;
    let is_first = attempt.number == 1;
    if end.is_unconnected {
        core.backend.unconnected();
    }
    let is_narrow = matches!(scope, Some(Scope::Resource | Scope::Shop));
    if is_refusal {
        refused(core, attempt);
    } else if is_narrow {
        core.backend.probed(now);
    } else {
        let lane = core.queue.lanes.get(attempt.lane).map_or(0, |lane| lane.hash);
        let shop = core.queue.shops.get(attempt.shop).map_or(0, |shop| shop.hash);
        core.counts.backend.went_down += u64::from(core.backend.failed(lane, shop, is_first, now));
        if attempt.is_slow {
            core.backend.probes.failed(end.took);
        }
    }
    // A full backend is no evidence about one lane, unless others succeed.
    let is_full = matches!(end.signal, Signal::Overloaded { .. } | Signal::Unavailable { .. });
    let is_lanes = !is_full
        || core.attempts.has_other_succeeded(attempt.lane, attempt.began)
        || is_known_to_fail(core, attempt, end);
    if let Some(lane) = core.queue.lanes.get_mut(attempt.lane) {
        if is_refusal || is_narrow {
            lane.flow.failures.began(attempt.began);
        } else {
            lane.flow.failures.add(attempt.began, now);
        }
    }
    if !is_refusal && let Some(lane) = core.queue.lanes.get_mut(attempt.lane) {
        lane.clock.failed_with_others();
    }
    if scope.is_none() && is_lanes && !end.is_unconnected {
        let active = time::active(core);
        let chance = core.session.chance();
        let most = core.config.tuning.breaker_failures;
        if let Some(lane) = core.queue.lanes.get_mut(attempt.lane) {
            lane.clock.failed(active, is_refusal);
            let opens = lane.breaker.failed((is_first, most), attempt.began, now, chance);
            core.counts.breakers_opened += u64::from(opens);
        }
        core.ledger.changed.push(attempt.lane);
    } else if scope == Some(Scope::Shop) && !is_refusal {
        shop_is_left_alone(core, attempt);
    }
    if end.signal == Signal::TimedOut {
        suspect(core, attempt, true);
        core.attempts.suspects.failed(usize::from(attempt.is_suspect));
    }
}

/// Notes that the backend requested a pause for a shop. The lane counts as failing. It gets few
/// attempts, so its circuit breaker opens by time.
fn shop_is_left_alone<C: Content>(core: &mut Core<C>, attempt: &Attempt) {
    let now = core.session.now.at;
    let active = time::active(core);
    let opens_after = core.config.tuning.breaker_opens_after;
    if let Some(lane) = core.queue.lanes.get_mut(attempt.lane) {
        lane.clock.failed(active, false);
    }
    let has_failed_for_long = time::failing(core, attempt.lane) >= opens_after;
    let Some(lane) = core.queue.lanes.get_mut(attempt.lane) else { return };
    let opens = has_failed_for_long && lane.breaker.trip(now);
    core.counts.breakers_opened += u64::from(opens);
    core.ledger.changed.push(attempt.lane);
}

/// Limits the lane of an attempt that timed out or was cut off to one attempt at a time.
fn suspect<C: Content>(core: &mut Core<C>, attempt: &Attempt, has_timed_out: bool) {
    let now = core.session.now.at;
    let chance = core.session.chance();
    let backoff = core.config.backoff;
    let active = time::active(core);
    let opens_after = core.config.tuning.breaker_opens_after;
    let Some(lane) = core.queue.lanes.get_mut(attempt.lane) else { return };
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
    core.counts.breakers_opened += u64::from(opens);
    // The row is written each time, because a leader may be killed and the next one knows the
    // failing time only from it.
    core.ledger.changed.push(attempt.lane);
}

fn retry_or_give_up<C: Content>(
    core: &mut Core<C>,
    failure: AttemptFailure<C::Evidence>,
    scope: Option<Scope>,
) {
    let attempt = failure.attempt;
    let head = key_of_head(&core.queue.index, attempt.resource);
    let head = head.unwrap_or(RetryKey::Queued(attempt.position));
    let is_refusal = Some(failure.is_refusal);
    let wait = retries::note_attempt(core, &attempt, attempt.number, failure.pause, is_refusal);
    if scope == Some(Scope::Shop) {
        let pause = if failure.pause.is_zero() { wait } else { failure.pause };
        if let Some(shop) = core.queue.shops.get_mut(attempt.shop) {
            shop.pause(core.session.now.at + pause);
        }
    }
    if spent::is_spent(core, &attempt, head, failure.is_refusal) && !core.backend.is_stopped() {
        give_up::give_up(core, failure);
    } else {
        retries::wait(core, &attempt);
    }
}
