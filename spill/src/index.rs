//! Which segments there are, how far each is good, and how much waits in them.
//!
//! Shared by the writer, which adds to the last segment, and the reader, which takes from the first.
//! Invariant: a segment's end is past synced bytes only, so the reader never sees what might still
//! be taken back. A segment is deleted when it was fed to its end; one with damage is put aside.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use crate::segment;

/// The segments of one log.
#[derive(Debug, Default)]
pub struct Index(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    segments: VecDeque<Segment>,
    /// Records up to this number are counted as fed: they may be read again.
    fed_through: u64,
    damages: u64,
}

/// What is known of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its file.
    pub path: PathBuf,
    /// The lowest number that a record of it may have: its name.
    pub first: u64,
    /// The newest record before it.
    pub after: u64,
    /// The newest record in it; `after` if there is none.
    pub last: u64,
    /// Up to here it is synced.
    pub end: u64,
    /// Nothing is added any more.
    pub is_sealed: bool,
    /// Something in it could not be read back.
    pub is_damaged: bool,
    /// Webhooks in it; `None` until they are counted.
    pub webhooks: Option<u64>,
    /// Webhooks of it that were fed.
    pub fed: u64,
}

impl Segment {
    fn waiting(&self) -> u64 {
        self.webhooks.unwrap_or(0).saturating_sub(self.fed)
    }
}

impl Index {
    /// All up to this number have been fed: their segments are gone.
    pub fn floor(&self) -> u64 {
        self.lock().segments.front().map_or(0, |segment| segment.after)
    }

    /// The newest record.
    pub fn last(&self) -> u64 {
        self.lock().segments.back().map_or(0, |segment| segment.last)
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.lock().segments.iter().map(|segment| segment.end).sum()
    }

    /// Webhooks that were written and not fed, in what is counted; where there is damage, about so
    /// many.
    pub fn webhooks(&self) -> u64 {
        self.lock().segments.iter().map(Segment::waiting).sum()
    }

    /// Whether anything waits to be fed, as far as is known: by the records' numbers, since counts may
    /// be missing, and where there is damage wrong.
    pub fn holds_any(&self) -> bool {
        let inner = self.lock();
        let (first, last) = (inner.segments.front(), inner.segments.back());
        let gone = first.map_or(0, |segment| segment.after).max(inner.fed_through);
        last.is_some_and(|segment| segment.last > gone)
    }

    /// The newest segment of which it is not known how many webhooks are in it.
    pub fn uncounted(&self) -> Option<Segment> {
        let inner = self.lock();
        inner.segments.iter().rev().find(|segment| segment.webhooks.is_none()).cloned()
    }

    /// So many webhooks are in the segment named `first`.
    pub fn counted(&self, first: u64, webhooks: u64) {
        let mut inner = self.lock();
        let found = inner.segments.iter_mut().find(|segment| segment.first == first);
        if let Some(segment) = found {
            segment.webhooks.get_or_insert(webhooks);
        }
    }

    /// How often damage was met.
    pub fn damages(&self) -> u64 {
        self.lock().damages
    }

    /// The first segment.
    pub fn front(&self) -> Option<Segment> {
        self.lock().segments.front().cloned()
    }

    /// The segment named `first`.
    pub fn segment(&self, first: u64) -> Option<Segment> {
        self.lock().segments.iter().find(|segment| segment.first == first).cloned()
    }

    /// The segment behind the one named `first`.
    pub fn behind(&self, first: u64) -> Option<Segment> {
        self.lock().segments.iter().find(|segment| segment.first > first).cloned()
    }

    /// One more segment; the one before is sealed.
    pub fn add(&self, segment: Segment) {
        let mut inner = self.lock();
        if let Some(last) = inner.segments.back_mut() {
            last.is_sealed = true;
        }
        inner.segments.push_back(segment);
    }

    /// Records up to the number `last` were written and synced; the last segment now ends at `end`.
    pub fn written(&self, last: u64, end: u64, webhooks: u64) {
        let mut inner = self.lock();
        if let Some(segment) = inner.segments.back_mut() {
            segment.last = last;
            segment.end = end;
            segment.webhooks = segment.webhooks.map(|before| before + webhooks);
        }
    }

    /// Nothing more is added to the last segment.
    pub fn seal(&self) {
        if let Some(last) = self.lock().segments.back_mut() {
            last.is_sealed = true;
        }
    }

    /// The record `number`, with so many webhooks, was fed.
    pub fn fed(&self, number: u64, webhooks: u32) {
        let mut inner = self.lock();
        if number > inner.fed_through {
            inner.fed_through = number;
            let behind = inner.segments.partition_point(|segment| segment.first <= number);
            if let Some(segment) = behind.checked_sub(1).and_then(|at| inner.segments.get_mut(at)) {
                segment.fed += u64::from(webhooks);
            }
        }
    }

    /// All that there is was fed: a count that damage has left wrong is made good.
    pub fn all_fed(&self) {
        let mut inner = self.lock();
        let last = inner.segments.back().map_or(0, |segment| segment.last);
        inner.fed_through = last.max(inner.fed_through);
        for segment in &mut inner.segments {
            // Also where they are being counted still. More may be written to the last one.
            (segment.webhooks, segment.fed) = (Some(0), 0);
        }
    }

    /// What is behind the number `fed` waits again, though it was fed before.
    pub fn again_after(&self, fed: u64) {
        let mut inner = self.lock();
        inner.fed_through = inner.fed_through.min(fed);
        for segment in inner.segments.iter_mut().filter(|segment| segment.last > fed) {
            // Rather more wait than less.
            segment.fed = 0;
        }
    }

    /// Something in the segment named `first` could not be read back.
    pub fn damaged(&self, first: u64) {
        let mut inner = self.lock();
        inner.damages += 1;
        let found = inner.segments.iter_mut().find(|segment| segment.first == first);
        if let Some(segment) = found {
            segment.is_damaged = true;
        }
    }

    /// Frees the segments before the one named `first`: they were fed to their ends.
    pub fn free_before(&self, first: u64) {
        self.free_while(|segment| segment.first < first);
    }

    /// Frees the segments in which nothing comes after the number `last`, but for the newest: all up to that number was
    /// fed.
    pub fn free_through(&self, last: u64) {
        self.free_while(|segment| segment.is_sealed && segment.last <= last);
    }

    fn free_while(&self, may_go: impl Fn(&Segment) -> bool) {
        loop {
            let segment = {
                let mut inner = self.lock();
                // The last one stays: its head says what came before it.
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

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Its name may come back after a power cut. What is in it is known to be fed then, too.
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
        tracing::error!(%error, ?path, "a spill segment that was fed could not be removed");
    }
}
