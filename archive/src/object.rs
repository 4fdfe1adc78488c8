//! Opens an object: its end alone, which is enough for everything but the packs, or all of it.
//!
//! Invariant: what an opened object returns was checked, so one flipped byte anywhere is an error.

use std::ops::Range;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use spillway_webhook::pack::RAW_BYTES_MAX;

use crate::error::BadObject;
use crate::header::{HEADER_BYTES_MAX, MAGIC, ObjectHeader, VERSION};
use crate::index::{ObjectIndex, checksum};
use crate::input::{Input, length_u64};
use crate::keys::{INDEX_NUMBER, KeyRing, ObjectKey, SEAL_BYTES};
use crate::writer::{FRAME_HEADER_BYTES, TRAILER_BYTES, frame_header};

/// Largest ARCHIVE_OBJECT_SIZE: bytes at which an object is written.
pub const OBJECT_SIZE_MAX: u64 = 64 << 20;
/// Most bytes of an object that is read. The archiver writes no larger ones, and memory for more is not taken
/// because a file says so.
pub(crate) const OBJECT_BYTES_MAX: u64 = 256 << 20;
const _: () = assert!(
    OBJECT_SIZE_MAX + (RAW_BYTES_MAX as u64) < OBJECT_BYTES_MAX,
    "an object with one pack too many and its index is read"
);
/// Most bytes of an index that is read. An index of a million webhooks has 3 MB.
const INDEX_BYTES_MAX: usize = 256 << 20;
/// Bytes of the trailer that its own CRC does not cover.
const TRAILER_END_BYTES: usize = 8;

/// The end of an object: its index and a copy of its header.
#[derive(Debug)]
pub struct ObjectTail {
    /// Header of the object.
    pub header: ObjectHeader,
    /// Index of the object.
    pub index: ObjectIndex,
    key: Option<ObjectKey>,
    sha256: [u8; 32],
    /// Bytes of the tail.
    bytes: usize,
    /// Position of each frame, and of the end of the last one.
    frames: Vec<u64>,
}

/// A whole object.
#[derive(Debug)]
pub struct ArchiveObject {
    /// End of the object, with its index.
    pub tail: ObjectTail,
    bytes: Bytes,
}

/// The trailer, checked.
struct Trailer {
    sha256: [u8; 32],
    index_bytes: usize,
    index_crc: u32,
    header_bytes: usize,
}

impl Trailer {
    /// Reads the trailer at the end of `bytes`. Its CRC is not checked yet.
    fn of(bytes: &[u8]) -> Result<(Self, u32), BadObject> {
        let trailer = bytes.last_chunk::<TRAILER_BYTES>().ok_or(BadObject::NotAnObject)?;
        if !trailer.ends_with(MAGIC) {
            return Err(BadObject::NotAnObject);
        }
        let mut input = Input::new(trailer);
        let sha256 = input.array()?;
        let index_bytes = to_size(input.u32()?);
        let index_crc = input.u32()?;
        let header_bytes = usize::from(input.u16()?);
        let version = input.u8()?;
        if version != VERSION {
            return Err(BadObject::Unknown(version));
        }
        if input.u8()? != 0 || header_bytes > HEADER_BYTES_MAX {
            return Err(BadObject::Malformed("trailer"));
        }
        if index_bytes > INDEX_BYTES_MAX {
            return Err(BadObject::Malformed("length of the index"));
        }
        Ok((Self { sha256, index_bytes, index_crc, header_bytes }, input.u32()?))
    }

    fn tail_bytes(&self) -> usize {
        self.index_bytes.saturating_add(self.header_bytes).saturating_add(TRAILER_BYTES)
    }
}

impl ObjectTail {
    /// Number of bytes at the end of an object that [`ObjectTail::decode`] needs, from the last bytes of the
    /// object, at least 52.
    ///
    /// # Errors
    /// [`BadObject`] if they are not the end of an object.
    pub fn needed(end: &[u8]) -> Result<usize, BadObject> {
        Trailer::of(end).map(|(trailer, _)| trailer.tail_bytes())
    }

    /// Decodes the end of an object. There may be more bytes before it.
    ///
    /// # Errors
    /// [`BadObject`] when any byte is not as it was written.
    pub fn decode(end: &[u8], keys: &KeyRing) -> Result<Self, BadObject> {
        let (trailer, crc) = Trailer::of(end)?;
        let bytes = trailer.tail_bytes();
        let begin = end.len().checked_sub(bytes).ok_or(BadObject::NotAnObject)?;
        let tail = &end[begin..];
        let covered = &tail[trailer.index_bytes..bytes - TRAILER_END_BYTES];
        if crc32fast::hash(covered) != crc {
            return Err(BadObject::Checksum("trailer"));
        }
        let (stored, rest) = tail.split_at(trailer.index_bytes);
        if crc32fast::hash(stored) != trailer.index_crc {
            return Err(BadObject::Checksum("index"));
        }
        let header_bytes = &rest[..trailer.header_bytes];
        let header = ObjectHeader::decode(header_bytes)?;
        let key = header.key.as_ref().map(|key| keys.unwrap_key(key)).transpose()?;
        let index = match &key {
            Some(key) => {
                let plain = key.open(INDEX_NUMBER, header_bytes, stored);
                ObjectIndex::decode(&plain.ok_or(BadObject::Undecryptable("the index"))?)?
            }
            None => ObjectIndex::decode(stored)?,
        };
        if index.packs.first().is_some_and(|first| first.entry <= header.after) {
            return Err(BadObject::Malformed("it begins before its first entry"));
        }
        let frames = frames(&index, trailer.header_bytes, key.is_some());
        Ok(Self { header, index, key, sha256: trailer.sha256, bytes, frames })
    }

    /// Bytes of the whole object.
    pub fn object_bytes(&self) -> u64 {
        self.frames.last().copied().unwrap_or(0) + length_u64(self.bytes)
    }

    /// Position of the pack with this number in the object, for a request for it alone.
    pub fn frame(&self, number: usize) -> Option<Range<u64>> {
        Some(*self.frames.get(number)?..*self.frames.get(number + 1)?)
    }

    /// Returns the pack with this number, from the bytes at its [`frame`](Self::frame).
    ///
    /// # Errors
    /// [`BadObject`] when any byte is not as it was written.
    pub fn open_frame(&self, number: usize, frame: &Bytes) -> Result<Bytes, BadObject> {
        let row = self.index.packs.get(number).ok_or(BadObject::Malformed("no such pack"))?;
        let (head, stored) = frame
            .split_at_checked(FRAME_HEADER_BYTES)
            .ok_or(BadObject::Malformed("a pack ends early"))?;
        if head != frame_header(row.entry, stored.len()) {
            return Err(BadObject::Malformed("a pack is not the one of the index"));
        }
        let pack: Bytes = match &self.key {
            Some(key) => {
                let plain = key.open(length_u64(number), head, stored);
                plain.ok_or(BadObject::Undecryptable("a pack"))?.into()
            }
            None => frame.slice(FRAME_HEADER_BYTES..),
        };
        let is_same = pack.len() == to_size(row.bytes) && checksum(&pack) == row.crc32;
        if is_same { Ok(pack) } else { Err(BadObject::Checksum("pack")) }
    }
}

impl ArchiveObject {
    /// Opens a whole object and checks every byte of it.
    ///
    /// # Errors
    /// [`BadObject`] when any byte is not as it was written.
    pub fn open(bytes: Bytes, keys: &KeyRing) -> Result<Self, BadObject> {
        let tail = ObjectTail::decode(&bytes, keys)?;
        if tail.object_bytes() != length_u64(bytes.len()) {
            return Err(BadObject::Malformed("length of the object"));
        }
        let covered = &bytes[..bytes.len() - tail.bytes];
        if Sha256::digest(covered)[..] != tail.sha256 {
            return Err(BadObject::Checksum("packs"));
        }
        let header = tail.header.encode();
        if !covered.starts_with(&header) {
            return Err(BadObject::Malformed("the headers differ"));
        }
        let object = Self { tail, bytes };
        for number in 0..object.tail.index.packs.len() {
            object.pack(number)?;
        }
        Ok(object)
    }

    /// All bytes of the object, as they were checked.
    pub fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Returns the pack with this number.
    ///
    /// # Errors
    /// [`BadObject`] if there is no such pack.
    pub fn pack(&self, number: usize) -> Result<Bytes, BadObject> {
        const NONE: BadObject = BadObject::Malformed("no such pack");
        let range = self.tail.frame(number).ok_or(NONE)?;
        let size = |place: u64| usize::try_from(place).ok();
        let (begin, end) = size(range.start).zip(size(range.end)).ok_or(NONE)?;
        if end > self.bytes.len() {
            return Err(NONE);
        }
        self.tail.open_frame(number, &self.bytes.slice(begin..end))
    }
}

/// Position of each frame, and of the end of the last one.
fn frames(index: &ObjectIndex, header_bytes: usize, is_encrypted: bool) -> Vec<u64> {
    let around = FRAME_HEADER_BYTES + if is_encrypted { SEAL_BYTES } else { 0 };
    let mut place = length_u64(header_bytes);
    let mut frames = Vec::with_capacity(index.packs.len() + 1);
    frames.push(place);
    for pack in &index.packs {
        place += u64::from(pack.bytes) + length_u64(around);
        frames.push(place);
    }
    frames
}

fn to_size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
