//! Within a shop, what must wait for all before it, and what must wait for that.
//!
//! A barrier is delivered once everything of its shop that was accepted before it is settled, and
//! nothing accepted after it before it is settled itself. Counted, not listed: for each barrier, how
//! many unsettled webhooks lie between it and the barrier before.

use std::collections::{BTreeMap, HashSet, VecDeque};

use spillway_webhook::StreamId;

use crate::index::ResourceKey;

/// Where a webhook was accepted: its entry, and its place in it. Sorts in accepted order.
pub type Position = (StreamId, u32);

/// The barriers of one shop, and what they hold back.
#[derive(Debug, Default)]
pub struct Barriers {
    /// In order.
    barriers: VecDeque<Barrier>,
    held: BTreeMap<Position, ResourceKey>,
    /// Unsettled webhooks behind the last one.
    behind: u32,
}

#[derive(Debug)]
struct Barrier {
    position: Position,
    /// Unsettled webhooks between the barrier before and this one.
    ahead: u32,
}

impl Barriers {
    /// Adds a barrier behind all that waits; `waiting` is how many webhooks that is.
    pub fn push(&mut self, position: Position, waiting: u32) {
        let ahead = if self.barriers.is_empty() { waiting } else { self.behind };
        self.behind = 0;
        self.barriers.push_back(Barrier { position, ahead });
    }

    /// Adds a barrier among what waits: `all` are the positions of the shop's other webhooks.
    pub fn insert(&mut self, position: Position, all: &HashSet<Position>) {
        let at = self.barriers.partition_point(|barrier| barrier.position < position);
        self.barriers.insert(at, Barrier { position, ahead: 0 });
        self.barriers.iter_mut().for_each(|barrier| barrier.ahead = 0);
        self.behind = 0;
        let is_barrier = |position: &Position| {
            self.barriers.binary_search_by_key(position, |barrier| barrier.position).is_ok()
        };
        let others: Vec<Position> = all.iter().filter(|at| !is_barrier(at)).copied().collect();
        others.into_iter().for_each(|position| self.add(position));
    }

    /// A webhook that is no barrier waits at `position`.
    pub fn add(&mut self, position: Position) {
        *self.count_at(position) += 1;
    }

    /// A webhook is settled; hands out the resources that need not wait any more.
    pub fn left(&mut self, position: Position) -> Vec<ResourceKey> {
        match self.barriers.binary_search_by_key(&position, |barrier| barrier.position) {
            Ok(at) => {
                let ahead = self.barriers.remove(at).map_or(0, |barrier| barrier.ahead);
                let next = self.barriers.get_mut(at).map(|next| &mut next.ahead);
                *next.unwrap_or(&mut self.behind) += ahead;
            }
            Err(_) => *self.count_at(position) -= 1,
        }
        let mut released = Vec::new();
        while let Some(first) = self.held.first_entry() {
            let is_open = self.barriers.front().is_none_or(|front| front.opens(*first.key()));
            if !is_open {
                break;
            }
            released.push(first.remove());
        }
        released
    }

    /// Whether what lies at `position` may be delivered.
    pub fn is_open(&self, position: Position) -> bool {
        self.barriers.front().is_none_or(|front| front.opens(position))
    }

    /// Where the first one is.
    pub fn first(&self) -> Option<Position> {
        self.barriers.front().map(|front| front.position)
    }

    /// Holds back the resource whose head lies at `position`.
    pub fn hold(&mut self, position: Position, resource: ResourceKey) {
        self.held.insert(position, resource);
    }

    /// What is held at `position` is not any more.
    pub fn unhold(&mut self, position: Position) {
        self.held.remove(&position);
    }

    /// What is held back, in order.
    pub fn held(&self) -> impl Iterator<Item = ResourceKey> {
        self.held.values().copied()
    }

    /// Whether no barrier is left, and so nothing held.
    pub fn is_empty(&self) -> bool {
        self.barriers.is_empty() && self.held.is_empty()
    }

    fn count_at(&mut self, position: Position) -> &mut u32 {
        let next = self.barriers.partition_point(|barrier| barrier.position < position);
        match self.barriers.get_mut(next) {
            Some(barrier) => &mut barrier.ahead,
            None => &mut self.behind,
        }
    }
}

impl Barrier {
    /// As the first one: whether it lets out what lies at `position`.
    fn opens(&self, position: Position) -> bool {
        position < self.position || (position == self.position && self.ahead == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64) -> Position {
        (StreamId { ms: 1, seq }, 0)
    }

    #[test]
    fn two_barriers_let_their_parts_out_one_after_the_other() {
        let mut barriers = Barriers::default();
        barriers.push(at(3), 2);
        barriers.add(at(4));
        barriers.push(at(5), 99);
        barriers.add(at(6));
        for number in 3..7 {
            assert!(!barriers.is_open(at(number)));
            barriers.hold(at(number), number);
        }
        assert!(barriers.is_open(at(2)));
        assert!(barriers.left(at(2)).is_empty());
        assert_eq!(barriers.left(at(1)), [3]);
        assert_eq!(barriers.left(at(3)), [4]);
        assert_eq!(barriers.left(at(4)), [5]);
        assert_eq!(barriers.left(at(5)), [6]);
        assert!(barriers.is_empty());
    }

    #[test]
    fn a_barrier_among_what_waits_is_counted_anew() {
        let mut barriers = Barriers::default();
        barriers.push(at(8), 3);
        // Waiting: 2, 4, 6, the barrier 8, and 9. Then a barrier that was replayed, at 5.
        barriers.add(at(9));
        barriers.insert(at(5), &[2, 4, 6, 8, 9].map(at).into());
        barriers.hold(at(5), 5);
        barriers.hold(at(6), 6);
        barriers.hold(at(8), 8);
        assert!(barriers.left(at(2)).is_empty());
        assert_eq!(barriers.left(at(4)), [5]);
        assert_eq!(barriers.left(at(5)), [6]);
        assert_eq!(barriers.left(at(6)), [8]);
    }
}
