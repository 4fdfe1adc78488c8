//! Settlements of what is archived: one at a time. What is archived meanwhile joins the next.

use spillway_consumer::End;
use spillway_consumer::settle::{self, Settled};
use spillway_process::error::chain;
use spillway_queue::consumers::ARCHIVE;
use spillway_queue::controls::OperatorControls;
use spillway_queue::settle::Settlement;
use spillway_queue::{QueueError, Redis};
use tokio::sync::mpsc;

/// The task that applies settlements, and what it is owed.
pub(crate) struct OwedSettlements {
    settlements: mpsc::Sender<Settlement>,
    settled: mpsc::Receiver<Settled>,
    is_under_way: bool,
    owed: Settlement,
}

impl OwedSettlements {
    /// Starts the task, after the settlement whose mark is `mark`.
    pub(crate) fn start(redis: Redis, token: &str, mark: Option<String>) -> Self {
        let (settlements, settled) = settle::start(redis, ARCHIVE, token, mark);
        Self { settlements, settled, is_under_way: false, owed: Settlement::default() }
    }

    /// Adds to what is owed.
    pub(crate) fn owe(&mut self, more: Settlement) {
        join(&mut self.owed, more);
    }

    /// Notes that controls up to this version are carried out.
    pub(crate) fn owe_controls(&mut self, version: u64) {
        self.owed.controls.done = (version > 0).then_some(version);
    }

    /// True if nothing is owed, and nothing under way.
    pub(crate) fn is_done(&self) -> bool {
        !self.is_under_way && self.owed.is_empty()
    }

    /// Begins the next settlement, if there is one and none is under way.
    ///
    /// # Errors
    /// If the task ended.
    pub(crate) fn begin(&mut self, controls: &mut OperatorControls) -> Result<(), End> {
        if self.is_under_way || self.owed.is_empty() {
            return Ok(());
        }
        let mut settlement = std::mem::take(&mut self.owed);
        settlement.controls.known = controls.version;
        forget_names(&mut settlement, controls);
        // The channel holds one settlement, and none is under way.
        self.settlements.try_send(settlement).map_err(|_| gone())?;
        self.is_under_way = true;
        Ok(())
    }

    /// Waits for the result of the settlement under way; for ever, if there is none.
    pub(crate) async fn result(&mut self) -> Option<Settled> {
        if !self.is_under_way {
            std::future::pending::<()>().await;
        }
        self.settled.recv().await
    }

    /// Takes the result of the settlement under way.
    ///
    /// # Errors
    /// The reason for which leadership ends.
    pub(crate) fn on_result(&mut self, settled: Option<Settled>) -> Result<(), End> {
        self.is_under_way = false;
        match settled.ok_or_else(gone)? {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::warn!(error = chain(&error), "settling failed; leadership ends");
                Err(match error {
                    QueueError::Unregistered => End::Stale,
                    _ => End::Lost,
                })
            }
        }
    }
}

/// Adds a settlement to another one that is not applied yet.
fn join(owed: &mut Settlement, more: Settlement) {
    if let Some(more) = more.passed {
        let passed = owed.passed.get_or_insert_default();
        passed.cursor = more.cursor;
        passed.entries += more.entries;
        passed.webhooks += more.webhooks;
    }
    owed.corrupt.packs.extend(more.corrupt.packs);
}

/// Removes the names of webhooks to drop in the entries that the cursor goes over. An archive keeps every
/// webhook, so a drop changes nothing in it.
fn forget_names(settlement: &mut Settlement, controls: &mut OperatorControls) {
    let Some(passed) = settlement.passed else { return };
    let named = &mut controls.dropping.main;
    settlement.whole.extend(named.keys().copied().filter(|id| *id <= passed.cursor));
    named.retain(|id, _| *id > passed.cursor);
}

fn gone() -> End {
    tracing::error!("BUG: the settling task ended early; beginning again");
    End::Stale
}

#[cfg(test)]
mod tests {
    use spillway_queue::settle::PassedEntries;
    use spillway_webhook::StreamId;

    use super::*;

    const fn id(ms: u64) -> StreamId {
        StreamId { ms, seq: 0 }
    }

    #[test]
    fn what_joins_a_settlement_moves_the_cursor_further() {
        let mut owed = Settlement::default();
        for ms in [5, 9] {
            let passed = Some(PassedEntries { cursor: id(ms), entries: 2, webhooks: 7 });
            let mut more = Settlement { passed, ..Settlement::default() };
            more.corrupt.packs.push(id(ms));
            join(&mut owed, more);
        }
        assert_eq!(owed.passed, Some(PassedEntries { cursor: id(9), entries: 4, webhooks: 14 }));
        assert_eq!(owed.corrupt.packs, [id(5), id(9)]);
        let mut controls = OperatorControls::default();
        controls.dropping.name(id(9), 1);
        controls.dropping.name(id(10), 1);
        forget_names(&mut owed, &mut controls);
        assert_eq!(owed.whole, [id(9)]);
        assert_eq!(controls.dropping.main.len(), 1);
    }
}
