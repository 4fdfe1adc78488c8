//! Counts by name, exact or scaled up from a sample of runs of packs. Pure.
//!
//! A run stands for the unread webhooks after it (`regions.rs`), so the sample is a systematic one
//! over time. The margin of error of a count comes from how much neighbouring runs differ (Wolter,
//! Introduction to Variance Estimation, 2007, chapter 8), and from how well a run predicts the
//! number that it stands for.

use std::collections::HashMap;

use crate::out::float;

/// Margin for 95 of 100 cases, in standard errors. It is somewhat more than the 1.96 of the normal
/// distribution: shops come in runs, and a sample's spread is then often too small.
const DEVIATIONS: f64 = 2.24;

/// Counts from one pack or several.
#[derive(Debug, Default)]
pub(super) struct PackCounts {
    /// Waiting webhooks, with those that the filter excludes.
    pub webhooks: u64,
    names: HashMap<String, Count>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    webhooks: u64,
    oldest_ms: u64,
    newest_ms: u64,
}

/// Estimated number of waiting webhooks by name.
#[derive(Debug, Default)]
pub(super) struct TopTally {
    names: HashMap<String, GroupName>,
    /// Runs by number.
    runs: Vec<Run>,
    /// Webhooks read outside the runs.
    beside: u64,
}

#[derive(Debug, Default)]
struct GroupName {
    all: Count,
    /// Number of a run, and the webhooks in it.
    in_runs: Vec<(usize, u64)>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Run {
    packs: usize,
    webhooks: u64,
    /// Unread webhooks that it stands for.
    unread: f64,
    /// Number of the next run in time.
    neighbour: usize,
}

/// One line of the output.
#[derive(Debug, PartialEq)]
pub(crate) struct Row {
    /// Shop, topic or resource.
    pub name: String,
    /// Number of waiting webhooks, exact or estimated.
    pub waiting: u64,
    /// Margin of error in 95 of 100 cases; 0 if the number is exact.
    pub off_by: u64,
    /// Time at which the oldest webhook that was read was received.
    pub oldest_ms: u64,
    /// Time at which the newest webhook that was read was received.
    pub newest_ms: u64,
}

impl PackCounts {
    /// Counts one matching webhook.
    pub(super) fn count(&mut self, name: String, received_at_ms: u64) {
        let one = Count { webhooks: 1, oldest_ms: received_at_ms, newest_ms: received_at_ms };
        self.names.entry(name).or_default().add(one);
    }
}

impl Count {
    fn add(&mut self, more: Self) {
        let is_first = self.webhooks == 0;
        self.oldest_ms = if is_first { more.oldest_ms } else { self.oldest_ms.min(more.oldest_ms) };
        self.newest_ms = self.newest_ms.max(more.newest_ms);
        self.webhooks += more.webhooks;
    }
}

impl TopTally {
    /// Adds webhooks read outside the runs. They stand only for themselves.
    pub(super) fn add_beside(&mut self, seen: PackCounts) {
        self.beside += seen.webhooks;
        for (name, count) in seen.names {
            self.names.entry(name).or_default().all.add(count);
        }
    }

    /// Adds the packs of the next run.
    pub(super) fn add_run(&mut self, packs: Vec<PackCounts>) {
        let number = self.runs.len();
        let mut run = Run { packs: packs.len(), ..Run::default() };
        for seen in packs {
            run.webhooks += seen.webhooks;
            for (name, count) in seen.names {
                let name = self.names.entry(name).or_default();
                name.all.add(count);
                match name.in_runs.last_mut() {
                    Some((last, webhooks)) if *last == number => *webhooks += count.webhooks,
                    _ => name.in_runs.push((number, count.webhooks)),
                }
            }
        }
        self.runs.push(run);
    }

    /// Number of webhooks read.
    pub(super) fn read(&self) -> u64 {
        self.beside + self.runs.iter().map(|run| run.webhooks).sum::<u64>()
    }

    /// Sets how many unread packs each run stands for. Together they stand for the `waiting`
    /// webhooks that were not read. `in_time` holds the numbers of the runs, oldest first.
    pub(super) fn stand_for(&mut self, unread_packs: &[f64], in_time: &[usize], waiting: u64) {
        let left = float(waiting.saturating_sub(self.read()));
        for (run, packs) in self.runs.iter_mut().zip(unread_packs) {
            run.unread = packs * float(run.webhooks) / float(run.packs.max(1));
        }
        let sum: f64 = self.runs.iter().map(|run| run.unread).sum();
        let scale = if sum > 0.0 { left / sum } else { 0.0 };
        self.runs.iter_mut().for_each(|run| run.unread *= scale);
        for (place, run) in in_time.iter().enumerate() {
            let before = place.checked_sub(1).and_then(|place| in_time.get(place));
            self.runs[*run].neighbour = *in_time.get(place + 1).or(before).unwrap_or(run);
        }
    }

    /// True if no run stands for unread webhooks.
    pub(super) fn is_exact(&self) -> bool {
        self.unread() <= 0.0
    }

    /// Number of webhooks of all names, exact or estimated.
    pub(super) fn total(&self) -> u64 {
        self.names.values().map(|name| self.waiting(name).round() as u64).sum()
    }

    /// Time at which the oldest webhook of all names was received, of those read; `None` if there is none.
    pub(super) fn oldest_ms(&self) -> Option<u64> {
        self.names.values().map(|name| name.all.oldest_ms).min()
    }

    /// Rows of the largest names, largest first.
    pub(super) fn rows(&self, limit: usize) -> Vec<Row> {
        let waiting = |(text, name)| (self.waiting(name).round() as u64, text, name);
        let mut most: Vec<(u64, &String, &GroupName)> = self.names.iter().map(waiting).collect();
        most.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
        let rows = most.into_iter().take(limit).map(|(waiting, text, name)| Row {
            name: text.clone(),
            waiting,
            off_by: self.off_by(name),
            oldest_ms: name.all.oldest_ms,
            newest_ms: name.all.newest_ms,
        });
        rows.collect()
    }

    fn waiting(&self, name: &GroupName) -> f64 {
        let unread = name.in_runs.iter().map(|(run, found)| {
            let run = self.runs[*run];
            run.unread * float(*found) / float(run.webhooks.max(1))
        });
        float(name.all.webhooks) + unread.sum::<f64>()
    }

    fn unread(&self) -> f64 {
        self.runs.iter().map(|run| run.unread).sum()
    }

    fn off_by(&self, name: &GroupName) -> u64 {
        let unread = self.unread();
        if unread <= 0.0 {
            return 0;
        }
        if self.runs.len() < 2 {
            return unread.ceil() as u64;
        }
        let mut shares = vec![0.0; self.runs.len()];
        for (run, found) in &name.in_runs {
            shares[*run] = float(*found) / float(self.runs[*run].webhooks.max(1));
        }
        let stood_for = self.runs.iter().zip(&shares).map(|(run, share)| run.unread * share);
        let mean = stood_for.sum::<f64>() / unread;
        let variances = self.runs.iter().zip(&shares).map(|(run, share)| {
            let apart = share - shares[run.neighbour];
            let weight = (share - mean).powi(2) / float(run.packs.max(1));
            // The unread part also consists of a few runs, and they are no closer to their mean
            // than this run.
            let own = run.unread * (run.unread + float(run.webhooks));
            own * apart * apart / 2.0 + run.unread.powi(2) * weight
        });
        (DEVIATIONS * variances.sum::<f64>().sqrt()).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(names: &[&str]) -> PackCounts {
        let mut seen = PackCounts { webhooks: names.len() as u64, ..PackCounts::default() };
        (5..).zip(names).for_each(|(at, name)| seen.count((*name).to_owned(), at));
        seen
    }

    #[test]
    fn what_was_read_whole_is_exact() {
        let mut tally = TopTally::default();
        tally.add_run(vec![pack(&["a", "b", "a"]), pack(&["a"])]);
        tally.add_beside(pack(&["b", "b", "b"]));
        tally.stand_for(&[0.0], &[0], 7);
        let row = |name: &str, waiting, oldest_ms, newest_ms| Row {
            name: name.to_owned(),
            waiting,
            off_by: 0,
            oldest_ms,
            newest_ms,
        };
        assert_eq!(tally.rows(9), [row("b", 4, 5, 7), row("a", 3, 5, 7)]);
        assert_eq!((tally.rows(1).len(), tally.total(), tally.read()), (1, 7, 7));
        assert_eq!((tally.oldest_ms(), TopTally::default().oldest_ms()), (Some(5), None));
    }

    #[test]
    fn a_run_stands_for_the_webhooks_behind_it() {
        let mut tally = TopTally::default();
        tally.add_run(vec![pack(&["a", "b"])]);
        tally.add_run(vec![pack(&["a", "a"])]);
        tally.add_beside(pack(&["c"]));
        // Three packs after the first run, one after the second: 60 and 20 of the 80 left.
        tally.stand_for(&[3.0, 1.0], &[1, 0], 85);
        let rows = tally.rows(9);
        let found: Vec<_> = rows.iter().map(|row| (&row.name[..], row.waiting)).collect();
        assert_eq!(found, [("a", 53), ("b", 31), ("c", 1)]);
        assert!(rows[0].off_by > 20 && rows[0].off_by == rows[1].off_by, "{rows:?}");
        assert_eq!(tally.total(), 85);
    }
}
