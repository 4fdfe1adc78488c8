//! Applies an operator's controls when they change: to shops, to lanes, and to what is indexed.

use std::collections::HashSet;
use std::time::Duration;

use spillway_webhook::StreamId;

use crate::controls::{Controls, Gone};
use crate::core::Core;
use crate::index::{LaneKey, ResourceKey};
use crate::ledger::Dropped;
use crate::resource::{HeadState, Step};
use crate::sorted::Content;
use crate::turn::Turn;

/// Most names that one settlement clears.
const NAMES_MAX: usize = 2048;

/// Paused resources that are listed before the list is searched for those that are no longer
/// paused.
const PAUSED_FEW: usize = 1024;

/// Time between two scans for names that are no longer needed. A scan goes through the whole index.
const NAMES_LOOK_EVERY: Duration = Duration::from_secs(1);

impl<C: Content> Core<C> {
    /// Replaces all controls by new ones.
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
            if self.queue.index.state(resource) == Some(HeadState::Paused) {
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

    /// Makes a resource wait whose head a filter pauses.
    pub(crate) fn pause_resource(&mut self, turn: Turn) {
        self.step(turn.resource, Step::Blocked(HeadState::Paused));
        let paused = &mut self.controls.paused;
        paused.push(turn.resource);
        // Resources of windows that were cut are pushed again.
        if paused.len() > 2 * self.queue.index.len() + PAUSED_FEW {
            paused.retain(|one| self.queue.index.state(*one) == Some(HeadState::Paused));
            paused.sort_unstable();
            paused.dedup();
        }
        if let Some(lane) = self.queue.lanes.get_mut(turn.lane) {
            lane.flow.paused += 1;
        }
    }

    /// Drops the webhooks that were at work when the drop was ordered and were not delivered.
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
            // The lead is checked once everything is indexed.
            Some(_) => self.queue.are_leads_old = true,
            None => {}
        }
        self.reading.forget(resource);
        let has_changed = is_gone || self.queue.index.head(resource) != Some(head);
        if has_changed && state == HeadState::Held {
            self.queue.unhold(head_lane, head);
        }
        if !is_gone {
            self.queue.index.clear_lead(resource);
            self.release(resource);
        }
    }

    /// Notes how far the controls are carried out, and clears the names of settled webhooks.
    pub(crate) fn tidy_controls(&mut self) {
        let controls = &mut self.controls;
        let settlement = &mut self.ledger.draft.settlement;
        // Only a settlement that knows the version of the names clears them.
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
            let mut entries = HashSet::new();
            let mut replays = HashSet::new();
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
