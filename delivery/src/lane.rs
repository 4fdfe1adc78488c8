//! A lane: the webhooks of one shop and kind. The unit of failure, of pauses, and of what is moved
//! out of the main stream.
//!
//! Of a lane, everything unsettled up to a position is indexed (its window) and nothing after it
//! (its rest). What was moved lies in numbered chunks in Redis, in the order of its positions.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use slab::Slab;
use spillway_webhook::position::Position;

use crate::breaker::LaneBreaker;
use crate::by_hash::ByHash;
use crate::index::{LaneKey, Window, key_of, usize_of};
use crate::ready::Ready;
use crate::shop::ShopKey;

/// Bytes of a lane's row.
pub const LANE_BYTES: usize = 256;
/// Bytes of a chunk's row, beside its positions.
const CHUNK_BYTES: usize = 96;
/// Bytes of a position in a chunk's row.
const POSITION_BYTES: usize = 16;

/// The part of a lane that is not indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// Everything unsettled up to here is indexed, and nothing after it.
    pub after: Position,
    /// Newest webhook of the lane that was read.
    pub last: Position,
}

/// A chunk whose webhooks are indexed, or some of them.
#[derive(Debug)]
pub struct Chunk {
    /// Its number.
    pub number: u32,
    /// Where its webhooks were accepted, in order.
    pub positions: Vec<Position>,
    /// A bit for each that is settled.
    pub bits: Vec<u8>,
    /// Webhooks that are not settled.
    pub left: u32,
}

/// A read for a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowRead {
    /// Chunks from this number on.
    Chunks(u32),
    /// A pack of the main stream.
    Rest,
}

/// The chunks of a lane.
#[derive(Debug)]
pub struct Stored {
    /// Those of which something is indexed.
    pub chunks: VecDeque<Chunk>,
    /// First number of which nothing is indexed.
    pub unread_from: u32,
    /// Number of the next chunk.
    pub next: u32,
    /// Chunk that a settlement writes just now, and that can't be read yet.
    pub pending: Option<u32>,
    /// Unsettled webhooks in chunks.
    pub waiting: u64,
    /// Oldest webhook when the lane's first chunk was written or loaded.
    pub first: Position,
    /// Newest webhook in a chunk.
    pub last: Position,
    /// Whether the lane was made under another key scheme than the one in force.
    pub is_other_scheme: bool,
    /// Whether the row in Redis is older than this.
    pub is_changed: bool,
}

/// Attempts of a lane.
#[derive(Debug, Default)]
pub struct Flow {
    /// Under way.
    pub in_flight: u32,
    /// Resources that a filter of an operator's pause holds back.
    pub paused: u32,
    /// Slow attempts since whose beginning nothing of the lane succeeded.
    pub stalled: u32,
    /// When the lane's last delivery succeeded.
    pub succeeded_at: Option<Duration>,
    /// When the lane is to be looked at again.
    pub wakes_at: Option<Duration>,
    /// Set while the last attempt timed out or was cut off.
    pub suspect: Option<Suspect>,
}

/// The state of a lane whose last attempt timed out.
#[derive(Debug, Clone, Copy)]
pub struct Suspect {
    /// No attempt before.
    pub until: Duration,
    /// Wait after the next failure.
    pub wait: Duration,
    /// Active time since which it is suspect.
    pub since: Duration,
}

/// A lane.
#[derive(Debug)]
pub struct Lane {
    /// Stable hash of the shop and the kind.
    pub hash: u64,
    /// Its shop.
    pub shop: ShopKey,
    /// Webhooks that are indexed.
    pub window: Window,
    /// The part that is not; `None` when all that was read is indexed.
    pub rest: Option<Box<Rest>>,
    /// Chunks in Redis.
    pub stored: Option<Box<Stored>>,
    /// Resources that wait for their turn.
    pub ready: Ready,
    /// Circuit breaker.
    pub breaker: LaneBreaker,
    /// Attempts under way.
    pub flow: Flow,
    /// Webhooks that are dropped and not settled.
    pub dropping: u32,
    /// Part of it that is being read.
    pub reading: Option<WindowRead>,
    /// Whether it is listed among those to read more of.
    pub is_listed: bool,
}

/// All lanes of which something waits.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: Slab<Lane>,
    by_hash: ByHash<LaneKey>,
    /// Lanes to read more of.
    hungry: VecDeque<LaneKey>,
    /// Lanes to look at again.
    due: BinaryHeap<Reverse<(Duration, LaneKey)>>,
    /// Positions and rows of chunks, in bytes.
    chunk_bytes: usize,
    /// Unsettled webhooks in chunks.
    waiting: u64,
    /// Number of the first chunk of a lane that has none: no number is used twice, so that late
    /// bytes of another chunk are never taken for those of this one.
    first_number: u32,
}

impl Lane {
    fn new(hash: u64, shop: ShopKey, active: Duration) -> Self {
        Self {
            hash,
            shop,
            window: Window::default(),
            rest: None,
            stored: None,
            ready: Ready::default(),
            breaker: LaneBreaker::new(active),
            flow: Flow::default(),
            dropping: 0,
            reading: None,
            is_listed: false,
        }
    }

    /// Whether nothing of it waits anywhere.
    pub fn is_empty(&self) -> bool {
        self.window.count == 0
            && self.window.replays == 0
            && self.rest.is_none()
            && self.stored.is_none()
            && self.flow.in_flight == 0
            && self.dropping == 0
            && self.reading.is_none()
    }

    /// Whether everything of the lane before `position` is indexed.
    pub fn is_known_up_to(&self, position: Position) -> bool {
        self.rest.as_ref().is_none_or(|rest| rest.after >= position)
    }

    /// The chunk in which a webhook lies, and its index there.
    pub fn locate(&self, position: Position) -> Option<(u32, u32)> {
        let chunks = &self.stored.as_ref()?.chunks;
        let at = chunks
            .partition_point(|chunk| chunk.positions.last().is_some_and(|last| *last < position));
        let chunk = chunks.get(at)?;
        let index = chunk.positions.binary_search(&position).ok()?;
        Some((chunk.number, key_of(index)))
    }

    /// Where the webhooks of a chunk were accepted, if something of it is indexed.
    pub fn positions(&self, number: u32) -> Option<&[Position]> {
        let chunks = &self.stored.as_ref()?.chunks;
        let at = chunks.binary_search_by_key(&number, |chunk| chunk.number).ok()?;
        Some(&chunks.get(at)?.positions)
    }

    /// Whether something at `position` or later may be indexed.
    pub fn is_known_after(&self, position: Position) -> bool {
        self.rest.as_ref().is_none_or(|rest| rest.after >= position)
    }

    /// Chunk to read next for the window, if the rest of the lane lies in chunks. `Err` while that
    /// chunk is being written.
    pub fn next_chunk(&self) -> Result<Option<u32>, Pending> {
        let (Some(rest), Some(stored)) = (&self.rest, &self.stored) else { return Ok(None) };
        let is_unread =
            |chunk: &&Chunk| chunk.positions.last().is_some_and(|last| *last > rest.after);
        let number = match stored.chunks.iter().find(is_unread) {
            Some(chunk) => chunk.number,
            None if stored.unread_from < stored.next => stored.unread_from,
            None => return Ok(None),
        };
        if stored.pending == Some(number) { Err(Pending) } else { Ok(Some(number)) }
    }

    /// Notes that a webhook of it was read and is not indexed.
    pub fn skip(&mut self, position: Position) {
        if let Some(rest) = &mut self.rest {
            rest.last = rest.last.max(position);
        }
    }

    /// Everything up to `after` is indexed now.
    pub fn extend(&mut self, after: Position) {
        if let Some(rest) = &mut self.rest {
            rest.after = rest.after.max(after);
            if rest.after >= rest.last {
                self.rest = None;
            }
        }
    }
}

/// A chunk is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending;

impl Stored {
    /// Chunks that hold nothing yet.
    pub fn new(first: Position, number: u32) -> Self {
        Self {
            chunks: VecDeque::new(),
            unread_from: number,
            next: number,
            pending: None,
            waiting: 0,
            first,
            last: first,
            is_other_scheme: false,
            is_changed: true,
        }
    }

    /// The chunk with this number, if something of it is indexed.
    pub fn chunk(&mut self, number: u32) -> Option<&mut Chunk> {
        let at = self.chunks.binary_search_by_key(&number, |chunk| chunk.number).ok()?;
        self.chunks.get_mut(at)
    }

    /// Number of the oldest chunk.
    pub fn oldest(&self) -> u32 {
        self.chunks.front().map_or(self.unread_from, |chunk| chunk.number)
    }
}

impl Lanes {
    /// The lane with this hash, made if there is none. Returns whether it is new.
    pub fn intern(&mut self, hash: u64, shop: ShopKey, active: Duration) -> (LaneKey, bool) {
        if let Some(key) = self.by_hash.get(&hash) {
            return (*key, false);
        }
        let key = key_of(self.lanes.insert(Lane::new(hash, shop, active)));
        self.by_hash.insert(hash, key);
        (key, true)
    }

    /// The lane with this hash.
    pub fn by_hash(&self, hash: u64) -> Option<LaneKey> {
        self.by_hash.get(&hash).copied()
    }

    /// A lane.
    pub fn get(&self, key: LaneKey) -> Option<&Lane> {
        self.lanes.get(usize_of(key))
    }

    /// A lane, to change it.
    pub fn get_mut(&mut self, key: LaneKey) -> Option<&mut Lane> {
        self.lanes.get_mut(usize_of(key))
    }

    /// Every lane.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (LaneKey, &Lane)> {
        self.lanes.iter().map(|(key, lane)| (key_of(key), lane))
    }

    /// Every lane, to change it.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (LaneKey, &mut Lane)> {
        self.lanes.iter_mut().map(|(key, lane)| (key_of(key), lane))
    }

    /// Lets go of a lane of which nothing waits. Returns its shop.
    pub fn forget(&mut self, key: LaneKey) -> Option<ShopKey> {
        let lane = self.get(key)?;
        if !lane.is_empty() {
            return None;
        }
        let lane = self.lanes.remove(usize_of(key));
        self.by_hash.remove(&lane.hash);
        Some(lane.shop)
    }

    /// Memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.lanes.len() * LANE_BYTES + self.chunk_bytes
    }

    /// Memory in use in bytes, counted again from all lanes.
    pub fn recount(&self) -> usize {
        let stored = self.lanes.iter().filter_map(|(_, lane)| lane.stored.as_ref());
        let chunks = stored.flat_map(|stored| &stored.chunks);
        let chunks = chunks.map(|chunk| CHUNK_BYTES + POSITION_BYTES * chunk.positions.len());
        self.lanes.len() * LANE_BYTES + chunks.sum::<usize>()
    }

    /// Unsettled webhooks in chunks.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Number of the first chunk of a lane that has none.
    pub fn first_number(&self) -> u32 {
        self.first_number
    }

    /// Numbers below `next` were used.
    pub fn used_up_to(&mut self, next: u32) {
        self.first_number = self.first_number.max(next);
    }

    /// Adds webhooks in chunks.
    pub fn add_waiting(&mut self, count: u64) {
        self.waiting += count;
    }

    /// Adds a chunk to those of which something is indexed.
    pub fn add_chunk(&mut self, key: LaneKey, chunk: Chunk) {
        self.chunk_bytes += CHUNK_BYTES + POSITION_BYTES * chunk.positions.len();
        if let Some(stored) = self.get_mut(key).and_then(|lane| lane.stored.as_mut()) {
            stored.unread_from = stored.unread_from.max(chunk.number + 1);
            stored.chunks.push_back(chunk);
        }
    }

    /// Notes that a chunk's row got so many positions more.
    pub fn grew(&mut self, count: u32) {
        self.chunk_bytes += POSITION_BYTES * usize_of(count);
    }

    /// Settles the webhook at `index` of a chunk. Returns whether it was not settled before.
    pub fn settle_chunk(&mut self, key: LaneKey, number: u32, index: u32) -> bool {
        let stored = self.lanes.get_mut(usize_of(key)).and_then(|lane| lane.stored.as_mut());
        let Some(stored) = stored else { return false };
        let Some(chunk) = stored.chunk(number) else { return false };
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

    /// Drops the row of a chunk that is settled or gone, and the lane's chunks with the last one.
    pub fn drop_chunk(&mut self, key: LaneKey, number: u32) {
        let Some(lane) = self.lanes.get_mut(usize_of(key)) else { return };
        let Some(stored) = lane.stored.as_mut() else { return };
        if let Ok(at) = stored.chunks.binary_search_by_key(&number, |chunk| chunk.number)
            && let Some(chunk) = stored.chunks.remove(at)
        {
            self.chunk_bytes -= CHUNK_BYTES + POSITION_BYTES * chunk.positions.len();
        }
    }

    /// Corrects the number of a lane's webhooks in chunks, if each chunk was read or is gone. Returns how
    /// many are lost.
    pub fn write_off(&mut self, key: LaneKey) -> u64 {
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

    /// Drops the rows of the chunks of which nothing is indexed: they are read again. Redis must hold
    /// their bits.
    pub fn shed_rows(&mut self, key: LaneKey) {
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

    /// Has a lane be looked at again at `at`.
    pub fn wake_at(&mut self, key: LaneKey, at: Duration) {
        let Some(lane) = self.lanes.get_mut(usize_of(key)) else { return };
        if lane.flow.wakes_at.is_none_or(|before| at < before) {
            lane.flow.wakes_at = Some(at);
            self.due.push(Reverse((at, key)));
        }
    }

    /// The next lane to look at again.
    pub fn next_awake(&mut self, now: Duration) -> Option<LaneKey> {
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

    /// When the next lane is to be looked at again.
    pub fn wakes_at(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Lists a lane among those to read more of.
    pub fn list(&mut self, key: LaneKey) {
        if let Some(lane) = self.lanes.get_mut(usize_of(key))
            && !std::mem::replace(&mut lane.is_listed, true)
        {
            self.hungry.push_back(key);
        }
    }

    /// The next lane to read more of.
    pub fn next_listed(&mut self) -> Option<LaneKey> {
        let key = self.hungry.pop_front()?;
        if let Some(lane) = self.lanes.get_mut(usize_of(key)) {
            lane.is_listed = false;
        }
        Some(key)
    }

    /// Lanes that are listed.
    pub fn listed(&self) -> usize {
        self.hungry.len()
    }
}
