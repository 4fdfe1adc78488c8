//! Lanes: webhooks of one shop (and kind) that cannot go now, moved out of the main stream.
//!
//! A lane has a row, and those of its webhooks that were moved lie in numbered chunks. Barriers, leads and retry states are
//! kept beside them. [`LaneChanges`] is the part of a settlement that changes any of it.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use redis::ScriptInvocation;
use serde::{Deserialize, Serialize};
use spillway_webhook::{Changes, Position, RetryChanges, Spans};

use crate::error::QueueError;
use crate::keys::ConsumerKeys;

// Numbers of the keys in the settle script.
const CHUNKS: u8 = 13;
const CHUNKS_DONE: u8 = 14;
const LANES: u8 = 15;
const BARRIERS: u8 = 16;
const LEADS: u8 = 17;
const RETRIES: u8 = 18;
const MAIN_RETRIES: u8 = 19;
const _: () =
    assert!(CHUNKS + 6 == MAIN_RETRIES && LANES + 3 == RETRIES, "keys of settle.lua, in its order");

/// Id of a chunk. As text: `<lane as 16 hex digits>:<number>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    /// Hash of the lane.
    pub lane: u64,
    /// Number of the chunk in its lane.
    pub number: u32,
}

/// Set of webhooks that a lane consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyScheme {
    /// Webhooks of one shop and one kind of resource.
    Kind,
    /// All webhooks of one shop.
    Shop,
}

/// State of one lane, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRow {
    /// Hash of the lane.
    pub lane: u64,
    /// Shop domain.
    pub shop: String,
    /// Kind of resource.
    pub kind: String,
    /// Set of webhooks that the lane consists of.
    pub scheme: KeyScheme,
    /// Number of the first chunk that is left.
    pub first_chunk: u32,
    /// Number of the last chunk.
    pub last_chunk: u32,
    /// Webhooks that wait in the chunks.
    pub waiting: u64,
    /// Position of the first webhook in the chunks.
    pub first: Position,
    /// Position of the last webhook in the chunks.
    pub last: Position,
    /// Spans of time in which nothing of the lane succeeded.
    #[serde(default)]
    pub failing: Spans,
    /// True while the lane's circuit breaker is open.
    pub tripped: bool,
    /// True while the lane's last attempt timed out or was cut off.
    #[serde(default)]
    pub suspect: bool,
}

/// A chunk as stored, not yet decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredChunk {
    /// The chunk, for [`Chunk::decode`](spillway_webhook::Chunk::decode).
    pub bytes: Bytes,
    /// One bit for each settled webhook of the chunk; empty if none is settled.
    pub bits: Vec<u8>,
}

/// Changes of the lanes in one settlement. Fields are set first and deleted afterwards: a field
/// that is named in both lists is gone.
#[derive(Debug, Clone, Default)]
pub struct LaneChanges {
    /// Chunks to write, as bytes of [`Chunk::encode`](spillway_webhook::Chunk::encode), and chunks
    /// to delete together with their bits.
    pub chunks: Changes<(ChunkId, Vec<u8>), ChunkId>,
    /// Chunks that cannot be decoded, to set aside under their own keys.
    pub corrupt: Vec<ChunkId>,
    /// Chunks with one bit for each settled webhook. The bits replace those from before.
    pub chunk_bits: Vec<(ChunkId, Vec<u8>)>,
    /// Rows to write, and lanes whose rows to delete.
    pub rows: Changes<LaneRow, u64>,
    /// Barriers, with the hash of their shop.
    pub barriers: Changes<(Position, u64), Position>,
    /// Leads, by the hash of their resource.
    pub leads: Changes<(u64, Position), u64>,
    /// Retry states of webhooks in lanes.
    pub retries: RetryChanges,
    /// Retry states of webhooks in the main stream.
    pub main_retries: RetryChanges,
    /// Webhooks that wait in chunks after this settlement. Every settlement states it, changed or
    /// not.
    pub waiting: u64,
    /// Time at which the oldest of them was accepted, in milliseconds since the Unix epoch; 0 =
    /// none waits. Every settlement states it.
    pub oldest_ms: u64,
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.lane, self.number)
    }
}

impl FromStr for ChunkId {
    type Err = QueueError;

    fn from_str(text: &str) -> Result<Self, QueueError> {
        let parsed = text.split_once(':').and_then(|(lane, number)| {
            Some(Self { lane: parse_hash(lane)?, number: number.parse().ok()? })
        });
        parsed.ok_or_else(|| QueueError::Unexpected(format!("chunk id {text:?}")))
    }
}

impl LaneChanges {
    /// True if nothing is to be written or deleted.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
            && self.corrupt.is_empty()
            && self.chunk_bits.is_empty()
            && self.rows.is_empty()
            && self.barriers.is_empty()
            && self.leads.is_empty()
            && self.retries.is_empty()
            && self.main_retries.is_empty()
    }

    /// Adds the lists of the settle script: corrupt chunks, fields to set, fields to delete.
    pub(crate) fn add_to(&self, call: &mut ScriptInvocation<'_>) {
        call.arg(self.corrupt.len());
        for id in &self.corrupt {
            call.arg(id.to_string());
        }
        let set = self.fields_to_set();
        call.arg(set.len());
        for (key, field, value) in set {
            call.arg(key).arg(field).arg(&value[..]);
        }
        let delete = self.fields_to_delete();
        call.arg(delete.len());
        for (key, field) in delete {
            call.arg(key).arg(field);
        }
    }

    fn fields_to_set(&self) -> Vec<(u8, String, Cow<'_, [u8]>)> {
        let mut fields: Vec<(u8, String, Cow<'_, [u8]>)> = Vec::new();
        for (id, bytes) in &self.chunks.written {
            fields.push((CHUNKS, id.to_string(), Cow::from(bytes)));
        }
        for (id, bits) in &self.chunk_bits {
            fields.push((CHUNKS_DONE, id.to_string(), Cow::from(bits)));
        }
        for row in &self.rows.written {
            let json = serde_json::to_vec(row).expect("BUG: a row has no map and no odd key");
            fields.push((LANES, hash(row.lane), Cow::from(json)));
        }
        for (position, shop) in &self.barriers.written {
            fields.push((BARRIERS, position.to_string(), text(hash(*shop))));
        }
        for (resource, position) in &self.leads.written {
            fields.push((LEADS, hash(*resource), text(position.to_string())));
        }
        for (key, retries) in self.all_retries() {
            for (position, retry) in &retries.written {
                fields.push((key, position.to_string(), text(retry.to_string())));
            }
        }
        fields
    }

    fn fields_to_delete(&self) -> Vec<(u8, String)> {
        let mut fields = Vec::new();
        for id in &self.chunks.deleted {
            fields.push((CHUNKS, id.to_string()));
            fields.push((CHUNKS_DONE, id.to_string()));
        }
        fields.extend(self.rows.deleted.iter().map(|lane| (LANES, hash(*lane))));
        fields
            .extend(self.barriers.deleted.iter().map(|position| (BARRIERS, position.to_string())));
        fields.extend(self.leads.deleted.iter().map(|resource| (LEADS, hash(*resource))));
        for (key, retries) in self.all_retries() {
            fields.extend(retries.deleted.iter().map(|position| (key, position.to_string())));
        }
        fields
    }

    fn all_retries(&self) -> [(u8, &RetryChanges); 2] {
        [(RETRIES, &self.retries), (MAIN_RETRIES, &self.main_retries)]
    }
}

/// Adds the keys that [`LaneChanges::add_to`] numbers, in that order.
pub(crate) fn add_keys(call: &mut ScriptInvocation<'_>, keys: &ConsumerKeys) {
    call.key(keys.chunks()).key(keys.chunks_done()).key(keys.lanes());
    call.key(keys.barriers()).key(keys.leads()).key(keys.retries());
    call.key(keys.main_retries());
}

/// Text of a hash: 16 hex digits.
pub(crate) fn hash(hash: u64) -> String {
    format!("{hash:016x}")
}

/// Parses a hash of 16 hex digits; `None` if the text is none.
pub(crate) fn parse_hash(text: &str) -> Option<u64> {
    (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok())?
}

fn text(text: String) -> Cow<'static, [u8]> {
    Cow::from(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_chunk_id_is_read_back() {
        let id = ChunkId { lane: 0xab, number: 12 };
        assert_eq!(id.to_string(), "00000000000000ab:12");
        assert_eq!(id.to_string().parse::<ChunkId>().unwrap(), id);
        for text in ["", "ab:1", "00000000000000ab", "00000000000000ab:", "00000000000000ag:1"] {
            assert!(text.parse::<ChunkId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_row_is_compact_json() {
        let row = LaneRow {
            lane: u64::MAX,
            shop: "a.myshopify.com".to_owned(),
            kind: "product".to_owned(),
            scheme: KeyScheme::Kind,
            first_chunk: 1,
            last_chunk: 2,
            waiting: 3,
            first: Position { ms: 4, seq: 5, index: 6 },
            last: Position { ms: 7, seq: 8, index: 9 },
            failing: Spans::one(8, Duration::from_millis(9)),
            tripped: true,
            suspect: false,
        };
        let json = serde_json::to_string(&row).unwrap();
        assert_eq!(
            json,
            "{\"lane\":18446744073709551615,\"shop\":\"a.myshopify.com\",\"kind\":\"product\",\
             \"scheme\":\"kind\",\"first_chunk\":1,\"last_chunk\":2,\"waiting\":3,\
             \"first\":\"4-5-6\",\"last\":\"7-8-9\",\"failing\":[[8,9]],\"tripped\":true,\"suspect\":false}"
        );
        assert_eq!(serde_json::from_str::<LaneRow>(&json).unwrap(), row);
    }
}
