//! Retry states: loading them, counting attempts, and scheduling the next one.

use std::time::Duration;

use spillway_webhook::StoredRetry;
use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::state::Core;
use crate::state::attempts::Attempt;
use crate::state::resource::{HeadState, Step};
use crate::state::retry::RetryState;
use crate::steps::time;

/// The retry states that a leader loads when it begins may take 1/`RETRIES_PART` of the index.
const RETRIES_PART: usize = 4;

/// Takes over the retry states of webhooks of the main stream before they arrive. Of these, the
/// oldest that fit are kept.
pub(crate) fn load_retries<C: Content>(
    core: &mut Core<C>,
    mut retries: Vec<(Position, StoredRetry)>,
) {
    retries.sort_unstable();
    let bytes = core.config.index_bytes / RETRIES_PART;
    for (position, stored) in retries {
        let has_room = core.queue.retries.bytes() < bytes;
        if has_room && core.queue.main.is_after_cursor(position) {
            let state = state_found(core, stored, true);
            core.queue.retries.insert(position, state);
        } else {
            core.queue.retries.mark_stale(position);
        }
    }
}

/// Converts a retry state from Redis.
pub(crate) fn state_found<C: Content>(
    core: &mut Core<C>,
    stored: StoredRetry,
    is_in_main: bool,
) -> RetryState {
    // Random part of the wait, because all retries at once would be a burst.
    let wait = core.config.backoff.wait(stored.attempts, 1.0).mul_f64(core.session.chance());
    let due = core.session.now.at + wait;
    let written = time::active_when(core, stored.as_of_ms);
    RetryState { due, ..RetryState::found(stored, written, is_in_main) }
}

/// Schedules another attempt of a webhook.
pub(crate) fn retry<C: Content>(
    core: &mut Core<C>,
    attempt: &Attempt,
    attempts: u32,
    pause: Duration,
    is_refusal: Option<bool>,
) {
    note_attempt(core, attempt, attempts, pause, is_refusal);
    wait(core, attempt);
}

/// Counts an attempt and the time up to now, and notes when the next one is due; [`wait`] schedules
/// it. Returns the pause. `is_refusal` is `None` if nothing was sent, or if the failure is noted already.
pub(crate) fn note_attempt<C: Content>(
    core: &mut Core<C>,
    attempt: &Attempt,
    attempts: u32,
    pause: Duration,
    is_refusal: Option<bool>,
) -> Duration {
    let chance = core.session.chance();
    let wait = core.config.backoff.wait(attempt.number, chance).max(pause);
    let head = core.queue.index.head(attempt.resource).unwrap_or(attempt.position);
    let is_replay = core.queue.index.head_node(attempt.resource).is_some_and(|head| head.is_replay);
    let is_in_main = !is_replay && core.queue.main.is_after_cursor(head);
    let before = core.queue.retries.get(head).copied();
    let mut state = before.unwrap_or_else(|| RetryState::new(attempt.began_active, is_in_main));
    let about = time::about_sent(core, attempt.resource, attempt.position);
    let active = time::active(core);
    let time = |from| time::time_of(core, attempt.lane, about, from, active);
    let passed = time(state.since);
    let of_attempt = time(attempt.began_active);
    state.go_on(passed, active);
    if let Some(is_refusal) = is_refusal {
        state.failed(is_refusal, of_attempt);
    }
    (state.attempts, state.due) = (attempts, core.session.now.at + wait);
    match core.queue.retries.get_mut(head) {
        Some(retry) => *retry = state,
        None => core.queue.retries.insert(head, state),
    }
    if !is_replay {
        core.ledger.retries.insert(head, attempt.lane);
    }
    wait
}

/// Makes the resource of an attempt wait for its next one.
pub(crate) fn wait<C: Content>(core: &mut Core<C>, attempt: &Attempt) {
    core.queue.step(attempt.resource, Step::Postponed);
    core.ledger.sent.remove(&attempt.resource);
    core.controls.look_again.push(attempt.resource);
    let head = core.queue.index.head(attempt.resource).unwrap_or(attempt.position);
    let due = core.queue.retries.get(head).map_or(core.session.now.at, |retry| retry.due);
    debug_assert_eq!(core.queue.index.state(attempt.resource), Some(HeadState::Retrying));
    if core.queue.index.reorder(attempt.resource) {
        // A replay that arrived during the attempt goes first. A barrier that waited after its
        // own resource would wait forever.
        core.reading.forget(attempt.resource);
        core.queue.place_by_head(attempt.resource, core.session.now.at);
        return;
    }
    core.queue.retries.schedule(due, attempt.resource);
}
