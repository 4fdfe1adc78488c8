//! Packs of the front that are on their way into lanes.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_webhook::StreamId;

use crate::event::PackRead;

/// Time between two scans while no pack may have to move.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Packs that may move.
#[derive(Debug)]
pub(crate) struct Mover<C> {
    pub at_hand: VecDeque<PackRead<C>>,
    /// First one of the packs that are being read.
    pub requested: Option<StreamId>,
    pub due: Duration,
}

impl<C> Default for Mover<C> {
    fn default() -> Self {
        Self { at_hand: VecDeque::new(), requested: None, due: Duration::ZERO }
    }
}

impl<C> Mover<C> {
    /// Takes packs that were read. Returns the first one that was requested.
    pub(crate) fn front_read(
        &mut self,
        packs: Vec<PackRead<C>>,
        now: Duration,
    ) -> Option<StreamId> {
        if packs.is_empty() {
            self.due = now + LOOK_EVERY;
        }
        self.at_hand = packs.into();
        self.requested.take()
    }
}
