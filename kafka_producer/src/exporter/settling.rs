//! Settlements of what is committed in Kafka: one at a time. What is committed meanwhile joins the
//! next.

use spillway_consumer::End;
use spillway_consumer::settle::Settled;
use spillway_process::error::chain;
use spillway_queue::QueueError;
use spillway_queue::settle::{PassedEntries, Settlement};
use spillway_webhook::StreamId;
use tokio::sync::mpsc::error::TryRecvError;

use super::{Exporter, ProducerSession, Stop};

/// Settlement of what is committed in Kafka and not yet settled in Redis.
pub(super) struct Owed {
    pub(super) settlement: Settlement,
    /// Entries up to here are settled in Redis or owed to it. At the beginning, Kafka's cursor may
    /// be after it: the entries between the two have yet to be read and counted.
    up_to: StreamId,
}

impl Owed {
    /// No settlement, for a Redis whose cursor is `cursor`.
    pub(super) fn after(cursor: StreamId) -> Self {
        Self { settlement: Settlement::default(), up_to: cursor }
    }

    /// Entry after which reading continues when a transaction has failed.
    pub(super) fn reads_after(&self) -> StreamId {
        self.up_to
    }

    fn add(&mut self, more: Settlement) {
        let owed = &mut self.settlement;
        if let Some(more) = more.passed {
            self.up_to = more.cursor;
            let passed = owed.passed.get_or_insert_default();
            passed.cursor = more.cursor;
            passed.entries += more.entries;
            passed.webhooks += more.webhooks;
        }
        owed.corrupt.packs.extend(more.corrupt.packs);
        owed.corrupt.replays.extend(more.corrupt.replays);
        owed.replays.extend(more.replays);
        owed.controls.dropped += more.controls.dropped;
    }
}

impl ProducerSession {
    /// Notes that the entry `id` with `webhooks` in it is in Kafka.
    pub(super) fn owe_passed(&mut self, id: StreamId, webhooks: u64) {
        let passed = Some(PassedEntries { cursor: id, entries: 1, webhooks });
        self.through += webhooks;
        self.owe(Settlement { passed, ..Settlement::default() });
    }

    /// Adds to the settlement that Redis is owed.
    pub(super) fn owe(&mut self, more: Settlement) {
        self.owed.add(more);
        let owed = &mut self.owed.settlement;
        if let Some(PassedEntries { cursor, .. }) = owed.passed {
            let is_passed = |id: &StreamId| *id <= cursor;
            owed.whole.extend(self.given_up.keys().copied().filter(is_passed));
            self.given_up.retain(|id, _| !is_passed(id));
            let dropping = &mut self.controls.dropping.main;
            owed.whole.extend(dropping.keys().copied().filter(is_passed));
            dropping.retain(|id, _| !is_passed(id));
        }
    }

    /// Number of webhooks that were given up, in packs after the cursor.
    pub(super) fn open_webhooks(&self) -> u64 {
        let bits = self.given_up.values().flatten();
        bits.map(|byte| u64::from(byte.count_ones())).sum()
    }
}
/// Takes the result of the settlement under way, and begins the next if there is one.
pub(super) fn hear_settled(
    exporter: &mut Exporter,
    session: &mut ProducerSession,
) -> Result<(), Stop> {
    if exporter.settling.is_under_way {
        match exporter.settling.settled.try_recv() {
            Ok(settled) => take_result(exporter, settled)?,
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => return Err(gone()),
        }
    }
    if !session.owed.settlement.is_empty() {
        let mut settlement = std::mem::take(&mut session.owed.settlement);
        settlement.settled_after_cursor = session.open_webhooks();
        settlement.controls.known = session.controls.version;
        // The channel holds one settlement, and none is under way.
        exporter.settling.settlements.try_send(settlement).map_err(|_| gone())?;
        exporter.settling.is_under_way = true;
    }
    Ok(())
}

/// Waits until everything committed is settled in Redis.
pub(super) fn settle_all(
    exporter: &mut Exporter,
    session: &mut ProducerSession,
) -> Result<(), Stop> {
    loop {
        settle_under_way(exporter)?;
        hear_settled(exporter, session)?;
        if !exporter.settling.is_under_way {
            return Ok(());
        }
    }
}

/// Waits for the result of the settlement under way, if there is one.
pub(super) fn settle_under_way(exporter: &mut Exporter) -> Result<(), Stop> {
    if !exporter.settling.is_under_way {
        return Ok(());
    }
    let runtime = exporter.runtime.clone();
    let lost = exporter.leader.lost.clone();
    let settled = runtime.block_on(async {
        tokio::select! {
            settled = exporter.settling.settled.recv() => Ok(settled),
            () = lost.cancelled() => Err(Stop::End(End::Lost)),
        }
    })?;
    take_result(exporter, settled.ok_or_else(gone)?)
}

/// Applies one settlement and waits for it.
pub(super) fn settle_now(exporter: &mut Exporter, settlement: Settlement) -> Result<(), Stop> {
    settle_under_way(exporter)?;
    exporter.settling.settlements.try_send(settlement).map_err(|_| gone())?;
    exporter.settling.is_under_way = true;
    settle_under_way(exporter)
}

fn take_result(exporter: &mut Exporter, settled: Settled) -> Result<(), Stop> {
    exporter.settling.is_under_way = false;
    match settled {
        Ok(()) => Ok(()),
        Err(error) => {
            tracing::warn!(error = chain(&error), "settling failed; leadership ends");
            Err(Stop::End(match error {
                QueueError::Unregistered => End::Stale,
                _ => End::Lost,
            }))
        }
    }
}

fn gone() -> Stop {
    tracing::error!("BUG: the settling task ended early; beginning again");
    Stop::End(End::Stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(ms: u64) -> StreamId {
        StreamId { ms, seq: 0 }
    }

    /// Redis' cursor is 5 and Kafka's 8. Replays come first, and their transaction fails.
    #[test]
    fn entries_between_both_cursors_are_read_again_after_a_redo_until_redis_is_owed_them() {
        let mut owed = Owed::after(id(5));
        owed.add(Settlement { replays: vec![id(1)], ..Settlement::default() });
        assert_eq!(owed.reads_after(), id(5));
        for (ms, webhooks) in [(6, 3), (7, 4)] {
            let passed = Some(PassedEntries { cursor: id(ms), entries: 1, webhooks });
            owed.add(Settlement { passed, ..Settlement::default() });
        }
        assert_eq!(owed.reads_after(), id(7));
        let told = std::mem::take(&mut owed.settlement);
        assert_eq!(told.passed, Some(PassedEntries { cursor: id(7), entries: 2, webhooks: 7 }));
        assert_eq!(owed.reads_after(), id(7));
    }
}
