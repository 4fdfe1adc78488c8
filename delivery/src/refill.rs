//! Fills windows from Redis.
//!
//! The rest of a lane is read from its chunks first, then from the main stream. If the window was
//! cut or the pack was moved during a read, the data is read again.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::core::Core;
use crate::event::{ChunkFound, ChunkRead, Effect, PackRead};
use crate::index::{IndexEntry, LaneKey, ResourceKey};
use crate::lane::{IndexedChunk, Pending, Rest, WindowRead};
use crate::ledger::Dropped;
use crate::main_stream::{bytes_for, is_set};
use crate::pack_key::PackKey;
use crate::sorted::{Content, Sorted, raw_bytes};
use crate::time::About;
use crate::turn::Blocked;

/// Lanes whose windows are checked at each event: of those with few webhooks in chunks, and of
/// those with many.
const FEW_LOOKS_MAX: usize = 64;
const MANY_LOOKS_MAX: usize = 16;
/// Most lanes of each kind for which the main stream is searched in vain, because it may be long.
const SEARCHES_MAX: usize = 8;
/// Reason for a restart of the leader.
const CHUNK_GONE: &str = "a chunk that waits can't be read any more";

impl<C: Content> Core<C> {
    /// Requests more of the lanes whose windows are low.
    pub(crate) fn refill(&mut self) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if self.session.is_stopping {
            return effects;
        }
        let unread = OnceCell::new();
        let mut searches = [SEARCHES_MAX; 2];
        let many = self.queue.lanes.listed(false).min(MANY_LOOKS_MAX);
        let few = self.queue.lanes.listed(true).min(FEW_LOOKS_MAX);
        for has_few in (0..many).map(|_| false).chain((0..few).map(|_| true)) {
            if !self.reading.chunks.may_begin(has_few) {
                continue;
            }
            let Some(key) = self.queue.lanes.next_listed(has_few) else { continue };
            let Some(lane) = self.queue.lanes.get(key) else { continue };
            let is_low =
                lane.window.count <= self.config.tuning.window_low || lane.ready.is_empty();
            if lane.reading.is_some() || lane.rest.is_none() || !is_low {
                continue;
            }
            // The rest may contain webhooks to drop.
            let is_paused =
                !self.controls.has_drops() && self.shop_gate(lane.shop) == Err(Blocked::ShopPaused);
            let has_time =
                lane.rest.as_ref().is_none_or(|rest| rest.refill_at <= self.session.now.at);
            let waits = lane.window.count > 0 && (is_paused || !has_time || !self.has_room());
            if waits && (is_paused || !has_time || !self.must_know_more(key, &unread)) {
                self.session.is_refill_due |= !is_paused && has_time && !self.is_blocked(lane);
                self.queue.lanes.list(key);
                continue;
            }
            effects.extend(self.read_window(key, &mut searches[usize::from(has_few)]));
        }
        effects
    }

    /// Lanes with a resource that waits for a recorded lead that is not indexed. Empty while there
    /// is room, because it is not needed then.
    pub(crate) fn lanes_unread(&self) -> HashSet<LaneKey> {
        let unread: &[ResourceKey] = if self.has_room() { &[] } else { &self.queue.unread };
        unread.iter().filter_map(|resource| self.queue.index.lane(*resource)).collect()
    }

    /// True if more of a lane must be indexed before its webhooks, or those of its shop, can be
    /// sent: up to a recorded lead, or up to a barrier. That cannot wait for room, because there
    /// may never be any. `unread` caches [`Core::lanes_unread`].
    pub(crate) fn must_know_more(&self, key: LaneKey, unread: &OnceCell<HashSet<LaneKey>>) -> bool {
        let Some(lane) = self.queue.lanes.get(key) else { return false };
        if !lane.ready.is_empty() || lane.flow.is_at_work() || self.is_failing(lane) {
            return false;
        }
        let barriers = self.queue.shops.get(lane.shop).and_then(|shop| shop.barriers.as_ref());
        let first = barriers.and_then(|barriers| barriers.positions.first());
        let is_barrier_after = first.is_some_and(|first| !lane.is_indexed_up_to(*first));
        is_barrier_after || unread.get_or_init(|| self.lanes_unread()).contains(&key)
    }

    /// Requests the next part of a lane, unless too much is being read. `searches` is the number of
    /// searches of the main stream that are left.
    fn read_window(&mut self, key: LaneKey, searches: &mut usize) -> Option<Effect<C>> {
        let lane = self.queue.lanes.get(key)?;
        let rest = **lane.rest.as_ref()?;
        let hash = lane.hash;
        let has_few = lane.has_few();
        let effect = match lane.next_chunk() {
            // The lane is listed again when the chunk is written.
            Err(Pending) => return None,
            Ok(Some(first)) => {
                let stored = lane.stored.as_ref()?;
                if !self.reading.chunks.may_begin(has_few) {
                    self.queue.lanes.list(key);
                    return None;
                }
                let end = stored.pending.unwrap_or(stored.next).min(stored.next);
                let is_straddling = stored.unread_from > first;
                let count = if is_straddling || !self.has_room() {
                    1
                } else {
                    self.config.tuning.chunks_at_once.min(end - first)
                };
                Effect::ReadChunks { lane: hash, first, count }
            }
            Ok(None) if *searches == 0 || self.reading.are_rests_full() => {
                self.queue.lanes.list(key);
                return None;
            }
            Ok(None) => match self.next_of_rest(hash, &rest) {
                // One read serves all lanes that need this pack next.
                Some(entry) if self.reading.rests.contains(&entry) => {
                    *searches -= 1;
                    self.queue.lanes.list(key);
                    return None;
                }
                Some(entry) => Effect::ReadRest { lane: hash, entry },
                None => {
                    if !self.write_off(key) {
                        return Some(Effect::Restart(CHUNK_GONE));
                    }
                    self.window_grew(key, rest.last);
                    return None;
                }
            },
        };
        let reading = match effect {
            Effect::ReadChunks { first, count, .. } => {
                self.reading.chunks.begin(has_few, count);
                WindowRead::Chunks { first, count, has_few }
            }
            _ => WindowRead::Rest,
        };
        if let Effect::ReadRest { entry, .. } = effect {
            self.reading.rests.insert(entry);
        }
        self.queue.lanes.get_mut(key)?.reading = Some(reading);
        Some(effect)
    }

    /// The next pack of the main stream that may hold webhooks of a lane's rest.
    fn next_of_rest(&self, lane: u64, rest: &Rest) -> Option<StreamId> {
        let from = rest.after.entry().max(self.queue.main.cursor);
        // The rest of a partly indexed pack comes before the next pack.
        let is_read_whole = |entry| entry == from && rest.after.index == u32::MAX;
        let packs = self.queue.main.packs_from(from);
        let mut packs = packs.take_while(|pack| pack.entry <= rest.last.entry());
        let next = packs
            .find(|pack| pack.left > 0 && pack.lanes.may_hold(lane) && !is_read_whole(pack.entry));
        next.map(|pack| pack.entry)
    }

    pub(crate) fn chunks_read(
        &mut self,
        lane: u64,
        chunks: Vec<ChunkFound<C>>,
    ) -> Option<Effect<C>> {
        let (key, read) = self.window_read(lane)?;
        let WindowRead::Chunks { first, count, has_few } = read else { return None };
        self.reading.chunks.end(has_few, count);
        if self.session.is_stopping {
            return None;
        }
        for (number, chunk) in (first..).zip(chunks) {
            let is_corrupt = matches!(chunk, ChunkFound::Corrupt);
            if let ChunkFound::Read(chunk) = chunk {
                self.reading.chunks.note_bytes(chunk.content.raw_bytes());
                self.chunk_read(key, chunk);
            } else if !self.pass_over(key, number, is_corrupt) {
                return Some(Effect::Restart(CHUNK_GONE));
            }
        }
        if !self.write_off(key) {
            return Some(Effect::Restart(CHUNK_GONE));
        }
        self.queue.lanes.list(key);
        self.make_room();
        None
    }

    /// Skips a chunk that cannot be read. If this leader has read some of it before, the leader
    /// restarts instead, and the next leader skips it. A missing chunk may have been settled.
    /// Returns true if the lane continues.
    fn pass_over(&mut self, key: LaneKey, number: u32, is_corrupt: bool) -> bool {
        let Some(lane) = self.queue.lanes.get_mut(key) else { return true };
        let hash = lane.hash;
        if lane.next_chunk() != Ok(Some(number)) {
            return true;
        }
        let Some(stored) = lane.stored.as_mut() else { return true };
        if stored.chunk(number).is_some() {
            return false;
        }
        stored.misses_own |= !is_corrupt && number >= stored.loaded_to;
        stored.unread_from = number + 1;
        stored.is_changed = true;
        if is_corrupt {
            self.counts.chunks_corrupt += 1;
            self.ledger.draft.settlement.lanes.corrupt.push((hash, number));
            self.ledger.draft.settling.lanes.insert(key);
        }
        true
    }

    /// Corrects the lane's count once every chunk was read or skipped: webhooks that are counted in
    /// the row but lie in no chunk are lost. If this leader wrote the missing chunk, it may have
    /// been read from an older Redis, so the next leader reads again. Returns true if the lane
    /// continues.
    fn write_off(&mut self, key: LaneKey) -> bool {
        let lane = self.queue.lanes.get(key);
        let misses_own = lane.and_then(|lane| lane.stored.as_ref()).is_some_and(|it| it.misses_own);
        let lost = self.queue.lanes.write_off(key);
        if lost > 0 && misses_own {
            return false;
        }
        if lost > 0 {
            if let Some(lane) = self.queue.lanes.get(key) {
                self.queue.shops.settled(lane.shop, lost);
            }
            self.counts.lost += lost;
            self.ledger.draft.settling.lanes.insert(key);
            self.ledger.changed.push(key);
        }
        true
    }

    fn chunk_read(&mut self, key: LaneKey, read: ChunkRead<C>) {
        let ChunkRead { number, records, bits, retries, content } = read;
        let lane = self.queue.lanes.get(key);
        if lane.is_none_or(|lane| lane.next_chunk() != Ok(Some(number))) {
            // The window was cut during the read.
            return;
        }
        for (position, stored) in retries {
            if self.is_rest(key, position) && self.queue.retries.get(position).is_none() {
                let mut state = self.state_found(stored, false);
                // The time for retries also ran while the webhooks were not indexed.
                let index = records.iter().position(|(at, _)| *at == position);
                let index = index.and_then(|index| u32::try_from(index).ok());
                let about =
                    index.map_or(About::Shop, |index| About::Bytes(&content, index, position));
                let active = self.active();
                state.go_on(self.time_of(key, about, state.since, active), active);
                self.queue.retries.insert(position, state);
            }
        }
        let hash = self.queue.lanes.get(key).map_or(0, |lane| lane.hash);
        self.note_chunk(key, number, &records, (bits, raw_bytes(&content)));
        self.reading.cache.pass(PackKey::Chunk(hash, number), content);
        let Some(last) = records.last().map(|(position, _)| *position) else { return };
        for (index, (position, sorted)) in (0..).zip(records) {
            let lane = self.queue.lanes.get(key);
            let stored = lane.and_then(|lane| lane.stored.as_ref());
            let chunk = stored
                .and_then(|stored| stored.chunks.iter().rev().find(|chunk| chunk.number == number));
            if chunk.is_some_and(|chunk| !is_set(&chunk.bits, index)) {
                self.fill(key, position, sorted);
            }
        }
        self.window_grew(key, last);
    }

    /// True if a webhook of a lane is not indexed.
    fn is_rest(&self, key: LaneKey, position: Position) -> bool {
        let rest = self.queue.lanes.get(key).and_then(|lane| lane.rest.as_ref());
        rest.is_some_and(|rest| position > rest.after)
    }

    /// Adds the row of a chunk of which at least some webhooks are indexed.
    fn note_chunk(
        &mut self,
        key: LaneKey,
        number: u32,
        records: &[(Position, Sorted)],
        (mut bits, bytes): (Vec<u8>, u32),
    ) {
        let stored = self.queue.lanes.get_mut(key).and_then(|lane| lane.stored.as_mut());
        if stored.is_none_or(|stored| stored.chunk(number).is_some()) {
            return;
        }
        let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
        bits.resize(bytes_for(count), 0);
        let left = (0..count).filter(|index| !is_set(&bits, *index)).count();
        let positions = records.iter().map(|(position, _)| *position).collect();
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        self.queue.lanes.add_chunk(key, IndexedChunk { number, positions, bits, left, bytes });
        if left == 0 {
            // The chunk is completely settled. A crash occurred before it was deleted.
            self.queue.lanes.drop_chunk(key, number);
            self.delete_chunk(key, number);
        }
    }

    pub(crate) fn rest_read(
        &mut self,
        lane: u64,
        entry: StreamId,
        pack: Option<PackRead<C>>,
    ) -> Option<Effect<C>> {
        self.reading.rests.remove(&entry);
        let (key, _) = self.window_read(lane)?;
        self.queue.lanes.list(key);
        if !self.is_next_of_rest(lane, entry) {
            return None;
        }
        let Some(PackRead { sorted, content, .. }) = pack else { return self.gone() };
        self.reading.cache.pass(PackKey::Main(entry), content);
        let mut lanes = self.others_next(entry, &sorted);
        lanes.insert(lane, key);
        for (index, sorted) in (0..).zip(sorted) {
            let is_settled = self.queue.main.get(entry).is_none_or(|pack| pack.is_settled(index));
            if let Some(key) = lanes.get(&sorted.lane)
                && !is_settled
            {
                self.fill(*key, Position::new(entry, index), sorted);
            }
        }
        for key in lanes.into_values() {
            self.window_grew(key, Position::new(entry, u32::MAX));
        }
        self.make_room();
        None
    }

    /// True if a pack is the next one that a lane needs.
    fn is_next_of_rest(&self, lane: u64, entry: StreamId) -> bool {
        let key = self.queue.lanes.by_hash(lane);
        let rest = key.and_then(|key| self.queue.lanes.get(key)?.rest.as_deref());
        entry > self.queue.main.cursor
            && rest.is_some_and(|rest| self.next_of_rest(lane, rest) == Some(entry))
    }

    /// Other lanes that need this pack next for their rests. Without room, only those of which
    /// nothing is indexed, because they are read in any case.
    fn others_next(&self, entry: StreamId, sorted: &[Sorted]) -> BTreeMap<u64, LaneKey> {
        let has_room = self.has_room();
        let hashes: BTreeSet<u64> = sorted.iter().map(|sorted| sorted.lane).collect();
        let next = hashes.into_iter().filter_map(|hash| {
            let key = self.queue.lanes.by_hash(hash)?;
            let lane = self.queue.lanes.get(key).filter(|lane| lane.reading.is_none())?;
            let rest = lane.rest.as_ref().filter(|_| has_room || lane.window.count == 0)?;
            let is_next =
                lane.next_chunk() == Ok(None) && self.next_of_rest(hash, rest) == Some(entry);
            is_next.then_some((hash, key))
        });
        next.collect()
    }

    fn window_read(&mut self, lane: u64) -> Option<(LaneKey, WindowRead)> {
        let key = self.queue.lanes.by_hash(lane)?;
        let read = self.queue.lanes.get_mut(key)?.reading.take()?;
        Some((key, read))
    }

    /// Indexes a webhook of a lane's rest, unless it is indexed already or to be dropped.
    fn fill(&mut self, key: LaneKey, position: Position, sorted: Sorted) {
        let Some(lane) = self.queue.lanes.get(key) else { return };
        if lane.rest.as_ref().is_none_or(|rest| position <= rest.after) {
            return;
        }
        if self.controls.drops(position, None) {
            self.drop_webhook(Dropped { lane: key, position, replay: None });
            self.lead_dropped(sorted.resource, position);
            return;
        }
        self.index_webhook(key, &IndexEntry { position, sorted, replay: None });
    }

    /// Notes that everything of a lane up to `after` is indexed.
    fn window_grew(&mut self, key: LaneKey, after: Position) {
        let Some(lane) = self.queue.lanes.get_mut(key) else { return };
        lane.extend(after);
        let shop = lane.shop;
        self.look_at_barriers(shop);
        self.release_unread();
        self.forget_if_empty(key);
    }
}
