//! Reads how far a consumer has come, and finds out after a reconnect whether Redis still holds the
//! data that was read.

use std::collections::HashMap;

use redis::{Value, cmd};
use spillway_webhook::StreamId;

use super::{Entry, Reader, scan, stream_id};
use crate::connect::Connection;
use crate::error::QueueError;

/// How far a drain has come, as Redis knows it.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// Every entry up to here is settled.
    pub cursor: StreamId,
    /// Webhooks settled up to the cursor.
    pub through: u64,
    /// Settled webhooks in packs behind the cursor, a bit each.
    pub done: HashMap<StreamId, Vec<u8>>,
    /// Mark of the last settlement, `<token>:<number>`; `None` before the first.
    pub mark: Option<String>,
}

/// What the main stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its first entry, if it has one.
    pub oldest: Option<StreamId>,
    /// The id that was given out last.
    pub last: StreamId,
    /// Webhooks that were freed in front of it.
    pub trimmed: u64,
}

/// The newest entry that was read, as far as it takes to recognise it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastRead {
    id: StreamId,
    bytes: usize,
    crc32: u32,
}

impl LastRead {
    /// Sum of `entry`, which was read last.
    pub fn of(entry: &Entry) -> Self {
        Self { id: entry.id, bytes: entry.pack.len(), crc32: crc32fast::hash(&entry.pack) }
    }
}

impl Reader {
    /// Where the drain stands.
    ///
    /// # Errors
    /// [`QueueError::Unregistered`] when it has no cursor.
    pub async fn progress(&self, connection: &mut Connection) -> Result<Progress, QueueError> {
        let keys = &self.redis.keys;
        // First: whatever is settled while the rest is read makes the next settlement be refused.
        let mark = self.mark(connection).await?;
        let cursor = self.cursor(connection).await?;
        let bits = |id: &str, bits: &[u8]| Ok((stream_id(id)?, bits.to_vec()));
        let done = scan(connection, &keys.done(&self.drain), bits).await?;
        let through: Option<u64> = cmd("HGET")
            .arg(keys.counts())
            .arg(format!("through:{}", self.drain))
            .query_async(connection)
            .await?;
        let done = done.into_iter().collect();
        Ok(Progress { cursor, through: through.unwrap_or(0), done, mark })
    }

    /// Mark of the last settlement, `<token>:<number>`; `None` before the first.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn mark(&self, connection: &mut Connection) -> Result<Option<String>, QueueError> {
        let key = self.redis.keys.settled(&self.drain);
        Ok(cmd("GET").arg(key).query_async(connection).await?)
    }

    /// The drain's cursor: every entry up to it is settled.
    async fn cursor(&self, connection: &mut Connection) -> Result<StreamId, QueueError> {
        let stream = self.redis.keys.stream();
        let groups: Vec<HashMap<String, Value>> =
            match cmd("XINFO").arg("GROUPS").arg(stream).query_async(connection).await {
                Ok(groups) => groups,
                // XINFO of a stream that is not there is an error of its own kind.
                Err(error) if error.code() == Some("ERR") => return Err(QueueError::Unregistered),
                Err(error) => return Err(error.into()),
            };
        let group = groups.iter().find(|group| text(group.get("name")) == self.drain);
        stream_id(&text(group.ok_or(QueueError::Unregistered)?.get("last-delivered-id")))
    }

    /// The id that was given out last in the main stream.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn last(&self, connection: &mut Connection) -> Result<StreamId, QueueError> {
        Ok(self.span(connection).await?.last)
    }

    /// Where the main stream begins and ends.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn span(&self, connection: &mut Connection) -> Result<Span, QueueError> {
        let keys = &self.redis.keys;
        let stream: HashMap<String, Value> =
            cmd("XINFO").arg("STREAM").arg(keys.stream()).query_async(connection).await?;
        let trimmed: Option<u64> =
            cmd("HGET").arg(keys.counts()).arg("trimmed").query_async(connection).await?;
        let oldest = match stream.get("first-entry") {
            Some(Value::Array(entry)) => Some(stream_id(&text(entry.first()))?),
            _ => None,
        };
        let last = stream_id(&text(stream.get("last-generated-id")))?;
        Ok(Span { oldest, last, trimmed: trimmed.unwrap_or(0) })
    }

    /// True when the main stream holds the entry that was read last, or has settled it. False when
    /// Redis came back with older data: the entry is gone, or another one has its id.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn holds(
        &self,
        connection: &mut Connection,
        last_read: &LastRead,
    ) -> Result<bool, QueueError> {
        let id = last_read.id;
        // In this order: an entry that is settled meanwhile is found here, or the cursor is.
        if let Some(pack) = self.main_entry(connection, id).await? {
            return Ok(LastRead::of(&Entry { id, pack }) == *last_read);
        }
        match self.cursor(connection).await {
            Ok(cursor) => Ok(cursor >= id && self.last(connection).await? >= id),
            Err(QueueError::Unregistered) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn text(value: Option<&Value>) -> String {
    value.and_then(|value| redis::from_redis_value_ref(value).ok()).unwrap_or_default()
}
