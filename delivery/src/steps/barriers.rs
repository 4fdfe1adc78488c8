//! Barriers: releases the resources that they no longer hold back, and tidies shops and lanes.

use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::state::Core;
use crate::state::index::LaneKey;
use crate::state::shop::ShopKey;

/// Releases the resources that the barriers of a shop no longer hold back: some at once, the others with
/// the next events.
pub(crate) fn release_held<C: Content>(core: &mut Core<C>, shop: ShopKey) {
    let Some(barriers) = core.queue.shops.get(shop).and_then(|shop| shop.barriers.as_ref()) else {
        return;
    };
    if core.queue.shops.releasing.contains(&shop) {
        return;
    }
    if barriers.is_mixed {
        look_at_scheme(core, shop);
    }
    while let Some(position) = lost_barrier(core, shop) {
        drop_barrier(core, shop, position);
    }
    let now = core.session.now.at;
    let mut released = 0;
    while let Some(resource) = core.queue.next_unheld(shop) {
        released += 1;
        let lane = core.queue.index.lane(resource);
        if let Some(lane) = lane.and_then(|lane| core.queue.lanes.get_mut(lane)) {
            lane.flow.unheld_at = now;
        }
        core.queue.place_by_head(resource, core.session.now.at);
        if released == core.config.tuning.at_once.released {
            core.queue.shops.releasing.insert(shop);
            break;
        }
    }
    if let Some(shop) = core.queue.shops.get_mut(shop)
        && shop.barriers.as_ref().is_some_and(|barriers| barriers.is_empty())
    {
        shop.barriers = None;
    }
}

/// First barrier of a shop, if it lay in a chunk that is lost: every lane is indexed up to it,
/// and no lane has it.
fn lost_barrier<C: Content>(core: &Core<C>, key: ShopKey) -> Option<Position> {
    let shop = core.queue.shops.get(key)?;
    let position = *shop.barriers.as_ref()?.positions.first()?;
    if core.queue.main.is_after_cursor(position) || !core.queue.stored_barriers.contains(&position)
    {
        return None;
    }
    let mut lanes = shop.lanes.iter().filter_map(|lane| core.queue.lanes.get(*lane));
    let is_lost =
        lanes.all(|lane| lane.is_indexed_up_to(position) && lane.locate(position).is_none());
    is_lost.then_some(position)
}

fn drop_barrier<C: Content>(core: &mut Core<C>, shop: ShopKey, position: Position) {
    core.queue.stored_barriers.remove(&position);
    core.ledger.draft.settlement.lanes.barriers.deleted.push(position);
    core.queue.remove_barrier(shop, position);
}

/// Ends the mixed mode of a shop once it has no lanes of another key scheme.
fn look_at_scheme<C: Content>(core: &mut Core<C>, key: ShopKey) {
    let Some(shop) = core.queue.shops.get(key) else { return };
    let mut lanes = shop.lanes.iter().filter_map(|lane| core.queue.lanes.get(*lane));
    let is_mixed =
        lanes.any(|lane| lane.stored.as_ref().is_some_and(|stored| stored.is_other_scheme));
    if let Some(barriers) = core.queue.shops.get_mut(key).and_then(|shop| shop.barriers.as_mut()) {
        barriers.is_mixed = is_mixed;
    }
}

/// Removes a lane of which nothing waits, and its shop if nothing of it waits.
pub(crate) fn forget_if_empty<C: Content>(core: &mut Core<C>, key: LaneKey) {
    let Some(shop) = core.queue.lanes.forget(key) else { return };
    if let Some(shop) = core.queue.shops.get_mut(shop) {
        shop.lanes.retain(|lane| *lane != key);
    }
    core.queue.shops.forget(shop, core.session.now.at);
}
