//! Bytes at hand: read ahead in stream order, or on demand for what has its turn out of order.
//!
//! The index holds millions, the cache some dozens of packs. In stream order each pack is read once.
//! Fairness goes out of stream order: each webhook of a shop with little may cost the reading of a
//! whole pack. Such reads have a budget: never felt where the backend is slow; where it is fast,
//! what is at hand goes first. A webhook that was read on demand is kept by itself until its turn.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::pack::RAW_BYTES_TARGET;
use spillway_webhook::position::Position;

use crate::cache::Cache;
use crate::chunk_reads::ChunkReads;
use crate::core::Core;
use crate::dispatch::Turn;
use crate::event::{Effect, PackRead, ReadAgain};
use crate::index::ResourceKey;
use crate::lane::Lane;
use crate::main_stream::MainPack;
use crate::resource::State;
use crate::sorted::Content;

/// Reason to begin again.
const GONE: &str = "a pack that waits is not in redis any more";
/// Packs at the front of the stream that are kept at hand.
const FRONT_MAX: usize = 256;
/// They may take half of the cache.
const FRONT_PART: usize = 2;
/// Packs with something left that are looked at for them.
const FRONT_LOOKED_AT: usize = 512;
/// A pack of which nothing was settled while so many others were, and little is left, is not kept at
/// hand: the rest waits for a retry.
const STUCK_AFTER: u64 = 8192;
const STUCK_PART: u32 = 16;
/// Load of the reads under way at once, and of those ahead of their turn: four packs, and three.
const READS_MAX: u32 = 4 * LARGE_LOAD;
const FRONT_READS_MAX: u32 = 3 * LARGE_LOAD;
/// Load of one read; of a pack as small as those of a quiet receiver, 1.
const LARGE_LOAD: u32 = 8;
/// Webhooks in a small pack, and raw bytes of a small chunk: a receiver's packs are small where they hold
/// few, but a chunk of few may be one that was left of large ones.
const SMALL: u32 = 16;
const SMALL_BYTES: u32 = 128 << 10;
/// Reads on demand per second, of a pack of usual size: with a millisecond each, a third of a core.
const READS_PER_SECOND: f64 = 300.0;
/// Cost of a read beside its bytes.
const LEAST_COST: f64 = 0.03;
/// And one more for so many deliveries.
const DELIVERIES_PER_READ: f64 = 48.0;
/// Packs of the main stream that are read at once for rests of lanes.
const RESTS_MAX: usize = 8;
/// Webhooks read on demand that wait for their turn, in bytes.
const PLUCKED_BYTES: usize = 16 << 20;
/// Reads that may be saved up.
const BUDGET_MAX: f64 = 16.0;

/// Where bytes lie in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PackKey {
    /// An entry of the main stream.
    Main(StreamId),
    /// A chunk, by the hash of its lane and its number.
    Chunk(u64, u32),
    /// An entry among the replays.
    Replay(StreamId),
}

/// Packs that are being read, and who waits for them.
#[derive(Debug)]
pub(crate) struct Reading<C> {
    /// Decoded packs at hand.
    pub cache: Cache<C>,
    under_way: HashMap<PackKey, u32>,
    /// Sum of their loads.
    load: u32,
    /// Packs to read on demand, in the order asked for.
    wanted: VecDeque<PackKey>,
    waiting: HashMap<PackKey, Vec<Turn>>,
    /// Webhooks that were read on demand.
    plucked: HashMap<ResourceKey, (Position, C)>,
    plucked_bytes: usize,
    /// Chunks that are being read for windows.
    pub chunks: ChunkReads,
    /// Packs that are being read for rests of lanes.
    pub rests: BTreeSet<StreamId>,
    budget: f64,
    earned_at: Duration,
    /// Whether the front of the stream may have moved since it was looked at.
    is_front_new: bool,
}

impl<C: Content> Reading<C> {
    pub fn new(cache_bytes: usize) -> Self {
        Self {
            cache: Cache::new(cache_bytes),
            under_way: HashMap::new(),
            load: 0,
            wanted: VecDeque::new(),
            waiting: HashMap::new(),
            plucked: HashMap::new(),
            plucked_bytes: 0,
            chunks: ChunkReads::default(),
            rests: BTreeSet::new(),
            budget: BUDGET_MAX,
            earned_at: Duration::ZERO,
            is_front_new: true,
        }
    }

    /// True if no other pack may be read for rests now.
    pub fn are_rests_full(&self) -> bool {
        self.rests.len() >= RESTS_MAX
    }

    /// A resource has another head, or none.
    pub fn forget(&mut self, resource: ResourceKey) -> Option<(Position, C)> {
        let plucked = self.plucked.remove(&resource)?;
        self.plucked_bytes -= plucked.1.raw_bytes();
        Some(plucked)
    }

    /// When there is budget for another read that is wanted.
    pub fn wakes_at(&self) -> Option<Duration> {
        let has_room = self.plucked_bytes < PLUCKED_BYTES;
        let is_wanted = has_room && !self.wanted.is_empty() && self.load < READS_MAX;
        let missing =
            Duration::from_secs_f64((LEAST_COST - self.budget).max(0.0) / READS_PER_SECOND);
        is_wanted.then(|| self.earned_at + missing)
    }

    fn begin(&mut self, key: PackKey, load: u32) {
        let before = self.under_way.insert(key, load);
        self.load = self.load + load - before.unwrap_or(0);
    }

    fn ended(&mut self, key: PackKey) {
        self.load -= self.under_way.remove(&key).unwrap_or(0);
    }

    /// The cursor moved, or a pack was settled in part.
    pub fn front_moved(&mut self) {
        self.is_front_new = true;
    }
}

/// Load of reading a pack of so many webhooks.
fn load(count: u32) -> u32 {
    if count <= SMALL { 1 } else { LARGE_LOAD }
}

impl<C: Content> Core<C> {
    /// The bytes of what has its turn, if they are here, and the index of the webhook in them.
    pub(crate) fn at_hand(
        &mut self,
        turn: Turn,
        position: Position,
        key: PackKey,
        index: u32,
    ) -> Option<(C, u32)> {
        // Since it was read, another one may have become what is sent of the resource.
        let plucked = self.reading.forget(turn.resource).filter(|(own, _)| *own == position);
        let found = match plucked {
            Some((_, plucked)) => (plucked, 0),
            None => (self.reading.cache.get(key)?, index),
        };
        self.reading.budget += 1.0 / DELIVERIES_PER_READ;
        Some(found)
    }

    /// A turn waits for its bytes.
    pub(crate) fn starve(&mut self, turn: Turn, key: PackKey) {
        self.release(turn.resource);
        self.queue.shops.starve(turn.shop);
        let waiting = self.reading.waiting.entry(key).or_default();
        if waiting.is_empty() && !self.reading.under_way.contains_key(&key) {
            self.reading.wanted.push_back(key);
        }
        waiting.push(turn);
    }

    /// Starts the reads that are due.
    pub(crate) fn read(&mut self) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if self.session.is_draining {
            return effects;
        }
        if self.reading.is_front_new && self.reading.load < FRONT_READS_MAX {
            self.read_front(&mut effects);
        }
        if self.reading.plucked_bytes >= PLUCKED_BYTES {
            self.forget_blocked();
        }
        let now = self.session.now.at;
        let reading = &mut self.reading;
        let since = now.saturating_sub(std::mem::replace(&mut reading.earned_at, now));
        reading.budget += since.as_secs_f64() * READS_PER_SECOND;
        reading.budget = reading.budget.min(BUDGET_MAX);
        // Bytes read on demand go out before more are read, as long as anything goes out.
        let has_room = reading.plucked_bytes < PLUCKED_BYTES || self.attempts.len() == 0;
        while has_room && self.reading.budget >= LEAST_COST && self.reading.load < READS_MAX {
            let Some(wanted) = self.reading.wanted.pop_front() else { break };
            if self.is_wanted(wanted) {
                self.reading.budget -= LEAST_COST;
                let load = self.load_of(wanted);
                self.reading.begin(wanted, load);
                effects.push(Effect::Read(wanted));
            } else {
                self.feed(wanted);
            }
        }
        effects
    }

    fn load_of(&self, key: PackKey) -> u32 {
        let count = match key {
            PackKey::Main(entry) => self.queue.main.get(entry).map(|pack| pack.count),
            PackKey::Chunk(lane, number) => {
                let lane = self.queue.lanes.by_hash(lane).and_then(|key| self.queue.lanes.get(key));
                let chunk = lane.and_then(|lane| lane.stored.as_ref()?.chunk(number));
                let small = chunk.filter(|chunk| chunk.bytes <= SMALL_BYTES);
                small.map(|chunk| u32::try_from(chunk.positions.len()).unwrap_or(u32::MAX))
            }
            PackKey::Replay(_) => None,
        };
        count.map_or(LARGE_LOAD, load)
    }

    /// Lets go of bytes whose webhook can't go now: they would leave no room for those that can.
    fn forget_blocked(&mut self) {
        let blocked = self.reading.plucked.keys().copied().filter(|resource| {
            let lane = self.queue.index.lane(*resource).and_then(|lane| self.queue.lanes.get(lane));
            let is_ready = self.queue.index.state(*resource) == Some(State::Ready);
            let may_flow =
                |lane: &Lane| !self.is_blocked(lane) && self.shop_gate(lane.shop).is_ok();
            !is_ready || !lane.is_some_and(may_flow)
        });
        let blocked: Vec<ResourceKey> = blocked.collect();
        for resource in blocked {
            self.reading.forget(resource);
        }
    }

    /// Whether someone waits for bytes that still lie there and can be read.
    fn is_wanted(&self, key: PackKey) -> bool {
        let waiting = self.reading.waiting.get(&key).into_iter().flatten();
        let mut keys =
            waiting.filter_map(|turn| self.locate(self.queue.index.lead(turn.resource)?));
        !self.reading.under_way.contains_key(&key)
            && !self.is_being_written(key)
            && keys.any(|(wanted, _)| wanted == key)
    }

    fn is_being_written(&self, key: PackKey) -> bool {
        let PackKey::Chunk(lane, number) = key else { return false };
        let lane = self.queue.lanes.by_hash(lane).and_then(|lane| self.queue.lanes.get(lane));
        let stored = lane.and_then(|lane| lane.stored.as_ref());
        stored.is_some_and(|stored| stored.pending == Some(number))
    }

    /// Those who waited for a pack have turns again.
    pub(crate) fn feed(&mut self, key: PackKey) -> Vec<Turn> {
        let waiting = self.reading.waiting.remove(&key).unwrap_or_default();
        waiting.iter().for_each(|turn| self.queue.shops.feed(turn.shop));
        waiting
    }

    /// A chunk is taken only if it holds what this leader read of it before: Redis may have come back
    /// with another one of its number.
    pub(crate) fn read_again(
        &mut self,
        key: PackKey,
        found: Option<ReadAgain<C>>,
    ) -> Option<Effect<C>> {
        let found = found.filter(|found| match key {
            PackKey::Main(_) | PackKey::Replay(_) => true,
            PackKey::Chunk(lane, number) => {
                let lane = self.queue.lanes.by_hash(lane).and_then(|key| self.queue.lanes.get(key));
                let known = lane.and_then(|lane| lane.positions(number));
                known == Some(&found.positions[..])
            }
        });
        self.pack_read(key, found.map(|found| found.content))
    }

    fn pack_read(&mut self, key: PackKey, content: Option<C>) -> Option<Effect<C>> {
        self.reading.ended(key);
        let is_ahead = !self.reading.waiting.contains_key(&key);
        let Some(content) = content else {
            let gone = self.is_pack_needed(key).then(|| self.gone()).flatten();
            self.feed(key);
            return gone;
        };
        if !is_ahead {
            let usual = RAW_BYTES_TARGET as f64;
            self.reading.budget -= content.raw_bytes() as f64 / usual;
        }
        for turn in self.feed(key) {
            let Some(node) = self.queue.index.lead(turn.resource) else { continue };
            if let Some((wanted, index)) = self.locate(node)
                && wanted == key
            {
                let plucked = content.pluck(index);
                self.reading.forget(turn.resource);
                self.reading.plucked_bytes += plucked.raw_bytes();
                let position = self.queue.index.node(node).position;
                self.reading.plucked.insert(turn.resource, (position, plucked));
            }
        }
        if !self.is_held(key) {
            return None;
        }
        if is_ahead {
            // Where one large pack took another's room, nothing more is read ahead for now.
            self.reading.is_front_new = !self.reading.cache.need(key, content);
        } else {
            self.reading.cache.pass(key, content);
        }
        None
    }

    /// What is needed is gone. Settlements can't have taken it, not even one under way: what they settle
    /// or move is not needed any more once they are composed.
    pub(crate) fn gone(&self) -> Option<Effect<C>> {
        (!self.session.is_draining).then_some(Effect::Restart(GONE))
    }

    /// Packs at the front were read, up to one that is not there. Whether the first is gone is found by
    /// another read: nothing else may ask for what is blocked.
    pub(crate) fn front_read(&mut self, packs: Vec<PackRead<C>>) -> Option<Effect<C>> {
        let is_missing = packs.is_empty();
        let entry = self.mover.front_read(packs, self.session.now.at)?;
        let key = PackKey::Main(entry);
        let is_asked =
            is_missing && self.is_held(key) && !self.reading.under_way.contains_key(&key);
        is_asked.then(|| {
            let load = self.load_of(key);
            self.reading.begin(key, load);
            Effect::Read(key)
        })
    }

    /// Whether something of a pack is not settled, as far as is known.
    fn is_held(&self, key: PackKey) -> bool {
        match key {
            PackKey::Main(entry) => self.queue.main.get(entry).is_some_and(|pack| pack.left > 0),
            PackKey::Chunk(lane, _) => self.queue.lanes.by_hash(lane).is_some(),
            PackKey::Replay(_) => false,
        }
    }

    fn is_pack_needed(&self, key: PackKey) -> bool {
        match key {
            PackKey::Main(entry) => self.queue.main.get(entry).is_some_and(|pack| pack.left > 0),
            PackKey::Chunk(..) | PackKey::Replay(_) => self.is_wanted(key),
        }
    }

    /// Keeps the front of the stream at hand.
    fn read_front(&mut self, effects: &mut Vec<Effect<C>>) {
        self.reading.is_front_new = false;
        let (mut bytes, mut added, mut missing) = (0, 0, Vec::new());
        let settled = self.queue.main.settled;
        let is_needed = |pack: &&MainPack| {
            let is_stuck = settled - pack.moved_at > STUCK_AFTER;
            pack.left > if is_stuck { pack.count / STUCK_PART } else { 0 }
        };
        let left = self.queue.main.packs().filter(|pack| pack.left > 0).take(FRONT_LOOKED_AT);
        for pack in left.filter(is_needed).take(FRONT_MAX) {
            let key = PackKey::Main(pack.entry);
            match self.reading.cache.holds(key) {
                Some(held) => bytes += held,
                None if !self.reading.under_way.contains_key(&key) => {
                    added += load(pack.count);
                    missing.push((key, load(pack.count)));
                }
                None => {}
            }
            if bytes >= self.config.tuning.cache_bytes / FRONT_PART
                || added + self.reading.load >= FRONT_READS_MAX
            {
                break;
            }
        }
        for (key, load) in missing {
            self.reading.begin(key, load);
            effects.push(Effect::Read(key));
        }
    }
}
