//! A lane: the webhooks of one shop and kind. It is the unit of failure, of pauses, and of moves
//! out of the main stream.
//!
//! Everything unsettled of a lane up to a position is indexed (the window) and nothing after it is
//! (the rest). Moved webhooks lie in numbered chunks in Redis, in the order of their positions.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_webhook::position::Position;

use crate::state::breaker::LaneBreaker;
use crate::state::index::{Window, key_of};
use crate::state::lane_clock::LaneClock;
use crate::state::ready::Ready;
use crate::state::shop::ShopKey;

/// The part of a lane that is not indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rest {
    /// Position up to which everything unsettled is indexed. Nothing after it is.
    pub after: Position,
    /// Newest webhook of the lane that was read.
    pub last: Position,
    /// Time before which no more of the rest is indexed, unless the window is empty.
    pub refill_at: Duration,
    /// Time before which none of it is read past the limit of the index for something to try.
    pub try_at: Duration,
}

/// Number of webhooks up to which a lane's chunks are assumed to be small.
const FEW: u64 = 16;
/// Failures in a row after which a lane counts as failing. A single failure may be chance if a
/// backend is full.
pub(crate) const FAILURES_KNOWN: u32 = 2;

/// A chunk of which at least some webhooks are indexed.
#[derive(Debug)]
pub(crate) struct IndexedChunk {
    /// Number of the chunk.
    pub number: u32,
    /// Positions of the webhooks, in order.
    pub positions: Vec<Position>,
    /// One bit per webhook, set when it is settled.
    pub bits: Vec<u8>,
    /// Number of webhooks that are not settled.
    pub left: u32,
    /// Raw bytes.
    pub bytes: u32,
}

/// A read that fills a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowRead {
    /// Read of chunks.
    Chunks {
        /// Number of the first chunk.
        first: u32,
        /// Number of chunks.
        count: u32,
        /// Set if few webhooks of the lane waited when the read began.
        has_few: bool,
    },
    /// Read of a pack of the main stream.
    Rest,
}

/// The chunks of a lane.
#[derive(Debug)]
pub(crate) struct Stored {
    /// Chunks of which at least some webhooks are indexed.
    pub chunks: VecDeque<IndexedChunk>,
    /// Number of the first chunk of which nothing is indexed.
    pub unread_from: u32,
    /// Number of the next chunk.
    pub next: u32,
    /// Chunks below this number existed when the leader began.
    pub loaded_to: u32,
    /// Set once a chunk with at least that number was missing.
    pub misses_own: bool,
    /// Chunk that the settlement under way writes. It cannot be read yet.
    pub pending: Option<u32>,
    /// Number of unsettled webhooks in chunks.
    pub waiting: u64,
    /// Oldest webhook when the lane's first chunk was written or loaded.
    pub first: Position,
    /// Newest webhook in a chunk.
    pub last: Position,
    /// True if the lane was made under another key scheme than the one in force.
    pub is_other_scheme: bool,
    /// True if the row in Redis is outdated.
    pub is_changed: bool,
}

/// State of a lane's attempts.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Number of attempts under way.
    pub in_flight: u32,
    /// Number of resources whose leads are being recorded.
    pub recording: u32,
    /// Number of resources that a filter of an operator's pause holds back.
    pub paused: u32,
    /// Number of slow attempts under way, since whose start no delivery of the lane succeeded.
    pub stalled: u32,
    /// Set if the previous leader left webhooks of the lane behind, until a delivery succeeds.
    pub is_left: bool,
    /// Time at which the last attempt began.
    pub began_at: Duration,
    /// Time of the last successful delivery.
    pub succeeded_at: Option<Duration>,
    /// Time at which the lane is to be checked again.
    pub wakes_at: Option<Duration>,
    /// Set while the last attempt timed out or was cut off.
    pub suspect: Option<Suspect>,
    /// Set while the lane waits for one of the slots that suspect lanes share.
    pub is_in_line: bool,
    /// Failures since the last success.
    pub failures: Failures,
    /// Time at which a resource was last released that a barrier had held back.
    pub unheld_at: Duration,
}

/// Consecutive failures of a lane.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Failures {
    count: u32,
    /// Time at which the first of them ended.
    since: Duration,
    /// Latest start of an attempt that did not succeed.
    began: Duration,
}

impl Failures {
    /// Creates the state of a lane that failed under the previous leader.
    pub(crate) fn left() -> Self {
        Self { count: FAILURES_KNOWN, ..Self::default() }
    }

    /// Adds a failure of an attempt that began at `began`.
    pub(crate) fn add(&mut self, began: Duration, now: Duration) {
        if self.count == 0 {
            self.since = now;
        }
        self.count = self.count.saturating_add(1);
        self.began(began);
    }

    /// Notes that an attempt that began at `began` did not succeed.
    pub(crate) fn began(&mut self, began: Duration) {
        self.began = self.began.max(began);
    }

    /// True if an attempt that began after `moment` failed.
    pub(crate) fn has_any_since(&self, moment: Duration) -> bool {
        self.began > moment
    }

    /// Time at which the first failure ended, if there were at least `least`. A further failure is
    /// no evidence against a backend that has served others since that time.
    pub(crate) fn since(&self, least: u32) -> Option<Duration> {
        (self.count >= least).then_some(self.since)
    }
}

impl Flow {
    /// True if a delivery succeeded after `began`.
    pub(crate) fn has_succeeded_since(&self, began: Duration) -> bool {
        self.succeeded_at.is_some_and(|at| at > began)
    }

    /// True if the last attempt timed out or was cut off, or if one takes longer than usual.
    pub(crate) fn is_slow(&self) -> bool {
        self.suspect.is_some() || self.stalled > 0
    }

    /// True while a webhook of the lane is sent, or a lead of the lane is recorded.
    pub(crate) fn is_at_work(&self) -> bool {
        self.in_flight + self.recording > 0
    }
}

/// State of a lane whose last attempt timed out or was cut off.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Suspect {
    /// Time before which there is no attempt.
    pub until: Duration,
    /// Wait after the next failure.
    pub wait: Duration,
    /// Active time at which the lane became suspect.
    pub since: Duration,
    /// Number of attempts that timed out or were cut off since then.
    pub probes: u32,
    /// True if one of them had the full timeout.
    pub has_timed_out: bool,
}

/// A lane.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Stable hash of the shop and the kind.
    pub hash: u64,
    /// Shop of the lane.
    pub shop: ShopKey,
    /// Indexed webhooks.
    pub window: Window,
    /// Part of the lane that is not indexed; `None` if all that was read is indexed.
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
    /// Number of webhooks that are dropped and not settled.
    pub dropping: u32,
    /// Read of the lane that is under way.
    pub reading: Option<WindowRead>,
    /// Set while the lane is listed to be read; true in the list of lanes with few webhooks in
    /// chunks.
    pub listed: Option<bool>,
}

impl Lane {
    /// Creates a lane of which nothing waits yet.
    pub(crate) fn new(hash: u64, shop: ShopKey) -> Self {
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

    /// True if the last attempt did not fail, the lane is not slow, and no attempt began after
    /// `since`.
    pub(crate) fn is_unfailed(&self, since: Duration) -> bool {
        !self.has_failed() && !self.flow.is_slow() && self.flow.began_at <= since
    }

    /// True if an attempt failed since the last success.
    pub(crate) fn has_failed(&self) -> bool {
        self.breaker.has_failed() || self.flow.failures.since(1).is_some()
    }

    /// True if the lane's own failures block it.
    pub(crate) fn is_failing(&self) -> bool {
        self.breaker.is_open() || self.flow.suspect.is_some() || self.flow.stalled > 0
    }

    /// True if nothing of the lane can be sent before more of it is indexed.
    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty() && !self.flow.is_at_work()
    }

    /// True if nothing of the lane waits anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.window.count == 0
            && self.window.replays == 0
            && self.rest.is_none()
            && self.stored.is_none()
            && self.flow.in_flight == 0
            && self.dropping == 0
            && self.reading.is_none()
    }

    /// Marks the lane as listed to be read. Returns the list, or nothing if it is there.
    pub(crate) fn enlist(&mut self) -> Option<bool> {
        let has_few = self.has_few();
        (self.listed.replace(has_few) != Some(has_few)).then_some(has_few)
    }

    /// True if few webhooks of the lane wait in chunks, or none.
    pub(crate) fn has_few(&self) -> bool {
        self.stored.as_ref().is_none_or(|stored| stored.waiting <= FEW)
    }

    /// True if everything of the lane up to `position` is indexed.
    pub(crate) fn is_indexed_up_to(&self, position: Position) -> bool {
        self.rest.as_ref().is_none_or(|rest| rest.after >= position)
    }

    /// Chunk that holds a webhook, and the index of the webhook in it.
    pub(crate) fn locate(&self, position: Position) -> Option<(u32, u32)> {
        let chunks = &self.stored.as_ref()?.chunks;
        let at = chunks
            .partition_point(|chunk| chunk.positions.last().is_some_and(|last| *last < position));
        let chunk = chunks.get(at)?;
        let index = chunk.positions.binary_search(&position).ok()?;
        Some((chunk.number, key_of(index)))
    }

    /// Positions of the webhooks of a chunk, if some of it is indexed.
    pub(crate) fn positions(&self, number: u32) -> Option<&[Position]> {
        Some(&self.stored.as_ref()?.chunk(number)?.positions)
    }

    /// Number of the chunk to read next for the window; `None` if the rest of the lane does not lie
    /// in chunks. Returns an error while that chunk is being written.
    pub(crate) fn next_chunk(&self) -> Result<Option<u32>, Pending> {
        let (Some(rest), Some(stored)) = (&self.rest, &self.stored) else { return Ok(None) };
        let is_unread =
            |chunk: &&IndexedChunk| chunk.positions.last().is_some_and(|last| *last > rest.after);
        let number = match stored.chunks.iter().find(is_unread) {
            Some(chunk) => chunk.number,
            None if stored.unread_from < stored.next => stored.unread_from,
            None => return Ok(None),
        };
        if stored.pending == Some(number) { Err(Pending) } else { Ok(Some(number)) }
    }

    /// Notes that a webhook of the lane was read and is not indexed.
    pub(crate) fn skip(&mut self, position: Position) {
        if let Some(rest) = &mut self.rest {
            rest.last = rest.last.max(position);
        }
    }

    /// Notes that everything up to `after` is indexed.
    pub(crate) fn extend(&mut self, after: Position) {
        if let Some(rest) = &mut self.rest {
            rest.after = rest.after.max(after);
            if rest.after >= rest.last {
                self.rest = None;
            }
        }
    }
}

/// Error: the chunk is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending;

impl Stored {
    /// Creates a lane's chunks without a first chunk yet.
    pub(crate) fn new(first: Position, number: u32) -> Self {
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

    /// Returns the chunk with this number, if some of it is indexed.
    pub(crate) fn chunk(&self, number: u32) -> Option<&IndexedChunk> {
        self.chunks.get(self.at(number)?)
    }

    /// Returns the chunk with this number, to change it.
    pub(crate) fn chunk_mut(&mut self, number: u32) -> Option<&mut IndexedChunk> {
        let at = self.at(number)?;
        self.chunks.get_mut(at)
    }

    fn at(&self, number: u32) -> Option<usize> {
        self.chunks.binary_search_by_key(&number, |chunk| chunk.number).ok()
    }

    /// Number of the oldest chunk.
    pub(crate) fn oldest(&self) -> u32 {
        self.chunks.front().map_or(self.unread_from, |chunk| chunk.number)
    }
}
