//! An operator's controls: pause everything, skip webhooks.
//!
//! The topic has an order, so only all of it can be paused. A webhook to be dropped is skipped when
//! its turn comes, and counted in the settlement that advances the cursor over it.

use std::time::Duration;

use spillway_process::error::chain;
use spillway_queue::controls;

use super::settling;
use super::{Exporter, ProducerSession, Stop};
use crate::open::{Open, RecordRef};

/// Time between checks while paused.
const PAUSED_LOOK: Duration = Duration::from_millis(100);
/// Reads changed controls. If Redis does not answer, the old ones stay in force.
pub(super) fn take_controls(exporter: &mut Exporter, session: &mut ProducerSession) {
    // The controls that were read may be newer than the last heartbeat reported: one read is
    // enough. An older version is a change, too: Redis may have come back with older data.
    let bumped = exporter.leader.controls();
    if bumped == session.controls.version {
        session.controls_looked_at = bumped;
    }
    if bumped == session.controls_looked_at {
        return;
    }
    match exporter.runtime.clone().block_on(exporter.queue.read_controls()) {
        Ok(controls) if controls.version == session.controls.version => {
            session.controls_looked_at = bumped;
        }
        Ok(controls) => {
            session.controls_looked_at = bumped;
            tracing::info!(version = controls.version, "an operator changed the controls");
            session.owed.settlement.controls.done = Some(controls.version);
            session.controls = controls;
            show_pauses(exporter, &session.controls);
        }
        Err(error) => {
            tracing::warn!(error = chain(&error), "controls could not be read; trying again");
            exporter.queue.connection = None;
        }
    }
}

pub(super) fn show_pauses(exporter: &Exporter, controls: &controls::OperatorControls) {
    exporter.metrics.pauses.show(&controls.pauses);
}

/// Returns true while everything is paused, and waits a little then. An open transaction is
/// ended first.
pub(super) fn check_pause(
    exporter: &mut Exporter,
    session: &mut ProducerSession,
    open: &Open,
) -> Result<bool, Stop> {
    let is_paused = session.controls.pauses.iter().any(|pause| pause.filter.is_empty());
    if is_paused && !open.has_begun {
        session.link.poll(Duration::ZERO);
        settling::hear_settled(exporter, session)?;
        if !exporter.shutdown.is_cancelled() {
            exporter.ensure_leadership()?;
            exporter.runtime.block_on(tokio::time::sleep(PAUSED_LOOK));
        }
    }
    Ok(is_paused)
}

impl ProducerSession {
    /// Returns true if an operator asked to drop the webhook.
    pub(super) fn is_to_drop(&self, place: RecordRef) -> bool {
        let dropping = &self.controls.dropping;
        match place {
            RecordRef::Main(id, index) => dropping.is_named(id, index),
            RecordRef::Replay(id) => dropping.replays.contains(&id),
        }
    }
}
