//! Fills an object. Packs are not copied: an object is a list of parts, which are sent one after the other.
//!
//! ```text
//! object  header | frame* | index (encrypted if there is a key) | header again | trailer
//! frame   entry (ms u64, seq u64) | length u32 | pack, as in the queue or encrypted
//! trailer sha256 32 | index bytes u32 | crc32 of these u32 | header bytes u16 | version u8 | 0 u8
//!         | crc32 u32 | "SPWA"
//! ```
//! The SHA-256 covers everything before the index. The last CRC (IEEE) covers the second header and the trailer
//! before it. Integers are little endian.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use spillway_webhook::StreamId;
use spillway_webhook::pack::{Pack, View};
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;

use crate::bloom::{BloomFilter, resource_hash, webhook_id_hash};
use crate::header::{MAGIC, ObjectHeader, VERSION};
use crate::index::{LabelCounts, ObjectIndex, PackRow, checksum};
use crate::input::{length_u32, length_u64, put_stream_id};
use crate::keys::{INDEX_NUMBER, KeyRing, NoRandomness, ObjectKey, SEAL_BYTES};
use crate::name::ObjectName;

/// Bytes before each pack.
pub(crate) const FRAME_HEADER_BYTES: usize = 20;
/// Bytes at the end of each object.
pub(crate) const TRAILER_BYTES: usize = 52;

/// An object that is being filled.
pub struct ObjectWriter {
    header: ObjectHeader,
    key: Option<ObjectKey>,
    parts: Vec<Bytes>,
    bytes: usize,
    hash: Sha256,
    contents: ObjectContents,
}

/// Description of what an object holds so far.
#[derive(Default)]
struct ObjectContents {
    received_ms: Option<(u64, u64)>,
    packs: Vec<PackRow>,
    shops: LabelCounts,
    topics: LabelCounts,
    webhook_ids: Vec<u64>,
    resources: Vec<u64>,
}

/// A complete object.
#[derive(Debug, Clone)]
pub struct SealedObject {
    /// Name of the object.
    pub name: ObjectName,
    /// Bytes of the object, in parts.
    pub parts: Vec<Bytes>,
    /// Number of these bytes.
    pub bytes: u64,
}

impl ObjectWriter {
    /// Begins an object of `cell` with what came after the entry `after`. It is encrypted if there are keys.
    ///
    /// # Errors
    /// If the system gives no random bytes for a key.
    pub fn new(cell: u32, after: StreamId, keys: &KeyRing) -> Result<Self, NoRandomness> {
        let (wrapped, key) = keys.new_object_key()?.unzip();
        let mut writer = Self {
            header: ObjectHeader { cell, after, key: wrapped },
            key,
            parts: Vec::new(),
            bytes: 0,
            hash: Sha256::new(),
            contents: ObjectContents::default(),
        };
        writer.push_hashed(writer.header.encode().into());
        Ok(writer)
    }

    /// Adds the pack of `entry`, which must be after all entries so far. Returns its row in the index: a pack
    /// that cannot be decoded is added too.
    ///
    /// # Panics
    /// When the entry is not after the last one.
    pub fn add(&mut self, entry: StreamId, pack: Bytes) -> PackRow {
        let last = self.contents.packs.last().map_or(self.header.after, |pack| pack.entry);
        assert!(last < entry, "BUG: entries of a stream grow");
        let number = length_u64(self.contents.packs.len());
        let decoded = Pack::decode(&pack).ok();
        let row = PackRow {
            entry,
            bytes: length_u32(pack.len()),
            webhooks: decoded.as_ref().map_or(0, Pack::count),
            is_corrupt: decoded.is_none(),
            crc32: checksum(&pack),
        };
        if let Some(decoded) = decoded {
            (0..decoded.count()).for_each(|index| self.contents.note(&decoded.view(index)));
        }
        self.contents.packs.push(row);
        let frame = frame_header(entry, pack.len() + self.seal_bytes());
        let stored: Bytes = match &self.key {
            Some(key) => key.seal(number, &frame, &pack).into(),
            None => pack,
        };
        self.push_hashed(frame.into());
        self.push_hashed(stored);
        row
    }

    /// Bytes so far, without the index.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Entry that was added first, if there is one.
    pub fn first(&self) -> Option<StreamId> {
        self.contents.packs.first().map(|pack| pack.entry)
    }

    /// Ends the object. `None` if it holds no pack.
    pub fn finish(mut self) -> Option<SealedObject> {
        let index = self.contents.into_index();
        let (first, last) = index.entries()?;
        let webhooks = index.webhooks();
        let cell = self.header.cell;
        let name = ObjectName { cell, first, last, webhooks, tag: index.tag(), generation: 0 };
        let header = self.header.encode();
        let plain = index.encode();
        let stored = match &self.key {
            Some(key) => key.seal(INDEX_NUMBER, &header, &plain),
            None => plain,
        };
        let trailer = trailer(&self.hash.finalize().into(), &stored, &header);
        for part in [stored, header, trailer] {
            self.bytes += part.len();
            self.parts.push(part.into());
        }
        Some(SealedObject { name, parts: self.parts, bytes: length_u64(self.bytes) })
    }

    fn seal_bytes(&self) -> usize {
        if self.key.is_some() { SEAL_BYTES } else { 0 }
    }

    fn push_hashed(&mut self, part: Bytes) {
        self.hash.update(&part);
        self.bytes += part.len();
        self.parts.push(part);
    }
}

impl ObjectContents {
    /// Notes one webhook.
    fn note(&mut self, webhook: &View<'_>) {
        let received = webhook.received_at_ms;
        let (first, last) = self.received_ms.unwrap_or((received, received));
        self.received_ms = Some((first.min(received), last.max(received)));
        if webhook.is_erased() {
            return;
        }
        let shop = webhook.shop().unwrap_or_default();
        self.shops.count(shop);
        self.topics.count(&webhook.topic().unwrap_or_default());
        if let Some(id) = webhook.shopify("webhook-id") {
            self.webhook_ids.push(webhook_id_hash(id));
        }
        let resource = Resource::of(webhook, webhook.body).to_string();
        self.resources.push(resource_hash(shop, resource.as_bytes()));
    }

    fn into_index(self) -> ObjectIndex {
        let mut resources = self.resources;
        resources.sort_unstable();
        resources.dedup();
        ObjectIndex {
            received_ms: self.received_ms,
            packs: self.packs,
            shops: self.shops,
            topics: self.topics,
            webhook_ids: BloomFilter::of(&self.webhook_ids),
            resources: BloomFilter::of(&resources),
        }
    }
}

/// Bytes before a pack, whose stored form has `stored` bytes.
pub(crate) fn frame_header(entry: StreamId, stored: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES);
    put_stream_id(&mut frame, entry);
    frame.extend_from_slice(&length_u32(stored).to_le_bytes());
    frame
}

fn trailer(sha256: &[u8; 32], index: &[u8], header: &[u8]) -> Vec<u8> {
    let mut trailer = Vec::with_capacity(TRAILER_BYTES);
    trailer.extend_from_slice(sha256);
    trailer.extend_from_slice(&length_u32(index.len()).to_le_bytes());
    trailer.extend_from_slice(&crc32fast::hash(index).to_le_bytes());
    let header_bytes = u16::try_from(header.len()).expect("BUG: a header is bounded");
    trailer.extend_from_slice(&header_bytes.to_le_bytes());
    trailer.extend_from_slice(&[VERSION, 0]);
    let mut crc = crc32fast::Hasher::new();
    crc.update(header);
    crc.update(&trailer);
    trailer.extend_from_slice(&crc.finalize().to_le_bytes());
    trailer.extend_from_slice(MAGIC);
    debug_assert_eq!(trailer.len(), TRAILER_BYTES);
    trailer
}
