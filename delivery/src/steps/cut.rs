//! Cuts the newest webhooks off windows when the index is full.

use std::time::Duration;

use crate::classified::Content;
use crate::state::Core;
use crate::state::index::{LaneKey, NodeKey, ResourceKey, Window, usize_of};
use crate::state::lane::{Lane, Rest};
use crate::state::queue_view::QueueView;
use crate::state::resource::HeadState;
use crate::state::retry::key_of_head;
use crate::steps::{gate, heads};
use crate::turn::Blocked;

/// A lane that flows is chosen for a cut if its window holds more than 1/`LARGE_PART` of the index, or
/// more than 1/`LONG_PART` while slots are free: then what is indexed is slower than the backend.
const LARGE_PART: usize = 16;
const LONG_PART: usize = 64;

/// A window with more than 1/`LOW_PART` of the index is not filled again: it would soon be cut.
const LOW_PART: usize = 128;
const _: () = assert!(LONG_PART < LOW_PART, "what is left of a cut is not filled at once");

/// Time between two scans for windows to cut. It grows by the same time for every [`CUT_LANES`]
/// lanes, because a scan goes through all of them.
const CUT_EVERY: Duration = Duration::from_millis(20);

/// The same while the index is not full and a lane waits for room.
const CUT_UNFILLED_EVERY: Duration = Duration::from_secs(1);

const CUT_LANES: u32 = 10_000;

/// Approximate bytes of one indexed webhook.
pub(crate) const WEBHOOK_BYTES: usize = 150;

/// The index counts as full with 1/`FILL_PART` left, which is for lanes of which nothing else can be sent.
/// In the turn of lanes that wait for room, the main stream leaves as much to them.
const FILL_PART: usize = 16;

/// Time after a lane had to wait in which others may be found that wait, too.
const REFILL_DUE_FOR: Duration = Duration::from_secs(2);

/// Time for which slots must be free.
const FREE_FOR: Duration = Duration::from_secs(1);

/// Time between two scans for windows in which most webhooks wait for retries. A scan goes through
/// all of them.
const STUCK_EVERY: Duration = Duration::from_secs(1);

/// Time after which such a window is filled again. The webhooks that follow may be retries, too.
const REFILL_AFTER: Duration = Duration::from_secs(10);

/// True if windows may be filled. This limit is above the size that a cut leaves and below the
/// size that causes one. Windows of blocked lanes leave the rest to lanes that can flow.
pub(crate) fn has_room<C: Content>(core: &Core<C>, is_blocked: bool) -> bool {
    let eighths = if is_blocked { 6 } else { 7 };
    core.queue.bytes() < core.config.index_bytes / 8 * eighths
}

/// Number of webhooks up to which a window is filled again.
pub(crate) fn low<C: Content>(core: &Core<C>) -> u32 {
    let part = core.config.index_bytes / WEBHOOK_BYTES / LOW_PART;
    core.config.tuning.window_low.min(u32::try_from(part).unwrap_or(u32::MAX))
}

/// True if a window may be filled. Windows of lanes that are not blocked have room beyond that limit in
/// every other second while one waits for it, even if the index is full and nothing else of the lane can
/// be sent.
pub(crate) fn may_fill<C: Content>(core: &Core<C>, lane: &Lane, is_blocked: bool) -> bool {
    let limit = if lane.is_idle() { core.config.index_bytes } else { full(core) };
    // One read at a time: nobody knows how much it brings. That of the lane past the limit does not count.
    let past = core.queue.unread.reading.and_then(|key| core.queue.lanes.get(key));
    let past = usize::from(past.is_some_and(|lane| lane.reading.is_some()));
    let is_read = core.reading.chunks.under_way() + core.reading.rests.len() > past;
    let is_next = !is_blocked && is_refill_turn(core) && core.queue.bytes() < limit && !is_read;
    is_next || has_room(core, is_blocked)
}

/// Size at which the index is full, in bytes.
pub(crate) fn full<C: Content>(core: &Core<C>) -> usize {
    core.config.index_bytes - core.config.index_bytes / FILL_PART
}

/// True in every other second while a lane that could be sent waits for room. Then the main stream leaves
/// some to such lanes. Otherwise either would take all that becomes free.
fn is_refill_turn<C: Content>(core: &Core<C>) -> bool {
    let now = core.session.now.at;
    now < core.session.refill_due_until && now.as_secs() % 2 == 1
}

/// Notes that a lane that could be sent waits for room.
pub(crate) fn note_refill_due<C: Content>(core: &mut Core<C>) {
    core.session.is_refill_due = true;
    core.session.refill_due_until = core.session.now.at + REFILL_DUE_FOR;
}

/// Cuts windows when the index is full. Windows of blocked lanes are cut first, then windows
/// that hold much of the index, and then windows that hold mostly retries. If nothing can be
/// cut, no more is read until something is settled. If a lane that could flow waits for room, only
/// windows of blocked lanes and of retries are cut, before the index is full.
pub(crate) fn make_room<C: Content>(core: &mut Core<C>) {
    let full = full(core);
    let now = core.session.now.at;
    let is_refill_due = std::mem::take(&mut core.session.is_refill_due);
    if core.queue.bytes() >= full {
        cut_windows(core, true);
    } else if is_refill_due && now >= core.session.looks.unfilled_at && !has_room(core, false) {
        core.session.looks.unfilled_at = now + every(core, CUT_UNFILLED_EVERY);
        cut_windows(core, false);
    }
    let limit = if is_refill_turn(core) { full - full / FILL_PART } else { full };
    core.session.is_index_full = core.queue.bytes() >= limit;
}

/// Time between two scans of all lanes.
pub(crate) fn every<C: Content>(core: &Core<C>, time: Duration) -> Duration {
    let lanes = u32::try_from(core.queue.lanes.iter().len()).unwrap_or(u32::MAX);
    time + time * (lanes / CUT_LANES)
}

fn cut_windows<C: Content>(core: &mut Core<C>, is_full: bool) {
    cut_blocked(core, is_full);
    if !has_room(core, false) {
        cut_stuck(core);
    }
}

/// True if slots are free: what is indexed is slower than the backend.
fn are_slots_free<C: Content>(core: &Core<C>) -> bool {
    core.attempts.were_slots_free_since(core.session.now.at.saturating_sub(FREE_FOR))
}

/// Cuts windows of blocked lanes and, if the index is full, large windows. While the backend is
/// stopped, everything is blocked. Then it cuts windows once every lane that waits was probed in
/// vain: the stream may hold a healthy one, which shows that the backend is not down.
fn cut_blocked<C: Content>(core: &mut Core<C>, is_full: bool) {
    let most = core.config.index_bytes;
    let now = core.session.now.at;
    if now < core.session.looks.cut_at {
        return;
    }
    core.session.looks.cut_at = now + every(core, CUT_EVERY);
    let is_stopped = core.backend.is_stopped();
    if is_stopped && has_unfailed(core) {
        return;
    }
    let part = if are_slots_free(core) { LONG_PART } else { LARGE_PART };
    let large = u32::try_from(most / WEBHOOK_BYTES / part).unwrap_or(u32::MAX);
    let mut candidates: Vec<(bool, u32, LaneKey)> = Vec::new();
    for (key, lane) in core.queue.lanes.iter() {
        let count = lane.window.count;
        let is_blocked = count > 1 && (is_stopped || gate::is_blocked(core, lane));
        if is_blocked || (is_full && count > large) {
            candidates.push((is_blocked, count, key));
        }
    }
    candidates.sort_unstable_by(|a, b| b.cmp(a));
    shed_rows(core);
    for (is_blocked, _, key) in candidates {
        let least = if is_blocked { 0 } else { large };
        while is_over_cut(core) && is_longer(core, key, least) && cut(core, key, Duration::ZERO) {}
    }
    shed_rows(core);
}

fn is_longer<C: Content>(core: &Core<C>, key: LaneKey, least: u32) -> bool {
    core.queue.lanes.get(key).is_some_and(|lane| lane.window.count > least)
}

/// True if the backend may be probed with a lane that has not failed since it was stopped.
fn has_unfailed<C: Content>(core: &Core<C>) -> bool {
    let stopped_at = core.backend.stopped_at();
    let is_probe = |lane: &Lane| lane.is_unfailed(stopped_at) && !lane.ready.is_empty();
    core.queue.lanes.iter().any(|(_, lane)| {
        let shop = gate::shop_gate(core, lane.shop);
        is_probe(lane) && !matches!(shop, Err(Blocked::ShopPaused | Blocked::ShopRate))
    })
}

/// Cuts windows in which most webhooks wait for retries, although other webhooks of their lanes
/// succeed.
fn cut_stuck<C: Content>(core: &mut Core<C>) {
    let now = core.session.now.at;
    if now < core.session.looks.stuck_at {
        return;
    }
    core.session.looks.stuck_at = now + STUCK_EVERY;
    let index = &core.queue.index;
    let waits =
        |resource| matches!(index.state(resource), Some(HeadState::Retrying | HeadState::Unread));
    let is_stuck = |lane: &Lane| {
        let count = usize_of(lane.window.count);
        let others_max = count.saturating_sub(count / 2 + 1);
        let mut others = index.nodes.window(&lane.window).filter(|(_, node)| !waits(node.resource));
        count > 1 && others.nth(others_max).is_none()
    };
    let stuck = core.queue.lanes.iter().filter(|(_, lane)| is_stuck(lane));
    let stuck = stuck.map(|(key, _)| {
        // Other resources wait until more of this lane is indexed.
        let is_awaited = must_know_more(core, key);
        (key, now + if is_awaited { STUCK_EVERY } else { REFILL_AFTER })
    });
    let stuck: Vec<_> = stuck.collect();
    let mut has_cut = true;
    while has_cut {
        has_cut = false;
        for (key, refill_at) in &stuck {
            has_cut |= is_over_cut(core) && cut(core, *key, *refill_at);
        }
    }
    shed_rows(core);
    // Resources of windows that were cut are scheduled again when they are read.
    let index = &core.queue.index;
    core.queue.retries.tidy_due(|resource| {
        let is_retrying = index.state(resource) == Some(HeadState::Retrying);
        key_of_head(index, resource).filter(|_| is_retrying)
    });
}

/// True if the index holds more than a cut leaves.
fn is_over_cut<C: Content>(core: &Core<C>) -> bool {
    core.queue.bytes() > core.config.index_bytes / 4 * 3
}

/// Drops the rows of chunks of which nothing is indexed. Redis must hold their bits, and no
/// read or settlement of the lane may be under way.
fn shed_rows<C: Content>(core: &mut Core<C>) {
    let settling = core.ledger.settling.as_ref();
    let is_settling = |key: &LaneKey| settling.is_some_and(|one| one.lanes.contains(key));
    let lanes = core.queue.lanes.iter();
    let is_still = |lane: &Lane| lane.reading.is_none() && lane.dropping == 0;
    let cut = lanes.filter(|(_, lane)| lane.rest.is_some() && is_still(lane));
    let keys: Vec<LaneKey> = cut.map(|(key, _)| key).filter(|key| !is_settling(key)).collect();
    keys.into_iter().for_each(|key| core.queue.lanes.shed_rows(key));
}

/// True if more of a lane must be indexed before its webhooks, or those of its shop, can be
/// sent: up to a recorded lead, or up to a barrier. That cannot wait for room, because there
/// may never be any.
pub(crate) fn must_know_more<C: Content>(core: &Core<C>, key: LaneKey) -> bool {
    let Some(lane) = core.queue.lanes.get(key) else { return false };
    if !lane.is_idle() {
        return false;
    }
    let barriers = core.queue.shops.get(lane.shop).and_then(|shop| shop.barriers.as_ref());
    let first = barriers.and_then(|barriers| barriers.positions.first());
    let is_barrier_after = first.is_some_and(|first| !lane.is_indexed_up_to(*first));
    core.queue.unread.reading == Some(key) || (is_barrier_after && !lane.is_failing())
}

/// True if what is ready of a lane can be sent soon.
pub(crate) fn may_send<C: Content>(core: &Core<C>, lane: &Lane) -> bool {
    !core.backend.is_stopped() && !lane.is_failing() && gate::opens_soon(core, lane.shop)
}

/// Cuts the newer half off a window. It is filled again at `refill_at`, or when it is empty.
/// Returns true if that made room.
pub(crate) fn cut<C: Content>(core: &mut Core<C>, key: LaneKey, refill_at: Duration) -> bool {
    let Some(lane) = core.queue.lanes.get(key) else { return false };
    let is_kept = core.queue.unread.kept.contains(&key);
    if lane.reading.is_some() || lane.window.count < 2 || is_kept {
        return false;
    }
    let may_send = may_send(core, lane);
    let keep = lane.window.count / 2;
    let newest = core.queue.index.nodes.back(&lane.window).map(|(_, node)| node.position);
    let mut dropped = Vec::new();
    while let Some(resource) = drop_newest(core, key, keep, may_send) {
        dropped.push(resource);
    }
    if dropped.is_empty() {
        return false;
    }
    let Some(lane) = core.queue.lanes.get_mut(key) else { return false };
    let after = core.queue.index.nodes.back(&lane.window).map(|(_, node)| node.position);
    let after = after.unwrap_or_default();
    let rest = lane.rest.as_ref();
    let last = rest.map(|rest| rest.last).max(newest).unwrap_or_default();
    let try_at = rest.map(|rest| rest.try_at).unwrap_or_default();
    lane.rest = Some(Box::new(Rest { after, last, refill_at, try_at }));
    dropped.dedup();
    dropped.into_iter().for_each(|resource| wait_for_lead(core, resource));
    let index = &core.queue.index;
    if let Some(lane) = core.queue.lanes.get_mut(key) {
        lane.ready.retain(|position, resource| index.is_ready(key, resource, position));
    }
    core.counts.cuts += 1;
    core.queue.lanes.list(key);
    true
}

/// Makes a resource wait that was ready, and whose recorded lead was cut off.
fn wait_for_lead<C: Content>(core: &mut Core<C>, resource: ResourceKey) {
    let now = core.session.now.at;
    if core.queue.index.state(resource) == Some(HeadState::Ready)
        && let Some(head) = core.queue.index.head(resource)
        && core.queue.state_of(resource, head, now) == HeadState::Unread
    {
        core.queue.place_by_head(resource, now);
    }
}

/// Takes the newest webhook out of a window that holds more than `keep`. Returns its resource.
fn drop_newest<C: Content>(
    core: &mut Core<C>,
    key: LaneKey,
    keep: u32,
    may_send: bool,
) -> Option<ResourceKey> {
    let lane = core.queue.lanes.get(key).filter(|lane| lane.window.count > keep)?;
    let node = loose_end(&core.queue, &lane.window, may_send)?;
    let about = *core.queue.index.node(node);
    // A replay of the webhook has the same position.
    let is_head = |core: &Core<C>| {
        core.queue.index.resource(about.resource).is_some_and(|resource| resource.head == node)
    };
    if is_head(core) || core.queue.index.lead(about.resource) == Some(node) {
        heads::undo_choice(core, about.resource);
    }
    let is_head = is_head(core);
    if is_head {
        heads::leave(core, about.resource, (about.position, key));
    }
    if let Some(lane) = core.queue.lanes.get_mut(key) {
        core.queue.index.remove(node, &mut lane.window);
    }
    if !core.ledger.retries.contains_key(&about.position) {
        // The retry state is read again with the chunk.
        core.queue.retries.shed(about.position);
    }
    if is_head {
        // A replay that arrived during an attempt waits after it.
        core.queue.place_by_head(about.resource, core.session.now.at);
    }
    Some(about.resource)
}

/// The newest webhook of a window, unless its resource is at work, or is sent next and has a recorded
/// lead that stands for it.
fn loose_end(queue: &QueueView, window: &Window, may_send: bool) -> Option<NodeKey> {
    let (key, node) = queue.index.nodes.back(window)?;
    let resource = queue.index.resource(node.resource)?;
    let recorded = queue.leads.get(&resource.hash);
    let is_next = may_send && resource.state == HeadState::Ready;
    let is_fixed = resource.state.is_at_work()
        || (is_next && recorded.is_some_and(|lead| node.position <= *lead));
    (!is_fixed).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Loaded;
    use crate::state::resource::Step;
    use crate::steps::sample::{self, at};

    #[test]
    fn a_cut_leaves_the_rest_of_a_chosen_run_in_order() {
        // Of two lanes of one shop, as after a change of the key scheme: the lane of the head is cut, or
        // that of the lead.
        for (cut_lane, left) in [(0, vec![25, 30]), (1, vec![20, 25, 28])] {
            let leads = vec![(7, at(30))];
            let mut core = sample::core(1_000_000, Loaded { leads, ..Loaded::default() });
            core.queue.main.read_to = at(100).entry();
            let lanes @ [one, other] = sample::lanes(&mut core);
            sample::add(&mut core, one, 5, at(10), false);
            sample::add(&mut core, other, 6, at(11), false);
            let resource = sample::add(&mut core, one, 7, at(20), false);
            sample::add(&mut core, one, 7, at(28), false);
            sample::add(&mut core, one, 7, at(25), true);
            sample::add(&mut core, other, 7, at(30), false);
            assert_eq!(core.queue.index.lead_up_to(resource, at(30), |_| false), 3);
            core.queue.step(resource, Step::Blocked(HeadState::Retrying));
            assert!(cut(&mut core, lanes[cut_lane], Duration::ZERO));
            assert_eq!(sample::order(&core, resource), left);
            let index = &core.queue.index;
            assert_eq!(index.lead(resource), index.all_of(resource).first().copied());
        }
    }
}
