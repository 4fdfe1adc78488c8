//! Retry state: attempts, time spent, and when the next attempt is due.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

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

    /// A webhook moves into a lane. Returns whether Redis holds its state with those of the main stream.
    pub fn moves(&mut self, position: Position) -> bool {
        let Some(state) = self.states.get_mut(&position).filter(|state| state.is_in_main) else {
            return false;
        };
        state.is_in_main = false;
        std::mem::take(&mut state.is_stored)
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
    use spillway_webhook::StreamId;

    const SECOND: Duration = Duration::from_secs(1);

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
