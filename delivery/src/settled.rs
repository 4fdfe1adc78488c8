//! The last step: a settlement was applied, and its resources are released.

use std::collections::BTreeSet;

use spillway_webhook::position::Position;

use crate::core::Core;
use crate::index::LaneKey;
use crate::ledger::Settling;
use crate::resource::{HeadState, Step};
use crate::shop::ShopKey;
use crate::sorted::Content;

impl<C: Content> Core<C> {
    /// Handles the applied settlement.
    pub(crate) fn settled(&mut self) {
        let Some(settling) = self.ledger.settling.take() else { return };
        let Settling { nodes, heads, seen, leads, barriers, dead_bytes, lanes, .. } = settling;
        self.ledger.dying_bytes -= dead_bytes;
        self.reading.front_moved();
        seen.into_iter().for_each(|one| self.ledger.seen.insert(one, self.session.now.wall_ms));
        for node in nodes {
            let lane = self.queue.index.node(node).lane;
            if let Some(lane) = self.queue.lanes.get_mut(lane) {
                self.queue.index.remove(node, &mut lane.window);
            }
        }
        self.controls.look_again.extend(heads.iter().copied());
        self.controls.look_again.extend(leads.iter().map(|(resource, _, _)| *resource));
        for resource in heads {
            if self.queue.index.state(resource) == Some(HeadState::Finished) {
                self.queue.index.clear_lead(resource);
                self.step(resource, Step::Settled);
                self.release(resource);
            }
        }
        for (resource, hash, position) in leads {
            self.queue.leads.insert(hash, position);
            let lane = self.queue.index.lane(resource);
            if let Some(lane) = lane.and_then(|lane| self.queue.lanes.get_mut(lane)) {
                lane.flow.recording = lane.flow.recording.saturating_sub(1);
                self.queue.shops.give_turns(lane.shop);
            }
            if self.queue.index.state(resource) == Some(HeadState::Recording) {
                self.release(resource);
            }
        }
        let mut shops: BTreeSet<ShopKey> = barriers.iter().map(|(shop, _)| *shop).collect();
        for (shop, position) in barriers {
            self.queue.remove_barrier(shop, position);
        }
        for lane in &lanes {
            shops.extend(self.lane_settled(*lane));
        }
        shops.into_iter().for_each(|shop| self.look_at_barriers(shop));
        lanes.into_iter().for_each(|lane| self.forget_if_empty(lane));
    }

    /// Makes the chunk that the settlement wrote readable. Returns the lane's shop.
    fn lane_settled(&mut self, key: LaneKey) -> Option<ShopKey> {
        let lane = self.queue.lanes.get_mut(key)?;
        let shop = lane.shop;
        let was_pending =
            lane.stored.as_mut().is_some_and(|stored| stored.pending.take().is_some());
        if lane.rest.is_some() {
            self.queue.lanes.list(key);
        }
        if was_pending {
            self.queue.shops.give_turns(shop);
        }
        Some(shop)
    }

    /// Releases the resources that the barriers of a shop no longer hold back.
    pub(crate) fn look_at_barriers(&mut self, shop: ShopKey) {
        let Some(barriers) = self.queue.shops.get(shop).and_then(|shop| shop.barriers.as_ref())
        else {
            return;
        };
        if barriers.is_mixed {
            self.look_at_scheme(shop);
        }
        while let Some(position) = self.lost_barrier(shop) {
            self.drop_barrier(shop, position);
        }
        let now = self.session.now.at;
        while let Some(resource) = self.queue.next_unheld(shop) {
            let lane = self.queue.index.lane(resource);
            if let Some(lane) = lane.and_then(|lane| self.queue.lanes.get_mut(lane)) {
                lane.flow.unheld_at = now;
            }
            self.release(resource);
        }
        if let Some(shop) = self.queue.shops.get_mut(shop)
            && shop.barriers.as_ref().is_some_and(|barriers| barriers.is_empty())
        {
            shop.barriers = None;
        }
    }

    /// First barrier of a shop, if it lay in a chunk that is lost: every lane is indexed up to it,
    /// and no lane has it.
    fn lost_barrier(&self, key: ShopKey) -> Option<Position> {
        let shop = self.queue.shops.get(key)?;
        let position = *shop.barriers.as_ref()?.positions.first()?;
        if self.queue.main.is_after_cursor(position)
            || !self.queue.stored_barriers.contains(&position)
        {
            return None;
        }
        let mut lanes = shop.lanes.iter().filter_map(|lane| self.queue.lanes.get(*lane));
        let is_lost =
            lanes.all(|lane| lane.is_indexed_up_to(position) && lane.locate(position).is_none());
        is_lost.then_some(position)
    }

    fn drop_barrier(&mut self, shop: ShopKey, position: Position) {
        self.queue.stored_barriers.remove(&position);
        self.ledger.draft.settlement.lanes.barriers.deleted.push(position);
        self.queue.remove_barrier(shop, position);
    }

    /// Ends the mixed mode of a shop once it has no lanes of another key scheme.
    fn look_at_scheme(&mut self, key: ShopKey) {
        let Some(shop) = self.queue.shops.get(key) else { return };
        let mut lanes = shop.lanes.iter().filter_map(|lane| self.queue.lanes.get(*lane));
        let is_mixed =
            lanes.any(|lane| lane.stored.as_ref().is_some_and(|stored| stored.is_other_scheme));
        if let Some(barriers) =
            self.queue.shops.get_mut(key).and_then(|shop| shop.barriers.as_mut())
        {
            barriers.is_mixed = is_mixed;
        }
    }

    /// Removes a lane of which nothing waits, and its shop if nothing of it waits.
    pub(crate) fn forget_if_empty(&mut self, key: LaneKey) {
        let Some(shop) = self.queue.lanes.forget(key) else { return };
        if let Some(shop) = self.queue.shops.get_mut(shop) {
            shop.lanes.retain(|lane| *lane != key);
        }
        self.queue.shops.forget(shop, self.session.now.at);
    }
}
