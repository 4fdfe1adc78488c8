//! Index of the segments: their ends, and the number of webhooks that wait in them.
//!
//! The writer, which adds to the last segment, and the reader, which takes from the first, share
//! it. Invariant: a segment's end covers synced bytes only, so the reader never sees bytes that may
//! still be withdrawn. A segment is deleted once it is completely restored. One with damage is
//! moved aside instead.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use crate::segment;

/// Segments of one log.
#[derive(Debug, Default)]
pub struct SegmentIndex(Mutex<Segments>);

#[derive(Debug, Default)]
struct Segments {
    segments: VecDeque<Segment>,
    /// Records up to this number count as restored, even if they are read again.
    restored_through: u64,
    damages: u64,
}

/// State of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Path of its file.
    pub path: PathBuf,
    /// Lowest number that one of its records may have. It gives the file its name.
    pub first: u64,
    /// Number of the newest record before it.
    pub after: u64,
    /// Number of its newest record; `after` if there is none.
    pub last: u64,
    /// End of the synced bytes.
    pub end: u64,
    /// Set when nothing more is added to it.
    pub is_sealed: bool,
    /// Set when a part of it could not be read back.
    pub is_damaged: bool,
    /// Webhooks in it; `None` until they are counted.
    pub webhooks: Option<u64>,
    /// Webhooks of it that are restored.
    pub restored: u64,
}

impl Segment {
    fn waiting(&self) -> u64 {
        self.webhooks.unwrap_or(0).saturating_sub(self.restored)
    }
}

impl SegmentIndex {
    /// Records up to this number are restored, and their segments are gone.
    pub fn floor(&self) -> u64 {
        self.lock().segments.front().map_or(0, |segment| segment.after)
    }

    /// Number of the newest record.
    pub fn last(&self) -> u64 {
        self.lock().segments.back().map_or(0, |segment| segment.last)
    }

    /// Size of all segments in bytes.
    pub fn bytes(&self) -> u64 {
        self.lock().segments.iter().map(|segment| segment.end).sum()
    }

    /// Webhooks in counted segments that were written and not restored. The figure is approximate
    /// if there is damage.
    pub fn webhooks(&self) -> u64 {
        self.lock().segments.iter().map(Segment::waiting).sum()
    }

    /// True if anything waits to be restored, as far as is known. It compares numbers of records,
    /// since counts may be missing, or wrong because of damage.
    pub fn holds_any(&self) -> bool {
        let inner = self.lock();
        let first = inner.segments.front();
        let last = inner.segments.back();
        let gone = first.map_or(0, |segment| segment.after).max(inner.restored_through);
        last.is_some_and(|segment| segment.last > gone)
    }

    /// Newest segment whose webhooks are not counted yet.
    pub fn uncounted(&self) -> Option<Segment> {
        let inner = self.lock();
        inner.segments.iter().rev().find(|segment| segment.webhooks.is_none()).cloned()
    }

    /// Records that the segment named `first` holds `webhooks` webhooks.
    pub fn counted(&self, first: u64, webhooks: u64) {
        let mut inner = self.lock();
        let found = inner.segments.iter_mut().find(|segment| segment.first == first);
        if let Some(segment) = found {
            segment.webhooks.get_or_insert(webhooks);
        }
    }

    /// Number of times that damage was found.
    pub fn damages(&self) -> u64 {
        self.lock().damages
    }

    /// Oldest segment.
    pub fn front(&self) -> Option<Segment> {
        self.lock().segments.front().cloned()
    }

    /// The segment named `first`.
    pub fn segment(&self, first: u64) -> Option<Segment> {
        self.lock().segments.iter().find(|segment| segment.first == first).cloned()
    }

    /// Segment after the one named `first`.
    pub fn behind(&self, first: u64) -> Option<Segment> {
        self.lock().segments.iter().find(|segment| segment.first > first).cloned()
    }

    /// Adds a segment and seals the one before it.
    pub fn add(&self, segment: Segment) {
        let mut inner = self.lock();
        if let Some(last) = inner.segments.back_mut() {
            last.is_sealed = true;
        }
        inner.segments.push_back(segment);
    }

    /// Records that all records up to the number `last` are written and synced. The last segment
    /// now ends at `end`.
    pub fn written(&self, last: u64, end: u64, webhooks: u64) {
        let mut inner = self.lock();
        if let Some(segment) = inner.segments.back_mut() {
            segment.last = last;
            segment.end = end;
            segment.webhooks = segment.webhooks.map(|before| before + webhooks);
        }
    }

    /// Seals the last segment: nothing more is added to it.
    pub fn seal(&self) {
        if let Some(last) = self.lock().segments.back_mut() {
            last.is_sealed = true;
        }
    }

    /// Records that the record `number`, which holds `webhooks` webhooks, is restored.
    pub fn restored(&self, number: u64, webhooks: u32) {
        let mut inner = self.lock();
        if number > inner.restored_through {
            inner.restored_through = number;
            let behind = inner.segments.partition_point(|segment| segment.first <= number);
            if let Some(segment) = behind.checked_sub(1).and_then(|at| inner.segments.get_mut(at)) {
                segment.restored += u64::from(webhooks);
            }
        }
    }

    /// Records that everything is restored, and corrects a count that damage has left wrong.
    pub fn all_restored(&self) {
        let mut inner = self.lock();
        let last = inner.segments.back().map_or(0, |segment| segment.last);
        inner.restored_through = last.max(inner.restored_through);
        for segment in &mut inner.segments {
            // This includes segments that are still being counted. More may be written to the last
            // one.
            (segment.webhooks, segment.restored) = (Some(0), 0);
        }
    }

    /// Marks everything after the number `restored` as waiting again, although it was restored before.
    pub fn again_after(&self, restored: u64) {
        let mut inner = self.lock();
        inner.restored_through = inner.restored_through.min(restored);
        for segment in inner.segments.iter_mut().filter(|segment| segment.last > restored) {
            // Rather too many wait than too few.
            segment.restored = 0;
        }
    }

    /// Records that a part of the segment named `first` could not be read back.
    pub fn damaged(&self, first: u64) {
        let mut inner = self.lock();
        inner.damages += 1;
        let found = inner.segments.iter_mut().find(|segment| segment.first == first);
        if let Some(segment) = found {
            segment.is_damaged = true;
        }
    }

    /// Frees the segments before the one named `first`. They are completely restored.
    pub fn free_before(&self, first: u64) {
        self.free_while(|segment| segment.first < first);
    }

    /// Frees the segments without a record after the number `last`, except the newest segment. All
    /// records up to that number are restored.
    pub fn free_through(&self, last: u64) {
        self.free_while(|segment| segment.is_sealed && segment.last <= last);
    }

    fn free_while(&self, may_go: impl Fn(&Segment) -> bool) {
        loop {
            let segment = {
                let mut inner = self.lock();
                // The last segment stays: its head names the number before it.
                if inner.segments.len() < 2 || !inner.segments.front().is_some_and(&may_go) {
                    return;
                }
                inner.segments.pop_front()
            };
            if let Some(segment) = segment {
                free(&segment);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Segments> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// After a power cut, the name may come back. Its records are known to be restored then, too.
fn free(segment: &Segment) {
    let path = &segment.path;
    let freed = if segment.is_damaged {
        let aside = segment::path_aside(path);
        tracing::error!(?aside, "a damaged spill segment is kept for you to look at");
        fs::rename(path, aside)
    } else {
        fs::remove_file(path)
    };
    if let Err(error) = freed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::error!(%error, ?path, "a spill segment that was restored could not be removed");
    }
}
