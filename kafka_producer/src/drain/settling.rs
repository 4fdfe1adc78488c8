//! What Redis is told, once it is committed in Kafka: one settlement at a time, what comes
//! meanwhile joins the next.

use spillway_drain::End;
use spillway_drain::settle::Settled;
use spillway_queue::QueueError;
use spillway_queue::settle::Settlement;
use spillway_service::error::chain;
use spillway_webhook::StreamId;
use tokio::sync::mpsc::error::TryRecvError;

use super::{Drain, Session, Stop};

impl Session {
    /// The entry `id` with `webhooks` in it is in Kafka.
    pub(super) fn owe_passed(&mut self, id: StreamId, webhooks: u64) {
        let passed = Settlement {
            cursor: Some(id),
            entries_passed: 1,
            webhooks_passed: webhooks,
            ..Settlement::default()
        };
        self.through += webhooks;
        self.owe(passed);
    }

    /// What is committed joins what Redis has not been told yet.
    pub(super) fn owe(&mut self, more: Settlement) {
        let owed = &mut self.owed;
        owed.cursor = more.cursor.or(owed.cursor);
        owed.entries_passed += more.entries_passed;
        owed.webhooks_passed += more.webhooks_passed;
        owed.corrupt.extend(more.corrupt);
        owed.corrupt_parked.extend(more.corrupt_parked);
        owed.unparked.extend(more.unparked);
        owed.dropped += more.dropped;
        if let Some(cursor) = owed.cursor {
            let is_passed = |id: &StreamId| *id <= cursor;
            owed.whole.extend(self.given_up.keys().copied().filter(is_passed));
            self.given_up.retain(|id, _| !is_passed(id));
            let dropping = &mut self.orders.dropping.main;
            owed.whole.extend(dropping.keys().copied().filter(is_passed));
            dropping.retain(|id, _| !is_passed(id));
        }
    }

    /// Webhooks given up in packs that are not passed.
    pub(super) fn open_webhooks(&self) -> u64 {
        let bits = self.given_up.values().flatten();
        bits.map(|byte| u64::from(byte.count_ones())).sum()
    }
}

impl Drain {
    /// Hears what came of the settlement under way, and begins the next if there is one.
    pub(super) fn hear_settled(&mut self, session: &mut Session) -> Result<(), Stop> {
        if self.is_settling {
            match self.settled.try_recv() {
                Ok(settled) => self.settled(settled)?,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(gone()),
            }
        }
        if !session.owed.is_empty() {
            let mut settlement = std::mem::take(&mut session.owed);
            settlement.open = session.open_webhooks();
            settlement.orders_known = session.orders.version;
            // The channel holds one order, and none is under way.
            self.orders.try_send(settlement).map_err(|_| gone())?;
            self.is_settling = true;
        }
        Ok(())
    }

    /// Waits until Redis knows everything that is committed.
    pub(super) fn settle_all(&mut self, session: &mut Session) -> Result<(), Stop> {
        loop {
            self.settle_under_way()?;
            self.hear_settled(session)?;
            if !self.is_settling {
                return Ok(());
            }
        }
    }

    /// Waits for what came of the settlement under way, if there is one.
    pub(super) fn settle_under_way(&mut self) -> Result<(), Stop> {
        if !self.is_settling {
            return Ok(());
        }
        let (runtime, lost) = (self.runtime.clone(), self.tenure.lost.clone());
        let settled = runtime.block_on(async {
            tokio::select! {
                settled = self.settled.recv() => Ok(settled),
                () = lost.cancelled() => Err(Stop::End(End::Lost)),
            }
        })?;
        self.settled(settled.ok_or_else(gone)?)
    }

    /// Applies one settlement and waits for it.
    pub(super) fn settle_now(&mut self, settlement: Settlement) -> Result<(), Stop> {
        self.settle_under_way()?;
        self.orders.try_send(settlement).map_err(|_| gone())?;
        self.is_settling = true;
        self.settle_under_way()
    }

    fn settled(&mut self, settled: Settled) -> Result<(), Stop> {
        self.is_settling = false;
        match settled {
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::warn!(error = chain(&error), "settling ended");
                Err(Stop::End(match error {
                    QueueError::Unregistered => End::Stale,
                    _ => End::Lost,
                }))
            }
        }
    }
}

fn gone() -> Stop {
    tracing::error!("BUG: the settling task ended early; beginning again");
    Stop::End(End::Stale)
}
