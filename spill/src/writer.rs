//! Writes groups of packs, with one sync for each group.
//!
//! Invariant: `Ok` means that the group survives a power cut. After a failed sync, the state of
//! everything written since the last one is unknown, and a second sync may succeed although the
//! pages are gone. So the file is not written to again, and its end in the index stays.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::directory::Directory;
use crate::disk::{Disk, DiskFile, write_all};
use crate::index::{Segment, SegmentIndex};
use crate::record::{self, Head};
use crate::segment;

/// Name of the file that tests if the disk takes anything.
const PROBE: &str = "probe";

/// Limits of the log's size.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum size of all segments.
    pub bytes_max: u64,
    /// Size at which a segment is followed by another.
    pub segment_bytes: u64,
}

/// Reason why a group was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The limit is reached. Nothing was written.
    #[error("the spill has reached its limit")]
    Limit,
    /// The disk has no room. Nothing was written.
    #[error("the spill's disk is full")]
    Full(#[source] io::Error),
    /// The disk failed. Nothing was written.
    #[error("the spill cannot be written")]
    Failed(#[source] io::Error),
    /// The sync failed. It is unknown if the group was written.
    #[error("the spill cannot be synced")]
    Unknown(#[source] io::Error),
}

/// Writer of a log.
pub struct Writer {
    directory: Directory,
    index: Arc<SegmentIndex>,
    disk: Box<dyn Disk>,
    limits: Limits,
    active: Option<Active>,
    /// Number of the next record.
    next: u64,
    /// Size of the group that was refused last.
    refused: u64,
}

struct Active {
    file: Box<dyn DiskFile>,
    end: u64,
    has_records: bool,
}

impl Writer {
    /// Creates a writer for a log whose newest record is below `next`.
    pub fn new(
        directory: Directory,
        index: Arc<SegmentIndex>,
        disk: Box<dyn Disk>,
        limits: Limits,
        next: u64,
    ) -> Self {
        Self { directory, index, disk, limits, active: None, next, refused: 0 }
    }

    /// Id of the log.
    pub fn log_id(&self) -> u64 {
        self.directory.id()
    }

    /// Writes packs, each with its number of webhooks, and syncs. Either all of them are written or
    /// none.
    ///
    /// # Errors
    /// [`WriteError`]. After any of them the next group may be tried.
    pub fn append<P: AsRef<[u8]>>(&mut self, packs: &[(P, u32)]) -> Result<(), WriteError> {
        let bytes =
            packs.iter().map(|(pack, _)| (record::HEAD_BYTES + pack.as_ref().len()) as u64).sum();
        let outcome = self.append_bytes(packs, bytes);
        if outcome.is_err() {
            self.refused = bytes;
        }
        outcome
    }

    /// Tests if a group as large as the one that was refused last would be written now. It writes,
    /// syncs and removes a file beside the segments, and uses no number.
    ///
    /// # Errors
    /// Reason why it would not be written.
    pub fn probe(&self) -> Result<(), WriteError> {
        // The refused group may have held several packs that fit one by one.
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
        let first = self.next;
        let synced = self.index.last();
        let Some(active) = self.active.as_mut() else { return Ok(()) };
        let start = active.end;
        match write_group(active, packs, first, synced) {
            Ok(()) => {}
            Err(error) => {
                let error = not_written(error);
                // Remove what was written of the group: it must not stand before the next group. If
                // the file itself is at fault, it may stay so for ever.
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

    /// Begins another segment, unless the last one is empty. Then the segment before can be freed,
    /// and the next number stays on disk.
    ///
    /// # Errors
    /// [`WriteError`]. More is added to the last segment only if no file of a newer one can be there.
    pub fn rotate(&mut self) -> Result<(), WriteError> {
        match &self.active {
            Some(active) if !active.has_records => Ok(()),
            _ => self.begin_segment(),
        }
    }

    /// Gives up the active file: what was written since the last sync is not trusted. Its numbers
    /// are not used again.
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
                // Whether the file is still there or not, the next one has another name.
                self.next += 1;
                if !self.try_to_remove(&path) {
                    // If it is there, its head says that the segment before it ends with `after`.
                    self.active = None;
                    self.index.seal();
                }
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
            restored: 0,
        });
        self.active = Some(Active { file, end, has_records: false });
        Ok(())
    }

    /// Removes a segment whose creation failed. Returns true if it is gone, also after a power cut.
    fn try_to_remove(&self, path: &Path) -> bool {
        match self.disk.remove(path) {
            Ok(()) => self.disk.sync_directory(self.directory.path()).is_ok(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// Removes the probe file of a process that was killed while probing. Returns its path.
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
