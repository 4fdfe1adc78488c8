//! Turns of jobs: how many count, replay and drop at once. A slow replay may take hours. It keeps nobody from counting or
//! dropping, and one caller never has all turns of a kind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{JobOrder, JobVerb};

/// Jobs of a kind at once: count, replay or drop.
pub(super) const AT_ONCE: usize = 4;
/// Those of them of one caller.
pub(super) const CALLER_MAX: usize = 2;
/// Drops of waiting webhooks of one consumer at once: it counts all that it drops, of each order.
const CONSUMER_MAX: usize = 1;
const _: () = assert!(CALLER_MAX < AT_ONCE, "one caller never has all turns");

/// Turns of all kinds.
pub(super) struct JobTurns {
    counts: TurnLine,
    replays: TurnLine,
    drops: TurnLine,
    consumers: NamedTurns,
}

/// A turn, until it is dropped.
pub(super) struct JobTurn {
    _permits: Vec<OwnedSemaphorePermit>,
}

/// Turns of one kind.
struct TurnLine {
    all: Arc<Semaphore>,
    callers: NamedTurns,
}

/// Turns of each name, such as a caller.
struct NamedTurns {
    each: usize,
    by_name: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl JobTurns {
    /// All are free.
    pub(super) fn new() -> Self {
        let line = || TurnLine {
            all: Arc::new(Semaphore::new(AT_ONCE)),
            callers: NamedTurns::new(CALLER_MAX),
        };
        let consumers = NamedTurns::new(CONSUMER_MAX);
        Self { counts: line(), replays: line(), drops: line(), consumers }
    }

    /// Waits for a turn to count.
    pub(super) async fn count(&self, order: &JobOrder) -> JobTurn {
        let own = self.counts.callers.take(&order.actor).await;
        JobTurn { _permits: vec![own, take(&self.counts.all).await] }
    }

    /// Waits for a turn to change something. One that waits for others holds none of the turns that all share.
    pub(super) async fn change(&self, order: &JobOrder) -> JobTurn {
        let line = if order.verb.is_replay() { &self.replays } else { &self.drops };
        let mut permits = vec![line.callers.take(&order.actor).await];
        if order.verb == JobVerb::Drop {
            permits.push(self.consumers.take(&order.consumer).await);
        }
        permits.push(take(&line.all).await);
        JobTurn { _permits: permits }
    }
}

impl NamedTurns {
    fn new(each: usize) -> Self {
        Self { each, by_name: Mutex::default() }
    }

    async fn take(&self, name: &str) -> OwnedSemaphorePermit {
        let own = self.of(name);
        take(&own).await
    }

    /// Turns of a name. Those that nobody uses are forgotten.
    fn of(&self, name: &str) -> Arc<Semaphore> {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        by_name.retain(|_, turns| Arc::strong_count(turns) > 1);
        let new = || Arc::new(Semaphore::new(self.each));
        by_name.entry(name.to_owned()).or_insert_with(new).clone()
    }
}

async fn take(turns: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let turn = turns.clone().acquire_owned().await;
    turn.expect("BUG: the semaphore is never closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_of_those_who_are_gone_are_forgotten() {
        let turns = NamedTurns::new(1);
        let mia = turns.take("mia").await;
        drop(turns.take("tom").await);
        drop(turns.take("eve").await);
        let known = || turns.by_name.lock().unwrap().len();
        assert_eq!(known(), 2, "mia has a turn, and eve came last");
        drop(mia);
        drop(turns.take("eve").await);
        assert_eq!(known(), 1);
    }
}
