//! Events that the core takes, and effects that it returns.

use std::collections::HashMap;
use std::time::Duration;

use spillway_limiter::Signal;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;
use spillway_webhook::{Spans, StoredRetry, StreamId};

use crate::attempts::AttemptId;
use crate::controls::Controls;
use crate::reading::PackKey;
use crate::settlement::Settlement;
use crate::sorted::{Content, Sorted};

/// Time, on a clock that starts with the leader and never goes back, and on the clock by which positions are given.
#[derive(Debug, Clone, Copy, Default)]
pub struct Now {
    /// Since the leader began.
    pub at: Duration,
    /// Redis' clock, in milliseconds since the Unix epoch.
    pub wall_ms: u64,
}

/// State in Redis with which a leader begins.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Everything in main up to here is settled.
    pub cursor: StreamId,
    /// Bits of settled webhooks in packs after the cursor.
    pub bits: HashMap<StreamId, Vec<u8>>,
    /// Lanes with chunks.
    pub lanes: Vec<LaneLoaded>,
    /// Positions of barriers in lanes, and the hashes of their shops.
    pub barriers: Vec<(Position, u64)>,
    /// Recorded leads by the hash of their resource.
    pub leads: Vec<(u64, Position)>,
    /// Retry states of webhooks of the main stream.
    pub retries: Vec<(Position, StoredRetry)>,
}

/// A lane with chunks, as Redis holds it.
#[derive(Debug, Clone)]
pub struct LaneLoaded {
    /// Hash of the lane.
    pub lane: u64,
    /// Hash of its shop.
    pub shop: u64,
    /// Whether the lane was made under another key scheme than the one in force.
    pub is_other_scheme: bool,
    /// Number of its oldest chunk.
    pub first_chunk: u32,
    /// Number of its newest chunk.
    pub last_chunk: u32,
    /// Unsettled webhooks in its chunks.
    pub waiting: u64,
    /// Oldest webhook in them.
    pub first: Position,
    /// Newest webhook in them.
    pub last: Position,
    /// Time in which nothing of it succeeded.
    pub failing: Spans,
    /// Whether its circuit breaker was open.
    pub is_tripped: bool,
    /// Set where the last attempt timed out or was cut off.
    pub is_suspect: bool,
}

/// A pack of the main stream, read and sorted.
#[derive(Debug, Clone)]
pub struct PackRead<C> {
    /// Its entry.
    pub entry: StreamId,
    /// What decides about each webhook.
    pub sorted: Vec<Sorted>,
    /// Its bytes.
    pub content: C,
}

/// A chunk of a lane, read and sorted.
#[derive(Debug, Clone)]
pub struct ChunkRead<C> {
    /// Its number.
    pub number: u32,
    /// Where each webhook was accepted, and what decides about it.
    pub records: Vec<(Position, Sorted)>,
    /// A bit for each that is settled.
    pub bits: Vec<u8>,
    /// Retry states of some of them.
    pub retries: Vec<(Position, StoredRetry)>,
    /// Its bytes.
    pub content: C,
}

/// A pack or chunk that was read again.
#[derive(Debug, Clone)]
pub struct ReadAgain<C> {
    /// Bytes of the pack or chunk.
    pub content: C,
    /// Where the webhooks of a chunk were accepted; empty for anything else.
    pub positions: Vec<Position>,
}

/// Answer to the reading of one chunk.
#[derive(Debug, Clone)]
pub enum ChunkFound<C> {
    /// The chunk.
    Read(ChunkRead<C>),
    /// It can't be decoded.
    Corrupt,
    /// It is not there.
    Missing,
}

/// A webhook that an operator replays.
#[derive(Debug, Clone)]
pub struct ReplayRead<C> {
    /// Its entry among the replays.
    pub id: StreamId,
    /// Where it was accepted.
    pub position: Position,
    /// What decides about it.
    pub sorted: Sorted,
    /// Its bytes, at index 0.
    pub content: C,
}

/// Amount that an answer of 429 or 503 asks to leave alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The resource of this webhook.
    Resource,
    /// Its shop.
    Shop,
    /// Everything.
    All,
}

/// Verdict on an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The backend has it.
    Delivered,
    /// Try it again, not before `pause` has passed.
    Retry {
        /// Pause that the backend asked for.
        pause: Duration,
        /// Scope of that pause; `None` when it asked for nothing.
        scope: Option<Scope>,
        /// Refused rather than failed: retried for a shorter time.
        is_refusal: bool,
    },
    /// Give it up at once.
    Dead {
        /// Reason, from a closed set.
        reason: &'static str,
        /// Whether the backend refused it.
        is_refusal: bool,
    },
    /// Nothing was sent, for a reason that is neither the webhook's nor the backend's.
    NotSent,
}

/// An attempt that ended.
#[derive(Debug)]
pub struct AttemptEnd<E> {
    /// Which one.
    pub id: AttemptId,
    /// Verdict on it.
    pub verdict: Verdict,
    /// Meaning for the limiter.
    pub signal: Signal,
    /// Whether no connection could be made.
    pub is_unconnected: bool,
    /// Duration from its start.
    pub took: Duration,
    /// Status and answer, for a dead letter.
    pub evidence: E,
}

/// Something that happened.
#[derive(Debug)]
pub enum Event<C: Content> {
    /// The next pack of the main stream.
    Pack(PackRead<C>),
    /// The next entry of the main stream can't be decoded.
    Corrupt(StreamId),
    /// A webhook that is replayed.
    Replay(ReplayRead<C>),
    /// An entry among the replays can't be decoded.
    CorruptReplay(StreamId),
    /// All replays that were there at start have arrived. Until then only replays are read; those for
    /// which there is no room are not waited for.
    ReplaysLoaded,
    /// A pack or chunk asked for by [`Effect::Read`]; `None` when it is not there.
    Read(PackKey, Option<ReadAgain<C>>),
    /// Packs asked for by [`Effect::ReadFront`], from the first up to one that is not there, or as many
    /// of them as one settlement may move.
    FrontRead(Vec<PackRead<C>>),
    /// Chunks asked for by [`Effect::ReadChunks`].
    ChunksRead {
        /// Hash of the lane.
        lane: u64,
        /// Chunks in order, from the first one on: fewer than asked for where reading them all took too
        /// long.
        chunks: Vec<ChunkFound<C>>,
    },
    /// The pack asked for by [`Effect::ReadRest`]; `None` when it is not there.
    RestRead {
        /// Hash of the lane.
        lane: u64,
        /// Its entry.
        entry: StreamId,
        /// The pack.
        pack: Option<PackRead<C>>,
    },
    /// An attempt ended.
    Ended(AttemptEnd<C::Evidence>),
    /// The last settlement was applied.
    Settled,
    /// An operator's controls, all that are in force.
    Controls(Controls<C::Filter>),
    /// The lease holds until `until`; `dead_room` bytes are left for dead letters; `may_move`:
    /// whether Redis has room for chunks.
    Lease {
        /// Time up to which attempts may begin.
        until: Duration,
        /// Bytes of dead letters that may still be written.
        dead_room: u64,
        /// Whether webhooks may be moved into lanes.
        may_move: bool,
    },
    /// Redis came back without what was read.
    OlderData,
    /// Nothing new is begun from now on.
    Drain,
    /// Time passed.
    Tick,
}

/// A webhook to send.
#[derive(Debug, Clone)]
pub struct Dispatch<C> {
    /// The attempt.
    pub id: AttemptId,
    /// Hash of its lane.
    pub lane: u64,
    /// Hash of its shop.
    pub shop: u64,
    /// Where the webhook was accepted.
    pub position: Position,
    /// Bytes that hold it.
    pub content: C,
    /// Index of the webhook in them.
    pub record_index: u32,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Older events that it stands for.
    pub older: u32,
    /// Whether an operator replays it.
    pub is_replay: bool,
    /// Identity for duplicates.
    pub fingerprint: Option<Fingerprint>,
}

/// Something to do.
#[derive(Debug)]
pub enum Effect<C: Content> {
    /// Send a webhook; [`Event::Ended`] follows.
    Send(Box<Dispatch<C>>),
    /// Abandon an attempt; nothing follows.
    Cancel(AttemptId),
    /// Read a pack or chunk.
    Read(PackKey),
    /// Read packs at the front of the main stream, and sort them.
    ReadFront(Vec<StreamId>),
    /// Read chunks of a lane, and sort them.
    ReadChunks {
        /// Hash of the lane.
        lane: u64,
        /// First number.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Read a pack of the main stream for a lane, and sort it.
    ReadRest {
        /// Hash of the lane.
        lane: u64,
        /// Its entry.
        entry: StreamId,
    },
    /// Apply a settlement; [`Event::Settled`] follows.
    Settle(Box<Settlement<C>>),
    /// Begin again from what Redis holds, for this reason.
    Restart(&'static str),
}
