//! Reads the lanes of a consumer: rows, barriers, leads, retry states and chunks.

use std::collections::BTreeMap;

use bytes::Bytes;
use redis::cmd;
use spillway_webhook::{Position, StoredRetry};

use super::{SCAN_COUNT, StreamReader, scan};
use crate::connect::Connection;
use crate::error::QueueError;
use crate::lane::{self, ChunkId, LaneRow, StoredChunk};

/// Retry states that one command asks for. It bounds the time for which the command blocks Redis.
const RETRIES_AT_ONCE: usize = 1_024;

/// The lanes of a consumer whose first webhooks are the oldest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OldestLanes {
    /// Their rows, the oldest first.
    pub rows: Vec<LaneRow>,
    /// Rows that can be read, also those that are left out.
    pub known: u64,
    /// Rows that cannot be read.
    pub unreadable: u64,
}

impl StreamReader {
    /// Reads the rows of the `max` oldest lanes. All rows are looked at, in parts, and no more than `max` are held.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub(crate) async fn oldest_lanes(
        &self,
        connection: &mut Connection,
        max: usize,
    ) -> Result<OldestLanes, QueueError> {
        let key = self.redis.keys.of(&self.consumer).lanes();
        let mut found = OldestLanes::default();
        // Redis may return a row twice.
        let mut oldest: BTreeMap<(Position, u64), LaneRow> = BTreeMap::new();
        let mut cursor = 0u64;
        loop {
            let mut command = cmd("HSCAN");
            command.arg(&key).arg(cursor).arg("COUNT").arg(SCAN_COUNT);
            let (next, part): (u64, Vec<(String, Bytes)>) = command.query_async(connection).await?;
            for (_, row) in part {
                let Ok(row) = serde_json::from_slice::<LaneRow>(&row) else {
                    found.unreadable += 1;
                    continue;
                };
                found.known += 1;
                oldest.insert((row.first, row.lane), row);
                if oldest.len() > max {
                    oldest.pop_last();
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        found.rows = oldest.into_values().collect();
        Ok(found)
    }

    /// Reads the rows of all lanes, in the order of their hashes.
    ///
    /// # Errors
    /// [`QueueError`] from Redis, or when a row cannot be read.
    pub async fn lane_rows(&self, connection: &mut Connection) -> Result<Vec<LaneRow>, QueueError> {
        let keys = self.redis.keys.of(&self.consumer);
        let key = keys.lanes();
        let chunks = keys.chunks();
        let bits = keys.chunks_done();
        let row = |lane: &str, row: &[u8]| {
            // Without the row, later webhooks would overtake the lane's chunks and overwrite them.
            let row: LaneRow = serde_json::from_slice(row).map_err(|error| {
                QueueError::Unexpected(format!(
                    "the row of lane {lane} in {key} can't be read ({error}), and until then nothing \
                     is delivered: put it back from a backup, or give its webhooks up and delete the \
                     field {lane} there and all fields {lane}:* of {chunks} and {bits}"
                ))
            })?;
            Ok((row.lane, row))
        };
        let rows = scan(connection, &key, row).await?;
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    /// Reads all barriers: position and hash of the shop.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn barriers(
        &self,
        connection: &mut Connection,
    ) -> Result<Vec<(Position, u64)>, QueueError> {
        let key = self.redis.keys.of(&self.consumer).barriers();
        scan(connection, &key, |at, shop| Ok((position(at)?, hash(text(shop)?)?))).await
    }

    /// Reads all leads: hash of the resource and position.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn leads(
        &self,
        connection: &mut Connection,
    ) -> Result<Vec<(u64, Position)>, QueueError> {
        let key = self.redis.keys.of(&self.consumer).leads();
        scan(connection, &key, |resource, at| Ok((hash(resource)?, position(text(at)?)?))).await
    }

    /// Reads chunks with their bits, in one round trip; `None` for a chunk that does not exist.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn chunks(
        &self,
        connection: &mut Connection,
        ids: &[ChunkId],
    ) -> Result<Vec<Option<StoredChunk>>, QueueError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let keys = self.redis.keys.of(&self.consumer);
        let fields = texts(ids);
        let (chunks, bits): (Vec<Option<Bytes>>, Vec<Option<Vec<u8>>>) = redis::pipe()
            .cmd("HMGET")
            .arg(keys.chunks())
            .arg(&fields)
            .cmd("HMGET")
            .arg(keys.chunks_done())
            .arg(&fields)
            .query_async(connection)
            .await?;
        let found = chunks.into_iter().zip(bits).map(|(bytes, bits)| {
            bytes.map(|bytes| StoredChunk { bytes, bits: bits.unwrap_or_default() })
        });
        Ok(found.collect())
    }

    /// Reads the retry states of webhooks in the main stream. A state that cannot be read is logged
    /// and replaced by an empty one.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn main_retries(
        &self,
        connection: &mut Connection,
    ) -> Result<Vec<(Position, StoredRetry)>, QueueError> {
        let key = self.redis.keys.of(&self.consumer).main_retries();
        let state = |at: &str, state: &[u8]| Ok((position(at)?, known_retry(at, state)));
        let found = scan(connection, &key, state).await?.into_iter();
        Ok(found.map(|(at, state)| (at, state.unwrap_or_default())).collect())
    }

    /// Reads the retry states of webhooks in lanes. `None` for a webhook without attempts, or if
    /// its state cannot be read: that is logged, and its retries start again.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn retries(
        &self,
        connection: &mut Connection,
        positions: &[Position],
    ) -> Result<Vec<Option<StoredRetry>>, QueueError> {
        let mut found: Vec<Option<Vec<u8>>> = Vec::with_capacity(positions.len());
        for some in positions.chunks(RETRIES_AT_ONCE) {
            let some: Vec<Option<Vec<u8>>> = cmd("HMGET")
                .arg(self.redis.keys.of(&self.consumer).retries())
                .arg(texts(some))
                .query_async(connection)
                .await?;
            found.extend(some);
        }
        let read = |(position, state): (&Position, Option<Vec<u8>>)| known_retry(position, &state?);
        Ok(positions.iter().zip(found).map(read).collect())
    }
}

/// Parses the retry state of a webhook. `None` if it cannot be read, which is logged.
fn known_retry(position: impl std::fmt::Display, state: &[u8]) -> Option<StoredRetry> {
    let parsed = str::from_utf8(state).ok().and_then(|state| state.parse().ok());
    if parsed.is_none() {
        tracing::error!(
            %position,
            state = %state.escape_ascii(),
            "unreadable retry state: the webhook's retries begin again"
        );
    }
    parsed
}

fn texts(ids: &[impl ToString]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

fn text(bytes: &[u8]) -> Result<&str, QueueError> {
    str::from_utf8(bytes).map_err(|_| QueueError::Unexpected(format!("text {bytes:?}")))
}

fn position(text: &str) -> Result<Position, QueueError> {
    text.parse().map_err(|_| QueueError::Unexpected(format!("position {text:?}")))
}

fn hash(text: &str) -> Result<u64, QueueError> {
    lane::parse_hash(text).ok_or_else(|| QueueError::Unexpected(format!("hash {text:?}")))
}
