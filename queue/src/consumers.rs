//! Registered consumers of the queue. A consumer is a consumer group of the stream, used only as a
//! named cursor. An entry is freed when the cursors of all registered consumers have reached it.

use rand::RngExt;
use redis::Script;

use crate::connect::{Connection, Redis};
use crate::error::QueueError;

/// Name of the downstreamer's consumer.
pub const HTTP: &str = "http";
/// Name of the Kafka producer's consumer.
pub const KAFKA: &str = "kafka";

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
/// [`QueueError`] from Redis.
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
/// [`QueueError`] from Redis.
pub async fn forget(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
) -> Result<bool, QueueError> {
    let keys = &redis.keys;
    let own = keys.of(consumer);
    let gone: u8 = Script::new(include_str!("lua/forget.lua"))
        .key(keys.stream())
        .key(keys.counts())
        .key(keys.consumers())
        .key(keys.shares())
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
        .arg(consumer)
        .invoke_async(connection)
        .await?;
    Ok(gone == 1)
}
