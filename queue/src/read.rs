//! Reads the entries after a consumer's cursor. Reading changes nothing in Redis.

mod lanes;
mod progress;

use std::time::Duration;

use bytes::Bytes;
use redis::{Script, cmd};
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::{StreamId, WebhookId};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;

pub use self::lanes::OldestLanes;
pub use self::progress::{ConsumerProgress, LastRead, StreamRange};

/// Maximum number of entries for one script, whatever their size. It bounds the time for which the
/// script blocks Redis.
const ENTRIES_MAX: usize = 64;

/// Settlements whose fingerprints are read at a time: 60 MB if each were full, and mostly much
/// less.
const SEEN_MAX: usize = 2048;

/// Fields of a hash that Redis scans for one answer. It bounds the time for which one step blocks
/// Redis.
const SCAN_COUNT: usize = 1000;

/// One entry of the main stream.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Stream id of the entry.
    pub id: StreamId,
    /// The pack as stored, not yet decoded.
    pub pack: Bytes,
}

/// One dead letter that is replayed.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Id in the stream of replays.
    pub id: StreamId,
    /// Id of the webhook.
    pub webhook: WebhookId,
    /// A pack of one webhook.
    pub pack: Bytes,
}

/// Result of [`StreamReader::wait_for`].
#[derive(Debug, Default)]
pub struct StreamNews {
    /// The next main entries.
    pub main: Vec<Entry>,
    /// True if there is a replay.
    pub is_replay: bool,
}

/// Reader of the streams of one consumer.
pub struct StreamReader {
    redis: Redis,
    consumer: String,
    script: Script,
}

impl StreamReader {
    /// Creates a reader for `consumer`.
    pub fn new(redis: Redis, consumer: &str) -> Self {
        let script = Script::new(include_str!("lua/read.lua"));
        Self { redis, consumer: consumer.to_owned(), script }
    }

    /// Returns the fingerprints of webhooks that were delivered after `after`, of a bounded number
    /// of settlements. Each id holds the time of the settlement, in milliseconds since the Unix
    /// epoch. Empty when there are no more.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn seen_after(
        &self,
        connection: &mut Connection,
        after: StreamId,
    ) -> Result<Vec<(StreamId, Vec<Fingerprint>)>, QueueError> {
        let found: Vec<(String, Fields)> = cmd("XRANGE")
            .arg(self.redis.keys.of(&self.consumer).seen())
            .arg(format!("({after}"))
            .arg("+")
            .arg("COUNT")
            .arg(SEEN_MAX)
            .query_async(connection)
            .await?;
        found.into_iter().map(|(id, fields)| Ok((stream_id(&id)?, fingerprints(&fields)))).collect()
    }

    /// Returns up to about `bytes` of main entries after `after`; at least one if there is one.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn main_after(
        &self,
        connection: &mut Connection,
        after: StreamId,
        bytes: usize,
    ) -> Result<Vec<Entry>, QueueError> {
        let stream = self.redis.keys.stream();
        let found = behind(&self.script, connection, &stream, after, bytes).await?;
        Ok(found.into_iter().map(|(id, fields)| Entry { id, pack: field(&fields, "p") }).collect())
    }

    /// Returns the next main entries after `after`, up to `count` of any size. This costs Redis a
    /// sixth of [`StreamReader::main_after`] if they are large: that one's script copies each.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn main_next(
        &self,
        connection: &mut Connection,
        after: StreamId,
        count: usize,
    ) -> Result<Vec<Entry>, QueueError> {
        let found: Vec<(String, Fields)> = cmd("XRANGE")
            .arg(self.redis.keys.stream())
            .arg(format!("({after}"))
            .arg("+")
            .arg("COUNT")
            .arg(count)
            .query_async(connection)
            .await?;
        found.into_iter().map(entry).collect()
    }

    /// Returns up to about `bytes` of replays after `after`; at least one if there is one.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn replays_after(
        &self,
        connection: &mut Connection,
        after: StreamId,
        bytes: usize,
    ) -> Result<Vec<Replay>, QueueError> {
        let stream = self.redis.keys.of(&self.consumer).replays();
        let found = behind(&self.script, connection, &stream, after, bytes).await?;
        found.into_iter().map(|(id, fields)| replay(id, &fields)).collect()
    }

    /// Waits up to `patience` for a main entry after `main`, or a replay after `replay`. One that is
    /// `None` is not waited for. Returns up to `count` main entries of any size. Blocks its
    /// connection, which must serve nothing else meanwhile.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn wait_for(
        &self,
        connection: &mut Connection,
        main: Option<StreamId>,
        replay: Option<StreamId>,
        (count, patience): (usize, Duration),
    ) -> Result<StreamNews, QueueError> {
        let keys = &self.redis.keys;
        let replays = keys.of(&self.consumer).replays();
        let streams = [(keys.stream(), main), (replays.clone(), replay)];
        let streams: Vec<(String, StreamId)> =
            streams.into_iter().filter_map(|(key, after)| Some((key, after?))).collect();
        let mut command = cmd("XREAD");
        command.arg("COUNT").arg(count);
        command.arg("BLOCK").arg(patience.as_millis().max(1) as u64).arg("STREAMS");
        for (key, _) in &streams {
            command.arg(key);
        }
        for (_, after) in &streams {
            command.arg(after.to_string());
        }
        type OfStream = Vec<(String, Fields)>;
        let found: Option<Vec<(String, OfStream)>> = command.query_async(connection).await?;
        let mut news = StreamNews::default();
        for (key, entries) in found.unwrap_or_default() {
            if key == replays {
                news.is_replay = true;
            } else {
                news.main = entries.into_iter().map(entry).collect::<Result<_, _>>()?;
            }
        }
        Ok(news)
    }

    /// Returns the first main entries of each span (first id, last id, maximum number), in one
    /// round trip.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn main_fronts(
        &self,
        connection: &mut Connection,
        spans: &[(StreamId, StreamId, usize)],
    ) -> Result<Vec<Vec<Entry>>, QueueError> {
        let mut pipe = redis::pipe();
        for (from, to, count) in spans {
            pipe.cmd("XRANGE").arg(self.redis.keys.stream());
            pipe.arg(from.to_string()).arg(to.to_string()).arg("COUNT").arg(*count);
        }
        let found: Vec<Vec<(String, Fields)>> = pipe.query_async(connection).await?;
        found.into_iter().map(|front| front.into_iter().map(entry).collect()).collect()
    }

    /// Reads one main entry again; `None` if it is gone.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn main_entry(
        &self,
        connection: &mut Connection,
        id: StreamId,
    ) -> Result<Option<Bytes>, QueueError> {
        self.entry(connection, &self.redis.keys.stream(), id).await
    }

    /// Reads main entries again, in one round trip; `None` for an entry that is gone.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn main_entries(
        &self,
        connection: &mut Connection,
        ids: &[StreamId],
    ) -> Result<Vec<Option<Entry>>, QueueError> {
        let spans: Vec<_> = ids.iter().map(|id| (*id, *id, 1)).collect();
        let found = self.main_fronts(connection, &spans).await?;
        Ok(found.into_iter().map(|mut entries| entries.pop()).collect())
    }

    /// Reads the pack of one replay again; `None` if it is gone.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn replay_entry(
        &self,
        connection: &mut Connection,
        id: StreamId,
    ) -> Result<Option<Bytes>, QueueError> {
        self.entry(connection, &self.redis.keys.of(&self.consumer).replays(), id).await
    }

    async fn entry(
        &self,
        connection: &mut Connection,
        stream: &str,
        id: StreamId,
    ) -> Result<Option<Bytes>, QueueError> {
        let id = id.to_string();
        let found: Vec<(String, Fields)> =
            cmd("XRANGE").arg(stream).arg(&id).arg(&id).query_async(connection).await?;
        Ok(found.first().map(|(_, fields)| field(fields, "p")))
    }
}

/// Returns up to about `bytes` of the entries of a stream after `after`; at least one if there is one.
async fn behind(
    script: &Script,
    connection: &mut Connection,
    stream: &str,
    after: StreamId,
    bytes: usize,
) -> Result<Vec<(StreamId, Fields)>, QueueError> {
    let found: Vec<(String, Fields)> = script
        .key(stream)
        .arg(after.to_string())
        .arg(bytes)
        .arg(ENTRIES_MAX)
        .invoke_async(connection)
        .await?;
    found.into_iter().map(|(id, fields)| Ok((stream_id(&id)?, fields))).collect()
}

/// Names and values in alternation, as in a stream entry.
pub(crate) type Fields = Vec<Bytes>;

/// Returns the value of `name`, or an empty one. An entry without it was not written by us and
/// decodes as corrupt.
pub(crate) fn field(fields: &Fields, name: &str) -> Bytes {
    let found = fields.chunks_exact(2).find(|pair| pair[0] == name.as_bytes());
    found.map(|pair| pair[1].clone()).unwrap_or_default()
}

pub(crate) fn field_text(fields: &Fields, name: &str) -> String {
    String::from_utf8_lossy(&field(fields, name)).into_owned()
}

pub(crate) fn stream_id(text: &str) -> Result<StreamId, QueueError> {
    text.parse().map_err(|_| QueueError::Unexpected(format!("stream id {text:?}")))
}

/// Reads all fields of a hash in parts, parses them with `parse`, and sorts them. Redis may return
/// a field twice: the last value is kept. A part is parsed while Redis reads the next one.
async fn scan<K: Ord, V>(
    connection: &mut Connection,
    key: &str,
    parse: impl Fn(&str, &[u8]) -> Result<(K, V), QueueError>,
) -> Result<Vec<(K, V)>, QueueError> {
    type Part = Vec<(String, Bytes)>;
    let mut found = Vec::new();
    let (mut cursor, mut part): (u64, Part) = (0, Vec::new());
    loop {
        let mut command = cmd("HSCAN");
        command.arg(key).arg(cursor).arg("COUNT").arg(SCAN_COUNT);
        let parsing = async {
            let parsed = part.iter().map(|(field, value)| parse(field, value));
            parsed.collect::<Result<Vec<_>, _>>()
        };
        let (next, parsed) = tokio::join!(command.query_async(connection), parsing);
        found.extend(parsed?);
        (cursor, part) = next?;
        if cursor == 0 {
            break;
        }
    }
    for (field, value) in &part {
        found.push(parse(field, value)?);
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found.reverse();
    found.dedup_by(|(a, _), (b, _)| a == b);
    found.reverse();
    Ok(found)
}

fn fingerprints(fields: &Fields) -> Vec<Fingerprint> {
    let bytes = field(fields, "d");
    let whole = bytes.chunks_exact(size_of::<Fingerprint>());
    whole.map(|one| Fingerprint::from_le_bytes(one.try_into().expect("BUG: exact"))).collect()
}

fn entry((id, fields): (String, Fields)) -> Result<Entry, QueueError> {
    Ok(Entry { id: stream_id(&id)?, pack: field(&fields, "p") })
}

fn replay(id: StreamId, fields: &Fields) -> Result<Replay, QueueError> {
    let webhook = field_text(fields, "id");
    let webhook = webhook
        .parse()
        .map_err(|_| QueueError::Unexpected(format!("webhook id {webhook:?} in replay {id}")))?;
    Ok(Replay { id, webhook, pack: field(fields, "p") })
}
