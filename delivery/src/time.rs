//! Active time: it counts towards retries, and stands still while the backend is stopped. For a webhook, time in which
//! an operator paused it counts for nothing.
//!
//! Moments are on the clock of the leader's beginning, which goes on evenly; where that was on Redis' clock is corrected
//! when Redis' clock goes back.

use std::time::Duration;

use spillway_webhook::Spans;
use spillway_webhook::position::Position;

use crate::core::Core;
use crate::index::{LaneKey, ResourceKey};
use crate::lane_clock::Accepted;
use crate::sorted::Content;

/// What is known of a webhook whose time is counted.
#[derive(Debug)]
pub(crate) enum About<'a, C> {
    /// Its bytes: the record at this index, accepted at this position.
    Bytes(&'a C, u32, Position),
    /// Its shop. Each filter that may match anything of it counts as a pause: less time counts rather than more.
    Shop,
}

impl<C> Clone for About<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for About<'_, C> {}

impl<C: Content> Core<C> {
    /// Time that counts towards retries.
    pub(crate) fn active(&self) -> Duration {
        self.backend.active(self.session.now.at)
    }

    /// What that time was at a moment, given in milliseconds since the Unix epoch; zero before this leader.
    pub(crate) fn active_when(&self, ms: u64) -> Duration {
        let moment = Duration::from_millis(ms.saturating_sub(self.began_ms()));
        self.backend.active_at(moment, self.session.now.at)
    }

    /// When a webhook was accepted.
    pub(crate) fn accepted(&self, position: Position) -> Accepted {
        let ms = position.ms;
        Accepted { ms, active: self.active_when(ms), is_before: ms < self.began_ms() }
    }

    /// What is known of a webhook that is being sent.
    pub(crate) fn about_sent(&self, resource: ResourceKey, position: Position) -> About<'_, C> {
        match self.ledger.sent.get(&resource) {
            Some((content, index)) => About::Bytes(content, *index, position),
            None => About::Shop,
        }
    }

    /// The part of an active time that counts for a webhook of a lane.
    pub(crate) fn time_of(
        &self,
        lane: LaneKey,
        about: About<'_, C>,
        from: Duration,
        to: Duration,
    ) -> Duration {
        self.parts_of(lane, about, from, to).into_iter().map(|(from, to)| to - from).sum()
    }

    fn parts_of(
        &self,
        lane: LaneKey,
        about: About<'_, C>,
        from: Duration,
        to: Duration,
    ) -> Vec<(Duration, Duration)> {
        let shop = self.queue.lanes.get(lane).and_then(|lane| self.queue.shops.get(lane.shop));
        let shop = shop.map(|shop| shop.hash);
        self.controls.pauses.unpaused(from, to, shop, |filter| match about {
            About::Bytes(content, index, at) => content.is_matched(index, at, filter),
            About::Shop => {
                C::shop_of(filter).is_none_or(|only| shop.is_none_or(|shop| shop == only))
            }
        })
    }

    /// Time from a lane's first failure on in which nothing of it succeeded. What waits behind a webhook that a filter
    /// pauses can't be sent either, so filters of its shop are pauses of the lane.
    pub(crate) fn failing(&self, key: LaneKey) -> Duration {
        let (lane, active) = (self.queue.lanes.get(key), self.active());
        let time = |from, to| self.time_of(key, About::Shop, from, to);
        lane.map_or(Duration::ZERO, |lane| lane.clock.failing(active, time))
    }

    /// When that was, for the next leader.
    pub(crate) fn failing_spans(&self, key: LaneKey) -> Spans {
        let Some(lane) = self.queue.lanes.get(key) else { return Spans::default() };
        lane.clock.spans(self.active(), |from, to| {
            let parts = self.parts_of(key, About::Shop, from, to).into_iter();
            let pieces = parts.flat_map(|(from, to)| self.backend.pieces(from, to));
            pieces.map(|(moment, time)| (self.ms_at(moment), time)).collect()
        })
    }

    /// Now on the leader's clock, rounded up to milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.ms_at(self.session.now.at)
    }

    fn ms_at(&self, moment: Duration) -> u64 {
        let ms = moment.as_nanos().div_ceil(1_000_000);
        self.began_ms().saturating_add(u64::try_from(ms).unwrap_or(u64::MAX))
    }

    fn began_ms(&self) -> u64 {
        self.session.began_ms.unwrap_or_default()
    }
}
