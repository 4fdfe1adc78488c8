//! Retry states: loading them, counting attempts, and scheduling the next one.

use std::time::Duration;

use spillway_webhook::StoredRetry;
use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::state::Core;
use crate::state::attempts::Attempt;
use crate::state::resource::{HeadState, Step};
use crate::state::retry::{RetryKey, RetryState, key_of_head};
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
    let key = key_of_head(&core.queue.index, attempt.resource);
    let key = key.unwrap_or(RetryKey::Queued(attempt.position));
    let is_replay = matches!(key, RetryKey::Replay(_));
    let is_in_main = !is_replay && core.queue.main.is_after_cursor(head);
    let before = core.queue.retries.of(key).copied();
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
    core.queue.retries.set(key, state);
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
    let retry = core.queue.retries.of_head(&core.queue.index, attempt.resource);
    let due = retry.map_or(core.session.now.at, |retry| retry.due);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Effect, Loaded};
    use crate::state::ledger::WebhookPlace;
    use crate::steps::sample::{self, at};
    use crate::steps::{finish, settle};

    /// A leader begins: the state of a webhook of the main stream is loaded, and then its replay is read before it.
    #[test]
    fn a_replay_neither_takes_nor_ends_the_retry_state_of_its_webhook_in_the_queue() {
        let mut core = sample::core(1_000_000, Loaded::default());
        let [lane, _] = sample::lanes(&mut core);
        let hour = Duration::from_secs(3_600);
        let stored = StoredRetry { attempts: 30, spent: 47 * hour, ..StoredRetry::default() };
        load_retries(&mut core, vec![(at(5), stored)]);
        let replay = at(5).entry();
        let resource = sample::add(&mut core, lane, 7, at(5), true);
        assert_eq!(sample::add(&mut core, lane, 7, at(5), false), resource);
        let queue = &core.queue;
        assert_eq!(key_of_head(&queue.index, resource), Some(RetryKey::Replay(replay)));
        assert!(queue.retries.of_head(&queue.index, resource).is_none(), "it was never tried");

        let attempts = |core: &Core<sample::NoContent>, key| {
            core.queue.retries.of(key).map(|one| one.attempts)
        };
        let state = RetryState::new(Duration::ZERO, false);
        core.queue.retries.set(RetryKey::Replay(replay), RetryState { attempts: 1, ..state });
        assert_eq!(attempts(&core, RetryKey::Queued(at(5))), Some(30));
        finish::drop_webhook(
            &mut core,
            WebhookPlace { lane, position: at(5), replay: Some(replay) },
        );
        let Some(Effect::Settle(settlement)) = settle::begin_settlement(&mut core) else {
            panic!("nothing is settled")
        };
        assert_eq!(settlement.replays.settled, [replay]);
        assert!(settlement.main.retries.deleted.is_empty(), "the state in Redis stays");
        assert_eq!(attempts(&core, RetryKey::Queued(at(5))), Some(30));
        assert_eq!(attempts(&core, RetryKey::Replay(replay)), None);
    }
}
