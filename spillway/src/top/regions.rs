//! Selects the part of a stream to read next, so that a sample soon represents the whole. Pure.
//!
//! Redis cannot count the entries between two ids without copying them, so the stream is divided by
//! time. The region in which most entries are still expected is read next, a few entries at its
//! front. The rest of it is divided again by the rate at which those entries came. Smaller regions
//! reveal a lull or a burst within a region. A caller that reads until no region is left has read
//! everything.
//!
//! The run of entries just before an unread region represents it: a systematic sample over time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use spillway_webhook::StreamId;

use crate::out::float;

/// Number of regions in the first division.
const FIRST: u64 = 64;
/// Entries read at the front of a region, enough to tell their rate. With half as many, the error
/// of an estimate exceeded its stated margin.
const RUN: usize = 16;
/// Entries read of a millisecond that holds more than a run. It cannot be divided by time.
const DENSE_RUN_MAX: usize = 64;
/// Maximum number of parts into which the rest of a region is divided.
const PARTS_MAX: f64 = 4.0;

/// The unread regions.
pub(super) struct Regions {
    /// Regions of the first division.
    first: Vec<Region>,
    unread: BinaryHeap<Region>,
    /// First id of each run.
    runs: Vec<StreamId>,
}

/// A part of the stream that is unread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Region {
    /// First id.
    pub from: StreamId,
    /// Last id.
    pub to: StreamId,
    /// Number of entries to read.
    pub take: usize,
    /// Expected number of entries, which decides what is read next.
    expected: f64,
    /// Number of entries by the rate of the preceding run alone. That run stands for so many.
    by_rate: f64,
    /// Number of the preceding run.
    after: Option<usize>,
}

impl Regions {
    /// Divides the entries from `first` to `last`, of which there are about `entries`.
    pub(super) fn new(first: StreamId, last: StreamId, entries: u64) -> Self {
        let mut regions = Self { first: Vec::new(), unread: BinaryHeap::new(), runs: Vec::new() };
        let entries = float(entries);
        regions.divide(first, last, (entries, entries), FIRST, None);
        regions.first = std::mem::take(&mut regions.unread).into_vec();
        regions
    }

    /// Returns the regions to read next, at most `count`; none once all was read.
    pub(super) fn next(&mut self, count: usize) -> Vec<Region> {
        let mut one = || self.first.pop().or_else(|| self.unread.pop());
        std::iter::from_fn(&mut one).take(count).collect()
    }

    /// Records the run that was found at the front of a region.
    pub(super) fn read(&mut self, region: &Region, found: &[StreamId]) {
        let run = self.runs.len();
        self.runs.push(region.from);
        let Some(last) = found.last().filter(|_| found.len() >= region.take) else { return };
        let Some(from) = next(*last).filter(|from| *from <= region.to) else { return };
        let left = (region.expected - float(found.len())).max(1.0);
        if last.ms == region.from.ms {
            self.dense(region, from, left, run);
            return;
        }
        // On average the last entry came in the middle of its millisecond.
        let took_ms = float(last.ms - region.from.ms) + 0.5;
        let by_rate = float(found.len() - 1) / took_ms * width_ms(from, region.to);
        // The previous estimate counts as much as this run, which may lie in a lull.
        let expected = (by_rate + left) / 2.0;
        let parts = (expected / float(2 * RUN)).ceil().clamp(1.0, PARTS_MAX);
        self.divide(from, region.to, (expected, by_rate), parts as u64, Some(run));
    }

    /// Number of unread entries that each run stands for.
    pub(super) fn unread(&self) -> Vec<f64> {
        let mut unread = vec![0.0; self.runs.len()];
        for region in &self.unread {
            if let Some(run) = region.after {
                unread[run] += region.by_rate;
            }
        }
        unread
    }

    /// Numbers of the runs, oldest first.
    pub(super) fn in_time(&self) -> Vec<usize> {
        let mut runs: Vec<usize> = (0..self.runs.len()).collect();
        runs.sort_by_key(|run| self.runs[*run]);
        runs
    }

    /// True if a part of every region of the first division was read.
    pub(super) fn is_spread(&self) -> bool {
        self.first.is_empty()
    }

    /// True if nothing is left unread.
    pub(super) fn is_read(&self) -> bool {
        self.first.is_empty() && self.unread.is_empty()
    }

    /// Handles a run within one millisecond, which tells nothing about later entries. That
    /// millisecond is read on with larger runs.
    fn dense(&mut self, region: &Region, from: StreamId, left: f64, run: usize) {
        let end = StreamId { ms: from.ms, seq: u64::MAX }.min(region.to);
        let is_same = from.ms == region.from.ms;
        if is_same {
            let take = (region.take * 2).min(DENSE_RUN_MAX);
            let expected = (float(take)).min(left);
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
            let is_first = part == 0;
            let is_last = part + 1 == parts;
            let begin = StreamId { ms: from.ms + part * width, seq: 0 };
            let end = StreamId { ms: from.ms + (part + 1) * width - 1, seq: u64::MAX };
            self.unread.push(Region {
                from: if is_first { from } else { begin },
                to: if is_last { to } else { end },
                take: RUN,
                expected: expected / float(parts),
                by_rate: by_rate / float(parts),
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
    float(to.ms - from.ms + 1)
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
