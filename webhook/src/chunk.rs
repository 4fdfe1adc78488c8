//! Webhooks of one lane that were moved out of the main stream: the unit of storage of a lane.
//!
//! ```text
//! chunk     "SPWC" | crc32 u32 | version u8 | 0 u8 ×3 | count u32 | count positions | pack
//! position  ms u64 | seq u32 | index u32
//! ```
//! Integers are little endian. The CRC (IEEE) covers everything after itself. The pack holds the
//! record of each position, unchanged and in the same order.
//!
//! Invariant: a decoded chunk has exactly one position for each record. A claimed count is compared
//! with the bytes at hand before memory is allocated for it.

use bytes::{Buf, BufMut};

use crate::pack::{Corrupt, Pack, Packer};
use crate::position::Position;
use crate::size::size;

const MAGIC: &[u8; 4] = b"SPWC";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 16;
const CRC_COVERS_FROM: usize = 8;
const POSITION_BYTES: usize = 16;

/// A decoded chunk.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Position of each record of the pack.
    pub positions: Vec<Position>,
    /// Pack that holds the webhooks.
    pub pack: Pack,
}

impl Chunk {
    /// Encodes a chunk of `records`, each a pack and an index in it, that were accepted at
    /// `positions`.
    ///
    /// The caller bounds the records: a chunk whose records are together larger than
    /// [`RAW_BYTES_MAX`](crate::pack::RAW_BYTES_MAX) does not decode.
    ///
    /// # Panics
    /// When there is not one position for each record, or an index is not below [`Pack::count`].
    pub fn encode(
        packer: &mut Packer,
        positions: &[Position],
        records: &[(&Pack, u32)],
    ) -> Vec<u8> {
        assert_eq!(positions.len(), records.len(), "BUG: one position for each record");
        let count = u32::try_from(positions.len()).expect("BUG: a chunk is bounded far below it");
        let pack = packer.pack_records(records);
        let mut bytes =
            Vec::with_capacity(HEADER_BYTES + positions.len() * POSITION_BYTES + pack.len());
        bytes.put_slice(MAGIC);
        bytes.put_u32_le(0);
        bytes.put_slice(&[VERSION, 0, 0, 0]);
        bytes.put_u32_le(count);
        for position in positions {
            bytes.put_u64_le(position.ms);
            bytes.put_u32_le(position.seq);
            bytes.put_u32_le(position.index);
        }
        bytes.put_slice(pack);
        let crc = crc32fast::hash(&bytes[CRC_COVERS_FROM..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes and checks a whole chunk.
    ///
    /// # Errors
    /// [`Corrupt`] when any byte is not as [`Chunk::encode`] writes it.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let (positions, pack) = split(bytes)?;
        let pack = Pack::decode(pack)?;
        if size(pack.count()) != positions.len() {
            return Err(Corrupt::Malformed("not one position for each record"));
        }
        Ok(Self { positions, pack })
    }

    /// Decodes only the positions of a chunk, in a fifth of the time that [`Chunk::decode`] takes.
    /// Does not check that there is a record for each position.
    ///
    /// # Errors
    /// [`Corrupt`] when the checksum or the header is not as [`Chunk::encode`] writes it.
    pub fn decode_positions(bytes: &[u8]) -> Result<Vec<Position>, Corrupt> {
        split(bytes).map(|(positions, _)| positions)
    }
}

/// Splits a chunk into its positions and the bytes of its pack.
fn split(bytes: &[u8]) -> Result<(Vec<Position>, &[u8]), Corrupt> {
    if bytes.len() < HEADER_BYTES || bytes[..4] != *MAGIC {
        return Err(Corrupt::NotAPack);
    }
    let (mut header, rest) = bytes[4..].split_at(HEADER_BYTES - 4);
    let crc = header.get_u32_le();
    if crc32fast::hash(&bytes[CRC_COVERS_FROM..]) != crc {
        return Err(Corrupt::Checksum);
    }
    let version = header.get_u8();
    if version != VERSION {
        return Err(Corrupt::Unknown(version, 0));
    }
    header.advance(3);
    let count = header.get_u32_le();
    let (positions, pack) = usize::try_from(count)
        .ok()
        .and_then(|count| count.checked_mul(POSITION_BYTES))
        .and_then(|bytes| rest.split_at_checked(bytes))
        .ok_or(Corrupt::Malformed("the positions end early"))?;
    Ok((positions.chunks_exact(POSITION_BYTES).map(position).collect(), pack))
}

fn position(mut bytes: &[u8]) -> Position {
    Position { ms: bytes.get_u64_le(), seq: bytes.get_u32_le(), index: bytes.get_u32_le() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::Records;
    use crate::received::Webhook;
    use bytes::Bytes;
    use http::HeaderMap;
    use proptest::prelude::*;

    fn pack_of(bodies: &[Vec<u8>]) -> Pack {
        let mut records = Records::default();
        for body in bodies {
            records.push(&Webhook {
                received_at_ms: 7,
                target: "/a".parse().unwrap(),
                headers: HeaderMap::new(),
                body: Bytes::copy_from_slice(body),
            });
        }
        Pack::decode(Packer::new().pack(&records)).unwrap()
    }

    fn at(ms: u64) -> Position {
        Position { ms, seq: 1, index: 2 }
    }

    fn sample() -> Vec<u8> {
        let first = pack_of(&[b"{1".to_vec(), b"{2".to_vec()]);
        let second = pack_of(&[b"{3".to_vec()]);
        Chunk::encode(&mut Packer::new(), &[at(1), at(2)], &[(&first, 1), (&second, 0)])
    }

    /// Replaces the checksum by one that matches the bytes.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let crc = crc32fast::hash(&bytes[CRC_COVERS_FROM..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn records_of_several_packs_come_out_unchanged() {
        let chunk = Chunk::decode(&sample()).unwrap();
        assert_eq!(chunk.positions, [at(1), at(2)]);
        assert_eq!(Chunk::decode_positions(&sample()).unwrap(), chunk.positions);
        assert_eq!(chunk.pack.record(0).body, "{2");
        assert_eq!(chunk.pack.record(1).body, "{3");
        assert_eq!(chunk.pack.record(1).target, "/a");
    }

    #[test]
    fn an_empty_chunk_is_read_back() {
        let chunk = Chunk::decode(&Chunk::encode(&mut Packer::new(), &[], &[])).unwrap();
        assert_eq!((chunk.positions.len(), chunk.pack.count()), (0, 0));
    }

    #[test]
    fn a_cut_or_a_flipped_bit_anywhere_is_noticed() {
        let good = sample();
        for at in 0..good.len() {
            assert!(Chunk::decode(&good[..at]).is_err(), "cut to {at}");
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(Chunk::decode(&bad).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn a_count_that_lies_under_a_right_checksum_is_refused() {
        let good = sample();
        for count in [0, 1, 3, 1_000_000, u32::MAX] {
            let mut bad = good.clone();
            bad[12..16].copy_from_slice(&count.to_le_bytes());
            assert!(Chunk::decode(&sealed(bad)).is_err(), "{count}");
        }
        let three = pack_of(&[b"1".to_vec(), b"2".to_vec(), b"3".to_vec()]);
        let mut other = good[..HEADER_BYTES + 2 * POSITION_BYTES].to_vec();
        other.extend(Packer::new().pack_records(&[(&three, 0), (&three, 1), (&three, 2)]));
        let refused = Chunk::decode(&sealed(other)).unwrap_err();
        assert_eq!(refused, Corrupt::Malformed("not one position for each record"));
    }

    #[test]
    fn a_newer_version_and_a_pack_are_told_apart_from_a_chunk() {
        let mut newer = sample();
        newer[8] = 9;
        assert_eq!(Chunk::decode(&sealed(newer)).unwrap_err(), Corrupt::Unknown(9, 0));
        let pack = pack_of(&[b"{".to_vec()]);
        let pack = Packer::new().single_out(&pack, 0);
        assert_eq!(Chunk::decode(&pack).unwrap_err(), Corrupt::NotAPack);
        assert_eq!(Pack::decode(&sample()).unwrap_err(), Corrupt::NotAPack);
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 1..8),
            picks in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u32>(), any::<prop::sample::Index>()), 0..20),
        ) {
            let pack = pack_of(&bodies);
            let positions: Vec<_> =
                picks.iter().map(|&(ms, seq, index, _)| Position { ms, seq, index }).collect();
            let chosen: Vec<usize> =
                picks.iter().map(|(_, _, _, pick)| pick.index(bodies.len())).collect();
            let records: Vec<_> =
                chosen.iter().map(|&at| (&pack, u32::try_from(at).unwrap())).collect();
            let bytes = Chunk::encode(&mut Packer::new(), &positions, &records);
            let chunk = Chunk::decode(&bytes).unwrap();
            prop_assert_eq!(&chunk.positions, &positions);
            for (index, at) in (0..chunk.pack.count()).zip(chosen) {
                prop_assert_eq!(&chunk.pack.record(index).body[..], &bodies[at][..]);
            }
        }

        #[test]
        fn any_bytes_are_refused_or_decode(at in 0usize..400, value in any::<u8>()) {
            let mut bytes = sample();
            let at = CRC_COVERS_FROM + at % (bytes.len() - CRC_COVERS_FROM);
            bytes[at] = value;
            if let Ok(chunk) = Chunk::decode(&sealed(bytes)) {
                prop_assert_eq!(chunk.positions.len(), chunk.pack.count() as usize);
            }
        }
    }
}
