//! The core's own account of itself: counters, and which lanes wait for what.

use crate::backend::Allowed;
use crate::core::Core;
use crate::dispatch::Blocked;
use crate::sorted::Content;

/// Blocked lanes that are listed.
const LISTED_MAX: usize = 16;

/// Counters since the leader began.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    /// Deliveries that the backend took.
    pub delivered: u64,
    /// Webhooks not delivered because the very same one was delivered before.
    pub duplicates: u64,
    /// Older events that a newer one stood for.
    pub coalesced: u64,
    /// Webhooks dropped by an operator's order.
    pub dropped: u64,
    /// Windows cut for want of room.
    pub cuts: u64,
    /// Slow attempts cut off so that others got their slots.
    pub cut_off: u64,
    /// The backend as a whole.
    pub backend: BackendCounts,
    /// Circuit breakers of lanes that opened.
    pub breakers_opened: u64,
    /// Chunks that could not be decoded.
    pub chunks_corrupt: u64,
    /// Webhooks that were lost with their chunks.
    pub lost: u64,
    /// Webhooks kept in retry for want of room for dead letters.
    pub kept_for_want_of_room: u64,
    /// Webhooks given up, by reason.
    pub dead: Vec<(&'static str, u64)>,
}

/// Counters of the backend as a whole.
#[derive(Debug, Clone, Copy, Default)]
pub struct BackendCounts {
    /// Times that the refusals of most shops stopped everything.
    pub refusals_opened: u64,
    /// Times that it went down.
    pub went_down: u64,
    /// Times that a delivery succeeded after it was down or refused everything.
    pub came_back: u64,
}

/// A lane of which nothing is sent.
#[derive(Debug, Clone, Copy)]
pub struct BlockedLane {
    /// Hash of the lane.
    pub lane: u64,
    /// Hash of its shop.
    pub shop: u64,
    /// Reason.
    pub reason: Blocked,
    /// Webhooks of it that are indexed.
    pub indexed: u32,
    /// Webhooks of it in chunks.
    pub stored: u64,
}

/// State of the core.
#[derive(Debug, Clone)]
pub struct Status {
    /// Deliveries under way.
    pub in_flight: usize,
    /// Deliveries that may be under way.
    pub limit: usize,
    /// Whether everything is paused: by an operator, or because the backend is stopped.
    pub is_paused: bool,
    /// Whether the backend refuses most of what it gets.
    pub is_refusing: bool,
    /// Whether the backend is down.
    pub is_down: bool,
    /// Whether nothing more is read for want of room.
    pub is_index_full: bool,
    /// Memory of the index, in bytes.
    pub index_bytes: usize,
    /// Lanes of which something waits.
    pub lanes: usize,
    /// Webhooks in chunks.
    pub stored: u64,
    /// Lanes of which nothing is sent, in all.
    pub blocked_lanes: usize,
    /// The largest of them.
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

impl<C: Content> Core<C> {
    /// Counters since the leader began.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// State of the core. Looks at every lane.
    pub fn status(&self) -> Status {
        let now = self.session.now.at;
        let limit = match self.backend.allows(now) {
            Allowed::Nothing => 0,
            Allowed::Probe => self.limiter.concurrency(now).min(1),
            Allowed::All => self.limiter.concurrency(now),
        };
        let mut blocked = Vec::new();
        for (_, lane) in self.queue.lanes.iter() {
            let stored = lane.stored.as_ref().map_or(0, |stored| stored.waiting);
            if !self.is_blocked(lane)
                || (lane.window.count + lane.window.replays == 0 && stored == 0)
            {
                continue;
            }
            let reason = self.blocked_by(lane);
            let shop = self.queue.shops.get(lane.shop).map_or(0, |shop| shop.hash);
            let indexed = lane.window.count + lane.window.replays;
            blocked.push(BlockedLane { lane: lane.hash, shop, reason, indexed, stored });
        }
        let blocked_lanes = blocked.len();
        blocked.sort_unstable_by_key(|lane| {
            std::cmp::Reverse(lane.stored.max(u64::from(lane.indexed)))
        });
        blocked.truncate(LISTED_MAX);
        Status {
            in_flight: self.attempts.len(),
            limit,
            is_paused: limit == 0 || self.controls.pauses.is_all() || self.backend.is_stopped(),
            is_refusing: self.backend.is_refusing(),
            is_down: self.backend.is_down(),
            is_index_full: self.session.is_index_full,
            index_bytes: self.index_bytes(),
            lanes: self.queue.lanes.iter().len(),
            stored: self.queue.lanes.waiting(),
            blocked_lanes,
            blocked,
        }
    }
}
