//! The first bytes of an object: whose it is, after which entry it begins, and its wrapped key.
//!
//! ```text
//! header  "SPWA" | version u8 | flags u8 | header bytes u16 | cell u32 | after (ms u64, seq u64)
//!         | if encrypted: length of the key's id u8, id, nonce 12, wrapped key 48 | crc32 u32
//! ```
//! Integers are little endian. The CRC (IEEE) covers everything before it. The end of an object repeats the
//! header, so that one request for the end is enough to read all but the packs.

use spillway_webhook::StreamId;

use crate::error::BadObject;
use crate::input::{Input, put_stream_id};
use crate::keys::{KEY_ID_BYTES_MAX, WrappedKey};

/// First and last bytes of an object.
pub(crate) const MAGIC: &[u8; 4] = b"SPWA";
/// Version of the format.
pub(crate) const VERSION: u8 = 1;
/// Flag: packs and index are encrypted.
const ENCRYPTED: u8 = 1;
/// Bytes of a header without a key, without its CRC.
const FIXED_BYTES: usize = 28;
const CRC_BYTES: usize = 4;
const NONCE_BYTES: usize = 12;
const WRAPPED_BYTES: usize = 48;
/// Most bytes of a header.
pub(crate) const HEADER_BYTES_MAX: usize =
    FIXED_BYTES + 1 + KEY_ID_BYTES_MAX + NONCE_BYTES + WRAPPED_BYTES + CRC_BYTES;

/// Header of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectHeader {
    /// Random id of the cell.
    pub cell: u32,
    /// Entry before the first one of the object: there was no other between them.
    pub after: StreamId,
    /// Key of the object, wrapped with a key of ARCHIVE_KEY_FILE. `None` if it is not encrypted.
    pub key: Option<WrappedKey>,
}

impl ObjectHeader {
    /// Encodes the header.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let key_bytes =
            self.key.as_ref().map_or(0, |key| 1 + key.id.len() + NONCE_BYTES + WRAPPED_BYTES);
        let length = FIXED_BYTES + key_bytes + CRC_BYTES;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(MAGIC);
        bytes.push(VERSION);
        bytes.push(if self.key.is_some() { ENCRYPTED } else { 0 });
        let length = u16::try_from(length).expect("BUG: the id of a key is bounded");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&self.cell.to_le_bytes());
        put_stream_id(&mut bytes, self.after);
        if let Some(key) = &self.key {
            bytes.push(u8::try_from(key.id.len()).expect("BUG: the id of a key is bounded"));
            bytes.extend_from_slice(key.id.as_bytes());
            bytes.extend_from_slice(&key.nonce);
            bytes.extend_from_slice(&key.wrapped);
        }
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header that fills all `bytes`.
    ///
    /// # Errors
    /// [`BadObject`] when any byte is not as [`ObjectHeader::encode`] writes it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadObject> {
        let mut input = Input::new(bytes);
        if input.array::<4>()? != *MAGIC {
            return Err(BadObject::NotAnObject);
        }
        let version = input.u8()?;
        if version != VERSION {
            return Err(BadObject::Unknown(version));
        }
        let (covered, crc) = bytes.split_last_chunk::<CRC_BYTES>().ok_or(BadObject::NotAnObject)?;
        if crc32fast::hash(covered) != u32::from_le_bytes(*crc) {
            return Err(BadObject::Checksum("header"));
        }
        let flags = input.u8()?;
        let length = input.u16()?;
        let cell = input.u32()?;
        let after = input.stream_id()?;
        let key = match flags {
            0 => None,
            ENCRYPTED => Some(wrapped_key(&mut input)?),
            _ => return Err(BadObject::Malformed("flags of the header")),
        };
        if input.left() != CRC_BYTES || usize::from(length) != bytes.len() {
            return Err(BadObject::Malformed("length of the header"));
        }
        Ok(Self { cell, after, key })
    }
}

fn wrapped_key(input: &mut Input<'_>) -> Result<WrappedKey, BadObject> {
    let length = usize::from(input.u8()?);
    let id = std::str::from_utf8(input.take(length)?).ok().filter(|id| !id.is_empty());
    let id = id.ok_or(BadObject::Malformed("id of the key"))?.to_owned();
    Ok(WrappedKey { id, nonce: input.array()?, wrapped: input.array()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(key: Option<WrappedKey>) -> ObjectHeader {
        ObjectHeader { cell: 0xa1b2_c3d4, after: StreamId { ms: 5, seq: 7 }, key }
    }

    #[test]
    fn a_header_is_read_back_and_damage_is_found() {
        let key = WrappedKey { id: "2026".to_owned(), nonce: [1; 12], wrapped: [2; 48] };
        for header in [header(None), header(Some(key))] {
            let bytes = header.encode();
            assert!(bytes.len() <= HEADER_BYTES_MAX);
            assert_eq!(ObjectHeader::decode(&bytes), Ok(header));
            for at in 0..bytes.len() {
                assert!(ObjectHeader::decode(&bytes[..at]).is_err(), "cut to {at}");
                for bit in 0..8 {
                    let mut bad = bytes.clone();
                    bad[at] ^= 1 << bit;
                    assert!(ObjectHeader::decode(&bad).is_err(), "bit {bit} of byte {at}");
                }
            }
        }
    }
}
