//! The core: all state of a leader, and the order in which it does its work.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use spillway_limiter::Limiter;
use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::attempts::Attempts;
use crate::backend::Backend;
use crate::config::Config;
use crate::controls::ControlState;
use crate::dispatch::Turn;
use crate::event::{Effect, Event, LaneLoaded, Loaded, Now};
use crate::index::{ByHash, Index, LaneKey, NONE, NodeKey, ResourceKey};
use crate::lane::{LANE_BYTES, Lanes, Rest, Stored};
use crate::ledger::Ledger;
use crate::main_stream::MainStream;
use crate::moving::Mover;
use crate::reading::{PackKey, Reading};
use crate::resource::{State, Step};
use crate::retry::Retries;
use crate::seen::Seen;
use crate::shop::{ShopKey, Shops};
use crate::sorted::Content;
use crate::status::Counts;

/// Longest time between two events: timers are looked at with each.
const TICK: Duration = Duration::from_millis(50);
/// Part of the index that replays may take: they are never cut, and what they leave belongs to
/// windows.
const REPLAYS_PART: usize = 4;

/// Bytes of a barrier's position in its shop's tree, whose nodes are at least half full.
const BARRIER_BYTES: usize = 24;
/// Bytes of a barrier in the table of those that lie in lanes, between half and nearly full: 17 each.
const STORED_BARRIER_BYTES: usize = 28;
/// Bytes of a recorded lead in a table of the same kind: 25 each.
const LEAD_BYTES: usize = 40;

/// Time, lease and stage of the leader.
#[derive(Debug, Default)]
pub(crate) struct Session {
    pub now: Now,
    /// Attempts may begin before this time.
    pub lease_until: Duration,
    pub dead_room: u64,
    pub may_move: bool,
    /// Whether all replays that were there at start have arrived, or as many as fit.
    pub are_replays_loaded: bool,
    pub is_draining: bool,
    /// Whether the index had no room at the last look.
    pub is_index_full: bool,
    /// Seed of the next chance.
    pub chance: u64,
    /// Time at which the oldest webhook in a lane was accepted, in ms since the Unix epoch.
    pub oldest_ms: u64,
    pub looks: Looks,
}

/// When everything of a kind is looked at again.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Lanes, for windows to cut.
    pub cut_at: Duration,
    /// Attempts, for slow ones.
    pub slow_at: Duration,
    /// Lanes, for leads of a leader before.
    pub leads_at: Duration,
    /// Lanes, for the oldest webhook.
    pub oldest_at: Duration,
    /// The index, for names of webhooks to drop that are settled.
    pub names_at: Duration,
}

/// Windows, lanes, and what was loaded at start.
pub(crate) struct Queue {
    pub index: Index,
    pub lanes: Lanes,
    pub shops: Shops,
    pub main: MainStream,
    pub retries: Retries,
    /// Recorded leads by the hash of their resource.
    pub leads: ByHash<Position>,
    /// Settled webhooks of packs that have not been read yet.
    pub bits: HashMap<StreamId, Vec<u8>>,
    /// Barriers that are not settled, of all shops.
    pub barriers: usize,
    /// Barriers that lie in lanes, as Redis has them.
    pub stored_barriers: HashSet<Position>,
    /// Resources whose recorded lead is not indexed yet.
    pub unread: Vec<ResourceKey>,
    /// Whether leads of a leader before may be settled, or of another key scheme.
    pub are_leads_old: bool,
}

/// All state of a leader.
pub struct Core<C: Content> {
    pub(crate) config: Config,
    pub(crate) session: Session,
    pub(crate) queue: Queue,
    pub(crate) reading: Reading<C>,
    pub(crate) mover: Mover<C>,
    pub(crate) attempts: Attempts,
    pub(crate) backend: Backend,
    pub(crate) limiter: Limiter,
    pub(crate) ledger: Ledger<C>,
    pub(crate) controls: ControlState<C::Filter>,
    /// A turn that waits for a slot.
    pub(crate) next: Option<Turn>,
    pub(crate) counts: Counts,
}

impl<C: Content> Core<C> {
    /// A leader that begins with what Redis holds, and with what was delivered lately.
    pub fn new(config: Config, loaded: Loaded, seen: Seen) -> Self {
        let mut queue = Queue {
            index: Index::new(config.keeps_fingerprints),
            lanes: Lanes::default(),
            shops: Shops::new(config.shop_bounds),
            main: MainStream::new(loaded.cursor),
            retries: Retries::default(),
            leads: loaded.leads.into_iter().collect(),
            bits: loaded.bits,
            barriers: 0,
            stored_barriers: HashSet::new(),
            unread: Vec::new(),
            are_leads_old: true,
        };
        loaded.lanes.iter().for_each(|lane| queue.load_lane(lane));
        let barriers = loaded.barriers;
        for (position, shop) in &barriers {
            queue.stored_barriers.insert(*position);
            queue.add_barrier(*shop, *position);
        }
        let session = Session { may_move: true, chance: config.seed, ..Session::default() };
        let shops: HashSet<u64> = barriers.iter().map(|(_, shop)| *shop).collect();
        let mut core = Self {
            config,
            session,
            queue,
            reading: Reading::new(config.tuning.cache_bytes),
            mover: Mover::default(),
            attempts: Attempts::default(),
            backend: Backend::default(),
            limiter: Limiter::new(config.bounds),
            ledger: Ledger::new(seen),
            controls: ControlState::default(),
            next: None,
            counts: Counts::default(),
        };
        // A shop may have no lane any more.
        for shop in shops {
            let shop = core.queue.shops.intern(shop);
            core.look_at_barriers(shop);
        }
        core
    }

    /// Takes events, and returns what is to be done.
    pub fn on(&mut self, events: Vec<Event<C>>, now: Now) -> Vec<Effect<C>> {
        self.session.now = now;
        let mut effects = Vec::new();
        for event in events {
            effects.extend(self.take(event));
        }
        self.drop_again();
        self.wake();
        // Nothing waits for replays that do not fit.
        self.session.are_replays_loaded |= !self.takes_replays();
        effects.extend(self.cut_off());
        effects.extend(self.dispatch());
        effects.extend(self.read());
        effects.extend(self.refill());
        effects.extend(self.look_at_front());
        effects.extend(self.settle());
        effects
    }

    /// Time of the next event at the latest.
    pub fn wakes_at(&self) -> Duration {
        let now = self.session.now.at;
        let timers = [
            self.queue.retries.wakes_at(),
            self.queue.shops.wakes_at(),
            self.queue.lanes.wakes_at(),
            self.backend.probes_at(now),
            self.limiter.wakes_at(now),
            self.reading.wakes_at().filter(|_| !self.session.is_draining),
        ];
        let next = timers.into_iter().flatten().min().unwrap_or(now + TICK);
        next.clamp(now, now + TICK)
    }

    /// Time before which fingerprints may be forgotten, in milliseconds since the Unix epoch.
    pub fn remembers_from_ms(&self) -> u64 {
        self.ledger.seen.forgets_before_ms(self.session.now.wall_ms)
    }

    /// Whether more of the main stream may be read: not before the replays that were there at start,
    /// as far as they fit.
    pub fn takes_packs(&self) -> bool {
        self.session.are_replays_loaded && !self.session.is_index_full
    }

    /// Whether more replays may be read. The others are read as those are settled.
    pub fn takes_replays(&self) -> bool {
        let most = self.config.index_bytes / REPLAYS_PART;
        !self.session.is_index_full && self.queue.replay_bytes() < most
    }

    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.attempts.len() == 0 && self.ledger.is_quiet()
    }

    fn take(&mut self, event: Event<C>) -> Option<Effect<C>> {
        match event {
            Event::Pack(pack) => self.pack_arrived(pack),
            Event::Corrupt(entry) => self.corrupt_arrived(entry),
            Event::Replay(replay) => self.replay_arrived(replay),
            Event::CorruptReplay(id) => self.ledger.draft.settlement.replays.corrupt.push(id),
            Event::ReplaysLoaded => self.session.are_replays_loaded = true,
            Event::Read(key, found) => return self.read_again(key, found),
            Event::FrontRead(packs) => self.mover.front_read(packs, self.session.now.at),
            Event::ChunksRead { lane, chunks } => return self.chunks_read(lane, chunks),
            Event::RestRead { lane, entry, pack } => return self.rest_read(lane, entry, pack),
            Event::Ended(end) => self.ended(end),
            Event::Settled => self.settled(),
            Event::Controls(controls) => self.controls_changed(controls),
            Event::Lease { until, dead_room, may_move } => {
                self.session.lease_until = until;
                self.session.dead_room = dead_room.saturating_sub(self.ledger.dying_bytes);
                self.session.may_move = may_move;
            }
            Event::OlderData => {
                return Some(Effect::Restart("redis came back with older data"));
            }
            Event::Drain => self.session.is_draining = true,
            Event::Tick => {}
        }
        None
    }

    /// Resources and shops whose wait is over have turns again.
    fn wake(&mut self) {
        let now = self.session.now.at;
        self.queue.shops.wake(now);
        while let Some(resource) = self.queue.retries.pop_due(now) {
            if self.queue.index.state(resource) == Some(State::Retrying) {
                self.release(resource);
            }
        }
        self.wake_lanes();
        if self.session.is_index_full {
            self.make_room();
        }
    }

    /// Has a resource wait for what holds it back, or for its turn.
    pub(crate) fn release(&mut self, resource: ResourceKey) {
        let Some(head) = self.queue.index.head(resource) else { return };
        let now = self.session.now.at;
        if let (Some(State::Held), Some(lane)) =
            (self.queue.index.state(resource), self.queue.index.lane(resource))
        {
            self.queue.unhold(lane, head);
        }
        let state = self.queue.state_of(resource, head, now);
        let step = if state == State::Ready { Step::Released } else { Step::Blocked(state) };
        self.step(resource, step);
        match state {
            State::Retrying => {
                let due = self.queue.retries.get(head).map_or(now, |retry| retry.due);
                self.queue.retries.schedule(due, resource);
            }
            State::Unread => self.queue.unread.push(resource),
            State::Held => self.queue.hold(resource, head),
            _ => self.queue.push_ready(resource),
        }
    }

    /// The only way in which a resource changes its state.
    pub(crate) fn step(&mut self, resource: ResourceKey, step: Step) {
        let Some(state) = self.queue.index.resource(resource).map(|resource| resource.state) else {
            return;
        };
        match state.after(step) {
            Some(next) => self.queue.index.set_state(resource, next),
            None => debug_assert!(false, "BUG: {step:?} while {state:?}"),
        }
    }

    /// Time that counts towards retries.
    pub(crate) fn active(&self) -> Duration {
        self.backend.active(self.session.now.at)
    }

    /// Memory of the index, in bytes.
    pub(crate) fn index_bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// Bytes of a pack or chunk, and where a webhook lies there.
    pub(crate) fn locate(&self, node: NodeKey) -> Option<(PackKey, u32)> {
        if let Some(id) = self.queue.index.replay(node) {
            return Some((PackKey::Replay(id), 0));
        }
        let node = self.queue.index.node(node);
        if self.queue.main.is_after_cursor(node.position) {
            return Some((PackKey::Main(node.position.entry()), node.position.index));
        }
        let lane = self.queue.lanes.get(node.lane)?;
        let (number, index) = lane.locate(node.position)?;
        Some((PackKey::Chunk(lane.hash, number), index))
    }

    /// Memory of the index in bytes, counted anew from everything in it: equal to
    /// [`Status::index_bytes`](crate::Status), and slow. For tests.
    pub fn recount(&self) -> usize {
        let queue = &self.queue;
        let barriers: usize = queue.shops.barriers().map(|barriers| barriers.positions.len()).sum();
        queue.index.recount()
            + queue.lanes.recount()
            + queue.main.bytes()
            + queue.retries.bytes()
            + barriers * BARRIER_BYTES
            + queue.stored_barriers.len() * STORED_BARRIER_BYTES
            + queue.leads.len() * LEAD_BYTES
    }

    /// A number that looks random, uniform in [0, 1).
    pub(crate) fn chance(&mut self) -> f64 {
        self.session.chance = self.session.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.session.chance;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let top = u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap_or(0);
        f64::from(top) / (f64::from(u32::MAX) + 1.0)
    }
}

impl Queue {
    fn load_lane(&mut self, loaded: &LaneLoaded) {
        let shop = self.shops.intern(loaded.shop);
        let key = self.lane(loaded.lane, shop, Duration::ZERO);
        self.lanes.add_waiting(loaded.waiting);
        self.shops.arrived(shop, loaded.waiting);
        if loaded.is_other_scheme
            && let Some(shop) = self.shops.get_mut(shop)
        {
            shop.barriers.get_or_insert_default().is_mixed = true;
        }
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.breaker.restore(loaded.failing, loaded.is_tripped, Duration::ZERO);
            lane.rest = Some(Box::new(Rest { after: Position::default(), last: loaded.last }));
            lane.stored = Some(Box::new(Stored {
                unread_from: loaded.first_chunk,
                next: loaded.last_chunk + 1,
                waiting: loaded.waiting,
                last: loaded.last,
                is_changed: false,
                is_other_scheme: loaded.is_other_scheme,
                ..Stored::new(loaded.first, loaded.first_chunk)
            }));
        }
        self.lanes.list(key);
    }

    /// The lane with this hash, made if there is none.
    pub fn lane(&mut self, hash: u64, shop: ShopKey, active: Duration) -> LaneKey {
        let (key, is_new) = self.lanes.intern(hash, shop, active);
        if is_new && let Some(shop) = self.shops.get_mut(shop) {
            shop.lanes.push(key);
        }
        key
    }

    /// Notes a barrier that is not settled.
    pub fn add_barrier(&mut self, shop: u64, position: Position) {
        let shop = self.shops.intern(shop);
        if let Some(shop) = self.shops.get_mut(shop) {
            let is_new = shop.barriers.get_or_insert_default().positions.insert(position);
            self.barriers += usize::from(is_new);
        }
    }

    /// A barrier is settled, or lost.
    pub fn remove_barrier(&mut self, shop: ShopKey, position: Position) {
        let barriers = self.shops.get_mut(shop).and_then(|shop| shop.barriers.as_mut());
        let was_there = barriers.is_some_and(|barriers| barriers.positions.remove(&position));
        self.barriers -= usize::from(was_there);
    }

    /// Memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.index.bytes()
            + self.lanes.bytes()
            + self.main.bytes()
            + self.retries.bytes()
            + self.barriers * BARRIER_BYTES
            + self.stored_barriers.len() * STORED_BARRIER_BYTES
            + self.leads.len() * LEAD_BYTES
    }

    /// Memory that replays take at most, in bytes: each as if it had a resource and a lane of its own.
    fn replay_bytes(&self) -> usize {
        self.index.replay_bytes() + self.index.replays().len() * LANE_BYTES
    }

    /// State of a resource that is not at work, as far as its head decides.
    fn state_of(&self, resource: ResourceKey, head: Position, now: Duration) -> State {
        if self.retries.get(head).is_some_and(|retry| retry.due > now) {
            return State::Retrying;
        }
        let (Some(about), Some(lane)) = (self.index.resource(resource), self.index.lane(resource))
        else {
            return State::Ready;
        };
        let is_replay = self.index.replay(about.head).is_some();
        if let Some(lead) = self.leads.get(&about.hash)
            && !is_replay
            && !self.is_run_read(lane, *lead)
        {
            return State::Unread;
        }
        let shop = self.lanes.get(lane).map_or(NONE, |lane| lane.shop);
        if is_replay || self.is_open(shop, head) { State::Ready } else { State::Held }
    }

    /// Whether everything that may be of one run with `lead` is indexed: of its lane, or of every
    /// lane of a shop with two key schemes.
    pub fn is_run_read(&self, lane: LaneKey, lead: Position) -> bool {
        let is_known =
            |lane: LaneKey| self.lanes.get(lane).is_none_or(|lane| lane.is_known_up_to(lead));
        let shop = self.lanes.get(lane).and_then(|lane| self.shops.get(lane.shop));
        let mixed = shop.filter(|shop| shop.is_mixed());
        self.main.read_to >= lead.entry()
            && mixed.map_or(is_known(lane), |shop| shop.lanes.iter().all(|lane| is_known(*lane)))
    }

    /// Whether a webhook may go before or after the barriers of its shop.
    pub fn is_open(&self, shop: ShopKey, position: Position) -> bool {
        let barriers = self.shops.get(shop).and_then(|shop| shop.barriers.as_ref());
        let Some(barriers) = barriers else { return true };
        if !barriers.is_free(position) {
            return false;
        }
        let is_barrier = barriers.positions.first() == Some(&position);
        !(is_barrier || barriers.is_mixed) || self.is_first_of_shop(shop, position)
    }

    /// Whether nothing unsettled of a shop is before `position`.
    fn is_first_of_shop(&self, shop: ShopKey, position: Position) -> bool {
        let Some(shop) = self.shops.get(shop) else { return true };
        shop.lanes.iter().filter_map(|lane| self.lanes.get(*lane)).all(|lane| {
            let front = self.index.front(&lane.window);
            front.is_none_or(|front| front >= position) && lane.is_known_up_to(position)
        })
    }

    fn hold(&mut self, resource: ResourceKey, head: Position) {
        let shop = self.index.lane(resource).and_then(|lane| self.lanes.get(lane));
        let Some(shop) = shop.map(|lane| lane.shop) else { return };
        if let Some(shop) = self.shops.get_mut(shop) {
            shop.barriers.get_or_insert_default().held.insert(head, resource);
        }
    }

    /// A resource that was held back has another head, or is gone.
    pub fn unhold(&mut self, lane: LaneKey, head: Position) {
        let Some(shop) = self.lanes.get(lane).map(|lane| lane.shop) else { return };
        if let Some(barriers) = self.shops.get_mut(shop).and_then(|shop| shop.barriers.as_mut()) {
            barriers.held.remove(&head);
        }
    }

    fn push_ready(&mut self, resource: ResourceKey) {
        let Some(node) = self.index.lead(resource) else { return };
        let (Some(lane), Some(class)) = (self.index.lane(resource), self.index.class(resource))
        else {
            return;
        };
        let head = self.index.head(resource).unwrap_or_default();
        let was_tried = self.retries.get(head).is_some();
        let position = self.index.node(node).position;
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.ready.push(class, was_tried, position, resource);
            self.shops.give_turn(lane.shop, class);
        }
    }

    /// Takes the next held resource of a shop that may go now.
    pub fn next_unheld(&mut self, shop: ShopKey) -> Option<ResourceKey> {
        let barriers = self.shops.get(shop)?.barriers.as_ref()?;
        let (position, resource) = barriers.held.first_key_value()?;
        let (position, resource) = (*position, *resource);
        if !self.is_open(shop, position) {
            return None;
        }
        self.shops.get_mut(shop)?.barriers.as_mut()?.held.remove(&position);
        Some(resource)
    }
}
