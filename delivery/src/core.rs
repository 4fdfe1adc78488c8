//! The core: all state of a leader, and the order of its work.

use std::collections::HashSet;
use std::time::Duration;

use spillway_limiter::Limiter;
use spillway_webhook::StoredRetry;
use spillway_webhook::position::Position;

use crate::attempts::Attempts;
use crate::backend::BackendHealth;
use crate::config::Config;
use crate::controls::ControlState;
use crate::event::{Effect, Event, Loaded, Now};
use crate::expiry::Expiry;
use crate::index::{Index, NodeKey, ResourceKey};
use crate::lanes::Lanes;
use crate::ledger::Ledger;
use crate::main_stream::MainStream;
use crate::mover::Mover;
use crate::pack_key::PackKey;
use crate::queue::{Queue, UNREAD_FEW};
use crate::reading::Reading;
use crate::resource::{HeadState, Step};
use crate::retry::{Retries, RetryState};
use crate::seen::DedupWindow;
use crate::shop::Shops;
use crate::sorted::Content;
use crate::status::Counts;
use crate::turn::Turn;

/// Longest time between two events. Timers are checked with each event.
const TICK: Duration = Duration::from_millis(50);
/// Replays may take 1/`REPLAYS_PART` of the index. They are never cut, and windows use the rest.
const REPLAYS_PART: usize = 4;

/// Time, lease and phase of the leader.
#[derive(Debug, Default)]
pub(crate) struct LeaderSession {
    pub now: Now,
    /// Attempts may begin before this time.
    pub lease_until: Duration,
    pub dead_room: u64,
    pub may_move: bool,
    /// True once all replays that existed at start have arrived, or as many as fit.
    pub are_replays_loaded: bool,
    pub is_stopping: bool,
    /// True if the index had no room at the last check.
    pub is_index_full: bool,
    /// Set while a lane that could be sent waits for room to be read.
    pub is_refill_due: bool,
    /// Smallest memory of the index since it became full, in bytes, and the time at which it was
    /// reached.
    pub shrunk: (usize, Duration),
    /// State of the random number generator.
    pub chance: u64,
    /// Earliest estimate of the leader's start on Redis' clock, in milliseconds since the Unix
    /// epoch.
    pub began_ms: Option<u64>,
    pub looks: ScanTimes,
}

/// Times of the next periodic scans.
#[derive(Debug, Default)]
pub(crate) struct ScanTimes {
    /// Scan of the lanes for windows to cut.
    pub cut_at: Duration,
    /// Scan of the lanes for windows in which most webhooks wait for retries.
    pub stuck_at: Duration,
    /// Scan of the attempts for slow ones.
    pub slow_at: Duration,
    /// Scan of the lanes for leads of a previous leader.
    pub leads_at: Duration,
    /// Scan of the turns for lanes that have not failed, and the number of their probes since the
    /// last probe of a lane that failed.
    pub unfailed_at: Duration,
    pub unfailed_probes: u32,
    /// Scan of the turns for lanes of which the previous leader left nothing behind.
    pub fresh_at: Duration,
    /// Scan of the resources that wait for their recorded lead.
    pub unread_at: Duration,
    /// Scan of the lanes for the oldest webhook, and the time at which it was accepted, in
    /// milliseconds since the Unix epoch.
    pub oldest_at: Duration,
    pub oldest_ms: u64,
    /// Scan of the index for names of dropped webhooks that are settled.
    pub names_at: Duration,
}

/// All state of a leader.
pub struct Core<C: Content> {
    pub(crate) config: Config,
    pub(crate) session: LeaderSession,
    pub(crate) queue: Queue,
    pub(crate) reading: Reading<C>,
    pub(crate) mover: Mover<C>,
    pub(crate) attempts: Attempts,
    pub(crate) backend: BackendHealth,
    pub(crate) limiter: Limiter,
    pub(crate) ledger: Ledger<C>,
    pub(crate) controls: ControlState<C::Filter>,
    /// A turn that waits for a slot.
    pub(crate) next: Option<Turn>,
    pub(crate) counts: Counts,
}

/// The retry states that a leader loads when it begins may take 1/`RETRIES_PART` of the index.
const RETRIES_PART: usize = 4;

impl<C: Content> Core<C> {
    /// Creates a leader from the state in Redis and the fingerprints of recent deliveries.
    pub fn new(config: Config, loaded: Loaded, seen: DedupWindow) -> Self {
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
        let session =
            LeaderSession { may_move: true, chance: config.seed, ..LeaderSession::default() };
        let shops: HashSet<u64> = barriers.iter().map(|(_, shop)| *shop).collect();
        let mut core = Self {
            config,
            session,
            queue,
            reading: Reading::new(config.tuning.cache_bytes),
            mover: Mover::default(),
            attempts: Attempts::default(),
            backend: BackendHealth::default(),
            limiter: Limiter::new(config.bounds),
            ledger: Ledger::new(seen),
            controls: ControlState::default(),
            next: None,
            counts: Counts::default(),
        };
        // A shop with barriers may have no lane any more.
        for shop in shops {
            let shop = core.queue.shops.intern(shop);
            core.look_at_barriers(shop);
        }
        core.load_retries(loaded.retries);
        core
    }

    /// Takes over the retry states of webhooks of the main stream before they arrive. Of these, the
    /// oldest that fit are kept.
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

    /// Converts a retry state from Redis.
    pub(crate) fn state_found(&mut self, stored: StoredRetry, is_in_main: bool) -> RetryState {
        // Random part of the wait, because all retries at once would be a burst.
        let wait = self.config.backoff.wait(stored.attempts, 1.0).mul_f64(self.chance());
        let due = self.session.now.at + wait;
        let written = self.active_when(stored.as_of_ms);
        RetryState { due, ..RetryState::found(stored, written, is_in_main) }
    }

    /// Takes events and returns the actions to carry out.
    pub fn on(&mut self, events: Vec<Event<C>>, now: Now) -> Vec<Effect<C>> {
        self.session.now = now;
        let at_ms = u64::try_from(now.at.as_millis()).unwrap_or(u64::MAX);
        // If Redis' clock goes back, later webhooks must not seem older than they are.
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

    /// Latest time of the next event.
    pub fn wakes_at(&self) -> Duration {
        let now = self.session.now.at;
        let timers = [
            self.queue.retries.wakes_at(),
            self.queue.shops.wakes_at(),
            self.queue.lanes.wakes_at(),
            self.backend.probes_at(now),
            self.limiter.wakes_at(now),
            self.reading.wakes_at().filter(|_| !self.session.is_stopping),
            self.queue.expiry.wakes_at(),
        ];
        let next = timers.into_iter().flatten().min().unwrap_or(now + TICK);
        next.clamp(now, now + TICK)
    }

    /// Time before which fingerprints may be forgotten, in milliseconds since the Unix epoch.
    pub fn remembers_from_ms(&self) -> u64 {
        self.ledger.seen.forgets_before_ms(self.session.now.wall_ms)
    }

    /// True if more of the main stream may be read. The replays that existed at start are read
    /// first, as far as they fit.
    pub fn takes_packs(&self) -> bool {
        self.session.are_replays_loaded && !self.session.is_index_full
    }

    /// True if more replays may be read. The remaining ones are read as these are settled.
    pub fn takes_replays(&self) -> bool {
        let most = self.config.index_bytes / REPLAYS_PART;
        !self.session.is_index_full && self.queue.replay_bytes() < most
    }

    /// True if nothing is under way.
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
            Event::Stop => self.stop(),
            Event::Tick => {}
        }
        None
    }

    /// Begins nothing new. The time spent on retries so far is written to Redis, so that the next
    /// leader continues from there.
    fn stop(&mut self) {
        self.session.is_stopping = true;
        let Queue { lanes, index, retries, main, .. } = &self.queue;
        for (key, lane) in lanes.iter() {
            let positions = index.window(&lane.window).map(|(_, node)| node.position);
            // Nothing is kept of a replay.
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

    /// Gives turns to resources, lanes and shops whose wait is over.
    fn wake(&mut self) {
        let now = self.session.now.at;
        self.queue.shops.wake(now);
        while let Some(resource) = self.queue.retries.pop_due(now) {
            if self.queue.index.state(resource) == Some(HeadState::Retrying) {
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

    /// Puts a resource into the state that its head determines, or gives it a turn.
    pub(crate) fn release(&mut self, resource: ResourceKey) {
        let Some(head) = self.queue.index.head(resource) else { return };
        let now = self.session.now.at;
        if let (Some(HeadState::Held), Some(lane)) =
            (self.queue.index.state(resource), self.queue.index.lane(resource))
        {
            self.queue.unhold(lane, head);
        }
        if let (Some(HeadState::Paused), Some(lane)) =
            (self.queue.index.state(resource), self.queue.index.lane(resource))
            && let Some(lane) = self.queue.lanes.get_mut(lane)
        {
            lane.flow.paused = lane.flow.paused.saturating_sub(1);
        }
        let state = self.queue.state_of(resource, head, now);
        let step = if state == HeadState::Ready { Step::Released } else { Step::Blocked(state) };
        self.step(resource, step);
        match state {
            HeadState::Retrying => {
                let due = self.queue.retries.get(head).map_or(now, |retry| retry.due);
                self.queue.retries.schedule(due, resource);
            }
            HeadState::Unread => self.queue.unread.push(resource),
            HeadState::Held => self.queue.hold(resource, head),
            _ => self.queue.push_ready(resource),
        }
    }

    /// Changes the state of a resource. Nothing else does.
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

    /// Location of a webhook: the pack or chunk, and the index there.
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

    /// Returns a pseudorandom number, uniform in [0, 1).
    pub(crate) fn chance(&mut self) -> f64 {
        self.session.chance = self.session.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let top = u32::try_from(mixed(self.session.chance) >> 32).unwrap_or(0);
        f64::from(top) / (f64::from(u32::MAX) + 1.0)
    }
}

/// Returns a pseudorandom number that depends only on `number`: the last step of SplitMix64.
pub(crate) fn mixed(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
