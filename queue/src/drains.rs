//! Who reads the queue. A drain is a consumer group of the stream, used only as a named cursor: an
//! entry is freed when every registered drain is past it.

use rand::RngExt;
use redis::Script;

use crate::connect::{Connection, Redis};
use crate::error::QueueError;

/// Name of the downstreamer's drain.
pub const HTTP: &str = "http";
/// Name of the Kafka producer's drain.
pub const KAFKA: &str = "kafka";

/// Where a drain begins that is registered for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    /// With the oldest entry left.
    Oldest,
    /// With what is accepted from now on.
    Now,
}

/// What registering found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered {
    /// The random id of this cell.
    pub cell: u32,
    /// Whether the drain is new.
    pub is_new: bool,
}

/// Registers `drain` unless it is known, and makes the cell's id unless there is one. `None` makes
/// only the cell's id.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn register(
    redis: &Redis,
    connection: &mut Connection,
    drain: Option<&str>,
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
        .key(keys.drains())
        .arg(drain.unwrap_or_default())
        .arg(start_at)
        .arg(format!("{:08x}", rand::rng().random::<u32>()))
        .invoke_async(connection)
        .await?;
    Ok(Registered { cell: parse_cell(&cell)?, is_new })
}

/// A queue that waits under the default prefix of before would not be seen by anybody. In a cluster it can't be there.
async fn refuse_older_prefix(redis: &Redis, connection: &mut Connection) -> Result<(), QueueError> {
    let Some(older) = redis.keys.older_cell().filter(|_| !redis.is_cluster()) else {
        return Ok(());
    };
    let here: bool = redis::cmd("EXISTS").arg(redis.keys.cell()).query_async(connection).await?;
    if here {
        return Ok(());
    }
    // A user may see the keys of its own prefix only: then these are not ours either.
    let there: Result<bool, _> = redis::cmd("EXISTS").arg(older).query_async(connection).await;
    match there.map_err(QueueError::from) {
        Ok(true) => Err(QueueError::OlderPrefix),
        Ok(false) | Err(QueueError::Refused(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The random id of the cell, if it has one yet.
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

/// Forgets `drain` with its replays, lanes and dead letters, and frees what only it held back. Says
/// whether it was known.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn forget(
    redis: &Redis,
    connection: &mut Connection,
    drain: &str,
) -> Result<bool, QueueError> {
    let keys = &redis.keys;
    let gone: u8 = Script::new(include_str!("lua/forget.lua"))
        .key(keys.stream())
        .key(keys.counts())
        .key(keys.drains())
        .key(keys.shares())
        .key(keys.owner(drain))
        .key(keys.done(drain))
        .key(keys.replays(drain))
        .key(keys.dead(drain))
        .key(keys.dead_bytes(drain))
        .key(keys.settled(drain))
        .key(keys.seen(drain))
        .key(keys.history(drain))
        .key(keys.orders(drain))
        .key(keys.dropping(drain))
        .key(keys.chunks(drain))
        .key(keys.chunks_done(drain))
        .key(keys.lanes(drain))
        .key(keys.barriers(drain))
        .key(keys.leads(drain))
        .key(keys.retries(drain))
        .key(keys.main_retries(drain))
        .arg(drain)
        .invoke_async(connection)
        .await?;
    Ok(gone == 1)
}
