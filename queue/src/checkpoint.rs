//! State of all consumers, for a copy outside of this Redis: what each has not settled.
//!
//! The leader goes on while its consumer's state is read. Cursor and bits must be those of one moment: a settlement
//! that passes an entry deletes its bits. With the cursor of before, that entry would be repeated, but not a later
//! webhook of the same resource that has a bit: its last state at the backend would be an old one. So the mark of the
//! last settlement is read before and after them. If it is another one each time, the bits are left out: then
//! everything after the cursor is repeated, in order.
//!
//! Lanes may be read later. A webhook leaves the main stream for a lane in the settlement that moves the cursor over
//! it, so one that moves meanwhile is still after the cursor that was read. What is settled meanwhile is repeated.

use redis::cmd;
use spillway_webhook::{StreamId, WebhookId};

use crate::connect::{Connection, Redis};
use crate::consumers::ConsumerKind;
use crate::error::QueueError;
use crate::read::{ConsumerProgress, OldestLanes, StreamReader};
use crate::status;

/// Attempts to read cursor and bits without a settlement meanwhile. Each takes some milliseconds at most.
const ATTEMPTS: usize = 8;

/// State of the queue and of all its consumers.
#[derive(Debug, Clone, Default)]
pub struct QueueState {
    /// Id that was given out last, at least the cursor of each consumer.
    pub last: StreamId,
    /// Webhooks ever appended.
    pub appended: u64,
    /// Redis' clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Consumers, in the order of their names.
    pub consumers: Vec<ConsumerState>,
    /// Redactions that were delivered and are not carried out, sorted.
    pub redactions: Vec<WebhookId>,
    /// Id of the cell, 8 hexadecimal digits, read last. With another id, or none, Redis was emptied meanwhile, and the
    /// rest is of no use.
    pub cell: Option<String>,
}

/// State of one consumer.
#[derive(Debug, Clone)]
pub struct ConsumerState {
    /// Name of the consumer.
    pub name: String,
    /// Program whose consumer it is, if that is known.
    pub kind: Option<ConsumerKind>,
    /// Cursor, and what is settled after it. The latter is left out if it is large, or changed all the time.
    pub progress: ConsumerProgress,
    /// Lanes of which something waits in chunks.
    pub lanes: OldestLanes,
}

/// Reads the state of all consumers. What is settled after a cursor is left out for more than `done_max` packs. Of the
/// lanes of each consumer, the `lanes_max` oldest are kept.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn read_state(
    redis: &Redis,
    connection: &mut Connection,
    done_max: u64,
    lanes_max: usize,
) -> Result<QueueState, QueueError> {
    let status = status::read(redis, connection).await?;
    let mut state = QueueState {
        appended: status.queue.accepted,
        now_ms: status.now_ms,
        ..QueueState::default()
    };
    for known in status.consumers {
        let reader = StreamReader::new(redis.clone(), &known.name);
        let progress = match progress(&reader, connection, done_max).await {
            Ok(progress) => progress,
            // It was forgotten meanwhile.
            Err(QueueError::Unregistered) => continue,
            Err(error) => return Err(error),
        };
        let lanes = reader.oldest_lanes(connection, lanes_max).await?;
        state.last = state.last.max(reader.last(connection).await?).max(progress.cursor);
        let kind = known.kind();
        state.consumers.push(ConsumerState { name: known.name, kind, progress, lanes });
    }
    state.consumers.sort_by(|a, b| a.name.cmp(&b.name));
    // After the cursors: what is settled by then is noted by then. What is settled later is delivered again.
    state.redactions = noted(redis, connection).await?;
    state.cell = cmd("GET").arg(redis.keys.cell()).query_async(connection).await?;
    Ok(state)
}

/// Reads cursor and bits as they were at one moment, or the cursor only.
async fn progress(
    reader: &StreamReader,
    connection: &mut Connection,
    done_max: u64,
) -> Result<ConsumerProgress, QueueError> {
    let mut progress = reader.progress_with(connection, done_max).await?;
    for _ in 1..ATTEMPTS {
        if reader.mark(connection).await? == progress.mark {
            return Ok(progress);
        }
        progress = reader.progress_with(connection, done_max).await?;
    }
    if reader.mark(connection).await? != progress.mark {
        progress.done.clear();
    }
    Ok(progress)
}

/// Ids of redactions that were delivered and are not carried out.
async fn noted(redis: &Redis, connection: &mut Connection) -> Result<Vec<WebhookId>, QueueError> {
    let fields: Vec<String> =
        cmd("HKEYS").arg(redis.keys.redactions()).query_async(connection).await?;
    // Other fields are marks of purges.
    let mut ids: Vec<WebhookId> = fields.iter().filter_map(|field| field.parse().ok()).collect();
    ids.sort_unstable();
    Ok(ids)
}
