//! Takes up a log where the last process left it, however it ended.
//!
//! What a crash leaves half written at the end was answered to nobody: it is cut off. What cannot be read
//! is not: that is no crash's doing, and nothing is known of it. Numbers go on behind the newest one or
//! with the clock, whichever is further: a directory that was put back from a copy does not use a number
//! again that Redis has seen.

use std::fs::{File, OpenOptions};
use std::io;
use std::sync::Arc;

use crate::directory::{Directory, DirectoryError, at};
use crate::disk::Disk;
use crate::index::{Index, Segment};
use crate::scan::{Miss, Span};
use crate::segment::{self, HEAD_BYTES, Head, HeadError};
use crate::writer::{Limits, WriteError, Writer};

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

/// Takes up the log in `directory` at the time `now_us`, in microseconds since the Unix epoch.
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
    let index = Arc::new(Index::default());
    let firsts = directory.segments()?;
    let (mut last, mut empty) = (0, Vec::new());
    for first in &firsts {
        let is_newest = Some(first) == firsts.last();
        if let Some((segment, webhooks)) = take_up(&directory, *first, last, is_newest)? {
            last = segment.last.max(last);
            if segment.end <= HEAD_BYTES {
                empty.push(segment);
            } else {
                index.add(segment, webhooks);
            }
        }
    }
    // An empty one says what came before it, until there is another to say so.
    let newest_empty = empty.pop_if(|segment| Some(&segment.first) == firsts.last());
    if let Some(segment) = &newest_empty {
        last = last.max(segment.after);
        index.add(Segment { is_sealed: true, ..segment.clone() }, 0);
    }
    index.seal();
    let newest = firsts.last().copied().unwrap_or(0);
    let next = now_us.max(last + 1).max(newest + 1);
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

/// One segment as it lies there, and the webhooks in it; `None` if it never came to be one.
fn take_up(
    directory: &Directory,
    first: u64,
    last_before: u64,
    is_newest: bool,
) -> Result<Option<(Segment, u64)>, DirectoryError> {
    let path = segment::path(directory.path(), first);
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(at(&path))?;
    let length = file.metadata().map_err(at(&path))?.len();
    let (head, mut is_damaged) = match Head::read(&file) {
        Ok(head) if head.log_id != directory.id() || head.first != first => {
            return Err(DirectoryError::Foreign(path));
        }
        Ok(head) => (head, false),
        Err(HeadError::Damaged) if length <= HEAD_BYTES => {
            // Its making was not finished, so nothing was ever written to it.
            std::fs::remove_file(&path).map_err(at(&path))?;
            return Ok(None);
        }
        Err(HeadError::Damaged) => {
            tracing::error!(?path, "a spill segment's head is damaged");
            // All before it are below its name.
            (
                Head {
                    log_id: directory.id(),
                    after: last_before.max(first.saturating_sub(1)),
                    first,
                },
                true,
            )
        }
        Err(error) => return Err(DirectoryError::Segment { path, error }),
    };
    let span = Span { file: &file, end: length };
    let found = if is_newest { scan(span, &head) } else { walk(span, &head) };
    let found = found.map_err(at(&path))?;
    is_damaged |= is_newest && !found.is_whole;
    if found.end < length && is_newest {
        let bytes = length - found.end;
        tracing::warn!(?path, bytes, "a torn tail of the spill is cut off; nobody was answered");
        cut(&file, found.end).map_err(at(&path))?;
    }
    let Found { last, webhooks, end, .. } = found;
    let after = head.after;
    let segment = Segment { path, first, after, last, end, is_sealed: true, is_damaged };
    Ok(Some((segment, webhooks)))
}

fn cut(file: &File, end: u64) -> io::Result<()> {
    file.set_len(end)?;
    file.sync_all()
}

/// Counts what an older segment holds, by the heads alone. Damage is the reader's to find.
fn walk(span: Span<'_>, head: &Head) -> io::Result<Found> {
    let mut found = Found { last: head.after, end: span.end, is_whole: true, ..Found::default() };
    let mut offset = HEAD_BYTES;
    loop {
        match span.head(offset, found.last) {
            Ok(record) => {
                offset += record.record_bytes();
                found.last = record.number;
                found.webhooks += u64::from(record.webhooks);
            }
            Err(Miss::End | Miss::Bad(_)) => return Ok(found),
            Err(Miss::Unreadable(error)) => return Err(error),
        }
    }
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
