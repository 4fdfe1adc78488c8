//! An operator's controls: what is paused, and what is to be dropped.
//!
//! A pause of one shop takes its turns away; any other is judged when a webhook's bytes are at hand,
//! and its resource is set aside until the controls change. Webhooks to be dropped leave the index at
//! once and are settled like everything else; one under way is left to its delivery, and dropped if
//! that fails.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::core::Core;
use crate::dispatch::Turn;
use crate::index::{LaneKey, ResourceKey};
use crate::ledger::Dropped;
use crate::main_stream::is_set;
use crate::pauses::Pauses;
use crate::resource::{State, Step};
use crate::sorted::Content;

/// Between two looks for names that are not needed any more: it takes a look at the whole index.
const NAMES_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Names cleared away by one settlement.
const NAMES_MAX: usize = 2048;

/// Paused resources that are listed before those are looked for that are not paused any more.
const PAUSED_FEW: usize = 1024;

/// Webhooks to drop.
#[derive(Debug, Clone, Default)]
pub struct Drops {
    /// By the entry in which they were accepted, a bit each.
    pub main: HashMap<StreamId, Vec<u8>>,
    /// Entries among the replays.
    pub replays: HashSet<StreamId>,
}

/// An operator's controls, all that are in force.
#[derive(Debug, Clone)]
pub struct Controls<F> {
    /// Goes up with each change; 0 before the first.
    pub version: u64,
    /// Whether everything is paused.
    pub is_all_paused: bool,
    /// Hashes of the shops that are paused whole.
    pub shops: HashSet<u64>,
    /// Other pauses.
    pub filters: Vec<F>,
    /// Webhooks to drop.
    pub drops: Drops,
}

/// Controls in force, and what became of them.
pub(crate) struct ControlState<F> {
    /// Pauses in force, and past ones.
    pub pauses: Pauses<F>,
    drops: Drops,
    /// Resources whose head is paused.
    pub paused: Vec<ResourceKey>,
    /// Resources that were at work when webhooks were to be dropped.
    at_work: HashSet<ResourceKey>,
    /// Resources that are not at work any more.
    pub look_again: Vec<ResourceKey>,
    /// Newest replay that was read.
    pub replays_to: StreamId,
    known: u64,
    /// Version that is carried out once everything dropped is settled.
    carrying_out: Option<u64>,
    /// Whether the settlement that is composed passes entries whose names are kept.
    keeps_names: bool,
    /// Names to clear away.
    gone: Gone,
}

/// Names of webhooks that were dropped and are settled.
#[derive(Debug, Default)]
struct Gone {
    entries: BTreeSet<StreamId>,
    replays: BTreeSet<StreamId>,
    /// Set if there may be more of them.
    is_untidy: bool,
}

impl Gone {
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.replays.is_empty()
    }
}

impl Drops {
    fn is_empty(&self) -> bool {
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
    /// The cursor passes an entry: names of it are kept, since one may lie in a lane now.
    pub fn passed(&mut self, entry: StreamId) {
        if self.drops.main.contains_key(&entry) {
            self.gone.is_untidy = true;
            self.keeps_names = true;
        }
    }

    /// Whether a webhook is to be dropped. A replay is another matter than what was ordered of it
    /// before.
    pub fn drops(&self, position: Position, replay: Option<StreamId>) -> bool {
        match replay {
            Some(id) => self.drops.replays.contains(&id),
            None => {
                let bits = self.drops.main.get(&position.entry());
                bits.is_some_and(|bits| is_set(bits, position.index))
            }
        }
    }

    /// True while webhooks are to be dropped that may not be settled.
    pub fn has_drops(&self) -> bool {
        !self.drops.is_empty()
    }

    /// Whether a filter pauses a webhook.
    pub fn pauses<C: Content<Filter = F>>(&self, content: &C, index: u32, at: Position) -> bool {
        self.pauses.filters().any(|filter| content.is_matched(index, at, filter))
    }
}

impl<C: Content> Core<C> {
    /// These controls are in force from now on, and no others.
    pub(crate) fn controls_changed(&mut self, controls: Controls<C::Filter>) {
        let Controls { version, is_all_paused, shops, filters, drops } = controls;
        let active = self.active();
        self.controls.pauses.change(is_all_paused, &shops, filters, active, C::shop_of);
        self.controls.known = version;
        self.controls.carrying_out = (version > 0).then_some(version);
        self.queue.shops.stop(shops);
        if let Some(turn) = self.next.take() {
            self.release(turn.resource);
        }
        self.reading.front_moved();
        for resource in std::mem::take(&mut self.controls.paused) {
            if self.queue.index.state(resource) == Some(State::Paused) {
                self.release(resource);
            }
        }
        self.queue.lanes.iter_mut().for_each(|(_, lane)| lane.flow.paused = 0);
        let rested: Vec<LaneKey> = self.queue.lanes.iter().map(|(key, _)| key).collect();
        rested.into_iter().for_each(|lane| self.queue.lanes.list(lane));
        self.controls.drops = drops;
        if !self.controls.drops.is_empty() {
            self.controls.gone.is_untidy = true;
            let all: Vec<ResourceKey> = self.queue.index.resources().map(|(key, _)| key).collect();
            all.into_iter().for_each(|resource| self.drop_of(resource));
        }
    }

    /// Sets a resource aside whose head a filter pauses.
    pub(crate) fn pause_resource(&mut self, turn: Turn) {
        self.step(turn.resource, Step::Blocked(State::Paused));
        let paused = &mut self.controls.paused;
        paused.push(turn.resource);
        // Those of windows that were cut come again.
        if paused.len() > 2 * self.queue.index.len() + PAUSED_FEW {
            paused.retain(|one| self.queue.index.state(*one) == Some(State::Paused));
            paused.sort_unstable();
            paused.dedup();
        }
        if let Some(lane) = self.queue.lanes.get_mut(turn.lane) {
            lane.flow.paused += 1;
        }
    }

    /// Drops what was at work when that was ordered, and was not delivered.
    pub(crate) fn drop_again(&mut self) {
        for resource in std::mem::take(&mut self.controls.look_again) {
            if self.controls.at_work.remove(&resource) {
                self.drop_of(resource);
            }
        }
    }

    fn drop_of(&mut self, resource: ResourceKey) {
        let Some(state) = self.queue.index.state(resource) else { return };
        if state.is_at_work() {
            self.controls.at_work.insert(resource);
            return;
        }
        let (Some(head), Some(head_lane)) =
            (self.queue.index.head(resource), self.queue.index.lane(resource))
        else {
            return;
        };
        let all = self.queue.index.all_of(resource);
        let meant = all.iter().filter(|node| {
            let position = self.queue.index.node(**node).position;
            self.controls.drops(position, self.queue.index.replay(**node))
        });
        let meant: Vec<_> = meant.copied().collect();
        if meant.is_empty() {
            return;
        }
        let hash = self.queue.index.resource(resource).map_or(0, |resource| resource.hash);
        let mut is_gone = false;
        for node in meant {
            let (position, lane) = {
                let node = self.queue.index.node(node);
                (node.position, node.lane)
            };
            let replay = self.queue.index.replay(node);
            self.drop_webhook(Dropped { lane, position, replay });
            if let Some(lane) = self.queue.lanes.get_mut(lane) {
                is_gone = self.queue.index.remove(node, &mut lane.window);
            }
        }
        match self.queue.leads.get(&hash) {
            Some(lead) if self.queue.is_run_read(head_lane, *lead) => self.tidy_lead(hash),
            // Looked at once everything is indexed.
            Some(_) => self.queue.are_leads_old = true,
            None => {}
        }
        self.reading.forget(resource);
        let has_changed = is_gone || self.queue.index.head(resource) != Some(head);
        if has_changed && state == State::Held {
            self.queue.unhold(head_lane, head);
        }
        if !is_gone {
            self.queue.index.clear_lead(resource);
            self.release(resource);
        }
    }

    /// Notes how far the controls are carried out, and clears names away of what is settled.
    pub(crate) fn tidy_controls(&mut self) {
        let controls = &mut self.controls;
        let settlement = &mut self.ledger.draft.settlement;
        // Names are cleared away only by a settlement that knows their version.
        let keeps_names = std::mem::take(&mut controls.keeps_names);
        settlement.controls.known = if keeps_names { 0 } else { controls.known };
        if !self.ledger.dropped.is_empty() {
            return;
        }
        settlement.controls.carried_out = controls.carrying_out.take();
        let has_names = !controls.drops.is_empty() || !controls.gone.is_empty();
        if keeps_names || !has_names || !self.session.are_replays_loaded {
            return;
        }
        let now = self.session.now.at;
        let is_due = controls.gone.is_untidy && now >= self.session.looks.names_at;
        if is_due {
            self.session.looks.names_at = now + NAMES_LOOK_EVERY;
        }
        if is_due && self.queue.lanes.iter().all(|(_, lane)| lane.rest.is_none()) {
            controls.gone.is_untidy = false;
            let (mut entries, mut replays) = (HashSet::new(), HashSet::new());
            for (resource, _) in self.queue.index.resources() {
                for node in self.queue.index.all_of(resource) {
                    entries.insert(self.queue.index.node(node).position.entry());
                    replays.extend(self.queue.index.replay(node));
                }
            }
            let main = &self.queue.main;
            let named = controls.drops.main.keys().copied();
            let is_passed = |id: &StreamId| {
                *id <= main.read_to && main.get(*id).is_none() && !entries.contains(id)
            };
            controls.gone.entries.extend(named.filter(is_passed));
            let named = controls.drops.replays.iter().copied();
            let is_gone = |id: &StreamId| *id <= controls.replays_to && !replays.contains(id);
            controls.gone.replays.extend(named.filter(is_gone));
            let Gone { entries, replays, .. } = &controls.gone;
            controls.drops.main.retain(|id, _| !entries.contains(id));
            controls.drops.replays.retain(|id| !replays.contains(id));
        }
        let Gone { entries, replays, .. } = &mut controls.gone;
        for _ in 0..NAMES_MAX {
            settlement.main.whole.extend(entries.pop_first());
            settlement.replays.settled.extend(replays.pop_first());
        }
    }
}
