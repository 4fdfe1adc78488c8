//! The first step: a webhook that was read is indexed, dropped as an operator ordered, or left in
//! the part of its lane that is not indexed.

use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::core::Core;
use crate::event::{PackRead, ReplayRead};
use crate::index::{IndexEntry, LaneKey};
use crate::ledger::Dropped;
use crate::pack_key::PackKey;
use crate::queue::UNREAD_FEW;
use crate::resource::HeadState;
use crate::sorted::{Content, Sorted};

/// Time between two checks if there are more of them.
const UNREAD_LOOK_EVERY: Duration = Duration::from_millis(50);

impl<C: Content> Core<C> {
    pub(crate) fn pack_arrived(&mut self, pack: PackRead<C>) {
        let PackRead { entry, sorted, content } = pack;
        if entry <= self.queue.main.read_to {
            return;
        }
        let bits = self.queue.bits.remove(&entry);
        let count = u32::try_from(sorted.len()).unwrap_or(u32::MAX);
        let due_at = self.moves_at(entry);
        self.queue.main.push(entry, count, bits, due_at);
        self.reading.cache.pass(PackKey::Main(entry), content);
        for (index, sorted) in (0..).zip(sorted) {
            let is_settled = self.queue.main.get(entry).is_some_and(|pack| pack.is_settled(index));
            let position = Position::new(entry, index);
            if !is_settled {
                self.queue.main.holds(sorted.lane);
                self.arrive(position, sorted, None);
            } else {
                self.queue.retries.forget_settled(position);
            }
        }
        self.release_unread();
        self.make_room();
    }

    pub(crate) fn corrupt_arrived(&mut self, entry: StreamId) {
        let due_at = self.moves_at(entry);
        self.queue.main.push(entry, 0, None, due_at);
        self.queue.retries.forget_corrupt(entry);
        self.ledger.draft.settlement.main.corrupt.push(entry);
    }

    pub(crate) fn replay_arrived(&mut self, replay: ReplayRead<C>) {
        let ReplayRead { id, position, sorted, content } = replay;
        if id <= self.controls.replays_to {
            return;
        }
        self.reading.cache.pass(PackKey::Replay(id), content);
        self.controls.replays_to = id;
        self.arrive(position, sorted, Some(id));
        self.make_room();
    }

    fn arrive(&mut self, position: Position, sorted: Sorted, replay: Option<StreamId>) {
        let shop = self.queue.shops.intern(sorted.shop);
        let lane = self.queue.lane(sorted.lane, shop);
        if replay.is_none() {
            self.queue.shops.arrived(shop, 1);
            if position.entry() <= self.queue.main.known_to
                && let Some(lane) = self.queue.lanes.get_mut(lane)
            {
                lane.flow.is_left = true;
            }
        }
        if self.controls.drops(position, replay) {
            self.drop_webhook(Dropped { lane, position, replay });
            self.lead_dropped(sorted.resource, position);
            return;
        }
        // A replay is out of order anyway. It waits for no barrier and is none.
        if sorted.is_barrier && replay.is_none() {
            self.queue.add_barrier(sorted.shop, position);
        }
        if replay.is_none()
            && let Some(known) = self.queue.lanes.get_mut(lane)
            && known.rest.is_some()
        {
            known.skip(position);
            return;
        }
        self.index_webhook(lane, &IndexEntry { position, sorted, replay });
    }

    /// Notes that a webhook was dropped before it was indexed. If it is a recorded lead, the lead
    /// may be forgotten.
    pub(crate) fn lead_dropped(&mut self, resource: u64, position: Position) {
        if self.queue.leads.get(&resource) == Some(&position) {
            self.tidy_lead(resource);
        }
    }

    /// Adds a webhook to its lane's window, and releases its resource if the webhook became the
    /// head.
    pub(crate) fn index_webhook(&mut self, lane: LaneKey, arrival: &IndexEntry) {
        let queue = &mut self.queue;
        let resource = queue.index.by_hash(arrival.sorted.resource);
        let before = resource
            .and_then(|resource| Some((queue.index.head(resource)?, queue.index.lane(resource)?)));
        let Some(window) = queue.lanes.get_mut(lane).map(|lane| &mut lane.window) else { return };
        let Some(added) = queue.index.add(arrival, lane, window) else { return };
        if added.is_new {
            self.release(added.resource);
        } else if added.is_head {
            // A replay was added before a head that waited.
            self.reading.forget(added.resource);
            let state = self.queue.index.state(added.resource);
            if let (Some(HeadState::Held), Some((head, lane))) = (state, before) {
                self.queue.unhold(lane, head);
            }
            self.release(added.resource);
        }
    }

    /// Releases the resources whose recorded lead is indexed by now.
    pub(crate) fn release_unread(&mut self) {
        let now = self.session.now.at;
        if self.queue.unread.len() > UNREAD_FEW {
            if now < self.session.looks.unread_at {
                return;
            }
            self.session.looks.unread_at = now + UNREAD_LOOK_EVERY;
        }
        let mut unread = std::mem::take(&mut self.queue.unread);
        unread.sort_unstable();
        unread.dedup();
        for resource in unread {
            if self.queue.index.state(resource) == Some(HeadState::Unread) {
                self.release(resource);
            }
        }
    }
}
