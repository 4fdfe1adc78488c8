//! Shops that are known to be served while hanging attempts hold most of the slots.
//!
//! Turns rotate among shops. If most shops begin to hang at once, a healthy shop would have its
//! turn only after each of them has held a slot. Therefore a shop with a successful delivery since
//! then gets more turns than the others until that ends. Pure: time is an argument.

use std::collections::HashSet;
use std::time::Duration;

/// Time after which the state ends, if slow attempts no longer hold most slots.
const OVER_AFTER: Duration = Duration::from_secs(10);
/// One of this many turns goes to any shop.
const TURNS: u32 = 4;
/// Time between two scans for such shops, if none had anything to send.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Most shops that are remembered.
const SHOPS_MAX: usize = 16_384;

/// Shops with a successful delivery since slow attempts held most slots.
#[derive(Debug, Default)]
pub(crate) struct Proven {
    shops: HashSet<u64>,
    /// Time at which slow attempts last held most slots.
    crowded_at: Option<Duration>,
    /// Time before which there is no scan for them.
    look_at: Duration,
    turns: u32,
}

impl Proven {
    /// Notes if slow attempts hold most slots.
    pub(crate) fn look(&mut self, is_crowded: bool, now: Duration) {
        if is_crowded {
            if !self.is_on(now) {
                self.shops.clear();
            }
            self.crowded_at = Some(now);
        }
    }

    /// Counts a turn. Returns true if it goes to one of these shops, if one has something to send.
    pub(crate) fn take_turn(&mut self, now: Duration) -> bool {
        if !self.is_on(now) || self.shops.is_empty() || now < self.look_at {
            return false;
        }
        self.turns = (self.turns + 1) % TURNS;
        self.turns != 0
    }

    /// Notes that none of these shops had anything to send.
    pub(crate) fn had_nothing(&mut self, now: Duration) {
        self.look_at = now + LOOK_EVERY;
    }

    /// True if a shop is one of them.
    pub(crate) fn contains(&self, shop: u64) -> bool {
        self.shops.contains(&shop)
    }

    /// Notes a successful delivery of a shop that was not slow.
    pub(crate) fn succeeded(&mut self, shop: u64, now: Duration) {
        if self.is_on(now) && self.shops.len() < SHOPS_MAX {
            self.shops.insert(shop);
        }
    }

    /// Notes a slow attempt of a shop.
    pub(crate) fn on_slow(&mut self, shop: u64) {
        self.shops.remove(&shop);
    }

    fn is_on(&self, now: Duration) -> bool {
        self.crowded_at.is_some_and(|at| now < at + OVER_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn shops_served_since_have_three_turns_of_four_until_it_is_over() {
        let mut proven = Proven::default();
        proven.succeeded(1, SECOND);
        proven.look(true, SECOND);
        assert!(!proven.take_turn(SECOND), "none is served since");
        proven.succeeded(1, SECOND);
        proven.succeeded(2, SECOND);
        proven.on_slow(2);
        assert!(proven.contains(1) && !proven.contains(2));
        assert_eq!((0..40).filter(|_| proven.take_turn(2 * SECOND)).count(), 30);
        proven.had_nothing(2 * SECOND);
        assert!(!proven.take_turn(2 * SECOND) && !proven.take_turn(12 * SECOND));
        proven.look(true, 12 * SECOND);
        assert!(!proven.contains(1), "it is another time");
    }
}
