//! Active time: the time that counts for retries. It stands still while the backend is stopped. For
//! a webhook, time in which an operator paused it does not count.
//!
//! Moments are on the clock that starts with the leader and runs evenly. The start of that clock on
//! Redis' clock is corrected when Redis' clock goes back.

use std::time::Duration;

use spillway_webhook::position::Position;
use spillway_webhook::{Spans, StoredRetry};

use crate::classified::Content;
use crate::state::Core;
use crate::state::index::{LaneKey, ResourceKey};
use crate::state::lane_clock::AcceptTime;
use crate::state::retry::RetryState;

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

/// Retry state of a webhook as of now.
pub(crate) fn stored_now<C: Content>(
    core: &Core<C>,
    lane: LaneKey,
    state: &RetryState,
) -> StoredRetry {
    let time = time_of(core, lane, About::Shop, state.since, active(core));
    state.stored(time, now_ms(core))
}

/// Active time now.
pub(crate) fn active<C: Content>(core: &Core<C>) -> Duration {
    core.backend.active(core.session.now.at)
}

/// Active time at a moment, given in milliseconds since the Unix epoch; zero before this
/// leader.
pub(crate) fn active_when<C: Content>(core: &Core<C>, ms: u64) -> Duration {
    let moment = Duration::from_millis(ms.saturating_sub(began_ms(core)));
    core.backend.active_at(moment, core.session.now.at)
}

/// Time at which a webhook was accepted.
pub(crate) fn accepted<C: Content>(core: &Core<C>, position: Position) -> AcceptTime {
    let ms = position.ms;
    AcceptTime { ms, active: active_when(core, ms), is_before: ms < began_ms(core) }
}

/// Known facts about a webhook that is being sent.
pub(crate) fn about_sent<C: Content>(
    core: &Core<C>,
    resource: ResourceKey,
    position: Position,
) -> About<'_, C> {
    match core.ledger.sent.get(&resource) {
        Some((content, index)) => About::Bytes(content, *index, position),
        None => About::Shop,
    }
}

/// Part of an active time that counts for a webhook of a lane.
pub(crate) fn time_of<C: Content>(
    core: &Core<C>,
    lane: LaneKey,
    about: About<'_, C>,
    from: Duration,
    to: Duration,
) -> Duration {
    parts_of(core, lane, about, from, to).into_iter().map(|(from, to)| to - from).sum()
}

fn parts_of<C: Content>(
    core: &Core<C>,
    lane: LaneKey,
    about: About<'_, C>,
    from: Duration,
    to: Duration,
) -> Vec<(Duration, Duration)> {
    let shop = core.queue.lanes.get(lane).and_then(|lane| core.queue.shops.get(lane.shop));
    let shop = shop.map(|shop| shop.hash);
    core.controls.pauses.unpaused(from, to, shop, |filter| match about {
        About::Bytes(content, index, at) => content.is_matched(index, at, filter),
        About::Shop => C::shop_of(filter).is_none_or(|only| shop.is_none_or(|shop| shop == only)),
    })
}

/// Time since a lane's first failure in which no delivery of it succeeded. Webhooks that wait
/// for one that a filter pauses cannot be sent either, so filters of the shop count as pauses
/// of the lane.
pub(crate) fn failing<C: Content>(core: &Core<C>, key: LaneKey) -> Duration {
    let lane = core.queue.lanes.get(key);
    let active = active(core);
    let time = |from, to| time_of(core, key, About::Shop, from, to);
    lane.map_or(Duration::ZERO, |lane| lane.clock.failing(active, time))
}

/// The failing times as wall-clock times, for the next leader.
pub(crate) fn failing_spans<C: Content>(core: &Core<C>, key: LaneKey) -> Spans {
    let Some(lane) = core.queue.lanes.get(key) else { return Spans::default() };
    lane.clock.spans(active(core), |from, to| {
        let parts = parts_of(core, key, About::Shop, from, to).into_iter();
        let pieces = parts.flat_map(|(from, to)| core.backend.pieces(from, to));
        pieces.map(|(moment, time)| (ms_at(core, moment), time)).collect()
    })
}

/// Current time on the leader's clock, rounded up to milliseconds since the Unix epoch.
fn now_ms<C: Content>(core: &Core<C>) -> u64 {
    ms_at(core, core.session.now.at)
}

fn ms_at<C: Content>(core: &Core<C>, moment: Duration) -> u64 {
    let ms = moment.as_nanos().div_ceil(1_000_000);
    began_ms(core).saturating_add(u64::try_from(ms).unwrap_or(u64::MAX))
}

fn began_ms<C: Content>(core: &Core<C>) -> u64 {
    core.session.began_ms.unwrap_or_default()
}
