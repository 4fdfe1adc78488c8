//! Active time: the time that counts for retries. It stands still while the backend is stopped. For
//! a webhook, time in which an operator paused it does not count.
//!
//! Moments are on the clock that starts with the leader and runs evenly. The start of that clock on
//! Redis' clock is corrected when Redis' clock goes back.

use std::time::Duration;

use spillway_webhook::Spans;
use spillway_webhook::position::Position;

use crate::core::Core;
use crate::index::{LaneKey, ResourceKey};
use crate::lane_clock::AcceptTime;
use crate::sorted::Content;

/// Known facts about a webhook whose time is counted.
#[derive(Debug)]
pub(crate) enum About<'a, C> {
    /// The bytes are known: the record at this index, accepted at this position.
    Bytes(&'a C, u32, Position),
    /// Only the shop is known. Each filter that may match a webhook of the shop counts as a pause,
    /// so that rather too little time counts than too much.
    Shop,
}

impl<C> Clone for About<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for About<'_, C> {}

impl<C: Content> Core<C> {
    /// Active time now.
    pub(crate) fn active(&self) -> Duration {
        self.backend.active(self.session.now.at)
    }

    /// Active time at a moment, given in milliseconds since the Unix epoch; zero before this
    /// leader.
    pub(crate) fn active_when(&self, ms: u64) -> Duration {
        let moment = Duration::from_millis(ms.saturating_sub(self.began_ms()));
        self.backend.active_at(moment, self.session.now.at)
    }

    /// Time at which a webhook was accepted.
    pub(crate) fn accepted(&self, position: Position) -> AcceptTime {
        let ms = position.ms;
        AcceptTime { ms, active: self.active_when(ms), is_before: ms < self.began_ms() }
    }

    /// Known facts about a webhook that is being sent.
    pub(crate) fn about_sent(&self, resource: ResourceKey, position: Position) -> About<'_, C> {
        match self.ledger.sent.get(&resource) {
            Some((content, index)) => About::Bytes(content, *index, position),
            None => About::Shop,
        }
    }

    /// Part of an active time that counts for a webhook of a lane.
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

    /// Time since a lane's first failure in which no delivery of it succeeded. Webhooks that wait
    /// for one that a filter pauses cannot be sent either, so filters of the shop count as pauses
    /// of the lane.
    pub(crate) fn failing(&self, key: LaneKey) -> Duration {
        let lane = self.queue.lanes.get(key);
        let active = self.active();
        let time = |from, to| self.time_of(key, About::Shop, from, to);
        lane.map_or(Duration::ZERO, |lane| lane.clock.failing(active, time))
    }

    /// The failing times as wall-clock times, for the next leader.
    pub(crate) fn failing_spans(&self, key: LaneKey) -> Spans {
        let Some(lane) = self.queue.lanes.get(key) else { return Spans::default() };
        lane.clock.spans(self.active(), |from, to| {
            let parts = self.parts_of(key, About::Shop, from, to).into_iter();
            let pieces = parts.flat_map(|(from, to)| self.backend.pieces(from, to));
            pieces.map(|(moment, time)| (self.ms_at(moment), time)).collect()
        })
    }

    /// Current time on the leader's clock, rounded up to milliseconds since the Unix epoch.
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
