//! Operator pauses, present and past. Time in which a webhook was paused does not count for it.
//!
//! Times are active times of this leader. Pure. Bounded: if there are too many pauses, some become
//! longer or wider than they were. Therefore less time may count than should, but never more. A
//! webhook is given up late rather than early.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Most past pauses of one shop, of one filter, or of everything. If there are more, the two with
/// the least time between them are merged.
const PERIODS_MAX: usize = 4_096;
/// Most filters with past pauses. If there are more, the filter whose last pause ended first counts
/// as pauses of its shop, or of everything.
const FILTERS_MAX: usize = 64;
/// Most past pauses of all shops. If there are more, the half that ended first counts as pauses of
/// everything.
const OF_SHOPS_MAX: usize = 65_536;

/// Start and end of a pause.
type Period = (Duration, Duration);

/// Past pauses of one subject, in order, with time between them.
#[derive(Debug, Default)]
struct Periods(Vec<Period>);

/// Present pauses, with the time at which each began.
#[derive(Debug)]
struct ActivePauses<F> {
    all: Option<Duration>,
    shops: HashMap<u64, Duration>,
    filters: Vec<(F, Duration)>,
}

/// Pauses that have ended.
#[derive(Debug)]
struct EndedPauses<F> {
    all: Periods,
    shops: HashMap<u64, Periods>,
    /// Number of periods of all shops.
    of_shops: usize,
    /// Past pauses by filter. The filter whose last pause ended first is the first.
    filters: Vec<(F, Periods)>,
}

/// All pauses up to now.
#[derive(Debug)]
pub(crate) struct Pauses<F> {
    now: ActivePauses<F>,
    past: EndedPauses<F>,
}

impl Periods {
    fn add(&mut self, (mut from, mut to): Period) {
        if from >= to {
            return;
        }
        let periods = &mut self.0;
        let first = periods.partition_point(|(_, end)| *end < from);
        let last = periods.partition_point(|(began, _)| *began <= to);
        if let (Some((began, _)), true) = (periods.get(first), first < last) {
            from = from.min(*began);
            to = to.max(periods[last - 1].1);
        }
        periods.splice(first..last, [(from, to)]);
        if periods.len() > PERIODS_MAX {
            let gap = |second: &usize| periods[*second].0 - periods[*second - 1].1;
            if let Some(second) = (1..periods.len()).min_by_key(gap) {
                periods[second - 1].1 = periods[second].1;
                periods.remove(second);
            }
        }
    }

    /// Periods that end after a moment.
    fn after(&self, moment: Duration) -> &[Period] {
        &self.0[self.0.partition_point(|(_, end)| *end <= moment)..]
    }
}

impl<F> Default for Pauses<F> {
    fn default() -> Self {
        Self {
            now: ActivePauses { all: None, shops: HashMap::new(), filters: Vec::new() },
            past: EndedPauses {
                all: Periods::default(),
                shops: HashMap::new(),
                of_shops: 0,
                filters: Vec::new(),
            },
        }
    }
}

impl<F: PartialEq> EndedPauses<F> {
    fn add_shop(&mut self, shop: u64, period: Period) {
        if period.0 >= period.1 {
            return;
        }
        let periods = self.shops.entry(shop).or_default();
        let before = periods.0.len();
        periods.add(period);
        self.of_shops = self.of_shops + periods.0.len() - before;
        if self.of_shops > OF_SHOPS_MAX {
            self.fold_shops();
        }
    }

    fn fold_shops(&mut self) {
        let all = self.shops.values().flat_map(|periods| &periods.0);
        let mut ends: Vec<Duration> = all.map(|(_, end)| *end).collect();
        let (_, median, _) = ends.select_nth_unstable(OF_SHOPS_MAX / 2);
        let median = *median;
        for periods in self.shops.values_mut() {
            let old = periods.0.partition_point(|(_, end)| *end <= median);
            periods.0.drain(..old).for_each(|period| self.all.add(period));
        }
        self.shops.retain(|_, periods| !periods.0.is_empty());
        self.of_shops = self.shops.values().map(|periods| periods.0.len()).sum();
    }

    fn add_filter(&mut self, filter: F, period: Period, shop_of: fn(&F) -> Option<u64>) {
        if period.0 >= period.1 {
            return;
        }
        let known = self.filters.iter().position(|(one, _)| *one == filter);
        let known = known.map(|known| self.filters.remove(known).1);
        let mut periods = known.unwrap_or_default();
        periods.add(period);
        self.filters.push((filter, periods));
        if self.filters.len() > FILTERS_MAX {
            let (filter, periods) = self.filters.remove(0);
            for period in periods.0 {
                match shop_of(&filter) {
                    Some(shop) => self.add_shop(shop, period),
                    None => self.all.add(period),
                }
            }
        }
    }
}

impl<F: Clone + PartialEq> Pauses<F> {
    /// True if everything is paused now.
    pub(crate) fn is_all(&self) -> bool {
        self.now.all.is_some()
    }

    /// Filters of present pauses. Pauses of whole shops are not among them.
    pub(crate) fn filters(&self) -> impl Iterator<Item = &F> {
        self.now.filters.iter().map(|(filter, _)| filter)
    }

    /// Replaces the present pauses from `at` on. `shop_of` returns the only shop that a filter can
    /// match.
    pub(crate) fn change(
        &mut self,
        is_all: bool,
        shops: &HashSet<u64>,
        filters: Vec<F>,
        at: Duration,
        shop_of: fn(&F) -> Option<u64>,
    ) {
        match self.now.all {
            Some(since) if !is_all => {
                self.now.all = None;
                self.past.all.add((since, at));
            }
            None if is_all => self.now.all = Some(at),
            _ => {}
        }
        let past = &mut self.past;
        for (shop, since) in self.now.shops.extract_if(|shop, _| !shops.contains(shop)) {
            past.add_shop(shop, (since, at));
        }
        for shop in shops {
            self.now.shops.entry(*shop).or_insert(at);
        }
        self.change_filters(filters, at, shop_of);
    }

    fn change_filters(&mut self, filters: Vec<F>, at: Duration, shop_of: fn(&F) -> Option<u64>) {
        let mut before = std::mem::take(&mut self.now.filters).into_iter().peekable();
        let mut new = filters.into_iter().peekable();
        // Filters mostly keep their order, so few have to be compared with each other.
        while let Some(filter) = new.next_if(|one| before.peek().is_some_and(|(old, _)| old == one))
        {
            let since = before.next().map_or(at, |(_, since)| since);
            self.now.filters.push((filter, since));
        }
        let (mut before, new): (Vec<_>, Vec<_>) = (before.collect(), new.collect());
        let same = before.iter().rev().zip(new.iter().rev());
        let same = same.take_while(|((old, _), one)| old == *one).count();
        let rest = before.split_off(before.len() - same);
        let amid = new.len() - same;
        for filter in &new[..amid] {
            let known = before.iter().find(|(old, _)| old == filter);
            self.now.filters.push((filter.clone(), known.map_or(at, |(_, since)| *since)));
        }
        self.now.filters.extend(rest);
        for (filter, since) in before {
            if !new[..amid].contains(&filter) {
                self.past.add_filter(filter, (since, at), shop_of);
            }
        }
    }

    /// Parts of a time in which neither everything, nor this shop, nor a matching filter was
    /// paused.
    pub(crate) fn unpaused(
        &self,
        from: Duration,
        to: Duration,
        shop: Option<u64>,
        is_matched: impl Fn(&F) -> bool,
    ) -> Vec<Period> {
        let now = &self.now;
        let past = &self.past;
        let mut paused = past.all.after(from).to_vec();
        if let Some(periods) = shop.and_then(|shop| past.shops.get(&shop)) {
            paused.extend(periods.after(from));
        }
        let matched = past.filters.iter().filter(|(filter, _)| is_matched(filter));
        paused.extend(matched.flat_map(|(_, periods)| periods.after(from)));
        let of_shop = shop.and_then(|shop| now.shops.get(&shop));
        let of_filters = now.filters.iter().filter(|(filter, _)| is_matched(filter));
        let in_force = now.all.iter().chain(of_shop).chain(of_filters.map(|(_, since)| since));
        paused.extend(in_force.min().map(|since| (*since, Duration::MAX)));
        // The list consists of a few sorted runs, which the sort merges.
        paused.sort();
        let mut parts = Vec::new();
        let mut from = from;
        for (began, end) in paused.into_iter().filter(|(began, _)| *began < to) {
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

    /// Filters below 10,000 match one shop each, others match all shops.
    fn shop_of(filter: &u32) -> Option<u64> {
        (*filter < 10_000).then_some(u64::from(*filter))
    }

    impl Pauses<u32> {
        fn pause(&mut self, at: Duration, is_all: bool, shops: &[u64], filters: &[u32]) {
            let shops = shops.iter().copied().collect();
            self.change(is_all, &shops, filters.to_vec(), at, shop_of);
        }

        fn time(&self, from: u32, to: u32, shop: u64, filters: &[u32]) -> Duration {
            let is_matched = |filter: &u32| filters.contains(filter);
            let parts = self.unpaused(from * SECOND, to * SECOND, Some(shop), is_matched);
            parts.into_iter().map(|(from, to)| to - from).sum()
        }

        fn periods(&self) -> usize {
            let shops = self.past.shops.values().map(|periods| periods.0.len()).sum::<usize>();
            let filters = self.past.filters.iter().map(|(_, periods)| periods.0.len());
            assert_eq!(shops, self.past.of_shops);
            self.past.all.0.len() + shops + filters.sum::<usize>()
        }
    }

    #[test]
    fn time_counts_for_whatever_is_not_paused_in_it() {
        let mut pauses = Pauses::default();
        pauses.pause(10 * SECOND, false, &[7], &[]);
        // Another control has changed.
        pauses.pause(12 * SECOND, false, &[7], &[]);
        pauses.pause(20 * SECOND, true, &[7], &[]);
        pauses.pause(30 * SECOND, false, &[], &[3]);
        pauses.pause(40 * SECOND, false, &[], &[]);
        pauses.pause(50 * SECOND, false, &[8], &[]);
        let seconds = |seconds: u32| seconds * SECOND;
        assert_eq!(pauses.time(0, 60, 7, &[]), seconds(40));
        assert_eq!(pauses.time(0, 60, 8, &[]), seconds(40));
        assert_eq!(pauses.time(0, 60, 9, &[]), seconds(50));
        assert_eq!(pauses.time(15, 45, 7, &[3]), seconds(5));
        assert_eq!(pauses.time(22, 25, 9, &[]), seconds(0));
        let parts = pauses.unpaused(5 * SECOND, 35 * SECOND, Some(7), |_| false);
        assert_eq!(parts, [(5, 10), (30, 35)].map(|(from, to)| (from * SECOND, to * SECOND)));
    }

    #[test]
    fn a_filter_keeps_its_beginning_whatever_comes_and_goes_around_it() {
        let mut pauses = Pauses::default();
        pauses.pause(SECOND, false, &[], &[1, 2, 3, 4]);
        pauses.pause(2 * SECOND, false, &[], &[1, 5, 3, 4]);
        pauses.pause(3 * SECOND, false, &[], &[4, 3]);
        pauses.pause(4 * SECOND, false, &[], &[3, 2]);
        assert!(pauses.filters().eq(&[3, 2]));
        let times = [1, 2, 3, 4, 5].map(|filter| pauses.time(0, 10, 100, &[filter]));
        assert_eq!(times, [8, 3, 1, 7, 9].map(|seconds: u32| seconds * SECOND));
    }

    #[test]
    fn old_pauses_of_some_shops_take_nothing_away_from_others() {
        let mut pauses = Pauses::default();
        let mut at = 0;
        // First few pauses with much time between them, and then close ones.
        for number in 0..84 {
            let (shop, length) = if number < 64 { (500 + number, 3_600) } else { (number, 100) };
            pauses.pause(at * SECOND, false, &[shop], &[]);
            pauses.pause((at + length) * SECOND, false, &[], &[]);
            at += if number < 64 { 7_200 } else { 150 };
        }
        let from = 64 * 7_200;
        for shop in 64..84 {
            assert_eq!(pauses.time(from, from + 3_000, shop, &[]), 2_900 * SECOND, "{shop}");
        }
    }

    #[test]
    fn of_too_many_pauses_less_time_counts_and_that_of_long_ago() {
        let mut pauses = Pauses::default();
        for number in 0..20_000 {
            let at = number * 5 * SECOND;
            pauses.pause(at, false, &[7], &[]);
            pauses.pause(at + SECOND, false, &[], &[]);
        }
        assert_eq!(pauses.periods(), PERIODS_MAX);
        let end = 100_000;
        for from in (0..end).step_by(700) {
            let exact = (from..end).filter(|second| second % 5 > 0).count() as u32 * SECOND;
            assert!(pauses.time(from, end, 7, &[]) <= exact, "{from}");
        }
        assert_eq!(pauses.time(end - 15_000, end, 7, &[]), 12_000 * SECOND, "those of late");
    }

    #[test]
    fn filters_are_bounded_and_pause_what_they_match() {
        let mut pauses = Pauses::default();
        for number in 0..10_000 {
            let at = number * 5 * SECOND;
            pauses.pause(at, false, &[], &[number, 20_000 + number]);
            pauses.pause(at + SECOND, false, &[], &[]);
        }
        assert!(pauses.periods() <= PERIODS_MAX + 10_000 + FILTERS_MAX, "{}", pauses.periods());
        assert_eq!(pauses.past.filters.len(), FILTERS_MAX);
        assert_eq!(pauses.time(49_900, 50_000, 50_000, &[]), 100 * SECOND);
        assert_eq!(pauses.time(49_900, 50_000, 50_000, &[9_990]), 99 * SECOND);
    }

    #[test]
    fn filters_that_are_let_go_of_have_paused_their_shop_or_all() {
        for (first, of_others) in [(0, 0), (20_000, 1)] {
            let mut pauses = Pauses::default();
            let count = FILTERS_MAX as u32 + 1;
            for number in 0..count {
                pauses.pause(number * 10 * SECOND, false, &[], &[first + number]);
                pauses.pause((number * 10 + 1) * SECOND, false, &[], &[]);
            }
            let end = count * 10;
            assert_eq!(pauses.time(0, end, 0, &[]), (end - 1) * SECOND);
            assert_eq!(pauses.time(0, end, 1, &[]), (end - of_others) * SECOND);
            assert_eq!(pauses.time(0, end, 1, &[first + 1]), (end - of_others - 1) * SECOND);
        }
    }

    #[test]
    fn of_too_many_shops_the_first_pauses_count_for_all() {
        let mut pauses = Pauses::default();
        for shop in 0..OF_SHOPS_MAX as u64 + 2 {
            let at = u32::try_from(shop).unwrap() * 10 * SECOND;
            pauses.pause(at, false, &[shop], &[]);
            pauses.pause(at + 2 * SECOND, false, &[], &[]);
        }
        assert!(pauses.periods() <= OF_SHOPS_MAX / 2 + PERIODS_MAX + 2);
        let end = (OF_SHOPS_MAX as u32 + 2) * 10;
        for shop in [0, 100, 30_000, 40_000, 65_537] {
            assert!(pauses.time(0, end, shop, &[]) <= (end - 2) * SECOND, "{shop}");
        }
        let late = end - 10_000;
        assert_eq!(pauses.time(late, end, 1, &[]), 10_000 * SECOND);
    }
}
