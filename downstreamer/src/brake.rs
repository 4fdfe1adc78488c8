//! The brake: a bad deploy answers everything with 404, and without it every webhook would become a
//! dead letter in an hour.
//!
//! It engages when more than half of the last outcomes are refusals, of several shops, or of every
//! shop there was lately: one shop's bad data is no bad deploy. It lets go with the first delivery
//! that succeeds. Pure: time is an argument.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

/// Outcomes that are looked at.
const OUTCOMES: usize = 100;
/// Shops that must be refused, if there are so many.
const SHOPS: usize = 5;
/// A shop of which nothing was heard for so long does not count.
const LATELY: Duration = Duration::from_secs(3600);

/// What is known of the last outcomes.
#[derive(Debug, Default)]
pub struct Brake {
    /// Shop, and whether it was refused; oldest first.
    outcomes: VecDeque<(u64, bool)>,
    refused: usize,
    /// The shops heard of last, the latest at the end: as many as matter.
    lately: Vec<(u64, Duration)>,
    is_on: bool,
}

impl Brake {
    /// Whether nothing but probes may go out, and nothing may be given up.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The backend took a webhook of `shop`.
    pub fn taken(&mut self, shop: u64, now: Duration) {
        if std::mem::take(&mut self.is_on) {
            self.outcomes.clear();
            self.refused = 0;
        }
        self.note(shop, false, now);
    }

    /// The backend refused a webhook of `shop`; says whether that engages the brake.
    pub fn refused(&mut self, shop: u64, now: Duration) -> bool {
        self.note(shop, true, now);
        let is_most = self.outcomes.len() == OUTCOMES && self.refused > OUTCOMES / 2;
        let was_on = self.is_on;
        self.is_on |= is_most && self.is_of_several_shops(now);
        self.is_on && !was_on
    }

    fn note(&mut self, shop: u64, is_refused: bool, now: Duration) {
        self.lately.retain(|(other, _)| *other != shop);
        if self.lately.len() == SHOPS {
            self.lately.remove(0);
        }
        self.lately.push((shop, now));
        if self.outcomes.len() == OUTCOMES
            && let Some((_, was_refused)) = self.outcomes.pop_front()
        {
            self.refused -= usize::from(was_refused);
        }
        self.outcomes.push_back((shop, is_refused));
        self.refused += usize::from(is_refused);
    }

    fn is_of_several_shops(&self, now: Duration) -> bool {
        let refused = self.outcomes.iter().filter(|(_, is_refused)| *is_refused);
        let refused: HashSet<u64> = refused.map(|(shop, _)| *shop).collect();
        let is_late = |(_, heard): &&(u64, Duration)| now.saturating_sub(*heard) < LATELY;
        refused.len() >= self.lately.iter().filter(is_late).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(9);

    #[test]
    fn it_engages_when_most_are_refused_and_lets_go_with_the_first_success() {
        let mut brake = Brake::default();
        (0..100).for_each(|shop| brake.taken(shop % 7, NOW));
        let engaged = (0..100).filter(|shop| brake.refused(shop % 7, NOW)).collect::<Vec<_>>();
        assert_eq!(engaged, [50]);
        assert!(brake.is_on());
        brake.taken(1, NOW);
        assert!(!brake.is_on());
        assert!(!(0..98).any(|shop| brake.refused(shop % 7, NOW)));
    }

    #[test]
    fn one_shop_among_others_does_not_engage_it() {
        let mut brake = Brake::default();
        for _ in 0..200 {
            assert!(!brake.refused(1, NOW));
            assert!(!brake.refused(1, NOW));
            brake.taken(2, NOW);
        }
    }

    #[test]
    fn a_shop_that_was_heard_of_lately_counts_though_it_is_silent() {
        let mut brake = Brake::default();
        brake.taken(2, NOW);
        assert!(!(0..300).any(|_| brake.refused(1, NOW + Duration::from_secs(3599))));
        assert!(brake.refused(1, NOW + LATELY));
    }

    #[test]
    fn an_app_with_one_shop_has_a_brake_too() {
        let mut brake = Brake::default();
        assert!((0..99).all(|_| !brake.refused(1, NOW)));
        assert!(brake.refused(1, NOW));
    }
}
