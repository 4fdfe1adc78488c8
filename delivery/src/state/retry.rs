//! Retry state: attempts, time spent, and the time of the next attempt.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use spillway_webhook::position::Position;
use spillway_webhook::{StoredRetry, StreamId};

use crate::state::index::{Index, ResourceKey};

/// Bytes of a state: 113 in a table between half and nearly full.
const STATE_BYTES: usize = 172;
/// Bytes of a wait: 24 in a list that grows by doubling.
const DUE_BYTES: usize = 36;

/// Retry state of one webhook.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryState {
    /// Number of attempts.
    pub attempts: u32,
    /// Time spent on retries.
    pub spent: Duration,
    /// Last part of that time, in which all attempts were refused; `None` if the last attempt was
    /// not.
    pub refused: Option<Duration>,
    /// Active time up to which these times are counted, usually that of the last attempt.
    pub since: Duration,
    /// Time before which there is no attempt.
    pub due: Duration,
    /// True if Redis holds the state, or will with the settlement that is composed.
    pub is_stored: bool,
    /// True while the webhook lies in the main stream. A leader loads such states when it begins.
    /// The state of a webhook in a lane is read with its chunk.
    pub is_in_main: bool,
}

/// Webhook that a retry state is of. A replay has a state of its own beside that of its webhook in the queue, which
/// has the same position: otherwise, the attempts of one would use up the time of the other, and the end of one would
/// delete the state of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryKey {
    /// A webhook in the main stream or in a lane.
    Queued(Position),
    /// A replay, by its id in the stream of replays.
    Replay(StreamId),
}

/// Retry states of all heads that failed.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    states: HashMap<Position, RetryState>,
    /// States of replays. Redis does not hold them.
    replays: HashMap<StreamId, RetryState>,
    due: BinaryHeap<Reverse<(Duration, ResourceKey)>>,
    /// Webhooks of the main stream whose states are to be deleted from Redis.
    stale: BTreeSet<Position>,
}

impl RetryState {
    /// Creates the state of a webhook whose first attempt began at active time `since`.
    pub(crate) fn new(since: Duration, is_in_main: bool) -> Self {
        Self {
            attempts: 0,
            spent: Duration::ZERO,
            refused: None,
            since,
            due: Duration::ZERO,
            is_stored: false,
            is_in_main,
        }
    }

    /// Creates a state from one that Redis held at this active time.
    pub(crate) fn found(stored: StoredRetry, active: Duration, is_in_main: bool) -> Self {
        Self {
            attempts: stored.attempts,
            spent: stored.spent,
            refused: (!stored.refused.is_zero()).then_some(stored.refused),
            is_stored: true,
            ..Self::new(active, is_in_main)
        }
    }

    /// Adds `time` to the counted time, up to active time `active`.
    pub(crate) fn go_on(&mut self, time: Duration, active: Duration) {
        self.spent += time;
        self.refused = self.refused.map(|refused| refused + time);
        self.since = active;
    }

    /// Notes a failed or refused attempt, of which `time` counts.
    pub(crate) fn failed(&mut self, is_refusal: bool, time: Duration) {
        self.refused = is_refusal.then(|| self.refused.unwrap_or(time));
    }

    /// Returns the state for Redis, after another `time`.
    pub(crate) fn stored(&self, time: Duration, as_of_ms: u64) -> StoredRetry {
        let refused = self.refused.map_or(Duration::ZERO, |refused| refused + time);
        StoredRetry { attempts: self.attempts, spent: self.spent + time, refused, as_of_ms }
    }
}

/// Key of the state of a resource's head.
pub(crate) fn key_of_head(index: &Index, resource: ResourceKey) -> Option<RetryKey> {
    let head = index.resource(resource)?.head;
    Some(match index.replay(head) {
        Some(id) => RetryKey::Replay(id),
        None => RetryKey::Queued(index.node(head).position),
    })
}

impl Retries {
    /// State of a webhook in the queue, if it failed before.
    pub(crate) fn get(&self, position: Position) -> Option<&RetryState> {
        self.states.get(&position)
    }

    /// State of a webhook in the queue or of a replay, if it failed before.
    pub(crate) fn of(&self, key: RetryKey) -> Option<&RetryState> {
        match key {
            RetryKey::Queued(position) => self.states.get(&position),
            RetryKey::Replay(id) => self.replays.get(&id),
        }
    }

    /// State of a resource's head, if it failed before.
    pub(crate) fn of_head(&self, index: &Index, resource: ResourceKey) -> Option<&RetryState> {
        self.of(key_of_head(index, resource)?)
    }

    /// Adds or replaces the state of a webhook in the queue or of a replay.
    pub(crate) fn set(&mut self, key: RetryKey, state: RetryState) {
        match key {
            RetryKey::Queued(position) => self.insert(position, state),
            RetryKey::Replay(id) => {
                self.replays.insert(id, state);
            }
        }
    }

    /// Forgets a replay that is settled.
    pub(crate) fn remove_replay(&mut self, id: StreamId) {
        self.replays.remove(&id);
    }

    /// Notes that the settlement that is composed writes the state of a webhook.
    pub(crate) fn mark_stored(&mut self, position: Position) {
        if let Some(state) = self.states.get_mut(&position) {
            state.is_stored = true;
        }
    }

    /// Memory in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        (self.states.len() + self.replays.len()) * STATE_BYTES + self.due.len() * DUE_BYTES
    }

    /// Forgets the state of a webhook that is no longer indexed, if it is read again with its
    /// chunk.
    pub(crate) fn shed(&mut self, position: Position) {
        if self.states.get(&position).is_some_and(|state| state.is_stored && !state.is_in_main) {
            self.states.remove(&position);
        }
    }

    /// Notes that a webhook moves into a lane, where its state is written. Returns the state as it
    /// was.
    pub(crate) fn move_to_lane(&mut self, position: Position) -> Option<RetryState> {
        let state = self.states.get_mut(&position).filter(|state| state.is_in_main)?;
        let before = *state;
        state.is_in_main = false;
        state.is_stored = true;
        Some(before)
    }

    /// Marks a state in Redis for deletion: the webhook of the main stream is settled, or there is
    /// no room for the state.
    pub(crate) fn mark_stale(&mut self, position: Position) {
        self.stale.insert(position);
    }

    /// Forgets the state of a webhook of the main stream that is already settled when it arrives.
    pub(crate) fn forget_settled(&mut self, position: Position) {
        if self.states.get(&position).is_some_and(|state| state.is_in_main) {
            self.states.remove(&position);
            self.mark_stale(position);
        }
    }

    /// Forgets the states of an entry of the main stream that cannot be decoded.
    pub(crate) fn forget_corrupt(&mut self, entry: StreamId) {
        let of_it = self.states.keys().filter(|position| position.entry() == entry);
        let of_it: Vec<Position> = of_it.copied().collect();
        of_it.into_iter().for_each(|position| self.forget_settled(position));
    }

    /// Takes up to `most` states to delete from Redis.
    pub(crate) fn take_stale(&mut self, most: usize) -> impl Iterator<Item = Position> {
        (0..most).map_while(|_| self.stale.pop_first())
    }

    /// Adds the state of a webhook in the queue. It replaces an earlier one in Redis.
    pub(crate) fn insert(&mut self, position: Position, state: RetryState) {
        self.stale.remove(&position);
        self.states.insert(position, state);
    }

    /// Forgets a webhook of the queue that is settled. Returns its state, if Redis holds it.
    pub(crate) fn remove(&mut self, position: Position) -> Option<RetryState> {
        self.states.remove(&position).filter(|state| state.is_stored)
    }

    /// Schedules a resource for `due`.
    pub(crate) fn schedule(&mut self, due: Duration, resource: ResourceKey) {
        self.due.push(Reverse((due, resource)));
    }

    /// Drops outdated waits if there are many. `head` returns the webhook with which a resource
    /// waits.
    pub(crate) fn tidy_due(&mut self, head: impl Fn(ResourceKey) -> Option<RetryKey>) {
        let Self { states, replays, due, .. } = self;
        if due.len() <= 2 * (states.len() + replays.len()) {
            return;
        }
        due.retain(|Reverse((due, resource))| {
            let state = head(*resource).and_then(|key| match key {
                RetryKey::Queued(position) => states.get(&position),
                RetryKey::Replay(id) => replays.get(&id),
            });
            state.is_some_and(|one| one.due == *due)
        });
    }

    /// Takes the next resource whose wait is over.
    pub(crate) fn pop_due(&mut self, now: Duration) -> Option<ResourceKey> {
        let Reverse((due, resource)) = self.due.peek().copied()?;
        if due > now {
            return None;
        }
        self.due.pop();
        Some(resource)
    }

    /// Time at which the next wait is over.
    pub(crate) fn wakes_at(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_settled_when_it_arrives_is_stale_and_a_replay_of_it_is_not() {
        let at = |ms, index| Position::new(StreamId { ms, seq: 0 }, index);
        let found = StoredRetry { attempts: 1, spent: SECOND, ..StoredRetry::default() };
        let state = |is_in_main| RetryState::found(found, Duration::ZERO, is_in_main);
        let mut retries = Retries::default();
        (3..6).for_each(|ms| retries.insert(at(ms, 0), state(true)));
        // In a lane.
        retries.insert(at(3, 1), state(false));
        let replay = RetryKey::Replay(StreamId { ms: 9, seq: 0 });
        retries.set(replay, state(false));
        retries.mark_stale(at(1, 0));
        retries.forget_settled(at(3, 1));
        retries.forget_settled(at(3, 0));
        retries.forget_corrupt(at(4, 0).entry());
        let left = [at(3, 0), at(3, 1), at(4, 0), at(5, 0)].map(|at| retries.get(at).is_some());
        assert_eq!(left, [false, true, false, true]);
        assert!(retries.of(replay).is_some());
        assert_eq!(retries.take_stale(2).collect::<Vec<_>>(), [at(1, 0), at(3, 0)]);
        // The webhook failed meanwhile, so its new state is not deleted.
        retries.mark_stale(at(2, 0));
        retries.insert(at(2, 0), state(true));
        assert_eq!(retries.take_stale(2).collect::<Vec<_>>(), [at(4, 0)]);
    }

    #[test]
    fn only_refusals_in_a_row_count_as_refused() {
        let mut state = RetryState::new(SECOND, true);
        state.go_on(SECOND, 2 * SECOND);
        state.failed(false, SECOND);
        for _ in 0..2 {
            state.go_on(3 * SECOND, 5 * SECOND);
            state.failed(true, 2 * SECOND);
        }
        assert_eq!((state.spent, state.refused), (7 * SECOND, Some(5 * SECOND)));
        // The state passes through Redis when a leader ends.
        let stored = state.stored(2 * SECOND, 9);
        assert_eq!((stored.spent, stored.refused), (9 * SECOND, 7 * SECOND));
        let mut state = RetryState::found(stored, SECOND, false);
        state.go_on(SECOND, 2 * SECOND);
        assert_eq!((state.spent, state.refused), (10 * SECOND, Some(8 * SECOND)));
        state.failed(false, SECOND);
        assert_eq!((state.spent, state.refused), (10 * SECOND, None));
    }

    #[test]
    fn waits_of_what_was_cut_and_read_again_do_not_pile_up() {
        let mut retries = Retries::default();
        let position = Position::new(StreamId { ms: 1, seq: 0 }, 0);
        let resource = ResourceKey::default();
        let found = StoredRetry { attempts: 1, ..StoredRetry::default() };
        let state = |due| RetryState { due, ..RetryState::found(found, Duration::ZERO, false) };
        for again in 1..=100 {
            retries.insert(position, state(again * SECOND));
            retries.schedule(again * SECOND, resource);
        }
        retries.tidy_due(|_| Some(RetryKey::Queued(position)));
        assert_eq!(retries.bytes(), STATE_BYTES + DUE_BYTES);
        assert_eq!(retries.wakes_at(), Some(100 * SECOND));
        // The resource no longer waits.
        retries.shed(position);
        retries.tidy_due(|_| None);
        assert_eq!(retries.bytes(), 0);
    }
}
