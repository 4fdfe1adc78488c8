//! Bounds the fetches that run at once, so that a host that hangs leaves slots of deliveries to
//! webhooks without payloads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Hosts of which it is kept that they hang. Beyond that, the others are asked as if they were well.
const HANGING_MAX: usize = 1_000;
/// Fetches at once from hosts that hang.
const AGAIN_MAX: usize = 4;

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
    /// Hosts whose last fetch had no prompt answer, and if one is asked again now.
    hanging: HashMap<String, bool>,
    /// Those that are asked again now.
    again: usize,
}

/// Permission for one fetch, up to its end.
///
/// One that is dropped without [`FetchTurn::answered`] was cut off or had no prompt answer.
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

    /// Turn for a fetch from `host`. A host that hangs has one at a time.
    ///
    /// # Errors
    /// The reason for which there is none now.
    pub(super) fn turn(self: &Arc<Self>, host: &str) -> Result<FetchTurn, &'static str> {
        let mut turns = self.lock();
        if turns.running == self.most {
            return Err("too many fetches at once");
        }
        let again = turns.again;
        let is_again = match turns.hanging.get_mut(host) {
            None => false,
            Some(is_asked) if *is_asked || again == AGAIN_MAX => {
                return Err("its host hangs, and is asked by one fetch at a time");
            }
            Some(is_asked) => {
                *is_asked = true;
                true
            }
        };
        turns.running += 1;
        turns.again += usize::from(is_again);
        Ok(FetchTurn { turns: self.clone(), host: host.to_owned(), is_again, has_answered: false })
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FetchTurn {
    /// Ends a fetch whose host answered, or failed promptly.
    pub(super) fn answered(mut self) {
        self.has_answered = true;
    }
}

impl Drop for FetchTurn {
    fn drop(&mut self) {
        let mut turns = self.turns.lock();
        turns.running -= 1;
        turns.again -= usize::from(self.is_again);
        if self.has_answered {
            turns.hanging.remove(&self.host);
        } else if self.is_again || turns.hanging.len() < HANGING_MAX {
            let is_asked = turns.hanging.entry(std::mem::take(&mut self.host)).or_default();
            *is_asked &= !self.is_again;
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
        assert!(turns.turn("c.example").is_err());
        first.answered();
        let third = turns.turn("c.example").unwrap();
        assert!(turns.turn("a.example").is_err());
        second.answered();
        third.answered();
        assert_eq!(turns.lock().running, 0);
    }

    #[test]
    fn a_host_that_hangs_has_one_fetch_until_it_answers() {
        let turns = FetchTurns::new(16);
        drop([turns.turn("a.example").unwrap(), turns.turn("b.example").unwrap()]);
        let again = turns.turn("a.example").unwrap();
        assert!(turns.turn("a.example").is_err());
        // The others are asked as before, and one that hangs does not wait for another.
        turns.turn("c.example").unwrap().answered();
        turns.turn("b.example").unwrap().answered();
        let both = [turns.turn("b.example").unwrap(), turns.turn("b.example").unwrap()];
        drop(again);
        let again = turns.turn("a.example").unwrap();
        assert!(turns.turn("a.example").is_err());
        again.answered();
        assert!(turns.turn("a.example").is_ok());
        both.into_iter().for_each(FetchTurn::answered);
    }

    #[test]
    fn hosts_that_hang_have_few_fetches_together() {
        let turns = FetchTurns::new(16);
        let hosts = ["a.example", "b.example", "c.example", "d.example", "e.example"];
        drop(hosts.map(|host| turns.turn(host).unwrap()));
        let [.., last] = hosts;
        let again: Vec<_> =
            hosts.iter().take(AGAIN_MAX).map(|host| turns.turn(host).unwrap()).collect();
        assert!(turns.turn(last).is_err());
        drop(again);
        turns.turn(last).unwrap().answered();
        assert_eq!(turns.lock().running, 0);
        assert_eq!(turns.lock().again, 0);
    }

    #[test]
    fn a_fetch_that_began_earlier_may_end_first_or_last() {
        let turns = FetchTurns::new(16);
        let early = turns.turn("a.example").unwrap();
        drop(turns.turn("a.example").unwrap());
        let again = turns.turn("a.example").unwrap();
        drop(early);
        assert!(turns.turn("a.example").is_err());
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
