//! An operator's pauses, as far back as they matter: time in which a webhook was paused does not count for it.
//!
//! Times are active times of this leader. Pure.

use std::collections::HashSet;
use std::time::Duration;

/// Periods that are kept apart. Of more, the two with the least time from the first to the end of the second become one,
/// in which all is paused that was in either.
const PERIODS_MAX: usize = 64;

/// What is paused.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Paused<F> {
    /// Whether everything is.
    pub is_all: bool,
    /// Hashes of the shops that are paused whole, in order.
    shops: Box<[u64]>,
    /// Other pauses.
    pub filters: Vec<F>,
}

/// Time in which the same was paused.
#[derive(Debug)]
struct Period<F> {
    paused: Paused<F>,
    from: Duration,
    to: Duration,
}

/// Pauses up to now.
#[derive(Debug)]
pub(crate) struct Pauses<F> {
    /// Oldest first.
    past: Vec<Period<F>>,
    now: Paused<F>,
    since: Duration,
}

impl<F: Clone + PartialEq> Paused<F> {
    /// Nothing but these.
    pub fn new(is_all: bool, shops: &HashSet<u64>, filters: Vec<F>) -> Self {
        let mut shops: Vec<u64> = shops.iter().copied().collect();
        shops.sort_unstable();
        Self { is_all, shops: shops.into(), filters }
    }

    /// Whether a shop is paused whole, or everything is.
    pub fn holds(&self, shop: u64) -> bool {
        self.is_all || self.shops.binary_search(&shop).is_ok()
    }

    fn is_nothing(&self) -> bool {
        !self.is_all && self.shops.is_empty() && self.filters.is_empty()
    }

    /// What is paused here or there.
    fn united(self, other: Self) -> Self {
        let shops = self.shops.iter().chain(&other.shops).copied().collect();
        let mut filters = self.filters;
        for filter in other.filters {
            if !filters.contains(&filter) {
                filters.push(filter);
            }
        }
        Self::new(self.is_all || other.is_all, &shops, filters)
    }
}

impl<F> Default for Pauses<F> {
    fn default() -> Self {
        let now = Paused { is_all: false, shops: Box::default(), filters: Vec::new() };
        Self { past: Vec::new(), now, since: Duration::ZERO }
    }
}

impl<F: Clone + PartialEq> Pauses<F> {
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
            self.past.push(Period { paused: before, from: since, to: at });
        }
        if self.past.len() > PERIODS_MAX {
            self.unite();
        }
    }

    fn unite(&mut self) {
        let length = |first: &usize| self.past[*first + 1].to - self.past[*first].from;
        let Some(first) = (0..self.past.len() - 1).min_by_key(length) else { return };
        let second = self.past.remove(first + 1);
        let first_one = self.past.remove(first);
        // As long as both, and so late that no moment has more time after it that counts.
        let from = second.from - (first_one.to - first_one.from);
        let paused = first_one.paused.united(second.paused);
        let united = Period { paused, from, to: second.to };
        self.past.insert(first, united);
    }

    /// The parts of a time in which this was not paused.
    pub fn unpaused(
        &self,
        from: Duration,
        to: Duration,
        is_paused: impl Fn(&Paused<F>) -> bool,
    ) -> Vec<(Duration, Duration)> {
        let past = self.past.iter().map(|period| (&period.paused, period.from, period.to));
        let all = past.chain([(&self.now, self.since, Duration::MAX)]);
        let amid = all.filter(|(_, began, end)| *began < to && *end > from);
        let (mut parts, mut from) = (Vec::new(), from);
        for (_, began, end) in amid.filter(|(paused, _, _)| is_paused(paused)) {
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
        Paused::new(false, &HashSet::from([shop]), Vec::new())
    }

    fn nothing() -> Paused<u8> {
        Paused::new(false, &HashSet::new(), Vec::new())
    }

    fn length(parts: Vec<(Duration, Duration)>) -> Duration {
        parts.into_iter().map(|(from, to)| to - from).sum()
    }

    fn filter(filter: u8) -> Paused<u8> {
        Paused::new(false, &HashSet::new(), vec![filter])
    }

    #[test]
    fn time_counts_for_whatever_is_not_paused_in_it() {
        let mut pauses = Pauses::default();
        pauses.change(shop(7), 10 * SECOND);
        // Something else has changed.
        pauses.change(shop(7), 12 * SECOND);
        pauses.change(Paused { is_all: true, ..shop(7) }, 20 * SECOND);
        pauses.change(filter(3), 30 * SECOND);
        pauses.change(nothing(), 40 * SECOND);
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
    fn of_too_many_pauses_some_become_longer_and_no_other_shop_has_them() {
        let mut pauses = Pauses::default();
        for number in 0..100 {
            pauses.change(shop(number), number as u32 * 20 * SECOND);
            pauses.change(nothing(), (number as u32 * 20 + 10) * SECOND);
        }
        assert_eq!(pauses.past.len(), PERIODS_MAX);
        let time = |shop| {
            let parts =
                pauses.unpaused(Duration::ZERO, 2_000 * SECOND, |paused| paused.holds(shop));
            length(parts)
        };
        assert_eq!(time(100), 2_000 * SECOND);
        for shop in 0..100 {
            assert!(time(shop) <= 1_990 * SECOND && time(shop) >= 1_900 * SECOND, "{shop}");
        }
    }

    #[test]
    fn time_between_many_pauses_of_one_shop_counts_for_what_came_before_them() {
        let mut pauses = Pauses::default();
        for number in 0..1_000 {
            pauses.change(shop(7), number * 10 * SECOND);
            pauses.change(nothing(), (number * 10 + 1) * SECOND);
        }
        for from in (0..10_000).step_by(7) {
            let parts = pauses.unpaused(from * SECOND, 10_000 * SECOND, |paused| paused.holds(7));
            let exact = (from..10_000).filter(|second| second % 10 > 0).count() as u32 * SECOND;
            assert!(length(parts) <= exact, "{from}");
        }
        let parts = pauses.unpaused(Duration::ZERO, 10_000 * SECOND, |paused| paused.holds(7));
        assert_eq!(length(parts), 9_000 * SECOND);
    }
}
