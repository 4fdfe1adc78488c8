//! A record: one pack, with the data to find it again and to check it.
//!
//! ```text
//! record  "SPRC" | crc32c u32 | pack_bytes u32 | webhooks u32 | number u64 | synced u64 | pack
//! ```
//! Integers are little endian. The CRC covers everything after itself. `synced` is the number of
//! the newest record that was certainly on disk when this one was written. It separates damage to
//! acknowledged records from a tail that a power cut may have torn. The magic number is what the
//! search for the next record after damage looks for.

/// Magic number at the start of a record.
pub const MAGIC: &[u8; 4] = b"SPRC";
/// Bytes before the pack.
pub const HEAD_BYTES: usize = 32;
/// Maximum size of a pack in a record: the maximum decoded size of a pack, and a reserve for one
/// that does not compress. A larger length is damage.
pub const PACK_BYTES_MAX: usize = 192 << 20;

/// Head of a record, before the pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// CRC32C of everything after it.
    pub crc: u32,
    /// Length of the pack.
    pub pack_bytes: usize,
    /// Number of webhooks in the pack.
    pub webhooks: u32,
    /// Number of the record: greater than that of any record before it, and never used again.
    pub number: u64,
    /// Number of the newest record that was synced before this one was written; 0 if there was
    /// none.
    pub synced: u64,
}

impl Head {
    /// Creates the head for a pack that is to be written.
    pub fn of(pack: &[u8], webhooks: u32, number: u64, synced: u64) -> Self {
        let mut head = Self { crc: 0, pack_bytes: pack.len(), webhooks, number, synced };
        head.crc = crc32c::crc32c_append(crc32c::crc32c(&head.encode()[8..]), pack);
        head
    }

    /// Returns the bytes of the head in the file.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let pack_bytes = u32::try_from(self.pack_bytes).expect("BUG: a pack is bounded");
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes[8..12].copy_from_slice(&pack_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.webhooks.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..].copy_from_slice(&self.synced.to_le_bytes());
        bytes
    }

    /// Reads bytes that may be anything. `None` if they cannot be the head of a record. The result
    /// is only trustworthy once [`is_of`](Self::is_of) has checked the pack.
    pub fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or([0; 4]));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or([0; 8]));
        let head = Self {
            crc: u32_at(4),
            pack_bytes: u32_at(8) as usize,
            webhooks: u32_at(12),
            number: u64_at(16),
            synced: u64_at(24),
        };
        (bytes.starts_with(MAGIC) && head.pack_bytes <= PACK_BYTES_MAX).then_some(head)
    }

    /// True if head and pack are as they were written.
    pub fn is_of(&self, pack: &[u8]) -> bool {
        pack.len() == self.pack_bytes
            && crc32c::crc32c_append(crc32c::crc32c(&self.encode()[8..]), pack) == self.crc
    }

    /// Size of the whole record in bytes.
    pub fn record_bytes(&self) -> u64 {
        (HEAD_BYTES + self.pack_bytes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_trusted_only_as_it_was_written() {
        let pack = b"any bytes".as_slice();
        let head = Head::of(pack, 3, 7, 6);
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Some(head));
        assert!(head.is_of(pack));
        assert!(!head.is_of(b"any bytez"));
        for at in 0..HEAD_BYTES {
            let mut other = bytes;
            other[at] ^= 1;
            assert!(!Head::decode(&other).is_some_and(|head| head.is_of(pack)), "byte {at}");
        }
    }
}
