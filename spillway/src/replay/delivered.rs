//! Webhooks that a consumer has settled: only those are replayed.

use spillway_queue::{consumers, status};
use spillway_webhook::{ConsumerFilter, StreamId};

use crate::failure::Failure;
use crate::place::{CellArgs, unknown};

/// Webhooks that a consumer has settled.
#[derive(Debug)]
pub(super) struct DeliveredWebhooks {
    /// Name of the consumer.
    pub consumer: String,
    /// Id of the cell.
    pub cell: u32,
    /// Everything up to here is settled, or waits in a lane.
    pub cursor: StreamId,
    /// Webhooks that it has not settled.
    pub waiting: u64,
    /// Webhooks that the consumer delivers.
    pub filter: ConsumerFilter,
}

impl DeliveredWebhooks {
    /// Reads what a consumer has settled.
    pub(super) async fn of(cell: &CellArgs, consumer: &str) -> Result<Self, Failure> {
        let (redis, mut connection) = cell.connect().await?;
        let status = status::read(&redis, &mut connection).await?;
        let found = status.consumers.iter().find(|known| known.name == consumer);
        let known = found.ok_or_else(|| unknown(consumer, &status))?;
        if !known.delivers() {
            return Err(Failure::Usage(format!(
                "{consumer} is an archive, which delivers nothing: name another --consumer"
            )));
        }
        let own = consumers::cell(&redis, &mut connection).await?;
        let cursor = known.cursor.parse::<StreamId>().map_err(|_| {
            Failure::Failed(format!("BUG: the cursor of {consumer} is no id: {}", known.cursor))
        })?;
        Ok(Self {
            consumer: consumer.to_owned(),
            cell: own.unwrap_or_default(),
            cursor,
            waiting: known.waiting,
            filter: known.notes.filter.clone().unwrap_or_default(),
        })
    }
}
