//! Reads that found nothing.
//!
//! A pack or chunk that is not there may be settled just now: the settlement under way is waited for,
//! and then it is either not needed any more, or lost.

use std::collections::BTreeSet;

use spillway_webhook::StreamId;

use crate::core::Core;
use crate::event::Effect;
use crate::reading::PackKey;
use crate::sorted::Content;

/// Reason to begin again.
const GONE: &str = "a pack that waits is not in redis any more";

/// Something that was not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Missed {
    /// A pack or chunk whose webhooks have their turn.
    Pack(PackKey),
    /// A pack of the main stream, for the lane of this hash.
    Rest(u64, StreamId),
}

impl<C: Content> Core<C> {
    /// Something was not there: whoever waits for it goes on waiting until the settlement under way is
    /// applied.
    pub(crate) fn missed(&mut self, missed: Missed) -> Option<Effect<C>> {
        if self.ledger.settling.is_some() && self.is_needed(missed) {
            self.reading.missed.insert(missed);
            return None;
        }
        self.is_lost(missed).then_some(Effect::Restart(GONE))
    }

    /// Something was there: it had been looked for before it was written, or its lane was cut meanwhile.
    pub(crate) fn found(&mut self, key: PackKey) {
        let is_found = |missed: &Missed| match missed {
            Missed::Pack(missed) => *missed == key,
            Missed::Rest(_, entry) => PackKey::Main(*entry) == key,
        };
        let missed = std::mem::take(&mut self.reading.missed);
        let (found, missed): (BTreeSet<_>, _) = missed.into_iter().partition(is_found);
        self.reading.missed = missed;
        found.into_iter().for_each(|found| self.go_on(found));
    }

    /// A settlement was applied: what it did not settle is lost.
    pub(crate) fn look_at_missed(&mut self) -> Option<Effect<C>> {
        let missed = std::mem::take(&mut self.reading.missed);
        let lost = missed.into_iter().filter(|missed| self.is_lost(*missed)).count();
        (lost > 0).then_some(Effect::Restart(GONE))
    }

    /// True if something is needed all the same. Whoever waited for it goes on.
    fn is_lost(&mut self, missed: Missed) -> bool {
        let is_needed = self.is_needed(missed);
        self.go_on(missed);
        is_needed && !self.session.is_draining
    }

    fn is_needed(&self, missed: Missed) -> bool {
        match missed {
            Missed::Pack(key) => self.is_pack_needed(key),
            Missed::Rest(lane, entry) => self.is_next_of_rest(lane, entry),
        }
    }

    /// Whoever waited for it goes on.
    fn go_on(&mut self, missed: Missed) {
        match missed {
            Missed::Pack(key) => drop(self.feed(key)),
            Missed::Rest(lane, _) => {
                if let Some(key) = self.queue.lanes.by_hash(lane) {
                    self.queue.lanes.list(key);
                }
            }
        }
    }
}
