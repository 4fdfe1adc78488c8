//! Registered consumers of the queue. A consumer is a consumer group of the stream, used only as a
//! named cursor. An entry is freed when the cursors of all registered consumers have reached it.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use rand::RngExt;
use redis::Script;
use serde::Serialize;
use spillway_webhook::received::is_plain_name;

use crate::connect::{Connection, Redis};
use crate::error::QueueError;

/// Name of a downstreamer's consumer, unless it has another one.
pub const HTTP: &str = "http";
/// Name of a Kafka producer's consumer, unless it has another one.
pub const KAFKA: &str = "kafka";
/// Name of the archiver's consumer, which has no other one.
pub const ARCHIVE: &str = "archive";

/// Name of a consumer: 1 to 64 letters, digits, `-`, `_` or `.`. It becomes part of key names,
/// metrics and log lines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConsumerName(Arc<str>);

/// Text that is no name of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to 64 letters, digits, '-', '_' or '.'")]
pub struct NotAConsumerName;

/// Program whose consumer it is. Each keeps different data of its consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsumerKind {
    /// Delivers by HTTP, in order per resource.
    Downstreamer,
    /// Writes to a Kafka topic, in the order of the queue.
    KafkaProducer,
    /// Writes a copy of every webhook into an archive, in the order of the queue.
    Archiver,
}

impl Deref for ConsumerName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl FromStr for ConsumerName {
    type Err = NotAConsumerName;

    fn from_str(text: &str) -> Result<Self, NotAConsumerName> {
        if is_plain_name(text) { Ok(Self(text.into())) } else { Err(NotAConsumerName) }
    }
}

impl ConsumerKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Downstreamer, Self::KafkaProducer, Self::Archiver];

    /// Name of a consumer of this kind, unless it has another one.
    pub fn default_name(self) -> ConsumerName {
        let name = match self {
            Self::Downstreamer => HTTP,
            Self::KafkaProducer => KAFKA,
            Self::Archiver => ARCHIVE,
        };
        ConsumerName(name.into())
    }

    /// Kind whose default name this is.
    pub fn of_default_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind.default_name() == *name)
    }

    /// True if a consumer of this kind delivers webhooks. An archive only keeps a copy.
    pub fn delivers(self) -> bool {
        match self {
            Self::Downstreamer | Self::KafkaProducer => true,
            Self::Archiver => false,
        }
    }

    /// True if a consumer of this kind has lanes and a history. The others keep the order of the queue.
    pub fn has_lanes(self) -> bool {
        match self {
            Self::Downstreamer => true,
            Self::KafkaProducer | Self::Archiver => false,
        }
    }

    /// Name of the program.
    pub fn label(self) -> &'static str {
        match self {
            Self::Downstreamer => "downstreamer",
            Self::KafkaProducer => "kafka_producer",
            Self::Archiver => "archiver",
        }
    }

    /// Kind with this label.
    pub fn of_label(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.label() == label)
    }
}

/// Start position of a consumer that is registered for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    /// The oldest entry in the stream.
    Oldest,
    /// The end of the stream: only webhooks accepted from now on.
    Now,
}

/// Result of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered {
    /// Random id of this cell.
    pub cell: u32,
    /// True if the consumer is new.
    pub is_new: bool,
}

/// Registers `consumer` unless it is known, and creates the cell's id unless there is one. With
/// `None`, only the cell's id is created.
///
/// # Errors
/// [`QueueError::Restoring`] while the queue is restored from an archive; others from Redis.
pub async fn register(
    redis: &Redis,
    connection: &mut Connection,
    consumer: Option<&str>,
    start_at: StartAt,
) -> Result<Registered, QueueError> {
    refuse_older_prefix(redis, connection).await?;
    let keys = &redis.keys;
    let start_at = match start_at {
        StartAt::Oldest => "oldest",
        StartAt::Now => "now",
    };
    let (cell, is_new): (String, bool) = Script::new(include_str!("lua/register.lua"))
        .key(keys.stream())
        .key(keys.cell())
        .key(keys.counts())
        .key(keys.consumers())
        .key(keys.rebuild())
        .arg(consumer.unwrap_or_default())
        .arg(start_at)
        .arg(format!("{:08x}", rand::rng().random::<u32>()))
        .invoke_async(connection)
        .await?;
    Ok(Registered { cell: parse_cell(&cell)?, is_new })
}

/// Fails if there is a queue under the default prefix of older versions, which no process would
/// read any more. A cluster cannot hold one.
async fn refuse_older_prefix(redis: &Redis, connection: &mut Connection) -> Result<(), QueueError> {
    let Some(older) = redis.keys.older_cell().filter(|_| !redis.is_cluster()) else {
        return Ok(());
    };
    let here: bool = redis::cmd("EXISTS").arg(redis.keys.cell()).query_async(connection).await?;
    if here {
        return Ok(());
    }
    // A user may be allowed to see only the keys under its own prefix: then the others are not
    // ours.
    let there: Result<bool, _> = redis::cmd("EXISTS").arg(older).query_async(connection).await;
    match there.map_err(QueueError::from) {
        Ok(true) => Err(QueueError::OlderPrefix),
        Ok(false) | Err(QueueError::Refused(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the random id of the cell, if it has one yet.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn cell(redis: &Redis, connection: &mut Connection) -> Result<Option<u32>, QueueError> {
    let cell: Option<String> =
        redis::cmd("GET").arg(redis.keys.cell()).query_async(connection).await?;
    cell.map(|cell| parse_cell(&cell)).transpose()
}

fn parse_cell(cell: &str) -> Result<u32, QueueError> {
    u32::from_str_radix(cell, 16).map_err(|_| QueueError::Unexpected(format!("cell id {cell:?}")))
}

/// Removes `consumer` with its replays, lanes and dead letters, and frees the entries that only it
/// held back. Returns true if it was registered.
///
/// # Errors
/// [`QueueError::Restoring`] while the queue is restored from an archive; others from Redis.
pub async fn forget(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
) -> Result<bool, QueueError> {
    let keys = &redis.keys;
    let own = keys.of(consumer);
    let records = own.replay_records();
    let replays: Vec<String> = redis::cmd("HKEYS").arg(&records).query_async(connection).await?;
    let of_replays = replays.iter().flat_map(|id| [own.replay_record(id), own.replay_left(id)]);
    let gone: u8 = Script::new(include_str!("lua/forget.lua"))
        .key(keys.stream())
        .key(keys.counts())
        .key(keys.consumers())
        .key(keys.shares())
        .key(keys.rebuild())
        .key(own.leader())
        .key(own.instance())
        .key(own.done())
        .key(own.replays())
        .key(own.dead())
        .key(own.dead_bytes())
        .key(own.settled())
        .key(own.seen())
        .key(own.history())
        .key(own.controls())
        .key(own.dropping())
        .key(own.chunks())
        .key(own.chunks_done())
        .key(own.lanes())
        .key(own.barriers())
        .key(own.leads())
        .key(own.retries())
        .key(own.main_retries())
        .key(records)
        .key(of_replays.collect::<Vec<_>>())
        .arg(consumer)
        .invoke_async(connection)
        .await?;
    Ok(gone == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["http", "kafka", "audit-2.eu_west"] {
            assert_eq!(good.parse::<ConsumerName>().as_deref(), Ok(good));
        }
        for bad in ["", "a b", "a:b", "\u{e9}", &"x".repeat(65)] {
            assert_eq!(bad.parse::<ConsumerName>(), Err(NotAConsumerName), "{bad}");
        }
    }

    #[test]
    fn a_kind_is_read_back_by_its_label_and_by_its_default_name() {
        for kind in ConsumerKind::ALL {
            assert_eq!(ConsumerKind::of_label(kind.label()), Some(kind));
            assert_eq!(ConsumerKind::of_default_name(&kind.default_name()), Some(kind));
        }
        assert_eq!(ConsumerKind::of_label(""), None);
        assert_eq!(ConsumerKind::of_default_name("billing"), None);
    }
}
