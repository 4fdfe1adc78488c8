//! Reads lanes up to their recorded leads although the index has no room.
//!
//! A window may be cut before a recorded lead. Its resource then waits until the lane is read up to
//! the lead again, and for that there may never be room. So some lanes are read past the limit of the
//! index and are not cut until the lead was sent. Together they take 1/[`PART`] of the index, or one
//! window.

use std::collections::BTreeSet;
use std::time::Duration;

use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::state::Core;
use crate::state::index::{LaneKey, ResourceKey, usize_of};
use crate::state::lane::Lane;
use crate::state::queue_view::{QueueView, UNREAD_FEW};
use crate::state::resource::HeadState;
use crate::steps::{cut, gate};

/// These lanes may take 1/`PART` of the index.
const PART: usize = 8;

/// Time between two choices, if many resources wait for their leads.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Chooses the lanes that are read past the limit of the index: one more with each look.
pub(crate) fn choose_lanes<C: Content>(core: &mut Core<C>) {
    let now = core.session.now.at;
    let unread = &core.queue.unread;
    let is_idle_list = unread.resources.is_empty() || cut::has_room(core, true);
    let is_many = unread.resources.len() > UNREAD_FEW;
    if (unread.lanes.is_empty() && is_idle_list) || (is_many && now < unread.looks_at) {
        return;
    }
    let waiting = lanes_unread(&core.queue);
    let mut chosen = unread.lanes.clone();
    chosen.retain(|key| {
        let lane = core.queue.lanes.get(*key).filter(|lane| is_open(core, lane));
        lane.is_some_and(|lane| {
            // A lane that flows is cut only behind a lead that may be sent.
            let is_sent_next = !lane.ready.is_empty() && !cut::may_send(core, lane);
            let is_read = waiting.contains(key) && lane.ready.is_empty();
            is_read || (is_sent_next && !lane.flow.is_at_work())
        })
    });
    let counts = chosen.iter().filter_map(|key| core.queue.lanes.get(*key));
    let taken: usize = counts.map(|lane| usize_of(lane.window.count)).sum();
    if chosen.is_empty() || taken * cut::WEBHOOK_BYTES < core.config.index_bytes / PART {
        let may_go = |key: &LaneKey| {
            let lane = core.queue.lanes.get(*key);
            lane.is_some_and(|lane| is_idle(lane) && is_open(core, lane)) && !chosen.contains(key)
        };
        let next = next_after(unread.last, waiting.into_iter().filter(may_go));
        core.queue.unread.last = next.or(core.queue.unread.last);
        chosen.extend(next);
    }
    core.queue.unread.lanes = chosen;
    core.queue.unread.looks_at = now + LOOK_EVERY;
}

/// The lane whose turn is after that of `last`.
fn next_after(last: Option<LaneKey>, lanes: impl Iterator<Item = LaneKey>) -> Option<LaneKey> {
    lanes.min_by_key(|lane| (last.is_some_and(|last| *lane <= last), *lane))
}

/// Lanes that hold what a resource waits for: its own or, with two key schemes, all of its shop.
fn lanes_unread(queue: &QueueView) -> BTreeSet<LaneKey> {
    let mut waiting = BTreeSet::new();
    for resource in &queue.unread.resources {
        let Some((lane, lead)) = unread_lead(queue, *resource) else { continue };
        let shop = queue.lanes.get(lane).and_then(|lane| queue.shops.get(lane.shop));
        match shop.filter(|shop| shop.is_mixed()) {
            Some(shop) => waiting.extend(&shop.lanes),
            // If the stream is not read up to the lead, the lane is not to be read either.
            None => {
                let known = queue.lanes.get(lane).is_none_or(|lane| lane.is_indexed_up_to(lead));
                waiting.extend((!known).then_some(lane));
            }
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

/// True if a lead could be sent soon, as far as its shop and lane are concerned.
fn is_open<C: Content>(core: &Core<C>, lane: &Lane) -> bool {
    let now = core.session.now.at;
    gate::opens_soon(core, lane.shop)
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
