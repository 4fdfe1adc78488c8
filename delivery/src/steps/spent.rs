//! Time spent on retries, and when it is over.

use std::time::Duration;

use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::state::Core;
use crate::state::attempts::Attempt;
use crate::state::index::LaneKey;
use crate::state::lane_clock::{AcceptTime, CountedTime, LaneClock};
use crate::state::retry::{RetryKey, RetryState, key_of_head};
use crate::steps::time;
use crate::steps::time::About;

/// Time spent on retries of a run: the webhook at its head, and those up to `newest` for which
/// that one is sent. If no delivery of the lane succeeds, the time without attempts counts,
/// too.
pub(crate) fn spent<C: Content>(
    core: &Core<C>,
    lane: LaneKey,
    head: RetryKey,
    newest: Position,
    about: About<'_, C>,
) -> Duration {
    let own = |retry: &RetryState| Some(retry.spent);
    longer(core, lane, (head, newest), about, own, LaneClock::failing_of)
}

/// Last part of that time, in which all attempts were refused.
fn refused_for<C: Content>(
    core: &Core<C>,
    lane: LaneKey,
    head: RetryKey,
    newest: Position,
    about: About<'_, C>,
) -> Duration {
    longer(core, lane, (head, newest), about, |retry| retry.refused, LaneClock::refused_of)
}

fn longer<C: Content>(
    core: &Core<C>,
    lane: LaneKey,
    (head, newest): (RetryKey, Position),
    about: About<'_, C>,
    own: fn(&RetryState) -> Option<Duration>,
    of_lane: fn(&LaneClock, AcceptTime, Duration, CountedTime<'_>) -> Duration,
) -> Duration {
    let active = time::active(core);
    let retry = core.queue.retries.of(head);
    let since = |retry: &RetryState| time::time_of(core, lane, about, retry.since, active);
    let own = retry.and_then(|retry| Some(own(retry)? + since(retry)));
    let own = own.unwrap_or_default();
    match core.queue.lanes.get(lane) {
        Some(known) if known.breaker.is_open() || has_failed_for_long(core, lane) => {
            // The time is at most the age of the webhook, even if a clock was changed.
            let age = core.session.now.wall_ms.saturating_sub(newest.ms);
            let time = |from, to| time::time_of(core, lane, About::Shop, from, to);
            let of_lane = of_lane(&known.clock, time::accepted(core, newest), active, &time);
            own.max(of_lane.min(Duration::from_millis(age)))
        }
        _ => own,
    }
}

pub(crate) fn has_failed_for_long<C: Content>(core: &Core<C>, key: LaneKey) -> bool {
    time::failing(core, key) >= core.config.retry_for
}

/// True if the time for retries of a webhook is over.
pub(crate) fn is_spent<C: Content>(
    core: &Core<C>,
    attempt: &Attempt,
    head: RetryKey,
    is_refusal: bool,
) -> bool {
    let retry_for = core.config.retry_for;
    let refused_max = core.config.retry_refused_for;
    let about = time::about_sent(core, attempt.resource, attempt.position);
    let newest = attempt.position;
    let total = spent(core, attempt.lane, head, newest, about);
    if is_refusal {
        refused_for(core, attempt.lane, head, newest, about) >= refused_max
            || total >= retry_for.max(refused_max)
    } else {
        total >= retry_for
    }
}

/// True if an attempt that fails is the last one of its webhook, and no attempt of its lane had
/// the full timeout.
pub(crate) fn is_last<C: Content>(core: &Core<C>, attempt: &Attempt) -> bool {
    let suspect = core.queue.lanes.get(attempt.lane).and_then(|lane| lane.flow.suspect.as_ref());
    let head = key_of_head(&core.queue.index, attempt.resource);
    let head = head.unwrap_or(RetryKey::Queued(attempt.position));
    !suspect.is_some_and(|suspect| suspect.has_timed_out)
        && spent(core, attempt.lane, head, attempt.position, About::Shop) >= core.config.retry_for
}
