//! Opens a log that an earlier process left, after a clean end or a crash.
//!
//! A half-written record at the end is a torn tail: its senders got no 200, so it is cut off. Bytes
//! that cannot be read are not cut off: a crash does not cause that, and nothing is known of them.
//! Numbers continue after the newest one or with the clock, whichever is higher. So a directory
//! that was put back from a copy does not use a number again that Redis has seen.
//!
//! The work is bounded: of the newest segment everything is read, of the others only the head,
//! however much they hold. Each head names the number with which the segment before it ends. Damage
//! in the older segments is left to the reader.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::directory::{Directory, DirectoryError, at};
use crate::disk::Disk;
use crate::index::{Segment, SegmentIndex};
use crate::scan::{Miss, ScanRange};
use crate::segment::{self, HEAD_BYTES, Head, HeadError};
use crate::writer::{Limits, WriteError, Writer, remove_probe};

/// File of a segment, as found.
struct Lying {
    path: PathBuf,
    file: File,
    length: u64,
    head: Head,
    is_damaged: bool,
}

/// Result of a scan of a segment.
#[derive(Debug, Default)]
struct SegmentScan {
    last: u64,
    webhooks: u64,
    /// End of the part that is good or was synced.
    end: u64,
    /// True if every record could be read.
    is_whole: bool,
}

/// Opens the log in `directory` at the time `now_us`, in microseconds since the Unix epoch. The
/// number of webhooks in the older segments is not known then: see [`count`](crate::count::count).
///
/// # Errors
/// [`DirectoryError`] when the directory cannot be read or written, or belongs to another log. A
/// full disk is no error: the packs on it can still be restored.
pub fn open(
    directory: Directory,
    disk: Box<dyn Disk>,
    limits: Limits,
    now_us: u64,
) -> Result<(Arc<SegmentIndex>, Writer), DirectoryError> {
    remove_probe(&directory);
    let index = Arc::new(SegmentIndex::default());
    let firsts = directory.segments()?;
    // From the newest to the oldest: the `after` of one segment is the last number of the segment
    // before it.
    let mut segments = Vec::new();
    let mut behind = None;
    for first in firsts.iter().rev() {
        let Some(lying) = lying(&directory, *first)? else { continue };
        let segment = match behind {
            Some(behind) => lying.older(behind),
            None => lying.newest()?,
        };
        behind = Some(segment.after);
        segments.push(segment);
    }
    let newest = segments.first().map_or(0, |segment| segment.first);
    let last = segments.iter().map(|segment| segment.last).max().unwrap_or(0);
    let mut empty = Vec::new();
    for segment in segments.into_iter().rev() {
        // The newest segment names the number before it, until another segment does.
        if segment.end <= HEAD_BYTES && segment.first != newest {
            empty.push(segment);
        } else {
            index.add(segment);
        }
    }
    index.seal();
    let highest = firsts.last().copied().unwrap_or(0);
    let next = now_us.max(last + 1).max(highest + 1);
    let path = directory.path().to_path_buf();
    let mut writer = Writer::new(directory, index.clone(), disk, limits, next);
    match writer.rotate() {
        Ok(()) => {}
        Err(WriteError::Failed(error) | WriteError::Unknown(error)) => {
            return Err(at(&path)(error));
        }
        Err(error @ (WriteError::Limit | WriteError::Full(_))) => {
            tracing::error!(%error, "nothing can be spilled until there is room");
            return Ok((index, writer));
        }
    }
    for segment in empty {
        std::fs::remove_file(&segment.path).map_err(at(&segment.path))?;
    }
    Ok((index, writer))
}

/// Opens a segment's file and reads its head. `None` if its creation was not finished.
fn lying(directory: &Directory, first: u64) -> Result<Option<Lying>, DirectoryError> {
    let path = segment::path(directory.path(), first);
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(at(&path))?;
    let length = file.metadata().map_err(at(&path))?.len();
    match Head::read(&file) {
        Ok(head) if head.log_id != directory.id() || head.first != first => {
            Err(DirectoryError::Foreign(path))
        }
        Ok(head) => Ok(Some(Lying { path, file, length, head, is_damaged: false })),
        Err(HeadError::Damaged) if length <= HEAD_BYTES => {
            // The creation was not finished, so nothing was ever written to it.
            std::fs::remove_file(&path).map_err(at(&path))?;
            Ok(None)
        }
        Err(HeadError::Damaged) => {
            tracing::error!(?path, "a spill segment's head is damaged");
            // All records before it have numbers below the one in its name.
            let head = Head { log_id: directory.id(), after: first.saturating_sub(1), first };
            Ok(Some(Lying { path, file, length, head, is_damaged: true }))
        }
        Err(error) => Err(DirectoryError::Segment { path, error }),
    }
}

impl Lying {
    /// Describes a segment that is followed by another, whose head names `last` as the number
    /// before it.
    fn older(self, last: u64) -> Segment {
        Segment {
            path: self.path,
            first: self.head.first,
            after: self.head.after,
            last,
            end: self.length,
            is_sealed: true,
            is_damaged: self.is_damaged,
            webhooks: None,
            restored: 0,
        }
    }

    /// Describes the newest segment, and cuts off a torn tail.
    fn newest(self) -> Result<Segment, DirectoryError> {
        let span = ScanRange { file: &self.file, end: self.length };
        let found = scan(span, &self.head).map_err(at(&self.path))?;
        if found.end < self.length {
            let path = &self.path;
            let bytes = self.length - found.end;
            tracing::warn!(
                ?path,
                bytes,
                "a torn tail of the spill is cut off; nobody was answered"
            );
            cut(&self.file, found.end).map_err(at(path))?;
        }
        let is_damaged = self.is_damaged || !found.is_whole;
        let SegmentScan { last, webhooks, end, .. } = found;
        let webhooks = Some(webhooks);
        Ok(Segment { end, is_damaged, webhooks, ..self.older(last) })
    }
}

fn cut(file: &File, end: u64) -> io::Result<()> {
    file.set_len(end)?;
    file.sync_all()
}

/// Reads the whole newest segment. Bad bytes with no good record after them are a torn tail. Bad
/// bytes with a good record after them, torn or damaged, are left for the reader to report: nothing
/// is cut off that may have been acknowledged.
fn scan(span: ScanRange<'_>, head: &Head) -> io::Result<SegmentScan> {
    let mut found =
        SegmentScan { last: head.after, end: HEAD_BYTES, is_whole: true, ..SegmentScan::default() };
    loop {
        match span.record(found.end, found.last) {
            Ok((record, _)) => {
                found.end += record.record_bytes();
                found.last = record.number;
                found.webhooks += u64::from(record.webhooks);
            }
            Err(Miss::End) => return Ok(found),
            Err(Miss::Bad(_)) => {
                let next = span.next_good(found.end, found.last)?;
                let Some((next, _)) = next else { return Ok(found) };
                found.end = next;
                found.is_whole = false;
            }
            Err(Miss::Unreadable(error)) => return Err(error),
        }
    }
}
