//! Consistency checks of the core's state, for tests. Each check scans everything and is slow.

use std::collections::HashMap;

use crate::classified::{Class, Content};
use crate::state::Core;
use crate::state::index::{LaneKey, ResourceKey};
use crate::state::lane::Lane;
use crate::state::queue_view::{BARRIER_BYTES, LEAD_BYTES, STORED_BARRIER_BYTES};
use crate::state::resource::HeadState;

impl<C: Content> Core<C> {
    /// Memory of the index in bytes, counted again from all its parts. Equal to
    /// [`Status::index_bytes`](crate::Status).
    pub fn recount(&self) -> usize {
        let queue = &self.queue;
        let barriers = queue.shops.iter().filter_map(|shop| shop.barriers.as_ref());
        let barriers: usize = barriers.map(|barriers| barriers.positions.len()).sum();
        queue.index.recount()
            + queue.lanes.recount()
            + queue.main.bytes()
            + queue.retries.bytes()
            + barriers * BARRIER_BYTES
            + queue.stored_barriers.len() * STORED_BARRIER_BYTES
            + queue.leads.len() * LEAD_BYTES
    }

    /// Difference between the attempts under way that hide states and those that are counted, if there is one.
    pub fn uncounted_hiding(&self) -> Option<String> {
        let last_delivered = &self.ledger.last_delivered;
        let under_way = if last_delivered.is_on() { self.attempts.hiding() } else { 0 };
        let counted = last_delivered.hiding();
        (under_way != counted)
            .then(|| format!("{under_way} attempts hide states, and {counted} are counted"))
    }

    /// Description of a webhook that no turn will ever reach, if there is one. That is a ready or held
    /// resource that is not listed, or a lane with ready resources and no future check.
    pub fn lost_turn(&self) -> Option<String> {
        let waiting = self.waiting_turn.map(|turn| turn.resource);
        for (key, resource) in self.queue.index.resources() {
            if !resource.state.is_at_work() && !self.is_in_order(key) {
                return Some(format!("{:x} is not in the order of positions", resource.hash));
            }
            if resource.state == HeadState::Held && !self.is_held(key) {
                return Some(format!("{:x} is held, and its shop does not list it", resource.hash));
            }
            if resource.state == HeadState::Unread && !self.queue.unread.resources.contains(&key) {
                return Some(format!("{:x} waits for its lead, and is not listed", resource.hash));
            }
            if resource.state != HeadState::Ready || Some(key) == waiting {
                continue;
            }
            let lane = self.queue.index.lane(key);
            let head = self.queue.index.head(key);
            let is_listed = lane
                .and_then(|lane| self.queue.lanes.get(lane))
                .is_some_and(|lane| head.is_some_and(|head| lane.ready.contains(head, key)));
            if !is_listed {
                return Some(format!("{head:?} is ready, and its lane does not list it"));
            }
        }
        let mut paused: HashMap<LaneKey, u32> = HashMap::new();
        for (key, resource) in self.queue.index.resources() {
            if resource.state == HeadState::Paused
                && let Some(lane) = self.queue.index.lane(key)
            {
                *paused.entry(lane).or_default() += 1;
            }
        }
        let mut lanes = self.queue.lanes.iter();
        lanes.find_map(|(key, lane)| {
            let paused = paused.get(&key).copied().unwrap_or_default();
            if lane.flow.paused != paused {
                return Some(format!(
                    "{paused} heads of lane {:x} are paused: {lane:?}",
                    lane.hash
                ));
            }
            let lost = [Class::Priority, Class::Rest].into_iter().find(|class| {
                self.has_ready(key, lane, *class) && !self.is_looked_at_again(key, lane, *class)
            })?;
            Some(format!("lane {:x} has {lost:?} webhooks and no turn: {lane:?}", lane.hash))
        })
    }

    fn is_in_order(&self, key: ResourceKey) -> bool {
        let index = &self.queue.index;
        let all = index.all_of(key);
        index.lead(key) != all.first().copied()
            || all.is_sorted_by_key(|node| index.node(*node).position)
    }

    fn is_held(&self, key: ResourceKey) -> bool {
        let index = &self.queue.index;
        let lane = index.lane(key).and_then(|lane| self.queue.lanes.get(lane));
        let shop = lane.and_then(|lane| self.queue.shops.get(lane.shop));
        let held = shop.and_then(|shop| shop.barriers.as_ref()).map(|barriers| &barriers.held);
        let head = index.head(key);
        held.is_some_and(|held| head.is_some_and(|head| held.get(&head) == Some(&key)))
    }

    fn has_ready(&self, key: LaneKey, lane: &Lane, class: Class) -> bool {
        let index = &self.queue.index;
        lane.ready.has(class, |position, resource| index.is_ready(key, resource, position))
    }

    /// True if the lane's shop has a turn, or if a coming event will give it one.
    fn is_looked_at_again(&self, key: LaneKey, lane: &Lane, class: Class) -> bool {
        let flow = &lane.flow;
        // The queue of suspect lanes does not advance while the backend is stopped.
        let is_in_line = (flow.is_in_line || self.attempts.suspects.is_called(key))
            && !self.backend.is_stopped();
        is_in_line
            || flow.is_at_work()
            || flow.wakes_at.is_some()
            || self.queue.shops.get(lane.shop).is_some_and(|shop| shop.has_turns_to_come(class))
    }
}
