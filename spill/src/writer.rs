//! Writes groups of packs, one sync for each.
//!
//! Invariant: `Ok` means that the group survives a power cut. After a sync that failed, nothing is
//! known of what was written since the last one, and a second sync may well say it is fine although
//! the pages are gone: the file is not written to again, and its end stays where it was.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::directory::Directory;
use crate::disk::{Disk, DiskFile, write_all};
use crate::index::{Index, Segment};
use crate::record::{self, Head};
use crate::segment;

/// The name of what is written to see whether the disk takes anything.
const PROBE: &str = "probe";

/// How much may be written.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of all segments.
    pub bytes_max: u64,
    /// A segment that has reached this is followed by another.
    pub segment_bytes: u64,
}

/// Why a group was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The limit is reached: not written.
    #[error("the spill has reached its limit")]
    Limit,
    /// The disk has no room: not written.
    #[error("the spill's disk is full")]
    Full(#[source] io::Error),
    /// The disk failed: not written.
    #[error("the spill cannot be written")]
    Failed(#[source] io::Error),
    /// The sync failed: it is unknown whether it was written.
    #[error("the spill cannot be synced")]
    Unknown(#[source] io::Error),
}

/// Adds to a log.
pub struct Writer {
    directory: Directory,
    index: Arc<Index>,
    disk: Box<dyn Disk>,
    limits: Limits,
    active: Option<Active>,
    /// The next record's number.
    next: u64,
    /// Bytes of the group that was refused last.
    refused: u64,
}

struct Active {
    file: Box<dyn DiskFile>,
    end: u64,
    has_records: bool,
}

impl Writer {
    /// Goes on with a log whose newest record is below `next`.
    pub fn new(
        directory: Directory,
        index: Arc<Index>,
        disk: Box<dyn Disk>,
        limits: Limits,
        next: u64,
    ) -> Self {
        Self { directory, index, disk, limits, active: None, next, refused: 0 }
    }

    /// The log's id.
    pub fn log_id(&self) -> u64 {
        self.directory.id()
    }

    /// Writes packs, each with its count of webhooks, and syncs. All have one fate.
    ///
    /// # Errors
    /// [`WriteError`]; after any of them the next group may be tried.
    pub fn append<P: AsRef<[u8]>>(&mut self, packs: &[(P, u32)]) -> Result<(), WriteError> {
        let bytes =
            packs.iter().map(|(pack, _)| (record::HEAD_BYTES + pack.as_ref().len()) as u64).sum();
        let outcome = self.append_bytes(packs, bytes);
        if outcome.is_err() {
            self.refused = bytes;
        }
        outcome
    }

    /// Whether a group as large as the one that was refused last would be taken now. What is tried
    /// is a file beside the segments, synced and removed: no number is used for it.
    ///
    /// # Errors
    /// Why it would not be.
    pub fn probe(&self) -> Result<(), WriteError> {
        // Several packs may have been refused together that find room one by one.
        let bytes = self.refused.min(self.limits.segment_bytes);
        self.expect_below_limit(bytes)?;
        let zeros = vec![0; bytes as usize];
        let path = remove_probe(&self.directory);
        let tried = self.disk.create(&path).and_then(|mut file| {
            write_all(file.as_mut(), &zeros, 0)?;
            file.sync()?;
            self.disk.sync_directory(self.directory.path())
        });
        std::fs::remove_file(&path).ok();
        tried.map_err(not_written)
    }

    fn append_bytes<P: AsRef<[u8]>>(
        &mut self,
        packs: &[(P, u32)],
        bytes: u64,
    ) -> Result<(), WriteError> {
        self.expect_below_limit(bytes)?;
        if self.active.as_ref().is_none_or(|active| active.end >= self.limits.segment_bytes) {
            self.begin_segment()?;
        }
        let (first, synced) = (self.next, self.index.last());
        let Some(active) = self.active.as_mut() else { return Ok(()) };
        let start = active.end;
        match write_group(active, packs, first, synced) {
            Ok(()) => {}
            Err(error) => {
                let error = not_written(error);
                // Whatever was written of it must not stand before the next group. A file that is
                // at fault itself may be so for ever.
                let is_clean = active.file.truncate(start).is_ok();
                if !is_clean || !matches!(error, WriteError::Full(_)) {
                    self.abandon(packs.len());
                }
                return Err(error);
            }
        }
        if let Err(error) = active.file.sync() {
            active.file.truncate(start).ok();
            self.abandon(packs.len());
            return Err(WriteError::Unknown(error));
        }
        active.end = start + bytes;
        active.has_records = true;
        self.next += packs.len() as u64;
        let webhooks = packs.iter().map(|(_, webhooks)| u64::from(*webhooks)).sum();
        self.index.written(self.next - 1, start + bytes, webhooks);
        Ok(())
    }

    /// Begins another segment unless the last one has nothing in it: the one before can be let go
    /// then, and the number that is next stays on disk.
    ///
    /// # Errors
    /// [`WriteError`]; the last segment is still good then.
    pub fn rotate(&mut self) -> Result<(), WriteError> {
        match &self.active {
            Some(active) if !active.has_records => Ok(()),
            _ => self.begin_segment(),
        }
    }

    /// What was written since the last sync is not trusted; its numbers are not used again.
    fn abandon(&mut self, records: usize) {
        self.next += records as u64;
        self.active = None;
        self.index.seal();
    }

    fn expect_below_limit(&self, bytes: u64) -> Result<(), WriteError> {
        let needed = self.index.bytes() + bytes + segment::HEAD_BYTES;
        if needed > self.limits.bytes_max { Err(WriteError::Limit) } else { Ok(()) }
    }

    fn begin_segment(&mut self) -> Result<(), WriteError> {
        let first = self.next;
        let after = self.index.last();
        let path = segment::path(self.directory.path(), first);
        let head = segment::Head { log_id: self.directory.id(), after, first };
        let made = self.disk.create(&path).and_then(|mut file| {
            write_all(file.as_mut(), &head.encode(), 0)?;
            file.sync()?;
            self.disk.sync_directory(self.directory.path())?;
            Ok(file)
        });
        let file = match made {
            Ok(file) => file,
            Err(error) => {
                std::fs::remove_file(&path).ok();
                // If it is still there, the next one has another name.
                self.next += 1;
                return Err(not_written(error));
            }
        };
        let end = segment::HEAD_BYTES;
        self.index.add(Segment {
            path,
            first,
            after,
            last: after,
            end,
            is_sealed: false,
            is_damaged: false,
            webhooks: Some(0),
            fed: 0,
        });
        self.active = Some(Active { file, end, has_records: false });
        Ok(())
    }
}

/// What is left of a probe by a process that was killed in it; says where one lies.
pub(crate) fn remove_probe(directory: &Directory) -> PathBuf {
    let path = directory.path().join(PROBE);
    std::fs::remove_file(&path).ok();
    path
}

fn write_group<P: AsRef<[u8]>>(
    active: &mut Active,
    packs: &[(P, u32)],
    first: u64,
    synced: u64,
) -> io::Result<()> {
    let mut end = active.end;
    for (number, (pack, webhooks)) in (first..).zip(packs) {
        let pack = pack.as_ref();
        let head = Head::of(pack, *webhooks, number, synced);
        write_all(active.file.as_mut(), &head.encode(), end)?;
        write_all(active.file.as_mut(), pack, end + record::HEAD_BYTES as u64)?;
        end += head.record_bytes();
    }
    Ok(())
}

fn not_written(error: io::Error) -> WriteError {
    match error.kind() {
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::WriteZero
        | io::ErrorKind::FileTooLarge => WriteError::Full(error),
        _ => WriteError::Failed(error),
    }
}
