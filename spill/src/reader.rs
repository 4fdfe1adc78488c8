//! Reads records back in order, a chunk at a time, and continues after damage.
//!
//! Invariant: every record from the first one requested to the end of the log is handed out once,
//! or an error in the log names the file and the offset where one should have been. Memory is
//! bounded: one chunk, and one segment during the search for the next record after damage.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::index::{Segment, SegmentIndex};
use crate::record::Head;
use crate::scan::{Miss, ScanRange};
use crate::segment::HEAD_BYTES;

/// Reader of the records at the front of a log.
#[derive(Debug)]
pub struct LogReader {
    index: Arc<SegmentIndex>,
    /// Records up to this number are known to be restored: they are skipped.
    skip_through: u64,
    /// The segment that is read, by its first number. `offset` is the position in it.
    segment: u64,
    offset: u64,
    /// Number of the newest record that was read or skipped.
    number: u64,
    file: Option<(u64, Arc<File>)>,
    passing: Passing,
}

/// Method by which restored records are skipped in the segment that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passing {
    /// No record is being skipped.
    None,
    /// By the heads, without reading the packs.
    ByHeads,
    /// By records whose checksums match, because the heads led astray.
    ByChecksums,
}

/// A record to restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Number of the record.
    pub number: u64,
    /// Number of webhooks in its pack.
    pub webhooks: u32,
    /// Pack of the record.
    pub pack: Vec<u8>,
}

/// Records that are restored together.
#[derive(Debug, Default)]
pub struct RecordBatch {
    /// Records in their order.
    pub records: Vec<LogRecord>,
    /// True if nothing came after it when it was read.
    pub is_last: bool,
    /// Segment in which the next chunk begins. All segments before it may be freed once this chunk
    /// is restored.
    segment: u64,
}

impl RecordBatch {
    /// Size of its packs in bytes.
    pub fn bytes(&self) -> usize {
        self.records.iter().map(|record| record.pack.len()).sum()
    }

    /// Number of its last record.
    pub fn last(&self) -> Option<u64> {
        self.records.last().map(|record| record.number)
    }
}

impl LogReader {
    /// Creates a reader for the records after the number `skip_through`.
    pub fn after(index: Arc<SegmentIndex>, skip_through: u64) -> Self {
        let front = index.front();
        let (segment, number) = front.map_or((0, 0), |front| (front.first, front.after));
        Self {
            index,
            skip_through,
            segment,
            offset: HEAD_BYTES,
            number,
            file: None,
            passing: Passing::None,
        }
    }

    /// Reads the next records: up to `records_max` of them and up to `bytes_max`, but at least one.
    /// Empty at the end.
    ///
    /// # Errors
    /// When the next record cannot be read now. It is not lost: try again.
    pub fn read(&mut self, records_max: usize, bytes_max: usize) -> io::Result<RecordBatch> {
        let mut chunk = RecordBatch::default();
        let mut room = bytes_max;
        while chunk.records.len() < records_max {
            let is_first = chunk.records.is_empty();
            match self.next() {
                Ok(Some((head, pack))) if is_first || head.pack_bytes <= room => {
                    self.pass(&head);
                    room = room.saturating_sub(head.pack_bytes);
                    let number = head.number;
                    let webhooks = head.webhooks;
                    chunk.records.push(LogRecord { number, webhooks, pack });
                }
                Ok(None) => {
                    chunk.is_last = true;
                    break;
                }
                Err(error) if is_first => return Err(error),
                // This record is read again for the next chunk.
                Ok(Some(_)) | Err(_) => break,
            }
        }
        chunk.segment = self.segment;
        Ok(chunk)
    }

    /// Records that a chunk and everything before it is restored, and frees the segments before it.
    pub fn restored(&self, chunk: &RecordBatch) {
        for record in &chunk.records {
            self.index.restored(record.number, record.webhooks);
        }
        self.index.free_before(chunk.segment);
    }

    /// Moves past segments that were read. Returns true if everything that was written was read.
    /// Correct only while nothing is being written.
    pub fn pass_read(&mut self) -> bool {
        loop {
            let Some(segment) = self.here() else { return true };
            if self.offset < segment.end {
                return false;
            }
            if !self.go_on(&segment) {
                return true;
            }
        }
    }

    /// Returns the next record, without moving to the one after it.
    fn next(&mut self) -> io::Result<Option<(Head, Vec<u8>)>> {
        loop {
            let Some(segment) = self.here() else { return Ok(None) };
            if self.is_restored_whole(&segment) {
                self.offset = segment.end;
            }
            if self.offset >= segment.end {
                if self.passing == Passing::ByHeads && segment.last > self.skip_through {
                    self.pass_anew(&segment);
                } else if !self.go_on(&segment) {
                    return Ok(None);
                }
                continue;
            }
            let Some(file) = self.opened(&segment)? else { continue };
            let span = ScanRange { file: &file, end: segment.end };
            if self.passing != Passing::ByChecksums
                && let Ok(head) = span.head(self.offset, self.number)
                && head.number <= self.skip_through
            {
                self.passing = Passing::ByHeads;
                self.skip(&head);
                continue;
            }
            match span.record(self.offset, self.number) {
                Ok((head, _)) if head.number <= self.skip_through => self.skip(&head),
                // A damaged length among the skipped heads may have led beyond records that were
                // never restored.
                Ok((head, _))
                    if self.passing == Passing::ByHeads && head.number > self.skip_through + 1 =>
                {
                    self.pass_anew(&segment);
                }
                Err(Miss::Bad(_)) if self.passing == Passing::ByHeads => self.pass_anew(&segment),
                Ok(record) => {
                    self.passing = Passing::None;
                    return Ok(Some(record));
                }
                Err(Miss::End) => self.offset = segment.end,
                Err(Miss::Bad(why)) => self.offset = self.behind_damage(&segment, why)?,
                Err(Miss::Unreadable(error)) => return Err(error),
            }
        }
    }

    fn skip(&mut self, head: &Head) {
        self.pass(head);
        self.index.restored(head.number, head.webhooks);
    }

    /// Starts this segment again, and trusts only records whose checksums match.
    fn pass_anew(&mut self, segment: &Segment) {
        self.begin(segment);
        self.passing = Passing::ByChecksums;
        self.number = segment.after;
    }

    fn begin(&mut self, segment: &Segment) {
        self.segment = segment.first;
        self.offset = HEAD_BYTES;
        self.passing = Passing::None;
    }

    /// Returns the segment that is read, or the first one if it is gone.
    fn here(&mut self) -> Option<Segment> {
        let found = self.index.segment(self.segment);
        if found.is_none()
            && let Some(front) = self.index.front()
        {
            self.begin(&front);
            return Some(front);
        }
        found
    }

    /// True if the whole segment is to be skipped: the next one's head names its last number.
    fn is_restored_whole(&self, segment: &Segment) -> bool {
        self.offset == HEAD_BYTES
            && segment.last <= self.skip_through
            && self.index.behind(segment.first).is_some_and(|next| next.after <= self.skip_through)
    }

    /// Moves from the end of a segment to the next one. `false` if there is none, or if more may be
    /// added to this one.
    fn go_on(&mut self, segment: &Segment) -> bool {
        if !segment.is_sealed {
            return false;
        }
        let Some(next) = self.index.behind(segment.first) else { return false };
        let is_damaged = |segment: &Segment| {
            self.index.segment(segment.first).is_some_and(|segment| segment.is_damaged)
        };
        let is_known_damage = is_damaged(segment) || is_damaged(&next);
        if next.after > self.number.max(self.skip_through) && !is_known_damage {
            self.index.damaged(segment.first);
            let after = self.number;
            let through = next.after;
            let path = &segment.path;
            tracing::error!(after, through, ?path, "spilled packs are missing: they are lost");
        }
        self.number = self.number.max(next.after);
        self.begin(&next);
        true
    }

    /// Opens the file of a segment; `None` if it is gone.
    fn opened(&mut self, segment: &Segment) -> io::Result<Option<Arc<File>>> {
        if self.file.as_ref().is_none_or(|(first, _)| *first != segment.first) {
            match File::open(&segment.path) {
                Ok(file) => self.file = Some((segment.first, Arc::new(file))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let path = &segment.path;
                    tracing::error!(?path, "a spill segment was removed: it is lost");
                    self.index.damaged(segment.first);
                    self.offset = segment.end;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.file.as_ref().map(|(_, file)| file.clone()))
    }

    fn pass(&mut self, head: &Head) {
        self.offset += head.record_bytes();
        self.number = head.number;
    }

    fn behind_damage(&mut self, segment: &Segment, why: &'static str) -> io::Result<u64> {
        let Some((_, file)) = &self.file else { return Ok(segment.end) };
        let span = ScanRange { file, end: segment.end };
        let offset = self.offset;
        let after = self.number;
        let path = &segment.path;
        let found = span.next_good(offset, after)?;
        let next_after = self.index.behind(segment.first).map(|next| next.after);
        if found.is_none() && next_after.is_some_and(|next_after| next_after <= after) {
            let bytes = segment.end - offset;
            tracing::info!(?path, offset, bytes, "a torn end is passed over; nobody was answered");
            return Ok(segment.end);
        }
        if let Some((next, head)) = found
            && head.number <= self.skip_through + 1
        {
            tracing::warn!(why, ?path, offset, "a spilled pack is damaged; it was restored before");
            return Ok(next);
        }
        let next = found.map_or(segment.end, |(next, _)| next);
        // If it was not synced, a power cut may have torn it, and then its senders got no 200.
        let was_synced = found.is_none_or(|(_, head)| head.synced > after);
        let bytes = next - offset;
        tracing::error!(
            why,
            ?path,
            offset,
            bytes,
            after,
            was_synced,
            "a spilled pack is damaged: it is lost"
        );
        self.index.damaged(segment.first);
        Ok(next)
    }
}
