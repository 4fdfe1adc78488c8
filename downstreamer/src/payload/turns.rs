//! Bounds the fetches that run at once, so that a host that hangs leaves slots of deliveries to
//! webhooks without payloads.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Hosts of which it is kept that they hang. Beyond that, the others are asked as if they were well.
const HANGING_MAX: usize = 1_000;

/// Fetches that run, and hosts that hang.
#[derive(Debug)]
pub(super) struct FetchTurns {
    /// Most fetches at once.
    most: usize,
    turns: Mutex<Turns>,
}

#[derive(Debug, Default)]
struct Turns {
    running: usize,
    /// Hosts whose last fetch had no answer in time.
    hanging: HashSet<String>,
    /// True while one of them is asked again.
    is_asked: bool,
}

/// Permission for one fetch, up to its end.
///
/// One that is dropped without [`FetchTurn::answered`] was cut off or had no answer in time.
#[derive(Debug)]
pub(super) struct FetchTurn {
    turns: Arc<FetchTurns>,
    host: String,
    /// True if the host was known to hang.
    is_again: bool,
    has_answered: bool,
}

impl FetchTurns {
    /// Turns for at most `most` fetches at once.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, turns: Mutex::default() })
    }

    /// Turn for a fetch from `host`. `None` if as many run as may at once, or if the host hangs and
    /// a fetch from a host that hangs already runs.
    pub(super) fn turn(self: &Arc<Self>, host: &str) -> Option<FetchTurn> {
        let mut turns = self.lock();
        let is_again = turns.hanging.contains(host);
        if turns.running == self.most || (is_again && turns.is_asked) {
            return None;
        }
        turns.running += 1;
        turns.is_asked |= is_again;
        Some(FetchTurn {
            turns: self.clone(),
            host: host.to_owned(),
            is_again,
            has_answered: false,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FetchTurn {
    /// Ends a fetch whose host answered, well or not, or could not be reached at once.
    pub(super) fn answered(mut self) {
        self.has_answered = true;
    }
}

impl Drop for FetchTurn {
    fn drop(&mut self) {
        let mut turns = self.turns.lock();
        turns.running -= 1;
        turns.is_asked &= !self.is_again;
        if self.has_answered {
            turns.hanging.remove(&self.host);
        } else if turns.hanging.len() < HANGING_MAX {
            turns.hanging.insert(std::mem::take(&mut self.host));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_have_a_bound_together() {
        let turns = FetchTurns::new(2);
        let first = turns.turn("a.example").unwrap();
        let second = turns.turn("b.example").unwrap();
        assert!(turns.turn("c.example").is_none());
        first.answered();
        let third = turns.turn("c.example").unwrap();
        assert!(turns.turn("a.example").is_none());
        second.answered();
        third.answered();
        assert_eq!(turns.lock().running, 0);
    }

    #[test]
    fn hosts_that_hang_have_one_fetch_together_until_they_answer() {
        let turns = FetchTurns::new(16);
        drop([turns.turn("a.example").unwrap(), turns.turn("b.example").unwrap()]);
        let again = turns.turn("a.example").unwrap();
        assert!(turns.turn("a.example").is_none() && turns.turn("b.example").is_none());
        // The others are asked as before.
        turns.turn("c.example").unwrap().answered();
        drop(again);
        turns.turn("b.example").unwrap().answered();
        let both = [turns.turn("b.example").unwrap(), turns.turn("b.example").unwrap()];
        let again = turns.turn("a.example").unwrap();
        assert!(turns.turn("a.example").is_none());
        again.answered();
        assert!(turns.turn("a.example").is_some());
        both.into_iter().for_each(FetchTurn::answered);
    }

    #[test]
    fn a_fetch_that_began_earlier_may_end_first_or_last() {
        let turns = FetchTurns::new(16);
        let early = turns.turn("a.example").unwrap();
        drop(turns.turn("a.example").unwrap());
        let again = turns.turn("a.example").unwrap();
        drop(early);
        assert!(turns.turn("a.example").is_none());
        again.answered();
        let all = [(); 16].map(|()| turns.turn("a.example").unwrap());
        all.into_iter().for_each(FetchTurn::answered);
        assert!(turns.lock().hanging.is_empty());
    }

    #[test]
    fn hosts_that_hang_are_bounded() {
        let turns = FetchTurns::new(1);
        for number in 0..2 * HANGING_MAX {
            drop(turns.turn(&format!("{number}.example")));
        }
        assert_eq!(turns.lock().hanging.len(), HANGING_MAX);
    }
}
