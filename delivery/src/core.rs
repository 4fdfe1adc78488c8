//! The order of a leader's work.

use std::collections::HashSet;
use std::time::Duration;

use spillway_limiter::Limiter;
use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::config::Config;
use crate::event::{Effect, Event, Loaded, Now};
use crate::state::attempts::Attempts;
use crate::state::backend::BackendHealth;
use crate::state::controls::ControlState;
use crate::state::expiry::Expiry;
use crate::state::index::Index;
use crate::state::lanes::Lanes;
use crate::state::last_delivered::LastDelivered;
use crate::state::ledger::Ledger;
use crate::state::main_stream::MainStream;
use crate::state::mover::Mover;
use crate::state::queue_view::{QueueView, UNREAD_FEW, Unread};
use crate::state::reading::Reading;
use crate::state::resource::HeadState;
use crate::state::retry::{Retries, RetryState};
use crate::state::seen::DedupWindow;
use crate::state::shop::Shops;
use crate::state::{Core, LeaderSession};
use crate::status::Counts;
use crate::steps::{
    apply_controls, arrive, barriers, cut, dispatch, ended, expire, moving, read, refill, retries,
    settle, settled, slow, turns,
};

/// Longest time between two events. Timers are checked with each event.
const TICK: Duration = Duration::from_millis(50);

/// Replays may take 1/`REPLAYS_PART` of the index. They are never cut, and windows use the rest.
const REPLAYS_PART: usize = 4;

impl<C: Content> Core<C> {
    /// Creates a leader from the state in Redis and the fingerprints of recent deliveries.
    pub fn new(config: Config, loaded: Loaded, seen: DedupWindow) -> Self {
        let known_to = loaded.bits.keys().max().copied().unwrap_or_default();
        let mut queue = QueueView {
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
            unread: Unread::default(),
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
            ledger: Ledger::new(seen, LastDelivered::new(config.suppression)),
            controls: ControlState::default(),
            waiting_turn: None,
            counts: Counts::default(),
        };
        // A shop with barriers may have no lane any more.
        for shop in shops {
            let shop = core.queue.shops.intern(shop);
            barriers::release_held(&mut core, shop);
        }
        retries::load_retries(&mut core, loaded.retries);
        core
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
        for shop in std::mem::take(&mut self.queue.shops.releasing) {
            barriers::release_held(self, shop);
        }
        let mut effects = Vec::new();
        for event in events {
            effects.extend(self.take(event));
        }
        apply_controls::drop_again(self);
        self.wake();
        // Nothing waits for replays that do not fit.
        self.session.are_replays_loaded |= !self.takes_replays();
        effects.extend(slow::cut_off(self));
        effects.extend(dispatch::dispatch_turns(self));
        expire::expire_overdue(self);
        effects.extend(read::begin_reads(self));
        effects.extend(refill::refill_windows(self));
        effects.extend(moving::look_at_front(self));
        effects.extend(settle::begin_settlement(self));
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
            self.ledger.gathers_until(now, settle::is_awaited(self)),
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

    /// True if less than half of the index is used: there is room for several packs.
    pub fn has_much_room(&self) -> bool {
        self.queue.bytes() < self.config.index_bytes / 2
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
            Event::Pack(pack) => arrive::pack_arrived(self, pack),
            Event::Corrupt(entry) => arrive::corrupt_arrived(self, entry),
            Event::Replay(replay) => arrive::replay_arrived(self, replay),
            Event::CorruptReplay(id) => self.ledger.draft.settlement.replays.corrupt.push(id),
            Event::ReplaysLoaded => self.session.are_replays_loaded = true,
            Event::Read(key, found) => return read::read_again(self, key, found),
            Event::FrontRead(packs) => return read::front_arrived(self, packs),
            Event::ChunksRead { lane, chunks } => return refill::chunks_read(self, lane, chunks),
            Event::RestRead { lane, entry, pack } => {
                return refill::rest_read(self, lane, entry, pack);
            }
            Event::Ended(end) => ended::attempt_ended(self, end),
            Event::Settled => settled::settlement_applied(self),
            Event::Controls(controls) => apply_controls::controls_changed(self, controls),
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
        let QueueView { lanes, index, retries, main, .. } = &self.queue;
        for (key, lane) in lanes.iter() {
            let positions = index.nodes.window(&lane.window).map(|(_, node)| node.position);
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
                self.queue.place_by_head(resource, self.session.now.at);
            }
        }
        turns::wake_lanes(self);
        if self.queue.unread.resources.len() > UNREAD_FEW {
            arrive::release_unread(self);
        }
        if self.session.is_index_full || self.session.is_refill_due {
            cut::make_room(self);
        }
    }
}
