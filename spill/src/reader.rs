//! Reads records back in order, a chunk at a time, and finds its way past damage.
//!
//! Invariant: every record between the first one asked for and the end of the log is handed out
//! once, or an error in the log names the file and where in it one should have been. Bounded: one
//! chunk in memory, and a segment while the way past damage is looked for.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::index::{Index, Segment};
use crate::record::Head;
use crate::scan::{Miss, Span};
use crate::segment::HEAD_BYTES;

/// Takes records from the front of a log.
#[derive(Debug)]
pub struct Reader {
    index: Arc<Index>,
    /// Up to this number records are known to be fed: they are passed over.
    skip_through: u64,
    /// The segment that is read, by its first number, and where.
    segment: u64,
    offset: u64,
    /// The newest record that was passed.
    number: u64,
    file: Option<(u64, Arc<File>)>,
    passing: Passing,
}

/// How records that are known to be fed are passed over in the segment that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passing {
    /// None was yet, or the last of them is behind.
    None,
    /// By what their heads say, without a look at the packs.
    ByHeads,
    /// By records whose checksums match: what heads said led astray.
    ByChecksums,
}

/// One record to be fed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub number: u64,
    /// How many webhooks its pack holds.
    pub webhooks: u32,
    /// The pack.
    pub pack: Vec<u8>,
}

/// Records that are fed together.
#[derive(Debug, Default)]
pub struct Chunk {
    /// In their order.
    pub records: Vec<Record>,
    /// Nothing lay behind it when it was read.
    pub is_last: bool,
    /// Where the next chunk begins: all before that segment may go once this one is fed.
    segment: u64,
}

impl Chunk {
    /// Bytes of its packs.
    pub fn bytes(&self) -> usize {
        self.records.iter().map(|record| record.pack.len()).sum()
    }

    /// The number of its last record.
    pub fn last(&self) -> Option<u64> {
        self.records.last().map(|record| record.number)
    }
}

impl Reader {
    /// Reads what comes after the number `skip_through`.
    pub fn after(index: Arc<Index>, skip_through: u64) -> Self {
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

    /// The next records: `records_max` of them or `bytes_max`, and one in any case. Empty at the end.
    ///
    /// # Errors
    /// When the next one cannot be read now. What cannot be read is not lost: to be tried again.
    pub fn read(&mut self, records_max: usize, bytes_max: usize) -> io::Result<Chunk> {
        let mut chunk = Chunk::default();
        let mut room = bytes_max;
        while chunk.records.len() < records_max {
            let is_first = chunk.records.is_empty();
            match self.next() {
                Ok(Some((head, pack))) if is_first || head.pack_bytes <= room => {
                    self.pass(&head);
                    room = room.saturating_sub(head.pack_bytes);
                    let (number, webhooks) = (head.number, head.webhooks);
                    chunk.records.push(Record { number, webhooks, pack });
                }
                Ok(None) => {
                    chunk.is_last = true;
                    break;
                }
                Err(error) if is_first => return Err(error),
                // It is read again for the next chunk.
                Ok(Some(_)) | Err(_) => break,
            }
        }
        chunk.segment = self.segment;
        Ok(chunk)
    }

    /// A chunk was fed, and all before it: what lies before it is let go.
    pub fn fed(&self, chunk: &Chunk) {
        for record in &chunk.records {
            self.index.fed(record.number, record.webhooks);
        }
        self.index.free_before(chunk.segment);
    }

    /// Whether everything that was written was read. True only while nothing is being written.
    pub fn is_at_end(&mut self) -> bool {
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

    /// The next record, which is not passed yet.
    fn next(&mut self) -> io::Result<Option<(Head, Vec<u8>)>> {
        loop {
            let Some(segment) = self.here() else { return Ok(None) };
            if self.is_fed_whole(&segment) {
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
            let span = Span { file: &file, end: segment.end };
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
                // A damaged length among those may have led past what was never fed.
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
        self.index.fed(head.number, head.webhooks);
    }

    /// Begins with this segment again, and trusts no head in it whose record is not good.
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

    /// The segment that is read; the first one if it is gone.
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

    /// Whether all of a segment is to be passed over: the next one says where it ends.
    fn is_fed_whole(&self, segment: &Segment) -> bool {
        self.offset == HEAD_BYTES
            && segment.last <= self.skip_through
            && self.index.behind(segment.first).is_some_and(|next| next.after <= self.skip_through)
    }

    /// From the end of a segment to the next; `false` if there is none, or may be more in this one.
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
            let (after, through, path) = (self.number, next.after, &segment.path);
            tracing::error!(after, through, ?path, "spilled packs are missing: they are lost");
        }
        self.number = self.number.max(next.after);
        self.begin(&next);
        true
    }

    /// The file of a segment; `None` if it is gone.
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
        let span = Span { file, end: segment.end };
        let (offset, after, path) = (self.offset, self.number, &segment.path);
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
            tracing::warn!(why, ?path, offset, "a spilled pack is damaged; it was fed before");
            return Ok(next);
        }
        let next = found.map_or(segment.end, |(next, _)| next);
        // If not, a power cut may have torn it, and then nobody was answered for it.
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
