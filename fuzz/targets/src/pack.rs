//! Any bytes as a pack.
//!
//! Properties: no panic. A pack that decodes is no larger than allowed. All readers of it see the
//! same. A webhook extracted into its own pack stays the same. libFuzzer checks the memory
//! (`malloc_limit_mb`): none is allocated for a size that is only claimed.

use spillway_webhook::pack::{Pack, RAW_BYTES_MAX};

use crate::PACKER;

/// Packs with more records are checked only in part.
const LOOKED_AT_MAX: u32 = 64;

/// Runs the target. If the first byte is odd, the checksum is corrected, so that the code after it
/// is reached.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let mut bytes = rest.to_vec();
    if first % 2 == 1 && bytes.len() >= 8 {
        bytes[..4].copy_from_slice(b"SPWY");
        let crc = crc32(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    }
    let Ok(pack) = Pack::decode(&bytes) else { return };
    assert!(pack.raw_bytes() <= RAW_BYTES_MAX);
    for index in 0..pack.count().min(LOOKED_AT_MAX) {
        let (record, view) = (pack.record(index), pack.view(index));
        assert_eq!(record.received_at_ms, view.received_at_ms);
        assert_eq!(record.target, view.target);
        assert_eq!(record.body, view.body);
        let seen: Vec<_> = view.headers().collect();
        let read: Vec<_> =
            record.headers.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        assert_eq!(seen, read);
        assert_eq!(pack.pluck(index).record(0).body, record.body);
    }
    if pack.count() > 0 {
        let alone = Pack::decode(&PACKER.with_borrow_mut(|packer| packer.single_out(&pack, 0)))
            .expect("our own pack");
        let (here, there) = (pack.record(0), alone.record(0));
        assert_eq!(
            (here.target, here.headers, here.body),
            (there.target, there.headers, there.body)
        );
    }
}

/// CRC-32 (IEEE), bit by bit.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1))
        })
    })
}
