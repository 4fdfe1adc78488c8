//! Status of the core: counters, and the lanes that are blocked with the reason.

use crate::turn::Blocked;

/// Counters since the leader began.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    /// Webhooks that the backend accepted.
    pub delivered: u64,
    /// Webhooks that were settled without being delivered or given up.
    pub undelivered: UndeliveredCounts,
    /// Windows cut because the index was full.
    pub cuts: u64,
    /// Slow attempts cut off so that others get their slots.
    pub cut_off: u64,
    /// Counters of the backend as a whole.
    pub backend: BackendCounts,
    /// Circuit breakers of lanes that opened.
    pub breakers_opened: u64,
    /// Chunks that could not be decoded.
    pub chunks_corrupt: u64,
    /// Webhooks lost with their chunks.
    pub lost: u64,
    /// Webhooks kept in retry because there was no room for dead letters.
    pub kept_for_want_of_room: u64,
    /// Webhooks given up, by reason.
    pub dead: Vec<(&'static str, u64)>,
}

/// Counters of webhooks that were settled without being delivered or given up.
#[derive(Debug, Clone, Copy, Default)]
pub struct UndeliveredCounts {
    /// Webhooks not delivered because the same webhook was delivered before.
    pub duplicates: u64,
    /// Older events for which a newer one was delivered.
    pub coalesced: u64,
    /// Webhooks that an operator dropped.
    pub dropped: u64,
    /// Webhooks that the filter excludes.
    pub excluded: u64,
    /// Updates that showed the state that was delivered last.
    pub suppressed: u64,
    /// Updates that were older than that state.
    pub stale: u64,
}

/// Counters of the backend as a whole.
#[derive(Debug, Clone, Copy, Default)]
pub struct BackendCounts {
    /// Times that everything stopped because most shops were refused.
    pub refusals_opened: u64,
    /// Times that the backend went down.
    pub went_down: u64,
    /// Times that a delivery succeeded after the backend was down or refused everything.
    pub came_back: u64,
}

/// A lane of which nothing is sent at present.
#[derive(Debug, Clone, Copy)]
pub struct BlockedLane {
    /// Hash of the lane.
    pub lane: u64,
    /// Hash of the shop.
    pub shop: u64,
    /// Reason why nothing is sent.
    pub reason: Blocked,
    /// Number of indexed webhooks of the lane.
    pub indexed: u32,
    /// Number of webhooks of the lane in chunks.
    pub stored: u64,
}

/// State of the core.
#[derive(Debug, Clone)]
pub struct Status {
    /// Number of deliveries under way.
    pub in_flight: usize,
    /// Number of deliveries that may be under way.
    pub limit: usize,
    /// True if everything is paused: by an operator, or because the backend is stopped.
    pub is_paused: bool,
    /// True if the backend refuses most deliveries.
    pub is_refusing: bool,
    /// True if the backend is down.
    pub is_down: bool,
    /// True if no more is read because the index is full.
    pub is_index_full: bool,
    /// Memory of the index, in bytes.
    pub index_bytes: usize,
    /// Number of lanes of which webhooks wait.
    pub lanes: usize,
    /// Number of webhooks in chunks.
    pub stored: u64,
    /// Number of waiting stubs whose payload expires within an hour, or has expired.
    pub stubs_expiring: usize,
    /// Number of all lanes of which nothing is sent at present.
    pub blocked_lanes: usize,
    /// The largest of these lanes.
    pub blocked: Vec<BlockedLane>,
}

impl Counts {
    pub(crate) fn dead(&mut self, reason: &'static str) {
        match self.dead.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => self.dead.push((reason, 1)),
        }
    }
}
