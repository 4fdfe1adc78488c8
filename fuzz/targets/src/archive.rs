//! Any bytes as an object of the archive.
//!
//! Properties: no panic. An object that opens gives each of its packs, and its end alone gives the same index.
//! Packs of any bytes come out of an object as they went in. The first byte chooses: the bytes as an object, as
//! an index whose checksums are right, or as packs of an object.

use bytes::Bytes;
use spillway_archive::keys::KeyRing;
use spillway_archive::{ArchiveObject, ObjectTail, ObjectWriter};
use spillway_webhook::StreamId;

use crate::pack::crc32;

/// Most packs of one object.
const PACKS_MAX: u64 = 16;

/// Runs the target.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    match first % 3 {
        0 => open(rest),
        1 => open_index(rest),
        _ => round_trip(rest),
    }
}

fn open(bytes: &[u8]) {
    let keys = KeyRing::default();
    let Ok(object) = ArchiveObject::open(Bytes::copy_from_slice(bytes), &keys) else { return };
    let tail = ObjectTail::decode(bytes, &keys).expect("the end of an object that opens");
    assert_eq!(tail.index, object.tail.index);
    for number in 0..tail.index.packs.len() {
        assert!(object.pack(number).is_ok(), "pack {number}");
    }
}

/// Makes the end of an object of these bytes as its index.
fn open_index(index: &[u8]) {
    let mut header = [&b"SPWA\x01\x00\x20\x00"[..], &[7; 4], &[0; 16]].concat();
    header.extend(crc32(&header).to_le_bytes());
    let mut trailer = vec![0; 32];
    trailer.extend(u32::try_from(index.len()).expect("a small input").to_le_bytes());
    trailer.extend(crc32(index).to_le_bytes());
    trailer.extend([32, 0, 1, 0]);
    let crc = crc32(&[&header[..], &trailer].concat());
    trailer.extend(crc.to_le_bytes());
    trailer.extend(b"SPWA");
    let end = [index, &header, &trailer].concat();
    let keys = KeyRing::default();
    let Ok(tail) = ObjectTail::decode(&end, &keys) else { return };
    let count = tail.index.packs.len();
    assert!(count > 0 && tail.index.packs.is_sorted_by(|one, next| one.entry < next.entry));
    assert!(tail.frame(count).is_none());
    let last = tail.frame(count - 1).expect("the last pack");
    assert!(last.end <= tail.object_bytes());
    // The packs are missing.
    assert!(ArchiveObject::open(end.into(), &keys).is_err());
}

/// Each pack is as long as the byte before it says.
fn round_trip(mut rest: &[u8]) {
    let mut writer =
        ObjectWriter::new(7, StreamId::ZERO, &KeyRing::default()).expect("no key is needed");
    let mut packs = Vec::new();
    while let Some((length, more)) = rest.split_first() {
        let (pack, more) = more.split_at(usize::from(*length).min(more.len()));
        rest = more;
        let entry = StreamId { ms: 1 + packs.len() as u64, seq: 0 };
        writer.add(entry, Bytes::copy_from_slice(pack));
        packs.push(pack);
        if entry.ms == PACKS_MAX {
            break;
        }
    }
    let Some(sealed) = writer.finish() else { return };
    let object = ArchiveObject::open(sealed.parts.concat().into(), &KeyRing::default());
    let object = object.expect("our own object");
    for (number, pack) in packs.iter().enumerate() {
        assert_eq!(object.pack(number).as_deref(), Ok(*pack));
    }
}
