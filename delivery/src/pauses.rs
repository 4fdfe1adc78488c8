//! An operator's pauses, as far back as they matter: time in which a webhook was paused does not count for it.
//!
//! Times are active times of this leader. Pure.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

/// Periods that are kept apart. Of more, all time up to the end of the oldest counts for nothing.
const PERIODS_MAX: usize = 64;

/// What is paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paused<F> {
    /// Whether everything is.
    pub is_all: bool,
    /// Hashes of the shops that are paused whole.
    pub shops: HashSet<u64>,
    /// Other pauses.
    pub filters: Vec<F>,
}

/// Pauses up to now.
#[derive(Debug)]
pub(crate) struct Pauses<F> {
    /// What was paused, from when and to when, oldest first.
    past: VecDeque<(Paused<F>, Duration, Duration)>,
    /// Up to here, nothing is known.
    unknown_to: Duration,
    now: Paused<F>,
    since: Duration,
}

impl<F> Default for Paused<F> {
    fn default() -> Self {
        Self { is_all: false, shops: HashSet::new(), filters: Vec::new() }
    }
}

impl<F> Paused<F> {
    /// Whether a shop is paused whole, or everything is.
    pub fn holds(&self, shop: u64) -> bool {
        self.is_all || self.shops.contains(&shop)
    }

    fn is_nothing(&self) -> bool {
        !self.is_all && self.shops.is_empty() && self.filters.is_empty()
    }
}

impl<F> Default for Pauses<F> {
    fn default() -> Self {
        Self {
            past: VecDeque::new(),
            unknown_to: Duration::ZERO,
            now: Paused::default(),
            since: Duration::ZERO,
        }
    }
}

impl<F: PartialEq> Pauses<F> {
    /// What is paused now.
    pub fn now(&self) -> &Paused<F> {
        &self.now
    }

    /// This is paused from `at` on, and nothing else.
    pub fn change(&mut self, paused: Paused<F>, at: Duration) {
        if paused == self.now {
            return;
        }
        let before = std::mem::replace(&mut self.now, paused);
        let since = std::mem::replace(&mut self.since, at);
        if !before.is_nothing() && since < at {
            self.past.push_back((before, since, at));
        }
        if self.past.len() > PERIODS_MAX
            && let Some((_, _, end)) = self.past.pop_front()
        {
            self.unknown_to = end;
        }
    }

    /// The parts of a time in which this was not paused.
    pub fn unpaused(
        &self,
        from: Duration,
        to: Duration,
        is_paused: impl Fn(&Paused<F>) -> bool,
    ) -> Vec<(Duration, Duration)> {
        let past = self.past.iter().map(|(paused, from, to)| (paused, *from, *to));
        let all = past.chain([(&self.now, self.since, Duration::MAX)]);
        let (mut parts, mut from) = (Vec::new(), from.max(self.unknown_to));
        for (_, began, end) in all.filter(|(paused, began, _)| *began < to && is_paused(paused)) {
            if from < began {
                parts.push((from, began));
            }
            from = from.max(end);
        }
        if from < to {
            parts.push((from, to));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn shop(shop: u64) -> Paused<u8> {
        Paused { shops: HashSet::from([shop]), ..Paused::default() }
    }

    fn length(parts: Vec<(Duration, Duration)>) -> Duration {
        parts.into_iter().map(|(from, to)| to - from).sum()
    }

    fn filter(filter: u8) -> Paused<u8> {
        Paused { filters: vec![filter], ..Paused::default() }
    }

    #[test]
    fn time_counts_for_whatever_is_not_paused_in_it() {
        let mut pauses = Pauses::default();
        pauses.change(shop(7), 10 * SECOND);
        // Something else has changed.
        pauses.change(shop(7), 12 * SECOND);
        pauses.change(Paused { is_all: true, ..shop(7) }, 20 * SECOND);
        pauses.change(filter(3), 30 * SECOND);
        pauses.change(Paused::default(), 40 * SECOND);
        pauses.change(shop(8), 50 * SECOND);
        let of = |from: u32, to: u32, is_paused: &dyn Fn(&Paused<u8>) -> bool| {
            length(pauses.unpaused(from * SECOND, to * SECOND, is_paused))
        };
        let seconds = |seconds: u32| seconds * SECOND;
        assert_eq!(of(0, 60, &|paused| paused.holds(7)), seconds(40));
        assert_eq!(of(0, 60, &|paused| paused.holds(8)), seconds(40));
        assert_eq!(of(0, 60, &|paused| paused.holds(9)), seconds(50));
        assert_eq!(of(15, 45, &|paused| paused.holds(7) || paused.filters == [3]), seconds(5));
        assert_eq!(of(22, 25, &|paused| paused.holds(9)), seconds(0));
        let parts = pauses.unpaused(5 * SECOND, 35 * SECOND, |paused| paused.holds(7));
        assert_eq!(parts, [(5, 10), (30, 35)].map(|(from, to)| (from * SECOND, to * SECOND)));
    }

    #[test]
    fn of_too_many_pauses_time_before_the_oldest_counts_for_nothing() {
        let mut pauses = Pauses::default();
        for number in 0..100 {
            pauses.change(shop(7), number * 20 * SECOND);
            pauses.change(Paused::default(), (number * 20 + 10) * SECOND);
        }
        let time = |from: u32| {
            length(pauses.unpaused(from * SECOND, 2_000 * SECOND, |paused| paused.holds(7)))
        };
        assert_eq!(time(1_500), 250 * SECOND);
        assert_eq!(time(0), time(710));
        assert_eq!(time(710), 650 * SECOND);
    }
}
