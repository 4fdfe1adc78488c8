//! Takes up a log where the last process left it, however it ended.
//!
//! What a crash leaves half written at the end was answered to nobody: it is cut off. What cannot be read
//! is not: that is no crash's doing, and nothing is known of it. Numbers go on behind the newest one or
//! with the clock, whichever is further: a directory that was put back from a copy does not use a number
//! again that Redis has seen.
//!
//! Bounded: the newest segment is read, and of the others their heads, however much lies there. Each
//! says what the one before it ends with; damage in them is the reader's to find.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::directory::{Directory, DirectoryError, at};
use crate::disk::Disk;
use crate::index::{Index, Segment};
use crate::scan::{Miss, Span};
use crate::segment::{self, HEAD_BYTES, Head, HeadError};
use crate::writer::{Limits, WriteError, Writer, remove_probe};

/// A segment's file, as it lies there.
struct Lying {
    path: PathBuf,
    file: File,
    length: u64,
    head: Head,
    is_damaged: bool,
}

/// What a scan found in a segment.
#[derive(Debug, Default)]
struct Found {
    last: u64,
    webhooks: u64,
    /// Where what is good, or was synced, ends.
    end: u64,
    /// Whether all of it could be walked.
    is_whole: bool,
}

/// Takes up the log in `directory` at the time `now_us`, in microseconds since the Unix epoch. How many
/// webhooks are in the older segments is not known then: see [`count`](crate::count::count).
///
/// # Errors
/// [`DirectoryError`] when it can't be read or written, or isn't ours. A disk that is merely full is
/// no error: what lies there can be fed.
pub fn open(
    directory: Directory,
    disk: Box<dyn Disk>,
    limits: Limits,
    now_us: u64,
) -> Result<(Arc<Index>, Writer), DirectoryError> {
    remove_probe(&directory);
    let index = Arc::new(Index::default());
    let firsts = directory.segments()?;
    // From the newest to the oldest: what one begins behind, the one before it ends with.
    let (mut segments, mut behind) = (Vec::new(), None);
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
        // The newest says what came before it, until there is another to say so.
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

/// The segment's file and its head; `None` if it never came to be one.
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
            // Its making was not finished, so nothing was ever written to it.
            std::fs::remove_file(&path).map_err(at(&path))?;
            Ok(None)
        }
        Err(HeadError::Damaged) => {
            tracing::error!(?path, "a spill segment's head is damaged");
            // All before it are below its name.
            let head = Head { log_id: directory.id(), after: first.saturating_sub(1), first };
            Ok(Some(Lying { path, file, length, head, is_damaged: true }))
        }
        Err(error) => Err(DirectoryError::Segment { path, error }),
    }
}

impl Lying {
    /// One with another behind it, which begins behind the number `last`.
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
            fed: 0,
        }
    }

    /// The newest: what is torn off at its end is cut.
    fn newest(self) -> Result<Segment, DirectoryError> {
        let span = Span { file: &self.file, end: self.length };
        let found = scan(span, &self.head).map_err(at(&self.path))?;
        if found.end < self.length {
            let (path, bytes) = (&self.path, self.length - found.end);
            tracing::warn!(
                ?path,
                bytes,
                "a torn tail of the spill is cut off; nobody was answered"
            );
            cut(&self.file, found.end).map_err(at(path))?;
        }
        let is_damaged = self.is_damaged || !found.is_whole;
        let Found { last, webhooks, end, .. } = found;
        let webhooks = Some(webhooks);
        Ok(Segment { end, is_damaged, webhooks, ..self.older(last) })
    }
}

fn cut(file: &File, end: u64) -> io::Result<()> {
    file.set_len(end)?;
    file.sync_all()
}

/// Reads the newest segment whole: bad bytes with nothing good behind them are a torn tail. With
/// something good behind them they are the reader's to tell of, torn or damaged: nothing is cut that
/// somebody may have been answered for.
fn scan(span: Span<'_>, head: &Head) -> io::Result<Found> {
    let mut found = Found { last: head.after, end: HEAD_BYTES, is_whole: true, ..Found::default() };
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
