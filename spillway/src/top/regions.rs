//! Which part of a stream to read next, so that what was read soon stands for the whole. Pure.
//!
//! Redis can't tell how many entries lie between two ids without copying them, so the stream is divided
//! by time instead: the region in which most entries are still expected is read next, a few at its
//! front, and what lies behind them is divided again by how fast they came. A lull and a burst within a
//! region are found as the regions become smaller. Whoever reads until there is none has read it all.
//!
//! Each unread region is stood for by the run of entries just before it: a systematic sample over time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use spillway_webhook::StreamId;

/// Regions that the whole is divided into at first.
const FIRST: u64 = 64;
/// Entries read at a region's front: enough to tell how fast they come. With half as many, what a run
/// stands for was off by more than the counts said.
const RUN: usize = 16;
/// Entries read of a millisecond that holds more than a run: it can't be divided by time.
const DENSE_RUN_MAX: usize = 64;
/// Parts that what is left of a region is divided into.
const PARTS_MAX: f64 = 4.0;

/// The regions that were not read.
pub struct Regions {
    /// Those of the first division.
    first: Vec<Region>,
    unread: BinaryHeap<Region>,
    /// Where each run began.
    runs: Vec<StreamId>,
}

/// A part of the stream of which nothing was read.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    /// Its first id.
    pub from: StreamId,
    /// Its last id.
    pub to: StreamId,
    /// How many entries to read of it.
    pub take: usize,
    /// Entries it may hold: tells what to read next.
    expected: f64,
    /// Entries it holds by the rate of the run before it alone: what that stands for.
    by_rate: f64,
    /// The run before it.
    after: Option<usize>,
}

impl Regions {
    /// The entries from `first` to `last`: about so many.
    pub fn new(first: StreamId, last: StreamId, entries: u64) -> Self {
        let mut regions = Self { first: Vec::new(), unread: BinaryHeap::new(), runs: Vec::new() };
        let entries = entries as f64;
        regions.divide(first, last, (entries, entries), FIRST, None);
        regions.first = std::mem::take(&mut regions.unread).into_vec();
        regions
    }

    /// The regions to read next, at most so many; none when all was read.
    pub fn next(&mut self, count: usize) -> Vec<Region> {
        let mut one = || self.first.pop().or_else(|| self.unread.pop());
        std::iter::from_fn(&mut one).take(count).collect()
    }

    /// This run was found at a region's front.
    pub fn read(&mut self, region: &Region, found: &[StreamId]) {
        let run = self.runs.len();
        self.runs.push(region.from);
        let Some(last) = found.last().filter(|_| found.len() >= region.take) else { return };
        let Some(from) = next(*last).filter(|from| *from <= region.to) else { return };
        let left = (region.expected - found.len() as f64).max(1.0);
        if last.ms == region.from.ms {
            self.dense(region, from, left, run);
            return;
        }
        // The last one came within its millisecond.
        let took_ms = (last.ms - region.from.ms) as f64 + 0.5;
        let by_rate = (found.len() - 1) as f64 / took_ms * width_ms(from, region.to);
        // What was expected before counts as much as what these few say: they may be of a lull.
        let expected = (by_rate + left) / 2.0;
        let parts = (expected / (2 * RUN) as f64).ceil().clamp(1.0, PARTS_MAX);
        self.divide(from, region.to, (expected, by_rate), parts as u64, Some(run));
    }

    /// Entries that each run stands for beside its own.
    pub fn unread(&self) -> Vec<f64> {
        let mut unread = vec![0.0; self.runs.len()];
        for region in &self.unread {
            if let Some(run) = region.after {
                unread[run] += region.by_rate;
            }
        }
        unread
    }

    /// The runs by their age, the oldest first.
    pub fn in_time(&self) -> Vec<usize> {
        let mut runs: Vec<usize> = (0..self.runs.len()).collect();
        runs.sort_by_key(|run| self.runs[*run]);
        runs
    }

    /// Whether something was read of every part of the whole.
    pub fn is_spread(&self) -> bool {
        self.first.is_empty()
    }

    /// Whether nothing is left unread.
    pub fn is_read(&self) -> bool {
        self.first.is_empty() && self.unread.is_empty()
    }

    /// A run that lies in one millisecond says nothing about those behind: that one is read on, in
    /// greater strides.
    fn dense(&mut self, region: &Region, from: StreamId, left: f64, run: usize) {
        let end = StreamId { ms: from.ms, seq: u64::MAX }.min(region.to);
        let is_same = from.ms == region.from.ms;
        if is_same {
            let take = (region.take * 2).min(DENSE_RUN_MAX);
            let expected = (take as f64).min(left);
            let after = Some(run);
            self.unread.push(Region { from, to: end, take, expected, by_rate: expected, after });
        }
        let behind = if is_same { next(end) } else { Some(from) };
        if let Some(behind) = behind.filter(|behind| *behind <= region.to) {
            self.divide(behind, region.to, (left, left), 1, Some(run));
        }
    }

    fn divide(
        &mut self,
        from: StreamId,
        to: StreamId,
        (expected, by_rate): (f64, f64),
        parts: u64,
        after: Option<usize>,
    ) {
        let parts = parts.min(to.ms - from.ms + 1);
        let width = (to.ms - from.ms + 1) / parts;
        for part in 0..parts {
            let (is_first, is_last) = (part == 0, part + 1 == parts);
            let begin = StreamId { ms: from.ms + part * width, seq: 0 };
            let end = StreamId { ms: from.ms + (part + 1) * width - 1, seq: u64::MAX };
            self.unread.push(Region {
                from: if is_first { from } else { begin },
                to: if is_last { to } else { end },
                take: RUN,
                expected: expected / parts as f64,
                by_rate: by_rate / parts as f64,
                after,
            });
        }
    }
}

fn next(id: StreamId) -> Option<StreamId> {
    match id.seq.checked_add(1) {
        Some(seq) => Some(StreamId { ms: id.ms, seq }),
        None => id.ms.checked_add(1).map(|ms| StreamId { ms, seq: 0 }),
    }
}

fn width_ms(from: StreamId, to: StreamId) -> f64 {
    (to.ms - from.ms + 1) as f64
}

impl Ord for Region {
    fn cmp(&self, other: &Self) -> Ordering {
        self.expected.total_cmp(&other.expected).then_with(|| other.from.cmp(&self.from))
    }
}

impl PartialOrd for Region {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Region {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Region {}

#[cfg(test)]
mod tests;
