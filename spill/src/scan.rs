//! Finds one record after the other in a file that may hold any bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::record::{HEAD_BYTES, Head, MAGIC};

/// Reason why no record was read at an offset of a segment.
#[derive(Debug)]
pub enum Miss {
    /// The end of the segment.
    End,
    /// The bytes are no record, for this reason.
    Bad(&'static str),
    /// The bytes could not be read, which says nothing about them.
    Unreadable(io::Error),
}

impl From<io::Error> for Miss {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Bad("the file ends early"),
            _ => Self::Unreadable(error),
        }
    }
}

/// Part of a segment's file that is to be read.
#[derive(Debug, Clone, Copy)]
pub struct ScanRange<'a> {
    /// The file.
    pub file: &'a File,
    /// End of that part.
    pub end: u64,
}

impl ScanRange<'_> {
    /// Reads the head of a record at `offset`, whose number must be greater than `above`. The pack
    /// is not checked.
    ///
    /// # Errors
    /// [`Miss`] if there is none.
    pub fn head(&self, offset: u64, above: u64) -> Result<Head, Miss> {
        if offset == self.end {
            return Err(Miss::End);
        }
        if offset + HEAD_BYTES as u64 > self.end {
            return Err(Miss::Bad("a record's head ends early"));
        }
        let mut bytes = [0; HEAD_BYTES];
        self.file.read_exact_at(&mut bytes, offset)?;
        let head = Head::decode(&bytes).ok_or(Miss::Bad("no record begins here"))?;
        if head.number <= above {
            return Err(Miss::Bad("a record's number is not above the one before"));
        }
        if offset + head.record_bytes() > self.end {
            return Err(Miss::Bad("a record ends early"));
        }
        Ok(head)
    }

    /// Reads the record at `offset` and its pack.
    ///
    /// # Errors
    /// [`Miss`] if there is none.
    pub fn record(&self, offset: u64, above: u64) -> Result<(Head, Vec<u8>), Miss> {
        let head = self.head(offset, above)?;
        let mut pack = vec![0; head.pack_bytes];
        self.file.read_exact_at(&mut pack, offset + HEAD_BYTES as u64)?;
        if head.is_of(&pack) {
            Ok((head, pack))
        } else {
            Err(Miss::Bad("a checksum does not match"))
        }
    }

    /// Finds the next good record after `offset` with a number greater than `above`, and its
    /// offset. Reads the rest of the file into memory, which is at most a segment.
    ///
    /// # Errors
    /// When some of it cannot be read.
    pub fn next_good(&self, offset: u64, above: u64) -> io::Result<Option<(u64, Head)>> {
        let rest = self.rest(offset + 1)?;
        let mut from = 0;
        while let Some(at) = rest[from..].windows(MAGIC.len()).position(|four| four == MAGIC) {
            let place = offset + 1 + (from + at) as u64;
            match self.record(place, above) {
                Ok((head, _)) => return Ok(Some((place, head))),
                Err(Miss::Unreadable(error)) => return Err(error),
                Err(Miss::End | Miss::Bad(_)) => from += at + 1,
            }
        }
        Ok(None)
    }

    /// Reads the rest of the file; zeros if the file ends early.
    fn rest(&self, offset: u64) -> io::Result<Vec<u8>> {
        const PIECE: usize = 4096;
        let length = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(0);
        let mut rest = vec![0; length];
        for (number, piece) in rest.chunks_mut(PIECE).enumerate() {
            let at = offset + (number * PIECE) as u64;
            match self.file.read_exact_at(piece, at) {
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(rest)
    }
}
