//! Applies an operator's controls when they change: to shops, to lanes, and to what is indexed.

use std::collections::HashSet;
use std::time::Duration;

use spillway_webhook::StreamId;

use crate::classified::Content;
use crate::state::Core;
use crate::state::controls::{Controls, Gone};
use crate::state::index::{LaneKey, ResourceKey};
use crate::state::ledger::WebhookPlace;
use crate::state::resource::HeadState;
use crate::steps::{finish, time};

/// Most names that one settlement clears.
const NAMES_MAX: usize = 2048;

/// Time between two scans for names that are no longer needed. A scan goes through the whole index.
const NAMES_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Replaces all controls by new ones.
pub(crate) fn controls_changed<C: Content>(core: &mut Core<C>, controls: Controls<C::Filter>) {
    let Controls { version, is_all_paused, shops, filters, drops } = controls;
    let active = time::active(core);
    core.controls.pauses.change(is_all_paused, &shops, filters, active, C::shop_of);
    core.controls.known = version;
    core.controls.carrying_out = (version > 0).then_some(version);
    core.queue.shops.stop(shops);
    // A turn that waited may be outdated, and its resource at work.
    if let Some(turn) = core.waiting_turn.take()
        && core.queue.index.state(turn.resource) == Some(HeadState::Ready)
    {
        core.queue.place_by_head(turn.resource, core.session.now.at);
    }
    core.reading.front_moved();
    for resource in std::mem::take(&mut core.controls.paused) {
        if core.queue.index.state(resource) == Some(HeadState::Paused) {
            core.queue.place_by_head(resource, core.session.now.at);
        }
    }
    core.queue.lanes.iter_mut().for_each(|(_, lane)| lane.flow.paused = 0);
    let rested: Vec<LaneKey> = core.queue.lanes.iter().map(|(key, _)| key).collect();
    rested.into_iter().for_each(|lane| core.queue.lanes.list(lane));
    core.controls.drops = drops;
    if !core.controls.drops.is_empty() {
        core.controls.gone.is_untidy = true;
        let all: Vec<ResourceKey> = core.queue.index.resources().map(|(key, _)| key).collect();
        all.into_iter().for_each(|resource| drop_of(core, resource));
    }
}

/// Drops the webhooks that were at work when the drop was ordered and were not delivered.
pub(crate) fn drop_again<C: Content>(core: &mut Core<C>) {
    for resource in std::mem::take(&mut core.controls.look_again) {
        if core.controls.at_work.remove(&resource) {
            drop_of(core, resource);
        }
    }
}

/// True if webhooks of a resource that is at work are to be dropped.
pub(crate) fn is_to_be_dropped<C: Content>(core: &Core<C>, resource: ResourceKey) -> bool {
    let index = &core.queue.index;
    core.controls.at_work.contains(&resource)
        && index
            .all_of(resource)
            .iter()
            .any(|node| core.controls.drops(index.node(*node).position, index.replay(*node)))
}

fn drop_of<C: Content>(core: &mut Core<C>, resource: ResourceKey) {
    let Some(state) = core.queue.index.state(resource) else { return };
    if state.is_at_work() {
        core.controls.at_work.insert(resource);
        return;
    }
    let (Some(head), Some(head_lane)) =
        (core.queue.index.head(resource), core.queue.index.lane(resource))
    else {
        return;
    };
    let all = core.queue.index.all_of(resource);
    let meant = all.iter().filter(|node| {
        let position = core.queue.index.node(**node).position;
        core.controls.drops(position, core.queue.index.replay(**node))
    });
    let meant: Vec<_> = meant.copied().collect();
    if meant.is_empty() {
        return;
    }
    let hash = core.queue.index.resource(resource).map_or(0, |resource| resource.hash);
    core.queue.index.undo_choice(resource);
    let mut is_gone = false;
    for node in meant {
        let (position, lane) = {
            let node = core.queue.index.node(node);
            (node.position, node.lane)
        };
        let replay = core.queue.index.replay(node);
        finish::drop_webhook(core, WebhookPlace { lane, position, replay });
        if let Some(lane) = core.queue.lanes.get_mut(lane) {
            is_gone = core.queue.index.remove(node, &mut lane.window);
        }
    }
    match core.queue.leads.get(&hash) {
        Some(lead) if core.queue.is_run_read(head_lane, *lead) => finish::tidy_lead(core, hash),
        // The lead is checked once everything is indexed.
        Some(_) => core.queue.are_leads_old = true,
        None => {}
    }
    core.reading.forget(resource);
    let has_changed = is_gone || core.queue.index.head(resource) != Some(head);
    if has_changed && state == HeadState::Held {
        core.queue.unhold(head_lane, head);
    }
    if !is_gone {
        core.queue.place_by_head(resource, core.session.now.at);
    }
}

/// Notes how far the controls are carried out, and clears the names of settled webhooks.
pub(crate) fn tidy_controls<C: Content>(core: &mut Core<C>) {
    let controls = &mut core.controls;
    let settlement = &mut core.ledger.draft.settlement;
    // Only a settlement that knows the version of the names clears them.
    let keeps_names = std::mem::take(&mut controls.keeps_names);
    settlement.controls.known = if keeps_names { 0 } else { controls.known };
    if !core.ledger.undelivered.dropped.is_empty() {
        return;
    }
    settlement.controls.carried_out = controls.carrying_out.take();
    let has_names = !controls.drops.is_empty() || !controls.gone.is_empty();
    if keeps_names || !has_names || !core.session.are_replays_loaded {
        return;
    }
    let now = core.session.now.at;
    let is_due = controls.gone.is_untidy && now >= core.session.looks.names_at;
    if is_due {
        core.session.looks.names_at = now + NAMES_LOOK_EVERY;
    }
    if is_due && core.queue.lanes.iter().all(|(_, lane)| lane.rest.is_none()) {
        controls.gone.is_untidy = false;
        let mut entries = HashSet::new();
        let mut replays = HashSet::new();
        for (resource, _) in core.queue.index.resources() {
            for node in core.queue.index.all_of(resource) {
                entries.insert(core.queue.index.node(node).position.entry());
                replays.extend(core.queue.index.replay(node));
            }
        }
        let main = &core.queue.main;
        let named = controls.drops.main.keys().copied();
        let is_passed =
            |id: &StreamId| *id <= main.read_to && main.get(*id).is_none() && !entries.contains(id);
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

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::event::Loaded;
    use crate::state::controls::Drops;
    use crate::state::resource::Step;
    use crate::steps::sample::{self, at};
    use crate::turn::Turn;

    fn controls(drops: Drops) -> Controls<()> {
        let shops = HashSet::new();
        Controls { version: 1, is_all_paused: false, shops, filters: Vec::new(), drops }
    }

    #[test]
    fn replays_go_to_their_places_when_the_event_that_was_chosen_is_dropped() {
        let mut core = sample::core(1_000_000, Loaded::default());
        let [lane, _] = sample::lanes(&mut core);
        let resource = sample::add(&mut core, lane, 7, at(20), false);
        sample::add(&mut core, lane, 7, at(28), false);
        sample::add(&mut core, lane, 7, at(25), true);
        sample::add(&mut core, lane, 7, at(30), false);
        assert_eq!(core.queue.index.lead_up_to(resource, at(30), |_| false), 3);
        assert_eq!(sample::order(&core, resource), [20, 28, 30, 25]);
        let main = HashMap::from([(at(30).entry(), vec![0b1])]);
        controls_changed(&mut core, controls(Drops { main, ..Drops::default() }));
        assert_eq!(sample::order(&core, resource), [20, 25, 28]);
    }

    #[test]
    fn what_has_gone_since_it_waited_for_a_slot_is_left_alone() {
        let mut core = sample::core(1_000_000, Loaded::default());
        let [lane, _] = sample::lanes(&mut core);
        let resource = sample::add(&mut core, lane, 7, at(10), false);
        let shop = core.queue.lanes.get(lane).expect("lane").shop;
        core.waiting_turn = Some(Turn { shop, lane, resource });
        core.queue.step(resource, Step::Sent);
        controls_changed(&mut core, controls(Drops::default()));
        assert_eq!(core.queue.index.state(resource), Some(HeadState::Sending));
        assert!(core.waiting_turn.is_none());
    }
}
