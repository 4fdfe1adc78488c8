//! Many webhooks as one stream entry: the unit of storage.
//!
//! ```text
//! pack    "SPWY" | crc32 u32 | version u8 | codec u8 | 0 u16 | count u32 | raw_bytes u32 | payload
//! payload count records, compressed as `codec` says (0 = stored, 1 = zstd)
//! record  received_at_ms u64 | target u32 | headers u32 | body u32 | header_count u16
//!         | target bytes | headers: (name u16, value u32, name bytes, value bytes)* | body bytes
//! ```
//! Integers are little endian. The CRC (IEEE) covers everything after itself.
//!
//! Invariant: a decoded pack was checked up to its last byte, so reading one of its records cannot
//! fail. No length is trusted: a claimed size over [`RAW_BYTES_MAX`] is refused before memory is
//! allocated for it.

mod view;

use std::cell::RefCell;

use bytes::{Buf, Bytes};
use zstd::zstd_safe::CParameter;

use crate::received::Webhook;
use crate::shopify::Headers;
use crate::size::size;

pub use self::view::{HeaderViews, View};

/// A pack is closed once it holds this many raw bytes. Bigger packs do not raise the throughput.
pub const RAW_BYTES_TARGET: usize = 1 << 20;
/// Maximum decoded size of a pack: the largest body that may be configured, and its headers.
pub const RAW_BYTES_MAX: usize = 160 << 20;

const MAGIC: &[u8; 4] = b"SPWY";
const VERSION: u8 = 1;
/// Usual size of a record without its body, with some reserve.
const HEAD_BYTES: usize = 4096;
const HEADER_BYTES: usize = 20;
const CRC_COVERS_FROM: usize = 8;
const RECORD_HEADER_BYTES: usize = 22;
const CODEC_STORED: u8 = 0;
const CODEC_ZSTD: u8 = 1;
/// Level 1 with a hash table that fits the first-level cache, and without matches that cost more
/// than they save. On 5.3 KB webhooks, 64 to a pack, this gives 946 bytes each in 8.2 µs, instead
/// of 920 in 9.4 µs. Figures from ADR 4.
const ZSTD_LEVEL: i32 = 1;
const ZSTD_PARAMETERS: [CParameter; 3] =
    [CParameter::WindowLog(18), CParameter::HashLog(13), CParameter::MinMatch(7)];

/// Records, one after the other: the content of the next pack.
#[derive(Debug, Default)]
pub struct Records {
    raw: Vec<u8>,
    /// End of each record in `raw`.
    ends: Vec<usize>,
}

/// Makes packs of records. Reuse one packer, so that its buffers are reused.
pub struct Packer {
    zstd: zstd::bulk::Compressor<'static>,
    /// Longer than the pack it holds: it is not cleared for each pack.
    pack: Vec<u8>,
}

/// A decoded pack.
#[derive(Debug, Clone)]
pub struct Pack {
    raw: Bytes,
    starts: Vec<u32>,
}

/// One webhook of a pack. Its fields share the pack's memory.
#[derive(Debug, Clone)]
pub struct Record {
    /// Wall clock at the first byte of the request, in milliseconds since the Unix epoch.
    pub received_at_ms: u64,
    /// Path and query.
    pub target: Bytes,
    /// Kept headers, names in lower case.
    pub headers: Vec<(Bytes, Bytes)>,
    /// The raw body.
    pub body: Bytes,
}

/// Reason why bytes are not a pack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// Shorter than a pack's header, or another magic number.
    #[error("not a pack")]
    NotAPack,
    /// Written by a newer version.
    #[error("pack version {0} or codec {1} is unknown")]
    Unknown(u8, u8),
    /// The checksum does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// Lengths that contradict each other although the checksum matches.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

impl Records {
    /// Adds a webhook.
    pub fn push(&mut self, webhook: &Webhook) {
        self.make_room(webhook.body.len() + HEAD_BYTES);
        let target = webhook.target.as_str().as_bytes();
        let start = self.begin_record(webhook.received_at_ms, target);
        let mut header_count = 0u16;
        for (name, value) in webhook.kept_headers() {
            self.raw.extend_from_slice(&length_u16(name.as_str().len()));
            self.raw.extend_from_slice(&length_u32(value.len()));
            self.raw.extend_from_slice(name.as_str().as_bytes());
            self.raw.extend_from_slice(value);
            header_count += 1;
        }
        let headers_bytes = self.raw.len() - start - RECORD_HEADER_BYTES - target.len();
        self.raw[start + 12..start + 16].copy_from_slice(&length_u32(headers_bytes));
        self.raw[start + 16..start + 20].copy_from_slice(&length_u32(webhook.body.len()));
        self.raw[start + 20..start + 22].copy_from_slice(&header_count.to_le_bytes());
        self.raw.extend_from_slice(&webhook.body);
        self.ends.push(self.raw.len());
    }

    /// Keeps the records for whose index `keep` returns true, in their order.
    pub fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let mut start = 0;
        let mut kept_bytes = 0;
        let mut kept = 0;
        for index in 0..self.ends.len() {
            let end = self.ends[index];
            if keep(index) {
                self.raw.copy_within(start..end, kept_bytes);
                kept_bytes += end - start;
                self.ends[kept] = kept_bytes;
                kept += 1;
            }
            start = end;
        }
        self.raw.truncate(kept_bytes);
        self.ends.truncate(kept);
    }

    /// Uncompressed bytes.
    pub fn bytes(&self) -> usize {
        self.raw.len()
    }

    /// Number of records.
    pub fn count(&self) -> u32 {
        length(self.ends.len())
    }

    /// Removes all records and keeps the memory for the next ones.
    pub fn clear(&mut self) {
        self.ends.clear();
        self.raw.clear();
        // One huge webhook must not keep its memory allocated for good.
        self.raw.shrink_to(2 * RAW_BYTES_TARGET);
    }

    /// Reserves memory for `bytes` more. Doubling would leave much of a full pack's memory unused:
    /// over a quarter of the target size, the memory of a whole pack is reserved at once.
    fn make_room(&mut self, bytes: usize) {
        let needed = self.raw.len() + bytes;
        if needed > self.raw.capacity() && needed > RAW_BYTES_TARGET / 4 {
            self.raw.reserve_exact(needed.max(RAW_BYTES_TARGET + HEAD_BYTES) - self.raw.len());
        }
    }

    fn begin_record(&mut self, received_at_ms: u64, target: &[u8]) -> usize {
        let start = self.raw.len();
        self.raw.extend_from_slice(&received_at_ms.to_le_bytes());
        self.raw.extend_from_slice(&length_u32(target.len()));
        self.raw.extend_from_slice(&[0; RECORD_HEADER_BYTES - 12]);
        self.raw.extend_from_slice(target);
        start
    }
}

impl Default for Packer {
    fn default() -> Self {
        Self::new()
    }
}

impl Packer {
    /// Creates a packer without content.
    pub fn new() -> Self {
        let mut zstd = zstd::bulk::Compressor::new(ZSTD_LEVEL).expect("BUG: level 1 exists");
        for parameter in ZSTD_PARAMETERS {
            zstd.set_parameter(parameter).expect("BUG: within zstd's bounds");
        }
        Self { zstd, pack: Vec::new() }
    }

    /// Compresses `records` into a pack.
    pub fn pack(&mut self, records: &Records) -> &[u8] {
        let raw = &records.raw;
        let bound = HEADER_BYTES + zstd::zstd_safe::compress_bound(raw.len()).max(raw.len());
        // One huge webhook must not keep its memory allocated for good.
        self.pack.truncate(bound.max(2 * RAW_BYTES_TARGET));
        self.pack.shrink_to(2 * RAW_BYTES_TARGET);
        if self.pack.len() < bound {
            self.pack.resize(bound, 0);
        }
        let (header, payload) = self.pack.split_at_mut(HEADER_BYTES);
        let (codec, payload_bytes) = match self.zstd.compress_to_buffer(raw, payload) {
            Ok(bytes) if bytes < raw.len() => (CODEC_ZSTD, bytes),
            // Data that does not compress, such as random bytes in base64, is stored.
            _ => {
                payload[..raw.len()].copy_from_slice(raw);
                (CODEC_STORED, raw.len())
            }
        };
        header[..4].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&[VERSION, codec, 0, 0]);
        header[12..16].copy_from_slice(&records.count().to_le_bytes());
        header[16..20].copy_from_slice(&length_u32(raw.len()));
        let pack = &mut self.pack[..HEADER_BYTES + payload_bytes];
        let crc = crc32fast::hash(&pack[CRC_COVERS_FROM..]);
        pack[4..8].copy_from_slice(&crc.to_le_bytes());
        pack
    }

    /// Makes a pack that holds one webhook of `pack`, unchanged.
    ///
    /// # Panics
    /// When `index` is not below [`Pack::count`].
    pub fn single_out(&mut self, pack: &Pack, index: u32) -> Vec<u8> {
        self.pack_records(&[(pack, index)]).to_vec()
    }

    /// Makes a pack of webhooks from several packs, unchanged and in the order given.
    ///
    /// # Panics
    /// When an index is not below [`Pack::count`].
    pub fn pack_records(&mut self, picked: &[(&Pack, u32)]) -> &[u8] {
        let raw_bytes = picked.iter().map(|(pack, index)| pack.record_raw_bytes(*index)).sum();
        let mut raw = Vec::with_capacity(raw_bytes);
        let mut ends = Vec::with_capacity(picked.len());
        for (pack, index) in picked {
            raw.extend_from_slice(pack.record_bytes(*index));
            ends.push(raw.len());
        }
        self.pack(&Records { raw, ends })
    }

    /// Makes a pack in which the webhooks for whose index `is_meant` returns true are erased: each keeps its place and
    /// its time of receipt, without target, headers and body. The others are unchanged.
    pub fn erase(&mut self, pack: &Pack, mut is_meant: impl FnMut(u32) -> bool) -> &[u8] {
        let mut records = Records::default();
        for index in 0..pack.count() {
            if is_meant(index) {
                records.begin_record(pack.view(index).received_at_ms, &[]);
            } else {
                records.raw.extend_from_slice(pack.record_bytes(index));
            }
            records.ends.push(records.raw.len());
        }
        self.pack(&records)
    }
}

thread_local! {
    /// Kept, because creating one takes five times as long as decompressing a webhook.
    static DECOMPRESSOR: RefCell<zstd::bulk::Decompressor<'static>> = RefCell::new(
        zstd::bulk::Decompressor::new().expect("BUG: without a dictionary it can't fail"),
    );
}

impl Pack {
    /// Decodes and checks a whole pack.
    ///
    /// # Errors
    /// [`Corrupt`] when any byte is not as a [`Packer`] writes it.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        if bytes.len() < HEADER_BYTES || bytes[..4] != *MAGIC {
            return Err(Corrupt::NotAPack);
        }
        let (mut header, payload) = bytes[4..].split_at(HEADER_BYTES - 4);
        let crc = header.get_u32_le();
        if crc32fast::hash(&bytes[CRC_COVERS_FROM..]) != crc {
            return Err(Corrupt::Checksum);
        }
        let version = header.get_u8();
        let codec = header.get_u8();
        header.advance(2);
        let count = header.get_u32_le();
        let raw_bytes = size(header.get_u32_le());
        if version != VERSION {
            return Err(Corrupt::Unknown(version, codec));
        }
        if raw_bytes > RAW_BYTES_MAX {
            return Err(Corrupt::Malformed("larger than any pack"));
        }
        let raw = match codec {
            CODEC_STORED => payload.to_vec(),
            CODEC_ZSTD => DECOMPRESSOR
                .with_borrow_mut(|zstd| zstd.decompress(payload, raw_bytes))
                .map_err(|_| Corrupt::Malformed("does not decompress"))?,
            _ => return Err(Corrupt::Unknown(version, codec)),
        };
        if raw.len() != raw_bytes {
            return Err(Corrupt::Malformed("another size than claimed"));
        }
        let starts = walk(&raw, count)?;
        Ok(Self { raw: Bytes::from(raw), starts })
    }

    /// Number of webhooks.
    pub fn count(&self) -> u32 {
        u32::try_from(self.starts.len()).expect("BUG: the count came from a u32")
    }

    /// Decoded size.
    pub fn raw_bytes(&self) -> usize {
        self.raw.len()
    }

    /// The webhook at `index`.
    ///
    /// # Panics
    /// When `index` is not below [`Pack::count`].
    pub fn record(&self, index: u32) -> Record {
        let (start, _) = self.bounds(index);
        let mut rest = self.raw.slice(start..);
        let received_at_ms = rest.get_u64_le();
        let target_bytes = size(rest.get_u32_le());
        let _headers_bytes = rest.get_u32_le();
        let body_bytes = size(rest.get_u32_le());
        let header_count = rest.get_u16_le();
        let target = rest.split_to(target_bytes);
        let headers = (0..header_count)
            .map(|_| {
                let name = usize::from(rest.get_u16_le());
                let value = size(rest.get_u32_le());
                (rest.split_to(name), rest.split_to(value))
            })
            .collect();
        Record { received_at_ms, target, headers, body: rest.split_to(body_bytes) }
    }

    /// Copies one webhook into a pack with its own memory, so that the rest of this pack can be
    /// freed.
    ///
    /// # Panics
    /// When `index` is not below [`Pack::count`].
    pub fn pluck(&self, index: u32) -> Self {
        Self { raw: Bytes::copy_from_slice(self.record_bytes(index)), starts: vec![0] }
    }

    /// Decoded size of the webhook at `index`.
    ///
    /// # Panics
    /// When `index` is not below [`Pack::count`].
    pub fn record_raw_bytes(&self, index: u32) -> usize {
        self.record_bytes(index).len()
    }

    fn record_bytes(&self, index: u32) -> &[u8] {
        let (start, end) = self.bounds(index);
        &self.raw[start..end]
    }

    fn bounds(&self, index: u32) -> (usize, usize) {
        let start = size(self.starts[size(index)]);
        let end = self.starts.get(size(index) + 1).map_or(self.raw.len(), |end| size(*end));
        (start, end)
    }
}

impl Headers for Record {
    fn value(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(have, _)| have == name.as_bytes());
        found.map(|(_, value)| value.as_ref())
    }
}

/// Finds the start of each record, and checks every length on the way.
fn walk(raw: &[u8], count: u32) -> Result<Vec<u32>, Corrupt> {
    const SHORT: Corrupt = Corrupt::Malformed("a record ends early");
    if raw.len() < size(count) * RECORD_HEADER_BYTES {
        return Err(SHORT);
    }
    let mut starts = Vec::with_capacity(size(count));
    let mut rest = raw;
    for _ in 0..count {
        starts.push(length(raw.len() - rest.len()));
        let mut header = rest.get(8..RECORD_HEADER_BYTES).ok_or(SHORT)?;
        let target = size(header.get_u32_le());
        let headers = size(header.get_u32_le());
        let body = size(header.get_u32_le());
        let header_count = header.get_u16_le();
        let content = &rest[RECORD_HEADER_BYTES..];
        if content.len() < target.saturating_add(headers).saturating_add(body) {
            return Err(SHORT);
        }
        walk_headers(&content[target..target + headers], header_count)?;
        rest = &content[target + headers + body..];
    }
    if rest.is_empty() {
        Ok(starts)
    } else {
        Err(Corrupt::Malformed("bytes behind the last record"))
    }
}

fn walk_headers(mut headers: &[u8], count: u16) -> Result<(), Corrupt> {
    const BAD: Corrupt = Corrupt::Malformed("headers do not add up");
    for _ in 0..count {
        let mut lengths = headers.get(..6).ok_or(BAD)?;
        let name = usize::from(lengths.get_u16_le());
        let value = size(lengths.get_u32_le());
        headers =
            headers.get(6..).and_then(|rest| rest.get(name.saturating_add(value)..)).ok_or(BAD)?;
    }
    if headers.is_empty() { Ok(()) } else { Err(BAD) }
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("BUG: a pack is bounded far below 4 GiB")
}

fn length_u32(bytes: usize) -> [u8; 4] {
    length(bytes).to_le_bytes()
}

fn length_u16(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes)
        .expect("BUG: the http crate bounds header names below 64 KiB")
        .to_le_bytes()
}

#[cfg(test)]
mod tests;
