//! All lanes of which webhooks wait, by key and by hash, and the memory of their chunks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use slab::Slab;

use crate::state::folded::ByHash;
use crate::state::index::{LaneKey, key_of, usize_of};
use crate::state::lane::{IndexedChunk, Lane};
use crate::state::shop::ShopKey;

/// Bytes of a lane's row.
pub(crate) const LANE_BYTES: usize = 256;
/// Bytes of a chunk's row, in addition to its positions.
const CHUNK_BYTES: usize = 104;
/// Bytes of a position in a chunk's row.
const POSITION_BYTES: usize = 16;

/// All lanes of which webhooks wait.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Slab<Lane>,
    by_hash: ByHash<LaneKey>,
    /// Lanes to read more of: first those with many webhooks in chunks, then those with few.
    pub to_refill: [VecDeque<LaneKey>; 2],
    /// Lanes to check again.
    due: BinaryHeap<Reverse<(Duration, LaneKey)>>,
    /// Bytes of positions and rows of chunks.
    chunk_bytes: usize,
    /// Number of unsettled webhooks in chunks.
    waiting: u64,
    /// Numbers of chunks.
    pub numbers: ChunkNumbers,
}

/// Lowest number of a chunk that no lane has used. No number is used twice, so that late bytes of
/// another chunk are never taken for those of this one.
#[derive(Debug, Default)]
pub(crate) struct ChunkNumbers {
    next: u32,
}

impl ChunkNumbers {
    /// Number for the first chunk of a lane that has none.
    pub(crate) fn for_new_lane(&self) -> u32 {
        self.next
    }

    /// Notes that numbers below `next` were used.
    pub(crate) fn used_up_to(&mut self, next: u32) {
        self.next = self.next.max(next);
    }
}

impl Lanes {
    /// Returns the lane with this hash, and true if it is new. Creates it if there is none.
    pub(crate) fn intern(&mut self, hash: u64, shop: ShopKey) -> (LaneKey, bool) {
        if let Some(key) = self.by_hash.get(&hash) {
            return (*key, false);
        }
        let key = key_of(self.lanes.insert(Lane::new(hash, shop)));
        self.by_hash.insert(hash, key);
        (key, true)
    }

    /// The lane with this hash.
    pub(crate) fn by_hash(&self, hash: u64) -> Option<LaneKey> {
        self.by_hash.get(&hash).copied()
    }

    /// A lane.
    pub(crate) fn get(&self, key: LaneKey) -> Option<&Lane> {
        self.lanes.get(usize_of(key))
    }

    /// A lane, to change it.
    pub(crate) fn get_mut(&mut self, key: LaneKey) -> Option<&mut Lane> {
        self.lanes.get_mut(usize_of(key))
    }

    /// Every lane.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (LaneKey, &Lane)> {
        self.lanes.iter().map(|(key, lane)| (key_of(key), lane))
    }

    /// Every lane, to change it.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (LaneKey, &mut Lane)> {
        self.lanes.iter_mut().map(|(key, lane)| (key_of(key), lane))
    }

    /// Removes a lane of which nothing waits. Returns its shop.
    pub(crate) fn forget(&mut self, key: LaneKey) -> Option<ShopKey> {
        let lane = self.get(key)?;
        if !lane.is_empty() {
            return None;
        }
        let lane = self.lanes.remove(usize_of(key));
        self.by_hash.remove(&lane.hash);
        Some(lane.shop)
    }

    /// Memory in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.lanes.len() * LANE_BYTES + self.chunk_bytes
    }

    /// Memory in use in bytes, counted again from all lanes.
    pub(crate) fn recount(&self) -> usize {
        let stored = self.lanes.iter().filter_map(|(_, lane)| lane.stored.as_ref());
        let chunks = stored.flat_map(|stored| &stored.chunks);
        let chunks = chunks.map(|chunk| CHUNK_BYTES + POSITION_BYTES * chunk.positions.len());
        self.lanes.len() * LANE_BYTES + chunks.sum::<usize>()
    }

    /// Number of unsettled webhooks in chunks.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Adds webhooks in chunks.
    pub(crate) fn add_waiting(&mut self, count: u64) {
        self.waiting += count;
    }

    /// Adds a chunk to those of which something is indexed.
    pub(crate) fn add_chunk(&mut self, key: LaneKey, chunk: IndexedChunk) {
        self.chunk_bytes += CHUNK_BYTES + POSITION_BYTES * chunk.positions.len();
        if let Some(stored) = self.get_mut(key).and_then(|lane| lane.stored.as_mut()) {
            stored.unread_from = stored.unread_from.max(chunk.number + 1);
            // Most lanes have one chunk if there are many lanes.
            if stored.chunks.capacity() == 0 {
                stored.chunks.reserve_exact(1);
            }
            stored.chunks.push_back(chunk);
        }
    }

    /// Notes that a chunk's row grew by `count` positions.
    pub(crate) fn grew(&mut self, count: u32) {
        self.chunk_bytes += POSITION_BYTES * usize_of(count);
    }

    /// Settles the webhook at `index` of a chunk. Returns true if it was not settled before.
    pub(crate) fn settle_chunk(&mut self, key: LaneKey, number: u32, index: u32) -> bool {
        let stored = self.lanes.get_mut(usize_of(key)).and_then(|lane| lane.stored.as_mut());
        let Some(stored) = stored else { return false };
        let Some(chunk) = stored.chunk_mut(number) else { return false };
        let Some(byte) = chunk.bits.get_mut(usize_of(index) / 8) else { return false };
        if *byte & (1 << (index % 8)) != 0 {
            return false;
        }
        *byte |= 1 << (index % 8);
        chunk.left -= 1;
        let is_gone = chunk.left == 0;
        stored.waiting -= 1;
        stored.is_changed = true;
        self.waiting -= 1;
        if is_gone {
            self.drop_chunk(key, number);
        }
        true
    }

    /// Drops the row of a chunk that is settled or gone.
    pub(crate) fn drop_chunk(&mut self, key: LaneKey, number: u32) {
        let Some(lane) = self.lanes.get_mut(usize_of(key)) else { return };
        let Some(stored) = lane.stored.as_mut() else { return };
        if let Ok(at) = stored.chunks.binary_search_by_key(&number, |chunk| chunk.number)
            && let Some(chunk) = stored.chunks.remove(at)
        {
            self.chunk_bytes -= CHUNK_BYTES + POSITION_BYTES * chunk.positions.len();
        }
    }

    /// Corrects the number of a lane's webhooks in chunks, if each chunk was read or is gone.
    /// Returns how many are lost.
    pub(crate) fn write_off(&mut self, key: LaneKey) -> u64 {
        let Some(stored) = self.get_mut(key).and_then(|lane| lane.stored.as_mut()) else {
            return 0;
        };
        if stored.unread_from < stored.next || stored.pending.is_some() {
            return 0;
        }
        let left: u64 = stored.chunks.iter().map(|chunk| u64::from(chunk.left)).sum();
        let lost = stored.waiting.saturating_sub(left);
        stored.waiting -= lost;
        stored.is_changed |= lost > 0;
        self.waiting -= lost;
        lost
    }

    /// Drops the rows of the chunks of which nothing is indexed. They are read again later, so
    /// Redis must hold their bits.
    pub(crate) fn shed_rows(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(usize_of(key)) else { return };
        let (Some(rest), Some(stored)) = (&lane.rest, lane.stored.as_mut()) else { return };
        let after = rest.after;
        while let Some(chunk) = stored.chunks.back()
            && chunk.positions.first().is_some_and(|first| *first > after)
        {
            self.chunk_bytes -= CHUNK_BYTES + POSITION_BYTES * chunk.positions.len();
            stored.unread_from = chunk.number;
            stored.chunks.pop_back();
        }
    }

    /// Schedules a check of a lane at `at`.
    pub(crate) fn wake_at(&mut self, key: LaneKey, at: Duration) {
        let Some(lane) = self.lanes.get_mut(usize_of(key)) else { return };
        if lane.flow.wakes_at.is_none_or(|before| at < before) {
            lane.flow.wakes_at = Some(at);
            self.due.push(Reverse((at, key)));
        }
    }

    /// Takes the next lane whose check is due.
    pub(crate) fn next_awake(&mut self, now: Duration) -> Option<LaneKey> {
        let Reverse((at, key)) = self.due.peek().copied()?;
        if at > now {
            return None;
        }
        self.due.pop();
        if let Some(lane) = self.lanes.get_mut(usize_of(key))
            && lane.flow.wakes_at.is_some_and(|wakes_at| wakes_at <= at)
        {
            lane.flow.wakes_at = None;
        }
        Some(key)
    }

    /// Number of scheduled checks.
    pub(crate) fn due(&self) -> u32 {
        key_of(self.due.len())
    }

    /// Time of the next scheduled check.
    pub(crate) fn wakes_at(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Lists a lane among those to read more of.
    pub(crate) fn list(&mut self, key: LaneKey) {
        if let Some(has_few) = self.get_mut(key).and_then(Lane::enlist) {
            self.to_refill[usize::from(has_few)].push_back(key);
        }
    }

    /// Takes the next lane to read more of: one with few webhooks in chunks, or one of the others.
    pub(crate) fn next_listed(&mut self, has_few: bool) -> Option<LaneKey> {
        // Some lanes have moved to the other list since, or are gone.
        loop {
            let key = self.to_refill[usize::from(has_few)].pop_front()?;
            if let Some(lane) = self.lanes.get_mut(usize_of(key))
                && lane.listed.take_if(|listed| *listed == has_few).is_some()
            {
                return Some(key);
            }
        }
    }
}
