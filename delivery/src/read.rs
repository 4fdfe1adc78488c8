//! Chooses which bytes are read next, and takes those that arrive.

use spillway_webhook::pack::RAW_BYTES_TARGET;
use spillway_webhook::position::Position;

use crate::core::Core;
use crate::event::{Effect, PackRead, ReadAgain};
use crate::index::ResourceKey;
use crate::lane::Lane;
use crate::main_stream::MainPack;
use crate::pack_key::PackKey;
use crate::reading::{
    BUDGET_MAX, LARGE_LOAD, LEAST_COST, PLUCKED_BYTES, READS_MAX, READS_PER_SECOND, load,
};
use crate::resource::HeadState;
use crate::sorted::Content;
use crate::turn::Turn;

/// Deliveries that add one read to the budget.
const DELIVERIES_PER_READ: f64 = 48.0;

/// Raw bytes of a small chunk. A chunk with few webhooks may be the rest of a large one.
const SMALL_BYTES: u32 = 128 << 10;

/// Highest load of the reads ahead of their turn: three packs.
const FRONT_READS_MAX: u32 = 3 * LARGE_LOAD;
const _: () = assert!(FRONT_READS_MAX < READS_MAX, "reads on demand are never kept out");

/// A pack is not kept in memory if nothing of it was settled while `STUCK_AFTER` other webhooks
/// were, and at most 1/`STUCK_PART` of it is left. The rest waits for a retry.
const STUCK_AFTER: u64 = 8192;
const STUCK_PART: u32 = 16;

/// Packs with unsettled webhooks that are examined for the front.
const FRONT_LOOKED_AT: usize = 512;

/// Packs at the front of the stream that are kept in memory.
const FRONT_MAX: usize = 256;
/// These packs may take 1/`FRONT_PART` of the cache.
const FRONT_PART: usize = 2;

/// Reason for a restart of the leader.
const GONE: &str = "a pack that waits is not in redis any more";

impl<C: Content> Core<C> {
    /// Returns the bytes for a turn and the index of the webhook in them, if they are in memory.
    pub(crate) fn at_hand(
        &mut self,
        turn: Turn,
        position: Position,
        key: PackKey,
        index: u32,
    ) -> Option<(C, u32)> {
        // Another webhook of the resource may have become the one to send since the read.
        let plucked = self.reading.forget(turn.resource).filter(|(own, _)| *own == position);
        let found = match plucked {
            Some((_, plucked)) => (plucked, 0),
            None => (self.reading.cache.get(key)?, index),
        };
        self.reading.budget += 1.0 / DELIVERIES_PER_READ;
        Some(found)
    }

    /// Makes a turn wait for its bytes.
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
        if self.session.is_stopping {
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
        // Bytes that were read on demand are sent before more are read, while any attempt is under
        // way.
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

    /// Drops bytes whose webhook cannot be sent now. They would leave no room for those that can.
    fn forget_blocked(&mut self) {
        let blocked = self.reading.plucked.keys().copied().filter(|resource| {
            let lane = self.queue.index.lane(*resource).and_then(|lane| self.queue.lanes.get(lane));
            let is_ready = self.queue.index.state(*resource) == Some(HeadState::Ready);
            let may_flow =
                |lane: &Lane| !self.is_blocked(lane) && self.shop_gate(lane.shop).is_ok();
            !is_ready || !lane.is_some_and(may_flow)
        });
        let blocked: Vec<ResourceKey> = blocked.collect();
        for resource in blocked {
            self.reading.forget(resource);
        }
    }

    /// True if a turn waits for bytes that still lie there and can be read.
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

    /// Gives turns to the shops that waited for a pack.
    pub(crate) fn feed(&mut self, key: PackKey) -> Vec<Turn> {
        let waiting = self.reading.waiting.remove(&key).unwrap_or_default();
        waiting.iter().for_each(|turn| self.queue.shops.feed(turn.shop));
        waiting
    }

    /// Takes bytes that were read. A chunk is taken only if it has the positions that this leader
    /// knows. Redis may have come back with another chunk of the same number.
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
            // If a large pack displaced another one, nothing more is read ahead for now.
            self.reading.is_front_new = !self.reading.cache.need(key, content);
        } else {
            self.reading.cache.pass(key, content);
        }
        None
    }

    /// Restarts the leader because needed bytes are missing. A settlement, even one under way,
    /// cannot have removed them. Bytes that it settles or moves are no longer needed once it is
    /// composed.
    pub(crate) fn gone(&self) -> Option<Effect<C>> {
        (!self.session.is_stopping).then_some(Effect::Restart(GONE))
    }

    /// Takes packs from the front, up to the first missing one. Another read finds out whether the
    /// first is gone, because nothing else may request bytes of blocked webhooks.
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

    /// True if a webhook of a pack is not settled, as far as is known.
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

    /// Keeps the front of the stream in memory.
    fn read_front(&mut self, effects: &mut Vec<Effect<C>>) {
        self.reading.is_front_new = false;
        let mut bytes = 0;
        let mut added = 0;
        let mut missing = Vec::new();
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
