//! The core: all state of a leader, and the order in which it does its work.

use std::collections::HashSet;
use std::time::Duration;

use spillway_limiter::Limiter;
use spillway_webhook::StoredRetry;
use spillway_webhook::position::Position;

use crate::arrive::UNREAD_FEW;
use crate::attempts::Attempts;
use crate::backend::Backend;
use crate::config::Config;
use crate::controls::ControlState;
use crate::dispatch::Turn;
use crate::event::{Effect, Event, Loaded, Now};
use crate::expiry::Expiry;
use crate::index::{Index, NodeKey, ResourceKey};
use crate::lanes::Lanes;
use crate::ledger::Ledger;
use crate::main_stream::MainStream;
use crate::moving::Mover;
use crate::queue::Queue;
use crate::reading::{PackKey, Reading};
use crate::resource::{State, Step};
use crate::retry::{Retries, RetryState};
use crate::seen::Seen;
use crate::shop::Shops;
use crate::sorted::Content;
use crate::status::Counts;

/// Longest time between two events: timers are looked at with each.
const TICK: Duration = Duration::from_millis(50);
/// Part of the index that replays may take: they are never cut, and what they leave belongs to
/// windows.
const REPLAYS_PART: usize = 4;

/// Time, lease and stage of the leader.
#[derive(Debug, Default)]
pub(crate) struct Session {
    pub now: Now,
    /// Attempts may begin before this time.
    pub lease_until: Duration,
    pub dead_room: u64,
    pub may_move: bool,
    /// True once all replays that were there at start have arrived, or as many as fit.
    pub are_replays_loaded: bool,
    pub is_draining: bool,
    /// Whether the index had no room at the last look.
    pub is_index_full: bool,
    /// Set while a lane that could flow waits for room to be read.
    pub is_refill_due: bool,
    /// Least memory of the index since it was full, in bytes, and when it became that.
    pub shrunk: (usize, Duration),
    /// Seed of the next chance.
    pub chance: u64,
    /// When the leader began, by Redis' clock, in milliseconds since the Unix epoch: the least that it was taken for.
    pub began_ms: Option<u64>,
    pub looks: Looks,
}

/// When everything of a kind is looked at again.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Lanes, for windows to cut.
    pub cut_at: Duration,
    /// Lanes, for windows of which most waits for retries.
    pub stuck_at: Duration,
    /// Attempts, for slow ones.
    pub slow_at: Duration,
    /// Lanes, for leads of a leader before.
    pub leads_at: Duration,
    /// Turns, for lanes that have not failed; and their probes since one of a lane that had.
    pub unfailed_at: Duration,
    pub unfailed_probes: u32,
    /// Turns, for lanes of which the leader before left nothing behind.
    pub fresh_at: Duration,
    /// Resources that wait for their recorded lead.
    pub unread_at: Duration,
    /// Lanes, for the oldest webhook; and when that was accepted, in milliseconds since the Unix epoch.
    pub oldest_at: Duration,
    pub oldest_ms: u64,
    /// The index, for names of webhooks to drop that are settled.
    pub names_at: Duration,
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

/// The retry states that a leader loads when it begins have this part of the index: one in so many bytes.
const RETRIES_PART: usize = 4;

impl<C: Content> Core<C> {
    /// A leader that begins with what Redis holds, and with what was delivered lately.
    pub fn new(config: Config, loaded: Loaded, seen: Seen) -> Self {
        let known_to = loaded.bits.keys().max().copied().unwrap_or_default();
        let mut queue = Queue {
            index: Index::new(config.keeps_fingerprints),
            lanes: Lanes::default(),
            shops: Shops::new(config.shop_bounds),
            main: MainStream::new(loaded.cursor, known_to),
            retries: Retries::default(),
            leads: loaded.leads.into_iter().collect(),
            expiry: Expiry::default(),
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
        core.load_retries(loaded.retries);
        core
    }

    /// Takes over the retry states of webhooks of the main stream, before they arrive: of the oldest, as many as have
    /// room.
    fn load_retries(&mut self, mut retries: Vec<(Position, StoredRetry)>) {
        retries.sort_unstable();
        let bytes = self.config.index_bytes / RETRIES_PART;
        for (position, stored) in retries {
            let has_room = self.queue.retries.bytes() < bytes;
            if has_room && self.queue.main.is_after_cursor(position) {
                let state = self.state_found(stored, true);
                self.queue.retries.insert(position, state);
            } else {
                self.queue.retries.mark_stale(position);
            }
        }
    }

    /// A retry state that Redis held when it was written.
    pub(crate) fn state_found(&mut self, stored: StoredRetry, is_in_main: bool) -> RetryState {
        // Somewhere in its wait: all at once would be a burst.
        let wait = self.config.backoff.wait(stored.attempts, 1.0).mul_f64(self.chance());
        let due = self.session.now.at + wait;
        let written = self.active_when(stored.as_of_ms);
        RetryState { due, ..RetryState::found(stored, written, is_in_main) }
    }

    /// Takes events, and returns what is to be done.
    pub fn on(&mut self, events: Vec<Event<C>>, now: Now) -> Vec<Effect<C>> {
        self.session.now = now;
        let at_ms = u64::try_from(now.at.as_millis()).unwrap_or(u64::MAX);
        // Where that clock goes back, what is accepted from then on is not taken for older than it is.
        let began_ms = now.wall_ms.saturating_sub(at_ms);
        let least = self.session.began_ms.map_or(began_ms, |before| before.min(began_ms));
        self.session.began_ms = Some(least);
        let lease_until = self.session.lease_until;
        if now.at >= lease_until {
            self.backend.lease_ended(lease_until);
        }
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
        self.expire();
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
            self.queue.expiry.wakes_at(),
        ];
        let next = timers.into_iter().flatten().min().unwrap_or(now + TICK);
        next.clamp(now, now + TICK)
    }

    /// Time before which fingerprints may be forgotten, in milliseconds since the Unix epoch.
    pub fn remembers_from_ms(&self) -> u64 {
        self.ledger.seen.forgets_before_ms(self.session.now.wall_ms)
    }

    /// True if more of the main stream may be read: not before the replays that were there at start,
    /// as far as they fit.
    pub fn takes_packs(&self) -> bool {
        self.session.are_replays_loaded && !self.session.is_index_full
    }

    /// True if more replays may be read. The others are read as those are settled.
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
            Event::FrontRead(packs) => return self.front_read(packs),
            Event::ChunksRead { lane, chunks } => return self.chunks_read(lane, chunks),
            Event::RestRead { lane, entry, pack } => return self.rest_read(lane, entry, pack),
            Event::Ended(end) => self.ended(end),
            Event::Settled => self.settled(),
            Event::Controls(controls) => self.controls_changed(controls),
            Event::Lease { until, dead_room, may_move } => {
                self.session.lease_until = until;
                if self.session.now.at < until {
                    self.backend.lease_renewed(self.session.now.at);
                }
                self.session.dead_room = dead_room.saturating_sub(self.ledger.dying_bytes);
                self.session.may_move = may_move;
            }
            Event::OlderData => {
                return Some(Effect::Restart("redis came back with older data"));
            }
            Event::Drain => self.drain(),
            Event::Tick => {}
        }
        None
    }

    /// Nothing begins any more. Redis learns the time that was spent on retries up to now: the next
    /// leader goes on from there.
    fn drain(&mut self) {
        self.session.is_draining = true;
        let Queue { lanes, index, retries, main, .. } = &self.queue;
        for (key, lane) in lanes.iter() {
            let positions = index.window(&lane.window).map(|(_, node)| node.position);
            // Of a replay nothing is kept.
            let is_kept = |position: Position, state: &RetryState| {
                state.is_in_main || (lane.stored.is_some() && !main.is_after_cursor(position))
            };
            let tried = positions.filter(|position| {
                retries.get(*position).is_some_and(|state| is_kept(*position, state))
            });
            self.ledger.retries.extend(tried.map(|position| (position, key)));
            if lane.stored.is_some() && lane.clock.is_failing() {
                self.ledger.changed.push(key);
            }
        }
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
        if self.queue.unread.len() > UNREAD_FEW {
            self.release_unread();
        }
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
        if let (Some(State::Paused), Some(lane)) =
            (self.queue.index.state(resource), self.queue.index.lane(resource))
            && let Some(lane) = self.queue.lanes.get_mut(lane)
        {
            lane.flow.paused = lane.flow.paused.saturating_sub(1);
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

    /// A number that looks random, uniform in [0, 1).
    pub(crate) fn chance(&mut self) -> f64 {
        self.session.chance = self.session.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let top = u32::try_from(mixed(self.session.chance) >> 32).unwrap_or(0);
        f64::from(top) / (f64::from(u32::MAX) + 1.0)
    }
}

/// A number that looks random, the same for the same `number`: the end of SplitMix64.
pub(crate) fn mixed(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
