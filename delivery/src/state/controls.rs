//! Operator controls: pauses, and webhooks to drop.
//!
//! A pause of a whole shop takes the shop's turns away. Any other pause is checked when the bytes
//! of a webhook are in memory, and the resource waits until the controls change. Webhooks to drop
//! leave the index at once and are settled like all others. A webhook whose delivery is under way
//! is dropped only if the delivery fails.

use std::collections::{BTreeSet, HashMap, HashSet};

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::state::index::ResourceKey;
use crate::state::main_stream::is_set;
use crate::state::pauses::Pauses;

/// Webhooks to drop.
#[derive(Debug, Clone, Default)]
pub struct Drops {
    /// One bit per webhook, by the entry in which the webhooks were accepted.
    pub main: HashMap<StreamId, Vec<u8>>,
    /// Entries in the stream of replays.
    pub replays: HashSet<StreamId>,
}

/// Set of all operator controls that are in force.
#[derive(Debug, Clone)]
pub struct Controls<F> {
    /// Number that increases with each change; 0 before the first.
    pub version: u64,
    /// True if everything is paused.
    pub is_all_paused: bool,
    /// Hashes of the shops that are paused completely.
    pub shops: HashSet<u64>,
    /// Other pauses.
    pub filters: Vec<F>,
    /// Webhooks to drop.
    pub drops: Drops,
}

/// Controls in force, and the progress of carrying them out.
pub(crate) struct ControlState<F> {
    /// Pauses in force, and past pauses.
    pub pauses: Pauses<F>,
    pub drops: Drops,
    /// Resources whose head is paused.
    pub paused: Vec<ResourceKey>,
    /// Resources that were being sent or settled when webhooks were to be dropped.
    pub at_work: HashSet<ResourceKey>,
    /// Resources that are no longer being sent or settled.
    pub look_again: Vec<ResourceKey>,
    /// Newest replay that was read.
    pub replays_to: StreamId,
    pub known: u64,
    /// Version that is carried out once all dropped webhooks are settled.
    pub carrying_out: Option<u64>,
    /// True if the settlement that is composed passes entries whose names are kept.
    pub keeps_names: bool,
    /// Names to clear away.
    pub gone: Gone,
}

/// Names of webhooks that were dropped and are settled.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    pub entries: BTreeSet<StreamId>,
    pub replays: BTreeSet<StreamId>,
    /// Set if there may be more names to clear.
    pub is_untidy: bool,
}

impl Gone {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.replays.is_empty()
    }
}

impl Drops {
    pub(crate) fn is_empty(&self) -> bool {
        self.main.is_empty() && self.replays.is_empty()
    }
}

impl<F> Default for ControlState<F> {
    fn default() -> Self {
        Self {
            pauses: Pauses::default(),
            drops: Drops::default(),
            paused: Vec::new(),
            at_work: HashSet::new(),
            look_again: Vec::new(),
            replays_to: StreamId::default(),
            known: 0,
            carrying_out: None,
            keeps_names: false,
            gone: Gone::default(),
        }
    }
}

impl<F: Clone + PartialEq> ControlState<F> {
    /// Keeps the names of an entry that the cursor passes, because a named webhook may now lie in a
    /// lane.
    pub(crate) fn passed(&mut self, entry: StreamId) {
        if self.drops.main.contains_key(&entry) {
            self.gone.is_untidy = true;
            self.keeps_names = true;
        }
    }

    /// True if a webhook is to be dropped. A replay is matched by its entry in the stream of
    /// replays, not by its position.
    pub(crate) fn drops(&self, position: Position, replay: Option<StreamId>) -> bool {
        match replay {
            Some(id) => self.drops.replays.contains(&id),
            None => {
                let bits = self.drops.main.get(&position.entry());
                bits.is_some_and(|bits| is_set(bits, position.index))
            }
        }
    }

    /// True while some webhooks to drop may not be settled.
    pub(crate) fn has_drops(&self) -> bool {
        !self.drops.is_empty()
    }

    /// True if a filter pauses a webhook.
    pub(crate) fn pauses<C: Content<Filter = F>>(
        &self,
        content: &C,
        index: u32,
        at: Position,
    ) -> bool {
        self.pauses.filters().any(|filter| content.is_matched(index, at, filter))
    }
}
