//! From one record to the next, over anything that may lie in a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::record::{HEAD_BYTES, Head, MAGIC};

/// What lies at some place of a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A record that is as it was written.
    Record(Head, Vec<u8>),
    /// The end.
    End,
    /// Anything else; why it is none.
    Bad(&'static str),
}

/// The part of a segment's file that is to be read.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// The file.
    pub file: &'a File,
    /// Nothing from here on is read.
    pub end: u64,
}

impl Span<'_> {
    /// The head of a record at `offset`, whose number must be greater than `above`; the pack is not
    /// looked at.
    ///
    /// # Errors
    /// Why there is none; empty at the end.
    pub fn head(&self, offset: u64, above: u64) -> Result<Head, &'static str> {
        if offset == self.end {
            return Err("");
        }
        if offset + HEAD_BYTES as u64 > self.end {
            return Err("a record's head ends early");
        }
        let mut bytes = [0; HEAD_BYTES];
        self.file.read_exact_at(&mut bytes, offset).map_err(|_| "it cannot be read")?;
        let head = Head::decode(&bytes).ok_or("no record begins here")?;
        if head.number <= above {
            return Err("a record's number is not above the one before");
        }
        if offset + head.record_bytes() > self.end {
            return Err("a record ends early");
        }
        Ok(head)
    }

    /// What lies at `offset`.
    pub fn step(&self, offset: u64, above: u64) -> Step {
        let head = match self.head(offset, above) {
            Ok(head) => head,
            Err("") => return Step::End,
            Err(why) => return Step::Bad(why),
        };
        let mut pack = vec![0; head.pack_bytes];
        match self.file.read_exact_at(&mut pack, offset + HEAD_BYTES as u64) {
            Ok(()) if head.is_of(&pack) => Step::Record(head, pack),
            Ok(()) => Step::Bad("a checksum does not match"),
            Err(_) => Step::Bad("it cannot be read"),
        }
    }

    /// The next good record behind `offset` whose number is above `above`, and where it begins. Reads
    /// the rest of the file into memory: a segment, at most.
    pub fn next_good(&self, offset: u64, above: u64) -> Option<(u64, Head)> {
        let rest = self.rest(offset + 1);
        let mut from = 0;
        while let Some(at) = rest[from..].windows(MAGIC.len()).position(|four| four == MAGIC) {
            let place = offset + 1 + (from + at) as u64;
            if let Step::Record(head, _) = self.step(place, above) {
                return Some((place, head));
            }
            from += at + 1;
        }
        None
    }

    /// The rest of the file; what cannot be read of it is zeros.
    fn rest(&self, offset: u64) -> Vec<u8> {
        const PIECE: usize = 4096;
        let length = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(0);
        let mut rest = vec![0; length];
        for (number, piece) in rest.chunks_mut(PIECE).enumerate() {
            let at = offset + (number * PIECE) as u64;
            if let Err(error) = self.file.read_exact_at(piece, at)
                && error.kind() != io::ErrorKind::UnexpectedEof
            {
                piece.fill(0);
            }
        }
        rest
    }
}
