//! The index of an object: which packs it holds, of which time, shops and topics.
//!
//! ```text
//! index    received (first ms, last ms) u64 ×2 | count, pack* | shops | topics | filter of webhook ids
//!          | filter of resources
//! pack     ms (from the pack before) | seq | length | 2 · webhooks + (1 if corrupt) | crc32 u32
//! labels   incomplete u8 | count, (length, bytes, webhooks)*
//! filter   length, bits
//! ```
//! Numbers without a size are LEB128, others are little endian. Length and CRC (IEEE) are those of the pack as
//! it lies in the queue.
//!
//! Invariant: the entries of a decoded index grow strictly, and no count in it is larger than its bytes allow.

use std::collections::BTreeMap;

use spillway_webhook::StreamId;

use crate::bloom::BloomFilter;
use crate::error::BadObject;
use crate::input::{Input, length_u64, put_bytes, put_number};

/// Most shops or topics of one index. 4096 domains of shops have 150 KB, which is half a percent of an object
/// of the default size.
pub const LABELS_MAX: usize = 4096;
/// Longest label. A domain has at most 253 bytes; topics are far shorter.
const LABEL_BYTES_MAX: usize = 255;
/// Least bytes of a pack in an index.
const ROW_BYTES_MIN: usize = 8;
/// Least bytes of a label.
const LABEL_BYTES_MIN: usize = 2;

/// Index of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectIndex {
    /// Times at which the first and the last webhook was received, in milliseconds since the Unix epoch.
    /// `None` if there is no webhook that can be read.
    pub received_ms: Option<(u64, u64)>,
    /// Packs in the order of the stream. There is at least one.
    pub packs: Vec<PackRow>,
    /// Shops, by domain.
    pub shops: LabelCounts,
    /// Topics; those of Events with their action.
    pub topics: LabelCounts,
    /// Shopify's webhook ids, as [`webhook_id_hash`](crate::bloom::webhook_id_hash).
    pub webhook_ids: BloomFilter,
    /// Resources, as [`resource_hash`](crate::bloom::resource_hash).
    pub resources: BloomFilter,
}

/// One pack of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackRow {
    /// Entry of the stream that it was in.
    pub entry: StreamId,
    /// Bytes of the pack in the queue.
    pub bytes: u32,
    /// Webhooks in it; 0 if it cannot be decoded.
    pub webhooks: u32,
    /// True if it cannot be decoded. It is archived as it is.
    pub is_corrupt: bool,
    /// CRC-32 of the pack in the queue.
    pub crc32: u32,
}

/// Properties by which a pack is the same in two objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackIdentity {
    /// Entry of the stream.
    pub entry: StreamId,
    /// Bytes of the pack.
    pub bytes: u32,
    /// CRC-32 of the pack.
    pub crc32: u32,
}

/// Webhooks by shop, or by topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelCounts {
    counts: BTreeMap<Vec<u8>, u64>,
    is_incomplete: bool,
}

/// CRC-32 of a pack, as it is in an index.
pub fn checksum(pack: &[u8]) -> u32 {
    crc32fast::hash(pack)
}

impl PackRow {
    /// Properties by which the pack is the same in another object.
    pub fn identity(&self) -> PackIdentity {
        PackIdentity { entry: self.entry, bytes: self.bytes, crc32: self.crc32 }
    }
}

impl LabelCounts {
    /// Counts a webhook with this label.
    pub(crate) fn count(&mut self, label: &[u8]) {
        if let Some(count) = self.counts.get_mut(label) {
            *count += 1;
        } else if self.counts.len() < LABELS_MAX && label.len() <= LABEL_BYTES_MAX {
            self.counts.insert(label.to_vec(), 1);
        } else {
            self.is_incomplete = true;
        }
    }

    /// Labels with their webhooks, sorted. The counts are exact.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.counts.iter().map(|(label, count)| (label.as_slice(), *count))
    }

    /// Number of labels.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// True if there is no label.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// True if there were more labels than an index holds: one that is missing here may be in the object.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// False if the object certainly holds no webhook whose label satisfies `is_meant`.
    pub fn may_hold(&self, is_meant: impl Fn(&[u8]) -> bool) -> bool {
        self.is_incomplete || self.counts.keys().any(|label| is_meant(label))
    }

    fn encode(&self, output: &mut Vec<u8>) {
        output.push(u8::from(self.is_incomplete));
        put_number(output, length_u64(self.counts.len()));
        for (label, count) in &self.counts {
            put_bytes(output, label);
            put_number(output, *count);
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, BadObject> {
        let is_incomplete = match input.u8()? {
            0 => false,
            1 => true,
            _ => return Err(BadObject::Malformed("flag of labels")),
        };
        let mut counts: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for _ in 0..input.count(LABEL_BYTES_MIN)? {
            let label = input.bytes()?;
            let count = input.number()?;
            if counts.last_key_value().is_some_and(|(last, _)| last.as_slice() >= label) {
                return Err(BadObject::Malformed("order of labels"));
            }
            counts.insert(label.to_vec(), count);
        }
        Ok(Self { counts, is_incomplete })
    }
}

impl ObjectIndex {
    /// Number of webhooks.
    pub fn webhooks(&self) -> u64 {
        self.packs.iter().map(|pack| u64::from(pack.webhooks)).sum()
    }

    /// Number of packs that cannot be decoded.
    pub fn corrupt_packs(&self) -> usize {
        self.packs.iter().filter(|pack| pack.is_corrupt).count()
    }

    /// First and last entry.
    pub fn entries(&self) -> Option<(StreamId, StreamId)> {
        Some((self.packs.first()?.entry, self.packs.last()?.entry))
    }

    /// Hash of entry, length and checksum of each pack. It is part of the object's name.
    pub fn tag(&self) -> u32 {
        let mut hash = crc32fast::Hasher::new();
        for PackRow { entry, bytes, crc32, .. } in &self.packs {
            hash.update(&entry.ms.to_le_bytes());
            hash.update(&entry.seq.to_le_bytes());
            hash.update(&bytes.to_le_bytes());
            hash.update(&crc32.to_le_bytes());
        }
        hash.finalize()
    }

    /// Encodes the index.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut output = Vec::with_capacity(64 + self.packs.len() * 12);
        let (first, last) = self.received_ms.unwrap_or_default();
        output.extend_from_slice(&first.to_le_bytes());
        output.extend_from_slice(&last.to_le_bytes());
        put_number(&mut output, length_u64(self.packs.len()));
        let mut ms = 0;
        for pack in &self.packs {
            put_number(&mut output, pack.entry.ms - ms);
            ms = pack.entry.ms;
            put_number(&mut output, pack.entry.seq);
            put_number(&mut output, u64::from(pack.bytes));
            put_number(&mut output, u64::from(pack.webhooks) << 1 | u64::from(pack.is_corrupt));
            output.extend_from_slice(&pack.crc32.to_le_bytes());
        }
        self.shops.encode(&mut output);
        self.topics.encode(&mut output);
        put_bytes(&mut output, self.webhook_ids.bits());
        put_bytes(&mut output, self.resources.bits());
        output
    }

    /// Decodes an index that fills all `bytes`.
    ///
    /// # Errors
    /// [`BadObject::Malformed`] when its parts contradict each other.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadObject> {
        let mut input = Input::new(bytes);
        let received = (input.u64()?, input.u64()?);
        let packs = rows(&mut input)?;
        let has_webhooks = packs.iter().any(|pack| pack.webhooks > 0);
        let shops = LabelCounts::decode(&mut input)?;
        let topics = LabelCounts::decode(&mut input)?;
        let webhook_ids = filter(&mut input)?;
        let resources = filter(&mut input)?;
        if !input.is_empty() {
            return Err(BadObject::Malformed("bytes after the index"));
        }
        if received.0 > received.1 {
            return Err(BadObject::Malformed("times of the index"));
        }
        let received_ms = has_webhooks.then_some(received);
        Ok(Self { received_ms, packs, shops, topics, webhook_ids, resources })
    }
}

fn rows(input: &mut Input<'_>) -> Result<Vec<PackRow>, BadObject> {
    const ORDER: BadObject = BadObject::Malformed("order of packs");
    let count = input.count(ROW_BYTES_MIN)?;
    let mut packs: Vec<PackRow> = Vec::with_capacity(count);
    for _ in 0..count {
        let before = packs.last().map(|pack| pack.entry);
        let ms = before.map_or(0, |before| before.ms).checked_add(input.number()?).ok_or(ORDER)?;
        let entry = StreamId { ms, seq: input.number()? };
        if before.is_some_and(|before| before >= entry) {
            return Err(ORDER);
        }
        let bytes = input.small()?;
        let webhooks = input.number()?;
        let is_corrupt = webhooks & 1 == 1;
        let webhooks =
            u32::try_from(webhooks >> 1).map_err(|_| BadObject::Malformed("webhooks of a pack"))?;
        if is_corrupt && webhooks > 0 {
            return Err(BadObject::Malformed("webhooks of a corrupt pack"));
        }
        packs.push(PackRow { entry, bytes, webhooks, is_corrupt, crc32: input.u32()? });
    }
    if packs.is_empty() { Err(BadObject::Malformed("no packs")) } else { Ok(packs) }
}

fn filter(input: &mut Input<'_>) -> Result<BloomFilter, BadObject> {
    BloomFilter::from_bits(input.bytes()?).ok_or(BadObject::Malformed("empty filter"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(texts: &[&str]) -> LabelCounts {
        let mut labels = LabelCounts::default();
        texts.iter().for_each(|text| labels.count(text.as_bytes()));
        labels
    }

    fn index(packs: Vec<PackRow>) -> ObjectIndex {
        let received_ms = packs.iter().any(|pack| pack.webhooks > 0).then_some((5, 9));
        ObjectIndex {
            received_ms,
            packs,
            shops: labels(&["b.example", "a.example", "b.example"]),
            topics: labels(&["orders/create"]),
            webhook_ids: BloomFilter::of(&[1, 2, 3]),
            resources: BloomFilter::of(&[]),
        }
    }

    proptest! {
        #[test]
        fn an_index_is_read_back(
            steps in prop::collection::vec((0u64..100_000, 1u64..50, any::<u32>(), any::<u32>(), any::<bool>(), any::<u32>()), 1..50),
        ) {
            let mut entry = StreamId::ZERO;
            let packs = steps.into_iter().map(|(ms, seq, bytes, webhooks, is_corrupt, crc32)| {
                entry = StreamId { ms: entry.ms + ms, seq: if ms == 0 { entry.seq + seq } else { seq } };
                PackRow { entry, bytes, webhooks: if is_corrupt { 0 } else { webhooks }, is_corrupt, crc32 }
            });
            let index = index(packs.collect());
            let bytes = index.encode();
            prop_assert_eq!(ObjectIndex::decode(&bytes), Ok(index));
            for at in 0..bytes.len() {
                prop_assert!(ObjectIndex::decode(&bytes[..at]).is_err(), "cut to {}", at);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            ObjectIndex::decode(&bytes).ok();
        }
    }

    #[test]
    fn labels_beyond_the_bound_are_left_out_and_said_to_be() {
        let mut counts = LabelCounts::default();
        for number in 0..LABELS_MAX {
            counts.count(format!("shop-{number}").as_bytes());
        }
        assert!(!counts.is_incomplete() && !counts.may_hold(|label| label == b"other"));
        counts.count(b"shop-7");
        counts.count(b"other");
        assert!(counts.is_incomplete() && counts.may_hold(|label| label == b"other"));
        assert_eq!(counts.len(), LABELS_MAX);
        assert!(counts.iter().any(|(label, count)| label == b"shop-7" && count == 2));
        let mut long = LabelCounts::default();
        long.count(&[b'x'; LABEL_BYTES_MAX + 1]);
        assert!(long.is_empty() && long.is_incomplete());
    }

    #[test]
    fn the_tag_depends_on_each_pack() {
        let row = |ms, crc32| PackRow {
            entry: StreamId { ms, seq: 0 },
            bytes: 10,
            webhooks: 1,
            is_corrupt: false,
            crc32,
        };
        let tag = index(vec![row(1, 7), row(2, 7)]).tag();
        assert_ne!(tag, index(vec![row(1, 7), row(2, 8)]).tag());
        assert_ne!(tag, index(vec![row(1, 7), row(3, 7)]).tag());
        assert_eq!(tag, index(vec![row(1, 7), row(2, 7)]).tag());
    }
}
