//! Giving webhooks up, as dead letters if there is room for them.

use std::time::Duration;

use spillway_webhook::fingerprint::Fingerprint;

use crate::classified::Content;
use crate::settlement::GivenUp;
use crate::state::Core;
use crate::state::attempts::Attempt;
use crate::state::index::{LaneKey, ResourceKey};
use crate::state::ledger::{Finished, HeadEnd};
use crate::steps::{apply_controls, compare, finish, retries, spent};

/// Failure of one attempt.
pub(crate) struct AttemptFailure<E> {
    pub attempt: Attempt,
    /// Wait that the backend requested.
    pub pause: Duration,
    pub reason: &'static str,
    /// True if the webhook was refused rather than failed.
    pub is_refusal: bool,
    pub evidence: E,
}

/// Makes a dead letter of a webhook. The webhook stays in retry instead while the backend
/// refuses everything, if there is no room for dead letters, if nothing at all succeeds, or if an
/// operator drops it.
pub(crate) fn give_up<C: Content>(core: &mut Core<C>, failure: AttemptFailure<C::Evidence>) {
    let AttemptFailure { attempt, pause, reason, is_refusal, evidence, .. } = failure;
    if apply_controls::is_to_be_dropped(core, attempt.resource) {
        // It is dropped before its next turn.
        retries::retry(core, &attempt, attempt.number, pause, None);
        return;
    }
    let letter = dead_letter(core, &attempt, reason, evidence);
    let Some(letter) = letter.filter(|_| !core.backend.is_refusing()) else {
        retries::retry(core, &attempt, attempt.number, pause, None);
        return;
    };
    let bytes = letter.content.dead_bytes(letter.record_index, &letter.evidence);
    let shop = core.queue.shops.get(attempt.shop).map_or(0, |shop| shop.hash);
    let has_credit = !is_refusal || core.backend.take_credit(shop);
    if !check_dead_room(core, bytes) || !has_credit {
        retries::retry(core, &attempt, attempt.number, pause, None);
        return;
    }
    if let Some(lane) = core.queue.lanes.get_mut(attempt.lane) {
        lane.breaker.gave_up(core.session.now.at);
        if let (Some(suspect), Some(at)) = (&mut lane.flow.suspect, lane.breaker.probe_at()) {
            suspect.until = suspect.until.min(at);
        }
    }
    if !is_refusal {
        allow_expiry(core, attempt.lane);
    }
    end_as_dead_letter(core, attempt.resource, letter, bytes, attempt.sent.fingerprint);
}

/// Adds a lane to those that expire, after a webhook of it was given up.
fn allow_expiry<C: Content>(core: &mut Core<C>, key: LaneKey) {
    if spent::has_failed_for_long(core, key) {
        core.queue.expiry.lanes.insert(key);
    }
}

/// Returns true if there is room for a dead letter of `bytes`, or else counts that there is none.
pub(crate) fn check_dead_room<C: Content>(core: &mut Core<C>, bytes: u64) -> bool {
    let has_room = bytes <= core.session.dead_room;
    core.counts.kept_for_want_of_room += u64::from(!has_room);
    has_room
}

/// Ends a head as a dead letter of `bytes`.
pub(crate) fn end_as_dead_letter<C: Content>(
    core: &mut Core<C>,
    resource: ResourceKey,
    letter: GivenUp<C>,
    bytes: u64,
    fingerprint: Option<Fingerprint>,
) {
    core.session.dead_room -= bytes;
    core.ledger.dying_bytes += bytes;
    core.counts.dead(letter.reason);
    let attempts = letter.attempts;
    let end = HeadEnd::Dead(Box::new(letter), bytes);
    compare::forget(core, resource);
    finish::finish(core, Finished { resource, end, fingerprint, attempts, update: None });
}

/// Dead letter of the webhook that an attempt sent; `None` if its bytes are not in memory.
fn dead_letter<C: Content>(
    core: &mut Core<C>,
    attempt: &Attempt,
    reason: &'static str,
    evidence: C::Evidence,
) -> Option<GivenUp<C>> {
    let (content, record_index) = core.ledger.sent.remove(&attempt.resource)?;
    let position = attempt.position;
    let attempts = attempt.number;
    Some(GivenUp { position, content, record_index, reason, attempts, evidence })
}
