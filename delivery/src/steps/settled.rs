//! The last step: a settlement was applied, and its resources are released.

use std::collections::BTreeSet;

use crate::classified::Content;
use crate::state::Core;
use crate::state::index::LaneKey;
use crate::state::ledger::Settling;
use crate::state::resource::{HeadState, Step};
use crate::state::shop::ShopKey;
use crate::steps::barriers;

/// Handles the applied settlement.
pub(crate) fn settlement_applied<C: Content>(core: &mut Core<C>) {
    let Some(settling) = core.ledger.settling.take() else { return };
    let Settling { nodes, heads, seen, delivered, leads, barriers, dead_bytes, lanes, .. } =
        settling;
    core.ledger.dying_bytes -= dead_bytes;
    core.reading.front_moved();
    seen.into_iter().for_each(|one| core.ledger.seen.insert(one, core.session.now.wall_ms));
    for (resource, update) in delivered {
        core.ledger.last_delivered.on_delivered(resource, update);
    }
    for node in nodes {
        let lane = core.queue.index.node(node).lane;
        if let Some(lane) = core.queue.lanes.get_mut(lane) {
            core.queue.index.remove(node, &mut lane.window);
        }
    }
    core.controls.look_again.extend(heads.iter().copied());
    core.controls.look_again.extend(leads.iter().map(|(resource, _, _)| *resource));
    for resource in heads {
        if core.queue.index.state(resource) == Some(HeadState::Finished) {
            core.queue.step(resource, Step::Settled);
            core.queue.place_by_head(resource, core.session.now.at);
        }
    }
    for (resource, hash, position) in leads {
        core.queue.leads.insert(hash, position);
        let lane = core.queue.index.lane(resource);
        if let Some(lane) = lane.and_then(|lane| core.queue.lanes.get_mut(lane)) {
            lane.flow.recording = lane.flow.recording.saturating_sub(1);
            core.queue.shops.give_turns(lane.shop);
        }
        if core.queue.index.state(resource) == Some(HeadState::Recording) {
            core.queue.place_by_head(resource, core.session.now.at);
        }
    }
    let mut shops: BTreeSet<ShopKey> = barriers.iter().map(|(shop, _)| *shop).collect();
    for (shop, position) in barriers {
        core.queue.remove_barrier(shop, position);
    }
    for lane in &lanes {
        shops.extend(lane_settled(core, *lane));
    }
    shops.into_iter().for_each(|shop| barriers::release_held(core, shop));
    lanes.into_iter().for_each(|lane| barriers::forget_if_empty(core, lane));
}

/// Makes the chunk that the settlement wrote readable. Returns the lane's shop.
fn lane_settled<C: Content>(core: &mut Core<C>, key: LaneKey) -> Option<ShopKey> {
    let lane = core.queue.lanes.get_mut(key)?;
    let shop = lane.shop;
    let was_pending = lane.stored.as_mut().is_some_and(|stored| stored.pending.take().is_some());
    if lane.rest.is_some() {
        core.queue.lanes.list(key);
    }
    if was_pending {
        core.queue.shops.give_turns(shop);
    }
    Some(shop)
}
