//! One settlement: everything that became final since the previous one. It is applied completely or
//! not at all.

use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;
use spillway_webhook::{Changes, RetryChanges, Spans, StreamId};
use std::collections::HashMap;

use crate::classified::Content;

/// Final outcome of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The backend accepted the webhook.
    Delivered,
    /// The same webhook was delivered before.
    Duplicate,
    /// The update shows the state that was delivered last.
    Suppressed,
    /// The update is older than that state.
    Stale,
    /// A newer webhook of the same resource stood for it.
    Coalesced,
    /// The webhook was given up.
    Dead,
    /// An operator dropped the webhook.
    Dropped,
}

/// Record of one settled webhook.
#[derive(Debug, Clone, Copy)]
pub struct SettledRecord {
    /// Position at which the webhook was accepted.
    pub position: Position,
    /// Final outcome.
    pub outcome: Outcome,
    /// Fingerprint to find duplicates, if it is known.
    pub fingerprint: Option<Fingerprint>,
    /// Number of attempts.
    pub attempts: u32,
    /// Entry for the deduplication window: the fingerprint if the webhook is delivered or holds nothing
    /// new, and a mark made of it if the webhook is given up and may be coalesced.
    pub remembered: Option<Fingerprint>,
}

/// A webhook that is given up.
#[derive(Debug)]
pub struct GivenUp<C: Content> {
    /// Position at which the webhook was accepted.
    pub position: Position,
    /// Bytes that hold the webhook.
    pub content: C,
    /// Index of the webhook in `content`.
    pub record_index: u32,
    /// Reason, from a closed set.
    pub reason: &'static str,
    /// Number of attempts.
    pub attempts: u32,
    /// Status and answer of the backend to the last attempt.
    pub evidence: C::Evidence,
}

/// A chunk to write.
#[derive(Debug, Clone)]
pub struct ChunkWrite {
    /// Hash of the lane.
    pub lane: u64,
    /// Number of the chunk.
    pub number: u32,
    /// Positions of the webhooks of the chunk, in order. The settlement holds their bytes by entry.
    pub positions: Vec<Position>,
}

/// Row of a lane, to write.
#[derive(Debug, Clone)]
pub struct LaneRowChange {
    /// Hash of the lane.
    pub lane: u64,
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
    /// True if the circuit breaker is open.
    pub is_tripped: bool,
    /// Set if the last attempt timed out or was cut off.
    pub is_suspect: bool,
}

/// Changes to the main stream.
#[derive(Debug, Default)]
pub struct MainChange {
    /// New cursor: everything up to it is settled or in a lane. `None` if it does not move.
    pub cursor: Option<StreamId>,
    /// Number of entries from the old cursor to the new one.
    pub entries_passed: u64,
    /// Number of webhooks in these entries.
    pub webhooks_passed: u64,
    /// Number of settled webhooks in packs after the cursor.
    pub settled_after_cursor: u64,
    /// Bits of settled webhooks in packs after the cursor.
    pub bits: Vec<(StreamId, Vec<u8>)>,
    /// Packs whose bits are no longer needed.
    pub whole: Vec<StreamId>,
    /// Entries that cannot be decoded.
    pub corrupt: Vec<StreamId>,
    /// Retry states of webhooks after the cursor.
    pub retries: RetryChanges,
}

/// Changes to the replays.
#[derive(Debug, Default)]
pub struct ReplayChange {
    /// Replays that are settled.
    pub settled: Vec<StreamId>,
    /// Entries that cannot be decoded.
    pub corrupt: Vec<StreamId>,
}

/// Changes to lanes.
#[derive(Debug)]
pub struct LaneChange<C> {
    /// Chunks to write, and chunks that are settled: lane and number.
    pub chunks: Changes<ChunkWrite, (u64, u32)>,
    /// Bytes of the packs that hold the webhooks of written chunks.
    pub moved: HashMap<StreamId, C>,
    /// Chunks to set aside because they cannot be decoded: lane and number.
    pub corrupt: Vec<(u64, u32)>,
    /// Bits of settled webhooks in chunks.
    pub chunk_bits: Vec<(u64, u32, Vec<u8>)>,
    /// Rows to write, and lanes that have no chunks any more.
    pub rows: Changes<LaneRowChange, u64>,
    /// Barriers that move into lanes, with the hash of their shop, and barriers that are settled
    /// there.
    pub barriers: Changes<(Position, u64), Position>,
    /// Leads to record and leads that are settled, by the hash of their resource.
    pub leads: Changes<(u64, Position), u64>,
    /// Retry states of webhooks in lanes.
    pub retries: RetryChanges,
    /// Number of unsettled webhooks in chunks after this settlement.
    pub waiting: u64,
    /// Time at which the oldest of them was accepted, in ms since the Unix epoch; 0 if none waits.
    pub oldest_ms: u64,
}

/// Progress of carrying out the operator's controls.
#[derive(Debug, Default)]
pub struct ControlsChange {
    /// Number of webhooks dropped by this settlement.
    pub dropped: u64,
    /// Version of the controls that is carried out completely.
    pub carried_out: Option<u64>,
    /// Version of the controls that the leader knows.
    pub known: u64,
}

/// Everything that became final since the last settlement.
#[derive(Debug)]
pub struct PendingSettlement<C: Content> {
    /// Changes to the main stream.
    pub main: MainChange,
    /// Changes to the replays.
    pub replays: ReplayChange,
    /// Webhooks that are given up.
    pub dead: Vec<GivenUp<C>>,
    /// One record for each settled webhook.
    pub records: Vec<SettledRecord>,
    /// Changes to lanes.
    pub lanes: LaneChange<C>,
    /// Progress of carrying out the controls.
    pub controls: ControlsChange,
}

impl MainChange {
    fn is_empty(&self) -> bool {
        self.cursor.is_none()
            && self.bits.is_empty()
            && self.whole.is_empty()
            && self.corrupt.is_empty()
            && self.retries.is_empty()
    }
}

impl ReplayChange {
    fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.corrupt.is_empty()
    }
}

impl<C> LaneChange<C> {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty()
            && self.corrupt.is_empty()
            && self.chunk_bits.is_empty()
            && self.rows.is_empty()
            && self.barriers.is_empty()
            && self.leads.is_empty()
            && self.retries.is_empty()
    }
}

impl<C: Content> PendingSettlement<C> {
    /// Changes to the retry states of the main stream or of lanes.
    pub(crate) fn retries(&mut self, is_in_main: bool) -> &mut RetryChanges {
        if is_in_main { &mut self.main.retries } else { &mut self.lanes.retries }
    }

    /// True if there is nothing to settle.
    pub fn is_empty(&self) -> bool {
        self.main.is_empty()
            && self.replays.is_empty()
            && self.dead.is_empty()
            && self.records.is_empty()
            && self.lanes.is_empty()
            && self.controls.carried_out.is_none()
    }
}

impl<C> Default for LaneChange<C> {
    fn default() -> Self {
        Self {
            chunks: Changes::default(),
            moved: HashMap::new(),
            corrupt: Vec::new(),
            chunk_bits: Vec::new(),
            rows: Changes::default(),
            barriers: Changes::default(),
            leads: Changes::default(),
            retries: Changes::default(),
            waiting: 0,
            oldest_ms: 0,
        }
    }
}

impl<C: Content> Default for PendingSettlement<C> {
    fn default() -> Self {
        Self {
            main: MainChange::default(),
            replays: ReplayChange::default(),
            dead: Vec::new(),
            records: Vec::new(),
            lanes: LaneChange::default(),
            controls: ControlsChange::default(),
        }
    }
}
