//! Cuts the newest webhooks off windows when the index is full.

use std::cell::OnceCell;
use std::time::Duration;

use spillway_webhook::position::Position;

use crate::core::Core;
use crate::index::{IndexedResource, LaneKey, usize_of};
use crate::lane::{Lane, Rest};
use crate::resource::{HeadState, Step};
use crate::sorted::Content;

/// The window of a healthy lane is cut only if it holds more than 1/`LARGE_PART` of the index.
const LARGE_PART: usize = 16;
/// Time between two scans for windows to cut. It grows by the same time for every [`CUT_LANES`]
/// lanes, because a scan goes through all of them.
const CUT_EVERY: Duration = Duration::from_millis(20);
const CUT_LANES: u32 = 10_000;
/// Approximate bytes of one indexed webhook.
const WEBHOOK_BYTES: usize = 150;
/// Time without shrinking after which a full index takes more webhooks as soon as it is not full.
const SHRINKS_WITHIN: Duration = Duration::from_secs(1);
/// Time between two scans for windows in which most webhooks wait for retries. A scan goes through
/// all of them.
const STUCK_EVERY: Duration = Duration::from_secs(1);
/// Time after which such a window is filled again. The webhooks that follow may be retries, too.
const REFILL_AFTER: Duration = Duration::from_secs(10);

impl<C: Content> Core<C> {
    /// True if windows may be filled. This limit is above the size that a cut leaves and below the
    /// size that causes one.
    pub(crate) fn has_room(&self) -> bool {
        self.index_bytes() < self.config.index_bytes / 8 * 7
    }

    /// Cuts windows when the index is full. Windows of blocked lanes are cut first, then windows
    /// that hold much of the index, and then windows that hold mostly retries. If nothing can be
    /// cut, no more is read until something is settled.
    pub(crate) fn make_room(&mut self) {
        let bytes = self.index_bytes();
        let most = self.config.index_bytes;
        if !self.session.is_index_full {
            self.session.shrunk = (bytes, self.session.now.at);
        }
        let is_refill_first = self.session.is_refill_due && self.shrinks(bytes);
        if bytes < if self.session.is_index_full && is_refill_first { most / 8 * 7 } else { most } {
            self.session.is_index_full = false;
            self.session.is_refill_due = false;
            return;
        }
        self.session.is_index_full = true;
        self.cut_blocked();
        if !self.has_room() {
            self.cut_stuck();
        }
        let is_refill_first = is_refill_first && !self.has_room();
        self.session.is_index_full = is_refill_first || self.index_bytes() >= most;
    }

    /// True while a full index shrinks or shrank lately. Otherwise waiting gains nothing.
    fn shrinks(&mut self, bytes: usize) -> bool {
        let now = self.session.now.at;
        if bytes < self.session.shrunk.0 {
            self.session.shrunk = (bytes, now);
        }
        now < self.session.shrunk.1 + SHRINKS_WITHIN
    }

    /// Cuts windows of blocked lanes, and large windows. Cuts none while the backend is stopped,
    /// because then everything is blocked.
    fn cut_blocked(&mut self) {
        let most = self.config.index_bytes;
        let now = self.session.now.at;
        if self.backend.is_stopped() || now < self.session.looks.cut_at {
            return;
        }
        let lanes = u32::try_from(self.queue.lanes.iter().len()).unwrap_or(u32::MAX);
        self.session.looks.cut_at = now + CUT_EVERY + CUT_EVERY * (lanes / CUT_LANES);
        let large = u32::try_from(most / WEBHOOK_BYTES / LARGE_PART).unwrap_or(u32::MAX);
        let mut candidates: Vec<(bool, u32, LaneKey)> = Vec::new();
        for (key, lane) in self.queue.lanes.iter() {
            let count = lane.window.count;
            let is_blocked = count > 1 && self.is_blocked(lane);
            if is_blocked || count > large {
                candidates.push((is_blocked, count, key));
            }
        }
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        self.shed_rows();
        for (_, _, key) in candidates {
            while self.is_over_cut() && self.cut(key, Duration::ZERO) {}
        }
        self.shed_rows();
    }

    /// Cuts windows in which most webhooks wait for retries, although other webhooks of their lanes
    /// succeed.
    fn cut_stuck(&mut self) {
        let now = self.session.now.at;
        if now < self.session.looks.stuck_at {
            return;
        }
        self.session.looks.stuck_at = now + STUCK_EVERY;
        let index = &self.queue.index;
        let is_stuck = |lane: &Lane| {
            let nodes = index.window(&lane.window);
            let waits =
                nodes.filter(|(_, node)| index.state(node.resource) == Some(HeadState::Retrying));
            lane.window.count > 1 && waits.count() > usize_of(lane.window.count) / 2
        };
        let stuck = self.queue.lanes.iter().filter(|(_, lane)| is_stuck(lane));
        let unread = OnceCell::new();
        let stuck = stuck.map(|(key, _)| {
            // Other resources wait until more of this lane is indexed.
            let is_awaited = self.must_know_more(key, &unread);
            (key, now + if is_awaited { STUCK_EVERY } else { REFILL_AFTER })
        });
        let stuck: Vec<_> = stuck.collect();
        let mut has_cut = true;
        while has_cut {
            has_cut = false;
            for (key, refill_at) in &stuck {
                has_cut |= self.is_over_cut() && self.cut(*key, *refill_at);
            }
        }
        self.shed_rows();
        // Resources of windows that were cut are scheduled again when they are read.
        let index = &self.queue.index;
        self.queue.retries.tidy_due(|resource| {
            let is_retrying = index.state(resource) == Some(HeadState::Retrying);
            index.head(resource).filter(|_| is_retrying)
        });
    }

    /// True if the index holds more than a cut leaves.
    fn is_over_cut(&self) -> bool {
        self.index_bytes() > self.config.index_bytes / 4 * 3
    }

    /// Drops the rows of chunks of which nothing is indexed. Redis must hold their bits, and no
    /// read or settlement of the lane may be under way.
    fn shed_rows(&mut self) {
        let settling = self.ledger.settling.as_ref();
        let is_settling = |key: &LaneKey| settling.is_some_and(|one| one.lanes.contains(key));
        let lanes = self.queue.lanes.iter();
        let is_still = |lane: &Lane| lane.reading.is_none() && lane.dropping == 0;
        let cut = lanes.filter(|(_, lane)| lane.rest.is_some() && is_still(lane));
        let keys: Vec<LaneKey> = cut.map(|(key, _)| key).filter(|key| !is_settling(key)).collect();
        keys.into_iter().for_each(|key| self.queue.lanes.shed_rows(key));
    }

    /// True if no webhook of a lane can be delivered at present.
    pub(crate) fn is_blocked(&self, lane: &Lane) -> bool {
        let is_shop_blocked = self.queue.shops.get(lane.shop).is_some_and(|shop| {
            shop.is_stopped
                || shop.paused_until > self.session.now.at
                || shop.barriers.as_ref().is_some_and(|barriers| !barriers.held.is_empty())
        });
        is_shop_blocked || self.is_failing(lane) || (lane.flow.paused > 0 && lane.ready.is_empty())
    }

    /// True if the lane's own failures block it.
    pub(crate) fn is_failing(&self, lane: &Lane) -> bool {
        lane.breaker.is_open() || lane.flow.suspect.is_some() || lane.flow.stalled > 0
    }

    /// Cuts the newer half off a window. It is filled again at `refill_at`, or when it is empty.
    /// Returns true if that made room.
    fn cut(&mut self, key: LaneKey, refill_at: Duration) -> bool {
        let Some(lane) = self.queue.lanes.get(key) else { return false };
        if lane.reading.is_some() || lane.window.count < 2 {
            return false;
        }
        let keep = lane.window.count / 2;
        let newest = self.queue.index.back(&lane.window);
        let mut removed = 0;
        while self.drop_newest(key, keep) {
            removed += 1;
        }
        if removed == 0 {
            return false;
        }
        let Some(lane) = self.queue.lanes.get_mut(key) else { return false };
        let after = self.queue.index.back(&lane.window).unwrap_or_default();
        let last = lane.rest.as_ref().map(|rest| rest.last).max(newest).unwrap_or_default();
        lane.rest = Some(Box::new(Rest { after, last, refill_at }));
        let index = &self.queue.index;
        lane.ready.retain(|position, resource| index.is_ready(key, resource, position));
        self.counts.cuts += 1;
        self.queue.lanes.list(key);
        true
    }

    /// Takes the newest webhook out of a window that holds more than `keep`. Returns true if it was
    /// taken.
    fn drop_newest(&mut self, key: LaneKey, keep: u32) -> bool {
        let Some(lane) = self.queue.lanes.get(key).filter(|lane| lane.window.count > keep) else {
            return false;
        };
        let leads = &self.queue.leads;
        let holds = |resource: &IndexedResource, position: Position| {
            leads.get(&resource.hash).is_some_and(|lead| position <= *lead)
        };
        let Some(node) = self.queue.index.loose_end(&lane.window, holds) else { return false };
        let about = *self.queue.index.node(node);
        let is_head = self.queue.index.head(about.resource) == Some(about.position);
        if is_head {
            self.reading.forget(about.resource);
            let state = self.queue.index.state(about.resource);
            if state == Some(HeadState::Held) {
                self.queue.unhold(key, about.position);
            }
            if state == Some(HeadState::Paused)
                && let Some(lane) = self.queue.lanes.get_mut(key)
            {
                lane.flow.paused = lane.flow.paused.saturating_sub(1);
                self.step(about.resource, Step::Released);
            }
        }
        if let Some(lane) = self.queue.lanes.get_mut(key) {
            self.queue.index.remove(node, &mut lane.window);
        }
        if !self.ledger.retries.contains_key(&about.position) {
            // The retry state is read again with the chunk.
            self.queue.retries.shed(about.position);
        }
        if is_head {
            // A replay that arrived during an attempt waits after it.
            self.release(about.resource);
        }
        true
    }
}
