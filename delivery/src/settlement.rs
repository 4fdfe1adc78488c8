//! One settlement: everything that became final since the last one, applied whole or not at all.

use std::collections::HashMap;
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use crate::sorted::Content;

/// Final outcome of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The backend took it.
    Delivered,
    /// The very same one was delivered before.
    Duplicate,
    /// A newer one of its resource stood for it.
    Coalesced,
    /// It was given up.
    Dead,
    /// An operator dropped it.
    Dropped,
}

/// Record of one settled webhook.
#[derive(Debug, Clone, Copy)]
pub struct SettledRecord {
    /// Where it was accepted.
    pub position: Position,
    /// Outcome.
    pub outcome: Outcome,
    /// Identity for duplicates, if it is known.
    pub fingerprint: Option<Fingerprint>,
    /// Attempts made.
    pub attempts: u32,
    /// Whether the fingerprint is remembered as delivered.
    pub is_remembered: bool,
}

/// A webhook that is given up.
#[derive(Debug)]
pub struct DeadLetter<C: Content> {
    /// Where it was accepted.
    pub position: Position,
    /// Bytes that hold it.
    pub content: C,
    /// Index of the webhook in them.
    pub record_index: u32,
    /// Reason, from a closed set.
    pub reason: &'static str,
    /// Attempts made.
    pub attempts: u32,
    /// Status and answer of the last attempt.
    pub evidence: C::Evidence,
}

/// A chunk to write.
#[derive(Debug, Clone)]
pub struct ChunkWrite {
    /// Hash of the lane.
    pub lane: u64,
    /// Its number.
    pub number: u32,
    /// Webhooks that it gets, in order; the settlement holds their bytes by entry.
    pub positions: Vec<Position>,
}

/// Row of a lane, to write.
#[derive(Debug, Clone, Copy)]
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
    /// Time in which nothing of it succeeded.
    pub failing: Duration,
    /// Whether its circuit breaker is open.
    pub is_tripped: bool,
}

/// Changes to lanes.
#[derive(Debug, Default)]
pub struct LaneChange {
    /// Chunks to write.
    pub chunks: Vec<ChunkWrite>,
    /// Chunks that are settled: lane and number.
    pub chunks_gone: Vec<(u64, u32)>,
    /// Bits of settled webhooks in chunks.
    pub chunk_bits: Vec<(u64, u32, Vec<u8>)>,
    /// Rows to write.
    pub rows: Vec<LaneRowChange>,
    /// Lanes without chunks.
    pub rows_gone: Vec<u64>,
    /// Barriers that come to lie in lanes, with the hash of their shop.
    pub barriers: Vec<(Position, u64)>,
    /// Barriers that do not any more.
    pub barriers_gone: Vec<Position>,
    /// Leads to record, by the hash of their resource.
    pub leads: Vec<(u64, Position)>,
    /// Leads that are settled.
    pub leads_gone: Vec<u64>,
    /// Retry states of webhooks in lanes.
    pub retries: Vec<(Position, u32, Duration)>,
    /// Retry states that are not needed any more.
    pub retries_gone: Vec<Position>,
    /// Unsettled webhooks in chunks, after this.
    pub waiting: u64,
    /// Time at which the oldest of them was accepted, in ms since the Unix epoch; 0: none waits.
    pub oldest_ms: u64,
}

/// Everything that became final since the last settlement.
#[derive(Debug)]
pub struct Settlement<C: Content> {
    /// The new cursor: everything up to it is settled or in a lane. `None`: it stays.
    pub cursor: Option<StreamId>,
    /// Entries from the old cursor up to the new one.
    pub entries_passed: u64,
    /// Webhooks in them.
    pub webhooks_passed: u64,
    /// Settled webhooks in packs after the cursor.
    pub open: u64,
    /// Bits of settled webhooks in packs after the cursor.
    pub bits: Vec<(StreamId, Vec<u8>)>,
    /// Packs whose bits are not needed any more.
    pub whole: Vec<StreamId>,
    /// Entries that can't be decoded: of the main stream, and among the replays.
    pub corrupt: (Vec<StreamId>, Vec<StreamId>),
    /// Replays that are settled.
    pub replays_done: Vec<StreamId>,
    /// Webhooks that are given up.
    pub dead: Vec<DeadLetter<C>>,
    /// One record for each webhook that is settled.
    pub records: Vec<SettledRecord>,
    /// Changes to lanes, and the bytes of packs that move into them.
    pub lanes: (LaneChange, HashMap<StreamId, C>),
    /// Controls: webhooks dropped, version carried out, version known.
    pub controls: (u64, Option<u64>, u64),
}

impl LaneChange {
    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
            && self.chunks_gone.is_empty()
            && self.chunk_bits.is_empty()
            && self.rows.is_empty()
            && self.rows_gone.is_empty()
            && self.barriers.is_empty()
            && self.barriers_gone.is_empty()
            && self.leads.is_empty()
            && self.leads_gone.is_empty()
            && self.retries.is_empty()
            && self.retries_gone.is_empty()
    }
}

impl<C: Content> Settlement<C> {
    /// Nothing to settle.
    pub fn new() -> Self {
        Self {
            cursor: None,
            entries_passed: 0,
            webhooks_passed: 0,
            open: 0,
            bits: Vec::new(),
            whole: Vec::new(),
            corrupt: (Vec::new(), Vec::new()),
            replays_done: Vec::new(),
            dead: Vec::new(),
            records: Vec::new(),
            lanes: (LaneChange::default(), HashMap::new()),
            controls: (0, None, 0),
        }
    }

    /// Whether there is nothing to settle.
    pub fn is_empty(&self) -> bool {
        self.cursor.is_none()
            && self.bits.is_empty()
            && self.whole.is_empty()
            && self.corrupt.0.is_empty()
            && self.corrupt.1.is_empty()
            && self.replays_done.is_empty()
            && self.dead.is_empty()
            && self.records.is_empty()
            && self.lanes.0.is_empty()
            && self.controls.1.is_none()
    }
}

impl<C: Content> Default for Settlement<C> {
    fn default() -> Self {
        Self::new()
    }
}
