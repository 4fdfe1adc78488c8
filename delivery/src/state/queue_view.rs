//! Queue as a leader sees it: index, lanes, shops and main stream.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::event::LaneLoaded;
use crate::pack_key::PackKey;
use crate::state::expiry::Expiry;
use crate::state::folded::ByHash;
use crate::state::index::{Index, LaneKey, NONE, NodeKey, ResourceKey};
use crate::state::lane::{Failures, Rest, Stored, Suspect};
use crate::state::lanes::{LANE_BYTES, Lanes};
use crate::state::main_stream::MainStream;
use crate::state::ready::ReadyKind;
use crate::state::resource::{HeadState, Step};
use crate::state::retry::Retries;
use crate::state::shop::{ShopKey, Shops};

/// Bytes of a barrier's position in its shop's tree, whose nodes are at least half full.
pub(crate) const BARRIER_BYTES: usize = 24;
/// Bytes of a barrier in the table of barriers in lanes, which is between half and nearly full: 17
/// each.
pub(crate) const STORED_BARRIER_BYTES: usize = 28;
/// Bytes of a recorded lead in a table of the same kind: 25 each.
pub(crate) const LEAD_BYTES: usize = 40;

/// Number of resources waiting for their recorded lead up to which all are checked after each read.
pub(crate) const UNREAD_FEW: usize = 64;

/// Lanes that are read although the index has no room.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// Resources whose recorded lead is not indexed yet.
    pub resources: Vec<ResourceKey>,
    /// Lanes of which nothing that is indexed can be sent, though something else might.
    pub untried: Vec<LaneKey>,
    /// Lane that is read.
    pub reading: Option<LaneKey>,
    /// True if it is read for something to try, and not for a lead.
    pub is_trying: bool,
    /// Number of its last reads that brought nothing to try.
    pub reads: u32,
    /// Time since which it has the place, if it tries, or at which nothing of it could be sent.
    pub since: Duration,
    /// Lanes that are not cut, because they were read in this way and a lead waits for its turn.
    pub kept: BTreeSet<LaneKey>,
    /// Lane that was chosen last.
    pub last: Option<LaneKey>,
    /// Time of the next choice, if there are many resources.
    pub looks_at: Duration,
    /// Time of the next scan for lanes to try.
    pub scans_at: Duration,
}

/// All that a leader knows of the queue.
pub(crate) struct QueueView {
    pub index: Index,
    pub lanes: Lanes,
    pub shops: Shops,
    pub main: MainStream,
    pub retries: Retries,
    /// Recorded leads by the hash of their resource.
    pub leads: ByHash<Position>,
    /// Bits of settled webhooks in packs that have not been read yet.
    pub bits: HashMap<StreamId, Vec<u8>>,
    /// Number of unsettled barriers of all shops.
    pub barriers: usize,
    /// Barriers that lie in lanes, as stored in Redis.
    pub stored_barriers: HashSet<Position>,
    pub unread: Unread,
    /// Lanes in which webhooks expire.
    pub expiry: Expiry,
    /// Set if recorded leads of a previous leader or of another key scheme may be settled.
    pub are_leads_old: bool,
}

impl QueueView {
    pub(crate) fn load_lane(&mut self, loaded: &LaneLoaded) {
        let shop = self.shops.intern(loaded.shop);
        let key = self.lane(loaded.lane, shop);
        self.lanes.add_waiting(loaded.waiting);
        self.shops.arrived(shop, loaded.waiting);
        if loaded.is_other_scheme
            && let Some(shop) = self.shops.get_mut(shop)
        {
            shop.barriers.get_or_insert_default().is_mixed = true;
        }
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.clock.restore(&loaded.failing);
            if loaded.is_tripped {
                lane.breaker.restore(Duration::ZERO);
            }
            // The lane gets its next attempt at once, within its kind.
            lane.flow.is_left = true;
            if !loaded.failing.is_empty() {
                lane.flow.failures = Failures::left();
            }
            lane.flow.suspect = loaded.is_suspect.then(Suspect::default);
            let after = Position::default();
            let last = loaded.last;
            let refill_at = Duration::ZERO;
            lane.rest = Some(Box::new(Rest { after, last, refill_at, try_at: refill_at }));
            lane.stored = Some(Box::new(Stored {
                unread_from: loaded.first_chunk,
                next: loaded.last_chunk + 1,
                loaded_to: loaded.last_chunk + 1,
                waiting: loaded.waiting,
                last: loaded.last,
                is_changed: false,
                is_other_scheme: loaded.is_other_scheme,
                ..Stored::new(loaded.first, loaded.first_chunk)
            }));
        }
        self.lanes.list(key);
    }

    /// Returns the lane with this hash. Creates it if there is none.
    pub(crate) fn lane(&mut self, hash: u64, shop: ShopKey) -> LaneKey {
        let (key, is_new) = self.lanes.intern(hash, shop);
        if is_new && let Some(shop) = self.shops.get_mut(shop) {
            shop.lanes.push(key);
        }
        key
    }

    /// Adds a barrier that is not settled.
    pub(crate) fn add_barrier(&mut self, shop: u64, position: Position) {
        let shop = self.shops.intern(shop);
        if let Some(shop) = self.shops.get_mut(shop) {
            let is_new = shop.barriers.get_or_insert_default().positions.insert(position);
            self.barriers += usize::from(is_new);
        }
    }

    /// Removes a barrier that is settled or lost.
    pub(crate) fn remove_barrier(&mut self, shop: ShopKey, position: Position) {
        let barriers = self.shops.get_mut(shop).and_then(|shop| shop.barriers.as_mut());
        let was_there = barriers.is_some_and(|barriers| barriers.positions.remove(&position));
        self.barriers -= usize::from(was_there);
    }

    /// Memory in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes()
            + self.lanes.bytes()
            + self.main.bytes()
            + self.retries.bytes()
            + self.barriers * BARRIER_BYTES
            + self.stored_barriers.len() * STORED_BARRIER_BYTES
            + self.leads.len() * LEAD_BYTES
    }

    /// Memory that replays take at most, in bytes, as if each had its own resource and lane.
    pub(crate) fn replay_bytes(&self) -> usize {
        self.index.replay_bytes(LANE_BYTES)
    }

    /// State of a resource that is not at work, as far as its head determines it.
    pub(crate) fn state_of(
        &self,
        resource: ResourceKey,
        head: Position,
        now: Duration,
    ) -> HeadState {
        if self.retries.of_head(&self.index, resource).is_some_and(|retry| retry.due > now) {
            return HeadState::Retrying;
        }
        let (Some(about), Some(lane)) = (self.index.resource(resource), self.index.lane(resource))
        else {
            return HeadState::Ready;
        };
        let is_replay = self.index.replay(about.head).is_some();
        if let Some(lead) = self.leads.get(&about.hash)
            && !is_replay
            && !self.is_run_read(lane, *lead)
        {
            return HeadState::Unread;
        }
        let shop = self.lanes.get(lane).map_or(NONE, |lane| lane.shop);
        if is_replay || self.is_open(shop, head) { HeadState::Ready } else { HeadState::Held }
    }

    /// True if everything that may belong to one run with `lead` is indexed: of its lane, or of
    /// every lane of a shop with two key schemes.
    pub(crate) fn is_run_read(&self, lane: LaneKey, lead: Position) -> bool {
        let is_known =
            |lane: LaneKey| self.lanes.get(lane).is_none_or(|lane| lane.is_indexed_up_to(lead));
        let shop = self.lanes.get(lane).and_then(|lane| self.shops.get(lane.shop));
        let mixed = shop.filter(|shop| shop.is_mixed());
        self.main.read_to >= lead.entry()
            && mixed.map_or(is_known(lane), |shop| shop.lanes.iter().all(|lane| is_known(*lane)))
    }

    /// True if the barriers of its shop let a webhook go.
    pub(crate) fn is_open(&self, shop: ShopKey, position: Position) -> bool {
        let barriers = self.shops.get(shop).and_then(|shop| shop.barriers.as_ref());
        let Some(barriers) = barriers else { return true };
        if !barriers.is_free(position) {
            return false;
        }
        let is_barrier = barriers.positions.first() == Some(&position);
        !(is_barrier || barriers.is_mixed) || self.is_first_of_shop(shop, position)
    }

    /// True if no unsettled webhook of a shop is before `position`.
    pub(crate) fn is_first_of_shop(&self, shop: ShopKey, position: Position) -> bool {
        let Some(shop) = self.shops.get(shop) else { return true };
        shop.lanes.iter().filter_map(|lane| self.lanes.get(*lane)).all(|lane| {
            let front = self.index.nodes.front(&lane.window);
            front.is_none_or(|front| front >= position) && lane.is_indexed_up_to(position)
        })
    }

    pub(crate) fn hold(&mut self, resource: ResourceKey, head: Position) {
        let shop = self.index.lane(resource).and_then(|lane| self.lanes.get(lane));
        let Some(shop) = shop.map(|lane| lane.shop) else { return };
        if let Some(shop) = self.shops.get_mut(shop) {
            shop.barriers.get_or_insert_default().held.insert(head, resource);
        }
    }

    /// Removes a held resource that has another head or is gone.
    pub(crate) fn unhold(&mut self, lane: LaneKey, head: Position) {
        let Some(shop) = self.lanes.get(lane).map(|lane| lane.shop) else { return };
        if let Some(barriers) = self.shops.get_mut(shop).and_then(|shop| shop.barriers.as_mut()) {
            barriers.held.remove(&head);
        }
    }

    pub(crate) fn push_ready(&mut self, resource: ResourceKey) {
        let Some(head) = self.index.head_node(resource) else { return };
        let was_tried = self.retries.of_head(&self.index, resource).is_some();
        let kind = ReadyKind { was_tried, is_replay: head.is_replay };
        if let Some(lane) = self.lanes.get_mut(head.lane) {
            lane.ready.push(head.class, kind, head.position, resource);
            self.shops.give_turn(lane.shop, head.class);
        }
    }

    /// Takes the next held resource of a shop, if it may go now.
    pub(crate) fn next_unheld(&mut self, shop: ShopKey) -> Option<ResourceKey> {
        let barriers = self.shops.get(shop)?.barriers.as_ref()?;
        let (position, resource) = barriers.held.first_key_value()?;
        let position = *position;
        let resource = *resource;
        if !self.is_open(shop, position) {
            return None;
        }
        self.shops.get_mut(shop)?.barriers.as_mut()?.held.remove(&position);
        Some(resource)
    }

    /// Puts a resource where its head belongs: ready for a turn, or held, paused, unread or waiting
    /// for a retry.
    pub(crate) fn place_by_head(&mut self, resource: ResourceKey, now: Duration) {
        let Some(head) = self.index.head(resource) else { return };
        if let (Some(HeadState::Held), Some(lane)) =
            (self.index.state(resource), self.index.lane(resource))
        {
            self.unhold(lane, head);
        }
        if let (Some(HeadState::Paused), Some(lane)) =
            (self.index.state(resource), self.index.lane(resource))
            && let Some(lane) = self.lanes.get_mut(lane)
        {
            lane.flow.paused = lane.flow.paused.saturating_sub(1);
        }
        let state = self.state_of(resource, head, now);
        let step = if state == HeadState::Ready { Step::Released } else { Step::Blocked(state) };
        self.step(resource, step);
        match state {
            HeadState::Retrying => {
                let retry = self.retries.of_head(&self.index, resource);
                let due = retry.map_or(now, |retry| retry.due);
                self.retries.schedule(due, resource);
            }
            HeadState::Unread => self.unread.resources.push(resource),
            HeadState::Held => self.hold(resource, head),
            _ => self.push_ready(resource),
        }
    }

    /// Changes the state of a resource. Nothing else does.
    pub(crate) fn step(&mut self, resource: ResourceKey, step: Step) {
        let Some(state) = self.index.resource(resource).map(|resource| resource.state) else {
            return;
        };
        match state.after(step) {
            Some(next) => self.index.set_state(resource, next),
            None => debug_assert!(false, "BUG: {step:?} while {state:?}"),
        }
    }

    /// Location of a webhook: the pack or chunk, and the index there.
    pub(crate) fn locate(&self, node: NodeKey) -> Option<(PackKey, u32)> {
        if let Some(id) = self.index.replay(node) {
            return Some((PackKey::Replay(id), 0));
        }
        let node = self.index.node(node);
        if self.main.is_after_cursor(node.position) {
            return Some((PackKey::Main(node.position.entry()), node.position.index));
        }
        let lane = self.lanes.get(node.lane)?;
        let (number, index) = lane.locate(node.position)?;
        Some((PackKey::Chunk(lane.hash, number), index))
    }
}
