//! Reports the status of the core.

use crate::classified::Content;
use crate::state::Core;
use crate::state::backend::Allowed;
use crate::status::{BlockedLane, Counts, Status};
use crate::steps::{cut, gate};

/// Most blocked lanes that are listed.
const LISTED_MAX: usize = 16;

impl<C: Content> Core<C> {
    /// Counters since the leader began.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the state of the core. Scans every lane.
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
            if !gate::is_blocked(self, lane)
                || (lane.window.count + lane.window.replays == 0 && stored == 0)
            {
                continue;
            }
            let reason = gate::blocked_by(self, lane);
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
            is_index_full: self.session.is_index_full && self.queue.bytes() >= cut::full(self),
            index_bytes: self.queue.bytes(),
            lanes: self.queue.lanes.iter().len(),
            stored: self.queue.lanes.waiting(),
            stubs_expiring: self.queue.expiry.stubs.expiring(self.session.now.wall_ms),
            blocked_lanes,
            blocked,
        }
    }
}
