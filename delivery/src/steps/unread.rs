//! Reads lanes up to their recorded leads although the index has no room, one lane at a time.
//!
//! A window may be cut before a recorded lead. Its resource then waits until the lane is read up to
//! the lead again, and for that there may never be room.

use std::collections::HashSet;
use std::time::Duration;

use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::state::Core;
use crate::state::index::{LaneKey, ResourceKey};
use crate::state::lane::Lane;
use crate::state::queue_view::{QueueView, UNREAD_FEW};
use crate::state::resource::HeadState;
use crate::steps::{cut, gate};
use crate::turn::Blocked;

/// Time between two choices of the lane, if many resources wait for their leads.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Time in which a lane that was read up to a lead is not cut, so that the lead has its turn.
const TURN_WITHIN: Duration = Duration::from_secs(2);

/// Chooses the lane that is read past the limit of the index and not cut meanwhile.
pub(crate) fn choose_lane<C: Content>(core: &mut Core<C>) {
    let now = core.session.now.at;
    let unread = &core.queue.unread;
    let is_many = unread.resources.len() > UNREAD_FEW;
    if (unread.lane.is_none() && (unread.resources.is_empty() || cut::has_room(core, true)))
        || (is_many && now < unread.looks_at)
    {
        return;
    }
    let waiting = lanes_unread(&core.queue);
    let before = unread.lane.and_then(|key| Some((key, core.queue.lanes.get(key)?)));
    let is_read_on = before.is_some_and(|(key, lane)| {
        waiting.contains(&key) && is_idle(lane) && !is_paused(core, lane)
    });
    let has_turn = before.is_some_and(|(_, lane)| {
        !lane.flow.is_at_work() && !lane.ready.is_empty() && now < unread.until
    });
    let last = unread.lane;
    let unread = &mut core.queue.unread;
    unread.looks_at = now + LOOK_EVERY;
    if is_read_on {
        unread.until = now + TURN_WITHIN;
    }
    if is_read_on || has_turn {
        return;
    }
    let may_go = |key: &LaneKey| {
        let lane = core.queue.lanes.get(*key);
        lane.is_some_and(|lane| is_idle(lane) && is_open(core, lane))
    };
    core.queue.unread.lane = next_after(last, waiting.into_iter().filter(may_go));
    core.queue.unread.until = now + TURN_WITHIN;
}

/// The lane whose turn is after that of `last`.
fn next_after(last: Option<LaneKey>, lanes: impl Iterator<Item = LaneKey>) -> Option<LaneKey> {
    lanes.min_by_key(|lane| (last.is_some_and(|last| *lane <= last), *lane))
}

/// Lanes that hold what a resource waits for: its own or, with two key schemes, others of its shop.
fn lanes_unread(queue: &QueueView) -> HashSet<LaneKey> {
    let mut waiting = HashSet::new();
    for resource in &queue.unread.resources {
        if let Some((lane, lead)) = unread_lead(queue, *resource) {
            let shop = queue.lanes.get(lane).and_then(|lane| queue.shops.get(lane.shop));
            let mixed = shop.filter(|shop| shop.is_mixed());
            let lanes = mixed.map_or(std::slice::from_ref(&lane), |shop| &shop.lanes);
            let is_unread = |key: &&LaneKey| {
                queue.lanes.get(**key).is_some_and(|lane| !lane.is_indexed_up_to(lead))
            };
            waiting.extend(lanes.iter().filter(is_unread));
        }
    }
    waiting
}

/// Lane and recorded lead of a resource that waits for its lead.
fn unread_lead(queue: &QueueView, resource: ResourceKey) -> Option<(LaneKey, Position)> {
    let about = queue.index.resource(resource)?;
    let lead = *queue.leads.get(&about.hash)?;
    (about.state == HeadState::Unread).then_some((queue.index.lane(resource)?, lead))
}

/// True if nothing of a lane can be sent before more of it is indexed.
fn is_idle(lane: &Lane) -> bool {
    lane.ready.is_empty() && !lane.flow.is_at_work()
}

fn is_paused<C: Content>(core: &Core<C>, lane: &Lane) -> bool {
    gate::shop_gate(core, lane.shop) == Err(Blocked::ShopPaused)
}

/// True if a lead could be sent now, as far as its shop and lane are concerned.
fn is_open<C: Content>(core: &Core<C>, lane: &Lane) -> bool {
    let now = core.session.now.at;
    gate::shop_gate(core, lane.shop).is_ok()
        && lane.breaker.probe_at().is_none_or(|at| now >= at)
        && lane.flow.suspect.is_none_or(|suspect| now >= suspect.until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_have_their_turn_one_after_the_other() {
        let after = |last| next_after(last, [7, 2, 5].into_iter());
        assert_eq!([None, Some(2), Some(3), Some(7)].map(after), [2, 5, 5, 2].map(Some));
        assert_eq!(next_after(Some(1), std::iter::empty()), None);
    }
}
