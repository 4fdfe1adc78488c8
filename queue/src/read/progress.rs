//! Reads the progress of a consumer. After a reconnect, checks that Redis still holds the data that
//! was read.

use std::collections::HashMap;

use redis::{RedisError, Value, cmd};
use spillway_webhook::StreamId;

use super::{Entry, Replay, StreamReader, scan, stream_id};
use crate::connect::Connection;
use crate::error::QueueError;

/// Progress of a consumer, as stored in Redis.
#[derive(Debug, Clone, Default)]
pub struct ConsumerProgress {
    /// Every entry up to here is settled.
    pub cursor: StreamId,
    /// Webhooks settled up to the cursor.
    pub through: u64,
    /// Packs after the cursor → one bit for each settled webhook.
    pub done: HashMap<StreamId, Vec<u8>>,
    /// Mark of the last settlement, `<token>:<number>`; `None` before the first.
    pub mark: Option<String>,
    /// Id that was given out last in the stream of replays.
    pub last_replay: StreamId,
}

/// Range of the main stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamRange {
    /// First entry, if there is one.
    pub oldest: Option<StreamId>,
    /// Id that was given out last.
    pub last: StreamId,
    /// Webhooks that were freed before the first entry.
    pub trimmed: u64,
}

/// Newest entry or replay that was read, with enough data to recognise it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastRead {
    id: StreamId,
    bytes: usize,
    crc32: u32,
}

/// Ids of the stream of replays. Neither ever goes back, unless Redis comes back with older data.
#[derive(Debug, Clone, Copy, Default)]
struct ReplayIds {
    /// Id that was given out last.
    last: StreamId,
    /// Highest id that was removed.
    removed: StreamId,
}

impl LastRead {
    /// Makes the record of `entry`, which was read last.
    pub fn of(entry: &Entry) -> Self {
        Self::with(entry.id, &entry.pack)
    }

    /// Makes the record of `replay`, which was read last.
    pub fn of_replay(replay: &Replay) -> Self {
        Self::with(replay.id, &replay.pack)
    }

    fn with(id: StreamId, pack: &[u8]) -> Self {
        Self { id, bytes: pack.len(), crc32: crc32fast::hash(pack) }
    }
}

impl StreamReader {
    /// Reads the consumer's progress.
    ///
    /// # Errors
    /// [`QueueError::Unregistered`] when the consumer has no cursor.
    pub async fn progress(
        &self,
        connection: &mut Connection,
    ) -> Result<ConsumerProgress, QueueError> {
        self.progress_with(connection, u64::MAX).await
    }

    /// Reads the consumer's progress, without [`done`](ConsumerProgress::done) if that holds more than `done_max`
    /// packs.
    ///
    /// # Errors
    /// [`QueueError::Unregistered`] when the consumer has no cursor.
    pub(crate) async fn progress_with(
        &self,
        connection: &mut Connection,
        done_max: u64,
    ) -> Result<ConsumerProgress, QueueError> {
        let keys = &self.redis.keys;
        // The mark is read first: if something is settled during the other reads, the next
        // settlement is refused.
        let mark = self.mark(connection).await?;
        let cursor = cursor(&self.redis.keys.stream(), &self.consumer, connection).await?;
        let bits = |id: &str, bits: &[u8]| Ok((stream_id(id)?, bits.to_vec()));
        let key = keys.of(&self.consumer).done();
        let packs: u64 = cmd("HLEN").arg(&key).query_async(connection).await?;
        let done = if packs > done_max { Vec::new() } else { scan(connection, &key, bits).await? };
        let through: Option<u64> = cmd("HGET")
            .arg(keys.counts())
            .arg(format!("through:{}", self.consumer))
            .query_async(connection)
            .await?;
        let done = done.into_iter().collect();
        let last_replay = replay_ids(&keys.of(&self.consumer).replays(), connection).await?.last;
        Ok(ConsumerProgress { cursor, through: through.unwrap_or(0), done, mark, last_replay })
    }

    /// Mark of the last settlement, `<token>:<number>`; `None` before the first.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn mark(&self, connection: &mut Connection) -> Result<Option<String>, QueueError> {
        let key = self.redis.keys.of(&self.consumer).settled();
        Ok(cmd("GET").arg(key).query_async(connection).await?)
    }

    /// Returns the id that was given out last in the main stream.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn last(&self, connection: &mut Connection) -> Result<StreamId, QueueError> {
        Ok(self.span(connection).await?.last)
    }

    /// Returns the range of the main stream.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn span(&self, connection: &mut Connection) -> Result<StreamRange, QueueError> {
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
        Ok(StreamRange { oldest, last, trimmed: trimmed.unwrap_or(0) })
    }

    /// Returns true if the main stream holds the entry that was read last, or settled it. False if
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
        // The order matters: an entry that is settled meanwhile is found here, or the new cursor is
        // found below.
        if let Some(pack) = self.main_entry(connection, id).await? {
            return Ok(LastRead::of(&Entry { id, pack }) == *last_read);
        }
        match cursor(&self.redis.keys.stream(), &self.consumer, connection).await {
            Ok(cursor) => Ok(cursor >= id && self.last(connection).await? >= id),
            Err(QueueError::Unregistered) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns true if the stream of replays holds the replay that was read last, or it was settled or dropped. False
    /// if Redis came back with older data: later replays may have lower ids, and would never be read.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn holds_replay(
        &self,
        connection: &mut Connection,
        last_read: &LastRead,
    ) -> Result<bool, QueueError> {
        let id = last_read.id;
        // The order matters: a replay that is removed meanwhile is found here, or its id below.
        if let Some(pack) = self.replay_entry(connection, id).await? {
            return Ok(LastRead::with(id, &pack) == *last_read);
        }
        let replays = self.redis.keys.of(&self.consumer).replays();
        let ids = replay_ids(&replays, connection).await?;
        Ok(ids.last >= id && ids.removed >= id)
    }
}

fn text(value: Option<&Value>) -> String {
    value.and_then(|value| redis::from_redis_value_ref(value).ok()).unwrap_or_default()
}

/// Reads a consumer's cursor. Every entry up to it is settled.
async fn cursor(
    stream: &str,
    consumer: &str,
    connection: &mut Connection,
) -> Result<StreamId, QueueError> {
    let groups: Vec<HashMap<String, Value>> =
        match cmd("XINFO").arg("GROUPS").arg(stream).query_async(connection).await {
            Ok(groups) => groups,
            // XINFO of a stream that does not exist is an error.
            Err(error) if error.code() == Some("ERR") => return Err(QueueError::Unregistered),
            Err(error) => return Err(error.into()),
        };
    let group = groups.iter().find(|group| text(group.get("name")) == consumer);
    stream_id(&text(group.ok_or(QueueError::Unregistered)?.get("last-delivered-id")))
}

/// Reads the ids of a stream of replays.
async fn replay_ids(key: &str, connection: &mut Connection) -> Result<ReplayIds, QueueError> {
    let stream: Result<HashMap<String, Value>, RedisError> =
        cmd("XINFO").arg("STREAM").arg(key).query_async(connection).await;
    match stream {
        Ok(stream) => {
            let id = |name: &str| stream_id(&text(stream.get(name)));
            Ok(ReplayIds { last: id("last-generated-id")?, removed: id("max-deleted-entry-id")? })
        }
        // There was no replay so far.
        Err(error) if error.code() == Some("ERR") => Ok(ReplayIds::default()),
        Err(error) => Err(error.into()),
    }
}
