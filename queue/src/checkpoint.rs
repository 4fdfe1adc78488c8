//! State of all consumers, for a copy outside of this Redis: what each has not settled.
//!
//! The parts of a consumer's state are read one after the other while its leader goes on. The order makes what is
//! read complete. A webhook leaves the main stream for a lane in the settlement that moves the cursor over it. The
//! cursor is read first and the lanes last, so a webhook that moves meanwhile is still after the cursor. A bit that
//! a settlement sets for a webhook that it moves comes with the lane's row, so bits are read before the rows. What
//! is settled meanwhile is in the copy all the same: it is repeated, and nothing is left out.

use spillway_webhook::StreamId;

use crate::connect::{Connection, Redis};
use crate::consumers::ConsumerKind;
use crate::error::QueueError;
use crate::lane::LaneRow;
use crate::read::{ConsumerProgress, StreamReader};
use crate::status;

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
}

/// State of one consumer.
#[derive(Debug, Clone)]
pub struct ConsumerState {
    /// Name of the consumer.
    pub name: String,
    /// Program whose consumer it is, if that is known.
    pub kind: Option<ConsumerKind>,
    /// Cursor, and what is settled after it. The latter is left out if it is large.
    pub progress: ConsumerProgress,
    /// Lanes of which something waits in chunks.
    pub lanes: Vec<LaneRow>,
}

/// Reads the state of all consumers. What is settled after a cursor is left out for more than `done_max` packs.
///
/// # Errors
/// [`QueueError`] from Redis, or when a row of a lane cannot be read.
pub async fn read_state(
    redis: &Redis,
    connection: &mut Connection,
    done_max: u64,
) -> Result<QueueState, QueueError> {
    let status = status::read(redis, connection).await?;
    let mut state = QueueState {
        appended: status.queue.accepted,
        now_ms: status.now_ms,
        ..QueueState::default()
    };
    for known in status.consumers {
        let reader = StreamReader::new(redis.clone(), &known.name);
        let progress = match reader.progress_with(connection, done_max).await {
            Ok(progress) => progress,
            // It was forgotten meanwhile.
            Err(QueueError::Unregistered) => continue,
            Err(error) => return Err(error),
        };
        let lanes = reader.lane_rows(connection).await?;
        state.last = state.last.max(reader.last(connection).await?).max(progress.cursor);
        let kind = known.kind();
        state.consumers.push(ConsumerState { name: known.name, kind, progress, lanes });
    }
    state.consumers.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(state)
}
