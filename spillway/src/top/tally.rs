//! Counts by name, exact or scaled up from a part of the packs. Pure.
//!
//! The packs that were read are a simple random sample of all: a name's count is its mean a pack times
//! the packs, and what it may be off by is some standard errors of that, with the correction for a
//! sample that is a good part of the whole (Cochran, Sampling Techniques, 1977, chapter 2).

use std::collections::HashMap;

/// Of 95 in 100 cases, in standard errors: somewhat more than the 1.96 of the normal distribution,
/// because shops come in runs, and a sample's spread is then often too small.
const DEVIATIONS: f64 = 2.24;

/// How much waits of each name.
#[derive(Debug, Default)]
pub struct Tally {
    names: HashMap<String, Count>,
    packs: usize,
    read: usize,
}

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    /// Of what is counted whole.
    exact: u64,
    /// Of the packs that were read, and the sum of the squares of each pack's.
    sampled: u64,
    squares: f64,
    oldest_ms: u64,
    newest_ms: u64,
}

/// One line.
#[derive(Debug, PartialEq)]
pub struct Row {
    /// The shop, the topic or the resource.
    pub name: String,
    /// How many wait, about.
    pub waiting: u64,
    /// By how much that may be off, in 95 of 100 cases; 0 where it is exact.
    pub off_by: u64,
    /// When the oldest of those that were read was received.
    pub oldest_ms: u64,
    /// The same of the newest.
    pub newest_ms: u64,
}

impl Tally {
    /// Of so many packs, none of them read.
    pub fn new(packs: usize) -> Self {
        Self { packs, ..Self::default() }
    }

    /// One more webhook, of one pack.
    pub fn count(&mut self, name: String, received_at_ms: u64) {
        let count = self.names.entry(name).or_default();
        count.sampled += 1;
        count.reaches(received_at_ms, received_at_ms);
    }

    /// What was counted beside the packs.
    pub fn add_exact(&mut self, other: Self) {
        for (name, more) in other.names {
            let count = self.names.entry(name).or_default();
            count.exact += more.sampled;
            count.reaches(more.oldest_ms, more.newest_ms);
        }
    }

    /// What was counted in one more pack.
    pub fn add_pack(&mut self, other: Self) {
        self.read += 1;
        for (name, more) in other.names {
            let count = self.names.entry(name).or_default();
            count.sampled += more.sampled;
            count.squares += (more.sampled as f64).powi(2);
            count.reaches(more.oldest_ms, more.newest_ms);
        }
    }

    /// There are no more packs: those that are missing were settled meanwhile, or can't be read.
    pub fn ended(&mut self) {
        self.packs = self.read;
    }

    /// Packs there are.
    pub fn packs(&self) -> usize {
        self.packs
    }

    /// Packs that were read.
    pub fn read(&self) -> usize {
        self.read
    }

    /// Whether all of them were.
    pub fn is_exact(&self) -> bool {
        self.read >= self.packs
    }

    /// Webhooks of all names, about.
    pub fn total(&self) -> u64 {
        self.names.values().map(|count| self.estimate(count).0).sum()
    }

    /// The names with most, first.
    pub fn rows(&self, limit: usize) -> Vec<Row> {
        let row = |(name, count): (&String, &Count)| {
            let (waiting, off_by) = self.estimate(count);
            let (oldest_ms, newest_ms) = (count.oldest_ms, count.newest_ms);
            Row { name: name.clone(), waiting, off_by, oldest_ms, newest_ms }
        };
        let mut rows: Vec<_> = self.names.iter().map(row).collect();
        rows.sort_by(|a, b| b.waiting.cmp(&a.waiting).then_with(|| a.name.cmp(&b.name)));
        rows.truncate(limit);
        rows
    }

    fn estimate(&self, count: &Count) -> (u64, u64) {
        if self.is_exact() || self.read == 0 {
            return (count.exact + count.sampled, 0);
        }
        let (packs, read) = (self.packs as f64, self.read as f64);
        let mean = count.sampled as f64 / read;
        let variance = (count.squares - read * mean * mean).max(0.0) / (read - 1.0).max(1.0);
        let error = packs * (variance / read * (1.0 - read / packs)).sqrt();
        let scaled = (mean * packs).round() as u64;
        (count.exact + scaled, (DEVIATIONS * error).ceil() as u64)
    }
}

impl Count {
    fn reaches(&mut self, oldest_ms: u64, newest_ms: u64) {
        let is_first = self.newest_ms == 0;
        self.oldest_ms = if is_first { oldest_ms } else { self.oldest_ms.min(oldest_ms) };
        self.newest_ms = self.newest_ms.max(newest_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};

    fn pack(names: &[&str]) -> Tally {
        let mut tally = Tally::default();
        (5..).zip(names).for_each(|(at, name)| tally.count((*name).to_owned(), at));
        tally
    }

    #[test]
    fn what_was_read_whole_is_exact() {
        let mut tally = Tally::new(2);
        tally.add_pack(pack(&["a", "b", "a"]));
        tally.add_pack(pack(&["a"]));
        tally.add_exact(pack(&["b", "b", "b"]));
        let rows = tally.rows(9);
        let row = |name: &str, waiting, oldest_ms, newest_ms| Row {
            name: name.to_owned(),
            waiting,
            off_by: 0,
            oldest_ms,
            newest_ms,
        };
        assert!(tally.is_exact());
        assert_eq!(rows, [row("b", 4, 5, 7), row("a", 3, 5, 7)]);
        assert_eq!((tally.rows(1).len(), tally.total()), (1, 7));
    }

    #[test]
    fn a_part_is_within_its_error_of_the_whole_19_times_of_20() {
        let mut random = SmallRng::seed_from_u64(1);
        let mut whole = 0;
        let mut packs = Vec::new();
        for _ in 0..500 {
            // As shops come: in runs.
            let own = if random.random_bool(0.3) { random.random_range(0..40) } else { 0 };
            whole += own;
            packs.push(own as usize);
        }
        let mut within = 0;
        for _ in 0..400 {
            packs.shuffle(&mut random);
            let mut tally = Tally::new(packs.len());
            for own in &packs[..100] {
                tally.add_pack(pack(&vec!["a"; *own]));
            }
            let row = &tally.rows(1)[0];
            assert!(row.off_by > 0 && !tally.is_exact());
            within += i32::from(row.waiting.abs_diff(whole) <= row.off_by);
        }
        assert!((372..=399).contains(&within), "{within} of 400");
    }
}
