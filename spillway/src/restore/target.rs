//! Redis into which a queue is restored: nothing waits in it, and nobody works on it.

use spillway_queue::status::{self, CellStatus};
use spillway_queue::{Connection, Redis, consumers};

use crate::failure::Failure;
use crate::out::count;

/// Redis that a queue is restored into, as it was looked at.
pub(super) struct RestoreTarget {
    /// Redis.
    pub redis: Redis,
    /// State of the queue that is replaced.
    pub status: CellStatus,
    /// Id of the cell that it is by now, if it is one.
    pub cell: Option<u32>,
}

impl RestoreTarget {
    /// Looks at a Redis, which must be without webhooks and leaders.
    pub(super) async fn look(redis: Redis, connection: &mut Connection) -> Result<Self, Failure> {
        let status = status::read(&redis, connection).await?;
        ensure_empty(&status)?;
        let cell = consumers::cell(&redis, connection).await?;
        Ok(Self { redis, status, cell })
    }
}

/// Checks that nothing of this queue would be replaced, and that nobody works on it.
fn ensure_empty(status: &CellStatus) -> Result<(), Failure> {
    if let Some(consumer) = status.consumers.iter().find(|consumer| consumer.has_live_leader()) {
        let leader = consumer.leader.as_ref().map(ToString::to_string).unwrap_or_default();
        return Err(Failure::Failed(format!(
            "stop all consumers and receivers first: {} is led by {leader}. One that was killed is gone after 10 s",
            consumer.name
        )));
    }
    let aside: u64 = status.consumers.iter().map(|consumer| consumer.parked).sum();
    if status.queue.packs == 0 && aside == 0 {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "this queue is not empty: it holds {} in packs, and {aside} in lanes and replays. Stop the receivers, let the \
         consumers deliver these, stop them, and run this again. If they wait for a restoration, run this with \
         --abandon first",
        count(status.queue.webhooks, "webhook")
    )))
}

#[cfg(test)]
mod tests {
    use spillway_queue::status::{ConsumerStatus, QueueStatus};

    use super::*;

    #[test]
    fn a_queue_that_holds_anything_is_refused() {
        let mut status = CellStatus::default();
        assert!(ensure_empty(&status).is_ok());
        status.queue = QueueStatus { packs: 2, webhooks: 7, ..QueueStatus::default() };
        let told = ensure_empty(&status).expect_err("webhooks").to_string();
        assert!(told.contains("7 webhooks"), "{told}");
        status.queue = QueueStatus::default();
        status.consumers.push(ConsumerStatus { parked: 3, ..ConsumerStatus::default() });
        let told = ensure_empty(&status).expect_err("webhooks in lanes").to_string();
        assert!(told.contains("3 in lanes"), "{told}");
    }
}
