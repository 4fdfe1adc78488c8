//! Retry state: attempts, time spent, and when the next attempt is due.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::index::ResourceKey;

/// Bytes of a state: 73 in a table between half and nearly full.
const STATE_BYTES: usize = 112;
/// Bytes of a wait: 24 in a list that grows by doubling.
const DUE_BYTES: usize = 36;

/// Retry state of one webhook.
#[derive(Debug, Clone, Copy)]
pub struct RetryState {
    /// Attempts made.
    pub attempts: u32,
    /// Time spent before this leader's first attempt.
    pub spent_before: Duration,
    /// Active time at this leader's first attempt.
    pub since: Duration,
    /// No attempt before.
    pub due: Duration,
    /// Whether Redis holds it.
    pub is_stored: bool,
    /// Whether its webhook lies in the main stream. If not, it comes with a chunk.
    pub is_in_main: bool,
}

/// Place where Redis holds a retry state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// With those of the main stream, which a leader loads when it begins.
    InMain,
    /// With those of lanes, which come with their chunks.
    InLanes,
}

/// Retry states of all heads that failed.
#[derive(Debug, Default)]
pub struct Retries {
    states: HashMap<Position, RetryState>,
    due: BinaryHeap<Reverse<(Duration, ResourceKey)>>,
    /// States that Redis holds with those of the main stream, and that are nobody's.
    stale: Vec<Position>,
}

impl RetryState {
    /// Time spent on retries at this active time.
    pub fn spent(&self, active: Duration) -> Duration {
        self.spent_before + active.saturating_sub(self.since)
    }
}

impl Retries {
    /// The state of a webhook, if it failed before.
    pub fn get(&self, position: Position) -> Option<&RetryState> {
        self.states.get(&position)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, position: Position) -> Option<&mut RetryState> {
        self.states.get_mut(&position)
    }

    /// Memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.states.len() * STATE_BYTES + self.due.len() * DUE_BYTES
    }

    /// Forgets the state of a webhook that is not indexed any more, if it comes again with a chunk.
    pub fn shed(&mut self, position: Position) {
        if self.states.get(&position).is_some_and(|state| state.is_stored && !state.is_in_main) {
            self.states.remove(&position);
        }
    }

    /// A webhook moves into a lane, and its state is written there. Returns the state as it was.
    pub fn moves(&mut self, position: Position) -> Option<RetryState> {
        let state = self.states.get_mut(&position).filter(|state| state.is_in_main)?;
        let before = *state;
        state.is_in_main = false;
        state.is_stored = true;
        Some(before)
    }

    /// Takes over the states of webhooks in the main stream, up to so many bytes of them: those of the oldest that
    /// lie after the cursor.
    pub fn load(&mut self, mut states: Vec<(Position, RetryState)>, after: StreamId, bytes: usize) {
        states.sort_unstable_by_key(|(position, _)| *position);
        let most = self.states.len() + bytes / STATE_BYTES;
        for (position, state) in states {
            if position.entry() > after && self.states.len() < most {
                self.states.insert(position, state);
            } else {
                self.stale.push(position);
            }
        }
    }

    /// A webhook that arrives is settled: what Redis holds of it with the main stream is nobody's. The state of a
    /// replay of it stays.
    pub fn was_settled(&mut self, position: Position) {
        if self.states.get(&position).is_some_and(|state| state.is_in_main) {
            self.states.remove(&position);
            self.stale.push(position);
        }
    }

    /// An entry of the main stream can't be decoded.
    pub fn is_corrupt(&mut self, entry: StreamId) {
        let of_it = self.states.keys().filter(|position| position.entry() == entry);
        let of_it: Vec<Position> = of_it.copied().collect();
        of_it.into_iter().for_each(|position| self.was_settled(position));
    }

    /// Some of the states that are nobody's.
    pub fn take_stale(&mut self, most: usize) -> Vec<Position> {
        self.stale.split_off(self.stale.len().saturating_sub(most))
    }

    /// Remembers a state.
    pub fn insert(&mut self, position: Position, state: RetryState) {
        self.states.insert(position, state);
    }

    /// Forgets a webhook that is settled. Returns where Redis holds its state.
    pub fn remove(&mut self, position: Position) -> Option<Held> {
        let state = self.states.remove(&position).filter(|state| state.is_stored)?;
        Some(if state.is_in_main { Held::InMain } else { Held::InLanes })
    }

    /// Wakes a resource at `due`.
    pub fn schedule(&mut self, due: Duration, resource: ResourceKey) {
        self.due.push(Reverse((due, resource)));
    }

    /// Drops waits that are none any more, if they are many. `head`: the webhook that a resource waits with.
    pub fn tidy_due(&mut self, head: impl Fn(ResourceKey) -> Option<Position>) {
        if self.due.len() <= 2 * self.states.len() {
            return;
        }
        let states = &self.states;
        self.due.retain(|Reverse((due, resource))| {
            head(*resource).and_then(|head| states.get(&head)).is_some_and(|one| one.due == *due)
        });
    }

    /// The next resource whose wait is over.
    pub fn pop_due(&mut self, now: Duration) -> Option<ResourceKey> {
        let Reverse((due, resource)) = self.due.peek().copied()?;
        if due > now {
            return None;
        }
        self.due.pop();
        Some(resource)
    }

    /// When the next wait is over.
    pub fn wakes_at(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_a_leader_finds_is_bounded_and_what_is_nobodys_is_named() {
        let at = |ms, index| Position::new(StreamId { ms, seq: 0 }, index);
        let state = |is_in_main| RetryState {
            attempts: 1,
            spent_before: SECOND,
            since: Duration::ZERO,
            due: Duration::ZERO,
            is_stored: true,
            is_in_main,
        };
        let mut retries = Retries::default();
        // Of a replay.
        retries.insert(at(3, 1), state(false));
        let found = (1..=8).rev().map(|ms| (at(ms, 0), state(true))).collect();
        retries.load(found, at(2, 0).entry(), 4 * STATE_BYTES);
        assert!((3..=6).all(|ms| retries.get(at(ms, 0)).is_some()));
        assert_eq!(retries.take_stale(3), [at(2, 0), at(7, 0), at(8, 0)]);
        assert_eq!(retries.take_stale(3), [at(1, 0)]);
        retries.was_settled(at(3, 1));
        retries.was_settled(at(3, 0));
        retries.is_corrupt(at(4, 0).entry());
        assert!(retries.get(at(3, 1)).is_some() && retries.get(at(4, 0)).is_none());
        assert_eq!(retries.take_stale(3), [at(3, 0), at(4, 0)]);
    }

    #[test]
    fn waits_of_what_was_cut_and_read_again_do_not_pile_up() {
        let mut retries = Retries::default();
        let position = Position::new(StreamId { ms: 1, seq: 0 }, 0);
        let resource = ResourceKey::default();
        let state = |due| RetryState {
            attempts: 1,
            spent_before: Duration::ZERO,
            since: Duration::ZERO,
            due,
            is_stored: true,
            is_in_main: false,
        };
        for again in 1..=100 {
            retries.insert(position, state(again * SECOND));
            retries.schedule(again * SECOND, resource);
        }
        retries.tidy_due(|_| Some(position));
        assert_eq!(retries.bytes(), STATE_BYTES + DUE_BYTES);
        assert_eq!(retries.wakes_at(), Some(100 * SECOND));
        // It does not wait any more.
        retries.shed(position);
        retries.tidy_due(|_| None);
        assert_eq!(retries.bytes(), 0);
    }
}
