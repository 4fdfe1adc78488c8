//! Events that the core takes, and effects that it returns.

use std::collections::HashMap;
use std::time::Duration;

use spillway_limiter::Signal;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;
use spillway_webhook::{Spans, StoredRetry, StreamId};

use crate::classified::{Classified, Content};
use crate::pack_key::PackKey;
use crate::settlement::PendingSettlement;
use crate::state::attempts::AttemptId;
use crate::state::controls::Controls;

/// Current time, on two clocks: one that starts with the leader and never goes back, and the clock
/// of the positions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Now {
    /// Time since the leader began.
    pub at: Duration,
    /// Redis' clock, in milliseconds since the Unix epoch.
    pub wall_ms: u64,
}

/// State in Redis with which a leader begins.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Cursor of the main stream: everything up to it is settled, or was moved into chunks.
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
    /// True if the lane was made under another key scheme than the one in force.
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
    /// Times in which no delivery of the lane succeeded.
    pub failing: Spans,
    /// True if the circuit breaker was open.
    pub is_tripped: bool,
    /// Set if the last attempt timed out or was cut off.
    pub is_suspect: bool,
}

/// A pack of the main stream, read and classified.
#[derive(Debug, Clone)]
pub struct PackRead<C> {
    /// Stream entry of the pack.
    pub entry: StreamId,
    /// Attributes of each webhook.
    pub classified: Vec<Classified>,
    /// Bytes of the pack.
    pub content: C,
}

/// A chunk of a lane, read and classified.
#[derive(Debug, Clone)]
pub struct ChunkRead<C> {
    /// Number of the chunk.
    pub number: u32,
    /// Position and attributes of each webhook.
    pub records: Vec<(Position, Classified)>,
    /// One bit per webhook, set when it is settled.
    pub bits: Vec<u8>,
    /// Retry states of some of these webhooks.
    pub retries: Vec<(Position, StoredRetry)>,
    /// Bytes of the chunk.
    pub content: C,
}

/// A pack or chunk that was read again.
#[derive(Debug, Clone)]
pub struct ReadAgain<C> {
    /// Bytes of the pack or chunk.
    pub content: C,
    /// Positions of the webhooks of a chunk; empty for anything else.
    pub positions: Vec<Position>,
}

/// Result of reading one chunk.
#[derive(Debug, Clone)]
pub enum ChunkFound<C> {
    /// The chunk.
    Read(ChunkRead<C>),
    /// The chunk cannot be decoded.
    Corrupt,
    /// The chunk does not exist.
    Missing,
}

/// A webhook that an operator replays.
#[derive(Debug, Clone)]
pub struct ReplayRead<C> {
    /// Entry in the stream of replays.
    pub id: StreamId,
    /// Position at which the webhook was accepted.
    pub position: Position,
    /// Attributes of the webhook.
    pub classified: Classified,
    /// Bytes of the webhook, at index 0.
    pub content: C,
}

/// Scope of a pause that a backend's answer requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The resource of this webhook.
    Resource,
    /// Shop of this webhook.
    Shop,
    /// Everything.
    All,
}

/// Verdict on an attempt, which decides what happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The backend accepted the webhook.
    Delivered,
    /// Try the webhook again, not before `pause` has passed.
    Retry {
        /// Pause that the backend requested.
        pause: Duration,
        /// Scope of that pause; `None` if the backend requested none.
        scope: Option<Scope>,
        /// True if the backend refused the webhook, which is then retried for a shorter time.
        is_refusal: bool,
    },
    /// Give the webhook up at once.
    Dead {
        /// Reason, from a closed set.
        reason: &'static str,
        /// True if the backend refused the webhook.
        is_refusal: bool,
    },
    /// Nothing was sent, for a reason that concerns neither the webhook nor the backend.
    NotSent,
}

/// An attempt that ended.
#[derive(Debug)]
pub struct AttemptEnd<E> {
    /// Id of the attempt.
    pub id: AttemptId,
    /// Verdict on it.
    pub verdict: Verdict,
    /// Meaning for the limiter.
    pub signal: Signal,
    /// True if no connection could be made.
    pub is_unconnected: bool,
    /// Duration from its start.
    pub took: Duration,
    /// First part of that, before the backend was sent anything: the payload of a stub was fetched.
    pub fetching: Duration,
    /// Status and answer of the backend, for a dead letter.
    pub evidence: E,
}

/// Input of the core.
#[derive(Debug)]
pub enum Event<C: Content> {
    /// The next pack of the main stream.
    Pack(PackRead<C>),
    /// The next entry of the main stream cannot be decoded.
    Corrupt(StreamId),
    /// A webhook that is replayed.
    Replay(ReplayRead<C>),
    /// An entry in the stream of replays cannot be decoded.
    CorruptReplay(StreamId),
    /// All replays that existed at start have arrived. Until then only replays are read. Replays
    /// that do not fit are not waited for.
    ReplaysLoaded,
    /// A pack or chunk requested by [`Effect::Read`]; `None` if it does not exist.
    Read(PackKey, Option<ReadAgain<C>>),
    /// Packs requested by [`Effect::ReadFront`], up to the first that does not exist, or as many as
    /// one settlement may move.
    FrontRead(Vec<PackRead<C>>),
    /// Chunks requested by [`Effect::ReadChunks`].
    ChunksRead {
        /// Hash of the lane.
        lane: u64,
        /// Chunks in order, from the first requested one. There are fewer than requested if reading
        /// them all took too long.
        chunks: Vec<ChunkFound<C>>,
    },
    /// The pack requested by [`Effect::ReadRest`]; `None` if it does not exist.
    RestRead {
        /// Hash of the lane.
        lane: u64,
        /// Stream entry of the pack.
        entry: StreamId,
        /// The pack.
        pack: Option<PackRead<C>>,
    },
    /// An attempt ended.
    Ended(AttemptEnd<C::Evidence>),
    /// The last settlement was applied.
    Settled,
    /// All operator controls that are in force.
    Controls(Controls<C::Filter>),
    /// State of the lease. Comes with every call.
    Lease {
        /// Time up to which attempts may begin.
        until: Duration,
        /// Bytes of dead letters that may still be written.
        dead_room: u64,
        /// True if Redis has room for chunks, so webhooks may move into lanes.
        may_move: bool,
    },
    /// Redis came back without data that was read before.
    OlderData,
    /// Begin nothing new from now on.
    Stop,
    /// Time passed.
    Tick,
}

/// A webhook to send.
#[derive(Debug, Clone)]
pub struct Dispatch<C> {
    /// Id of the attempt.
    pub id: AttemptId,
    /// Hash of its lane.
    pub lane: u64,
    /// Hash of its shop.
    pub shop: u64,
    /// Position at which the webhook was accepted.
    pub position: Position,
    /// Bytes that hold the webhook.
    pub content: C,
    /// Index of the webhook in `content`.
    pub record_index: u32,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Number of older events that this webhook stands for.
    pub older: u32,
    /// True if the webhook is a replay.
    pub is_replay: bool,
    /// Fingerprint to find duplicates.
    pub fingerprint: Option<Fingerprint>,
}

/// Output of the core: an action for the worker to carry out.
#[derive(Debug)]
pub enum Effect<C: Content> {
    /// Send a webhook; [`Event::Ended`] follows.
    Send(Box<Dispatch<C>>),
    /// Abandon an attempt; nothing follows.
    Cancel(AttemptId),
    /// Read a pack or chunk.
    Read(PackKey),
    /// Read packs at the front of the main stream, and classify them.
    ReadFront(Vec<StreamId>),
    /// Read chunks of a lane, and classify them.
    ReadChunks {
        /// Hash of the lane.
        lane: u64,
        /// Number of the first chunk.
        first: u32,
        /// Number of chunks.
        count: u32,
    },
    /// Read a pack of the main stream for a lane, and classify it.
    ReadRest {
        /// Hash of the lane.
        lane: u64,
        /// Stream entry of the pack.
        entry: StreamId,
    },
    /// Apply a settlement; [`Event::Settled`] follows.
    Settle(Box<PendingSettlement<C>>),
    /// Begin again from the state in Redis, for this reason.
    Restart(&'static str),
}
