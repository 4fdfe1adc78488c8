//! A lane: the webhooks of one shop and kind. The unit of failure, of pauses, and of what is moved
//! out of the main stream.
//!
//! Of a lane, everything unsettled up to a position is indexed (its window) and nothing after it
//! (its rest). What was moved lies in numbered chunks in Redis, in the order of its positions.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_webhook::position::Position;

use crate::breaker::LaneBreaker;
use crate::index::{Window, key_of};
use crate::lane_clock::LaneClock;
use crate::ready::Ready;
use crate::shop::ShopKey;

/// The part of a lane that is not indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// Everything unsettled up to here is indexed, and nothing after it.
    pub after: Position,
    /// Newest webhook of the lane that was read.
    pub last: Position,
    /// No more of it is indexed before, while something is.
    pub refill_at: Duration,
}

/// Webhooks of a lane whose chunks are taken to be small if those of others are.
const FEW: u64 = 16;
/// Failures in a row from which on a lane is known to fail: a single one may be chance where a backend is full.
pub const FAILURES_KNOWN: u32 = 2;

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
    /// Raw bytes.
    pub bytes: u32,
}

/// A read for a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowRead {
    /// Chunks.
    Chunks {
        /// Number of the first one.
        first: u32,
        /// Number of chunks.
        count: u32,
        /// Set if few webhooks of the lane waited when the read began.
        has_few: bool,
    },
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
    /// Chunks below this number were there when the leader began.
    pub loaded_to: u32,
    /// Set once a chunk from that number on was looked for in vain.
    pub misses_own: bool,
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
    /// Resources whose leads are being recorded.
    pub recording: u32,
    /// Resources that a filter of an operator's pause holds back.
    pub paused: u32,
    /// Slow attempts since whose beginning nothing of the lane succeeded.
    pub stalled: u32,
    /// Set where the leader before left something of it behind, until a delivery succeeds.
    pub is_left: bool,
    /// Time at which its last attempt began.
    pub began_at: Duration,
    /// When the lane's last delivery succeeded.
    pub succeeded_at: Option<Duration>,
    /// When the lane is to be looked at again.
    pub wakes_at: Option<Duration>,
    /// Set while the last attempt timed out or was cut off.
    pub suspect: Option<Suspect>,
    /// Set while it waits for a slot that suspect lanes share.
    pub is_in_line: bool,
    /// Failures since its last success.
    pub failures: Failures,
    /// When something of it was let go that a barrier had held back.
    pub unheld_at: Duration,
}

/// Failures of a lane in a row.
#[derive(Debug, Clone, Copy, Default)]
pub struct Failures {
    count: u32,
    /// When the first of them ended.
    since: Duration,
    /// When the last of them began.
    began: Duration,
}

impl Failures {
    /// The leader before had some.
    pub fn left() -> Self {
        Self { count: FAILURES_KNOWN, ..Self::default() }
    }

    /// One more, of an attempt that began then.
    pub fn add(&mut self, began: Duration, now: Duration) {
        if self.count == 0 {
            self.since = now;
        }
        self.count = self.count.saturating_add(1);
        self.began(began);
    }

    /// An attempt of then did not succeed.
    pub fn began(&mut self, began: Duration) {
        self.began = self.began.max(began);
    }

    /// True if an attempt that began after `moment` failed.
    pub fn has_any_since(&self, moment: Duration) -> bool {
        self.began > moment
    }

    /// When the first of at least so many ended, if there were as many: a further one says nothing about a backend
    /// that has served others since then.
    pub fn since(&self, least: u32) -> Option<Duration> {
        (self.count >= least).then_some(self.since)
    }
}

impl Flow {
    /// True if a delivery succeeded after an attempt of then began.
    pub fn has_succeeded_since(&self, began: Duration) -> bool {
        self.succeeded_at.is_some_and(|at| at > began)
    }

    /// True if the last attempt did not end in time, or one takes longer than usual.
    pub fn is_slow(&self) -> bool {
        self.suspect.is_some() || self.stalled > 0
    }

    /// True while something of the lane is sent, or recorded to be sent.
    pub fn is_at_work(&self) -> bool {
        self.in_flight + self.recording > 0
    }
}

/// The state of a lane whose last attempt timed out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Suspect {
    /// No attempt before.
    pub until: Duration,
    /// Wait after the next failure.
    pub wait: Duration,
    /// Active time since which it is suspect.
    pub since: Duration,
    /// Attempts that did not end in time since then.
    pub probes: u32,
    /// Whether one of them had all the time that there is.
    pub has_timed_out: bool,
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
    /// Retry clock.
    pub clock: LaneClock,
    /// Attempts under way.
    pub flow: Flow,
    /// Webhooks that are dropped and not settled.
    pub dropping: u32,
    /// Part of it that is being read.
    pub reading: Option<WindowRead>,
    /// Set while it is listed to be read more of: whether among lanes with few webhooks in chunks.
    pub listed: Option<bool>,
}

impl Lane {
    /// A lane of which nothing waits yet.
    pub fn new(hash: u64, shop: ShopKey) -> Self {
        Self {
            hash,
            shop,
            window: Window::default(),
            rest: None,
            stored: None,
            ready: Ready::default(),
            breaker: LaneBreaker::new(),
            clock: LaneClock::default(),
            flow: Flow::default(),
            dropping: 0,
            reading: None,
            listed: None,
        }
    }

    /// True if its last attempt did not fail, it is not slow, and no attempt began after `since`.
    pub fn is_unfailed(&self, since: Duration) -> bool {
        !self.has_failed() && !self.flow.is_slow() && self.flow.began_at <= since
    }

    /// True if anything of it failed since its last success.
    pub fn has_failed(&self) -> bool {
        self.breaker.has_failed() || self.flow.failures.since(1).is_some()
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

    /// True if few webhooks of the lane wait in chunks, or none.
    pub fn has_few(&self) -> bool {
        self.stored.as_ref().is_none_or(|stored| stored.waiting <= FEW)
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
        Some(&self.stored.as_ref()?.chunk(number)?.positions)
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
            loaded_to: number,
            misses_own: false,
            pending: None,
            waiting: 0,
            first,
            last: first,
            is_other_scheme: false,
            is_changed: true,
        }
    }

    /// The chunk with this number, if something of it is indexed.
    pub fn chunk(&self, number: u32) -> Option<&Chunk> {
        self.chunks.get(self.at(number)?)
    }

    /// The same, to change it.
    pub fn chunk_mut(&mut self, number: u32) -> Option<&mut Chunk> {
        let at = self.at(number)?;
        self.chunks.get_mut(at)
    }

    fn at(&self, number: u32) -> Option<usize> {
        self.chunks.binary_search_by_key(&number, |chunk| chunk.number).ok()
    }

    /// Number of the oldest chunk.
    pub fn oldest(&self) -> u32 {
        self.chunks.front().map_or(self.unread_from, |chunk| chunk.number)
    }
}
