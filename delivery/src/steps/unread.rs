//! Reads lanes past the limit of the index, one at a time.
//!
//! A window may be cut before a recorded lead. Its resource then waits until the lane is read up to
//! the lead again. Of another lane, that is blocked, only webhooks that fail may be indexed, while those
//! behind them would succeed. For either, there may never be room. So one lane at a time has a place past
//! the limit: it is read on while nothing of it can be sent. A lane up to its lead, which is then not cut
//! until the lead is sent, unless the lane is blocked meanwhile; another one for [`TRY_FOR`]. The next one is
//! chosen while these windows hold less than 1/[`PART`] of the index, or if its shop has two key schemes.

use std::collections::BTreeSet;
use std::time::Duration;

use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::state::Core;
use crate::state::index::{LaneKey, ResourceKey, key_of, usize_of};
use crate::state::lane::Lane;
use crate::state::queue_view::{QueueView, UNREAD_FEW};
use crate::state::resource::HeadState;
use crate::steps::{cut, gate};

/// Below 1/`PART` of the index, another lane is chosen.
const PART: usize = 8;

/// Time for which a lane that waits for a lead keeps the place while something else of it is sent, or
/// waits for a probe.
const BUSY_MAX: Duration = Duration::from_secs(2);

/// Time for which a lane has the place for something to try, and the number of reads in a row that may
/// bring nothing. If what is tried succeeds, more is read.
const TRY_FOR: Duration = Duration::from_secs(2);
const TRY_READS: u32 = 2;

/// Time after which a lane is read again for something to try, if nothing was found. It may hold a million
/// webhooks that a filter pauses.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// Time between two choices, if many resources wait for their leads, and between two scans of the lanes for
/// those to try. The former grows by the same time for every [`LOOK_PART`] of them.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_PART: usize = 10_000;

/// Lanes to try that one scan finds.
const FOUND_MAX: usize = 64;

/// Chooses the lane that is read past the limit of the index, and those that are not cut.
pub(crate) fn choose_lane<C: Content>(core: &mut Core<C>) {
    let now = core.session.now.at;
    find_untried(core);
    let unread = &core.queue.unread;
    let has_none = unread.resources.is_empty() && unread.untried.is_empty();
    let is_many = unread.resources.len() > UNREAD_FEW;
    if (unread.kept.is_empty() && (has_none || cut::has_room(core, true)))
        || (is_many && now < unread.looks_at)
    {
        return;
    }
    let waiting = lanes_unread(&core.queue);
    let mut reading = unread.reading.filter(|key| keeps_place(core, *key, &waiting));
    let is_late = |key| reading.is_none() && (unread.is_trying || waiting.contains(&key));
    let late = unread.reading.filter(|key| is_late(*key));
    let is_vain = unread.is_trying && unread.reads >= TRY_READS;
    let in_vain = late.filter(|_| is_vain);
    let mut kept = unread.kept.clone();
    kept.retain(|key| {
        let lane = core.queue.lanes.get(*key).filter(|lane| is_open(core, lane));
        let is_kept = lane.is_some_and(|lane| is_kept(core, *key, lane, &waiting));
        reading == Some(*key) || (is_kept && late != Some(*key))
    });
    let mut is_trying = unread.is_trying;
    let is_idle_now = |key: &LaneKey| core.queue.lanes.get(*key).is_some_and(Lane::is_idle);
    let mut since = unread.since;
    let mut reads = unread.reads;
    match reading {
        Some(key) if !is_idle_now(&key) => reads = 0,
        Some(_) if !is_trying => since = now,
        _ => {}
    }
    if reading.is_none() {
        let has_room = has_room(core, &kept);
        let may_go = |key: &LaneKey| {
            let lane = core.queue.lanes.get(*key);
            lane.filter(|lane| lane.is_idle() && is_open(core, lane)).is_some_and(|lane| {
                has_room || kept.is_empty() || has_any_lane(&core.queue, lane, &kept)
            })
        };
        let untried = unread.untried.iter().filter(|key| is_untried(core, **key));
        // Those that wait for leads have every other turn at least.
        let leads = waiting.iter().copied().filter(|key| unread.is_trying && may_go(key));
        let all = waiting.iter().chain(untried).copied().filter(may_go);
        reading = next_after(unread.last, leads).or_else(|| next_after(unread.last, all));
        is_trying = reading.is_some_and(|key| !waiting.contains(&key));
        (since, reads) = (now, 0);
    }
    kept.extend(reading);
    let unread = &mut core.queue.unread;
    unread.last = reading.or(unread.last);
    unread.looks_at = now + look_every(unread.resources.len());
    (unread.reading, unread.kept) = (reading, kept);
    (unread.is_trying, unread.since, unread.reads) = (is_trying, since, reads);
    let rest = in_vain.and_then(|key| core.queue.lanes.get_mut(key)?.rest.as_mut());
    if let Some(rest) = rest {
        rest.try_at = now + TRY_AGAIN;
    }
}

/// Time between two looks at this many resources.
pub(crate) fn look_every(resources: usize) -> Duration {
    LOOK_EVERY * (1 + key_of(resources / LOOK_PART))
}

/// True if the lane that is read past the limit still is.
fn keeps_place<C: Content>(core: &Core<C>, key: LaneKey, waiting: &BTreeSet<LaneKey>) -> bool {
    let unread = &core.queue.unread;
    let held = core.session.now.at.saturating_sub(unread.since);
    let lane = core.queue.lanes.get(key).filter(|lane| is_open(core, lane));
    lane.is_some_and(|lane| {
        if unread.is_trying {
            let is_read = unread.reads >= TRY_READS && lane.reading.is_none() && lane.is_idle();
            held < TRY_FOR && lane.rest.is_some() && !is_read && !is_over(core)
        } else {
            waiting.contains(&key) && (lane.is_idle() || held < BUSY_MAX)
        }
    })
}

/// True if the index has no room to try anything.
fn is_over<C: Content>(core: &Core<C>) -> bool {
    core.queue.bytes() >= core.config.index_bytes
}

/// Finds lanes to try after the one that had the place last.
fn find_untried<C: Content>(core: &mut Core<C>) {
    let now = core.session.now.at;
    if cut::has_room(core, true) {
        core.queue.unread.untried.clear();
        return;
    }
    if now < core.queue.unread.scans_at {
        return;
    }
    core.queue.unread.scans_at = now + cut::every(core, LOOK_EVERY);
    let last = core.queue.unread.last;
    let lanes = core.queue.lanes.iter().map(|(key, _)| key);
    let (after, before): (Vec<_>, Vec<_>) =
        lanes.filter(|key| is_untried(core, *key)).partition(|key| Some(*key) > last);
    let found = after.into_iter().chain(before).take(FOUND_MAX);
    core.queue.unread.untried = found.collect();
}

/// True if a lane is blocked, may be probed, and nothing that is indexed of it can be sent.
fn is_untried<C: Content>(core: &Core<C>, key: LaneKey) -> bool {
    core.queue.lanes.get(key).is_some_and(|lane| {
        lane.rest.as_ref().is_some_and(|rest| rest.try_at <= core.session.now.at)
            && lane.window.count > 0
            && lane.is_idle()
            && (core.backend.is_stopped() || gate::is_blocked(core, lane))
            && is_open(core, lane)
            && !is_over(core)
    })
}

/// True if windows that are not cut leave room for others.
fn has_room<C: Content>(core: &Core<C>, kept: &BTreeSet<LaneKey>) -> bool {
    let windows = kept.iter().filter_map(|key| core.queue.lanes.get(*key));
    let taken: usize = windows.map(|lane| usize_of(lane.window.count)).sum();
    taken * cut::WEBHOOK_BYTES < core.config.index_bytes / PART
}

/// True if a lane is still not to be cut: it is being read, or it is read and waits for others of its
/// shop, or its lead waits for its turn. A lane that flows is cut only behind a lead that is sent next.
fn is_kept<C: Content>(
    core: &Core<C>,
    key: LaneKey,
    lane: &Lane,
    waiting: &BTreeSet<LaneKey>,
) -> bool {
    let is_sent_next = !lane.ready.is_empty() && !lane.flow.is_at_work();
    (waiting.contains(&key) && lane.ready.is_empty())
        || (is_sent_next && !cut::may_send(core, lane))
        || has_any_lane(&core.queue, lane, waiting)
}

/// True if a lane's shop has two key schemes, and one of its lanes is among these.
fn has_any_lane(queue: &QueueView, lane: &Lane, lanes: &BTreeSet<LaneKey>) -> bool {
    let shop = queue.shops.get(lane.shop).filter(|shop| shop.is_mixed());
    shop.is_some_and(|shop| shop.lanes.iter().any(|lane| lanes.contains(lane)))
}

/// The lane whose turn is after that of `last`.
fn next_after(last: Option<LaneKey>, lanes: impl Iterator<Item = LaneKey>) -> Option<LaneKey> {
    lanes.min_by_key(|lane| (last.is_some_and(|last| *lane <= last), *lane))
}

/// Lanes that are to be read up to a lead: that of its resource or, with two key schemes, of its shop.
fn lanes_unread(queue: &QueueView) -> BTreeSet<LaneKey> {
    let mut waiting = BTreeSet::new();
    for resource in &queue.unread.resources {
        let Some((lane, lead)) = unread_lead(queue, *resource) else { continue };
        // Nothing helps before the main stream is read up to the lead.
        if queue.main.read_to < lead.entry() {
            continue;
        }
        let shop = queue.lanes.get(lane).and_then(|lane| queue.shops.get(lane.shop));
        let mixed = shop.filter(|shop| shop.is_mixed());
        let lanes = mixed.map_or(std::slice::from_ref(&lane), |shop| &shop.lanes);
        let is_unread = |key: &&LaneKey| {
            queue.lanes.get(**key).is_some_and(|lane| !lane.is_indexed_up_to(lead))
        };
        waiting.extend(lanes.iter().filter(is_unread));
    }
    waiting
}

/// Lane and recorded lead of a resource that waits for its lead.
fn unread_lead(queue: &QueueView, resource: ResourceKey) -> Option<(LaneKey, Position)> {
    let about = queue.index.resource(resource)?;
    let lead = *queue.leads.get(&about.hash)?;
    (about.state == HeadState::Unread).then_some((queue.index.lane(resource)?, lead))
}

/// True if something could be sent soon, as far as its shop and lane are concerned.
fn is_open<C: Content>(core: &Core<C>, lane: &Lane) -> bool {
    let now = core.session.now.at;
    gate::opens_soon(core, lane.shop)
        && lane.breaker.probe_at().is_none_or(|at| now >= at)
        && lane.flow.suspect.is_none_or(|suspect| now >= suspect.until)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use spillway_webhook::identity::StreamId;

    use super::*;
    use crate::event::Loaded;
    use crate::state::index::IndexEntry;
    use crate::state::lane::Rest;
    use crate::state::queue_view::Unread;
    use crate::steps::arrive;
    use crate::steps::sample::{self, NoContent, at};

    const READ_TO: u64 = 100;
    const SECOND: Duration = Duration::from_secs(1);

    /// A queue whose index has no room. Each lane belongs to its own shop, and one resource of it waits
    /// for a lead, of which this is the time.
    fn core(leads: &[u64]) -> (Core<NoContent>, Vec<LaneKey>) {
        let leads = (1..).zip(leads.iter().map(|ms| at(*ms))).collect::<Vec<_>>();
        let loaded = Loaded { leads: leads.clone(), ..Loaded::default() };
        let mut core = sample::core(1, loaded);
        core.queue.main.read_to = StreamId { ms: READ_TO, seq: 0 };
        let lanes = leads.iter().map(|(hash, lead)| {
            let shop = core.queue.shops.intern(*hash);
            let key = core.queue.lane(*hash, shop);
            let rest = Rest {
                after: at(1),
                last: *lead,
                refill_at: Duration::ZERO,
                try_at: Duration::ZERO,
            };
            core.queue.lanes.get_mut(key).expect("lane").rest = Some(Box::new(rest));
            let classified = sample::classified(*hash, *hash);
            let first = IndexEntry { position: at(1), classified, replay: None };
            arrive::index_webhook(&mut core, key, &first);
            key
        });
        let lanes = lanes.collect();
        (core, lanes)
    }

    #[test]
    fn lanes_have_their_turn_one_after_the_other() {
        let after = |last| next_after(last, [7, 2, 5].into_iter());
        assert_eq!([None, Some(2), Some(3), Some(7)].map(after), [2, 5, 5, 2].map(Some));
        assert_eq!(next_after(Some(1), std::iter::empty()), None);
    }

    #[test]
    fn no_lane_is_chosen_in_vain() {
        let (mut core, lanes) = core(&[2, READ_TO + 1, 2]);
        core.queue.shops.stop(HashSet::from([1]));
        choose_lane(&mut core);
        assert_eq!(core.queue.unread.reading, Some(lanes[2]), "{lanes:?}");
    }

    #[test]
    fn a_lane_that_waits_for_a_probe_gives_up_its_place() {
        let (mut core, lanes) = core(&[2, 2]);
        for at in [Duration::ZERO, 10 * BUSY_MAX] {
            core.session.now.at = at;
            choose_lane(&mut core);
            assert_eq!(core.queue.unread.reading, Some(lanes[0]));
        }
        core.queue.lanes.get_mut(lanes[0]).expect("lane").flow.in_flight = 1;
        for (at, reading) in [(BUSY_MAX * 21 / 2, lanes[0]), (11 * BUSY_MAX, lanes[1])] {
            core.session.now.at = at;
            choose_lane(&mut core);
            assert_eq!(core.queue.unread.reading, Some(reading));
        }
        assert_eq!(core.queue.unread.kept, BTreeSet::from([lanes[1]]));
        assert_eq!([0, 40_000].map(look_every), [LOOK_EVERY, 5 * LOOK_EVERY]);
    }

    #[test]
    fn blocked_lanes_are_tried_in_turn() {
        let (mut core, lanes) = core(&[2; FOUND_MAX + 6]);
        core.queue.leads.clear();
        core.queue.unread = Unread::default();
        let block = |core: &mut Core<NoContent>, key| {
            let lane = core.queue.lanes.get_mut(key).expect("lane");
            lane.flow.paused = 1;
            lane.ready.retain(|_, _| false);
        };
        lanes[1..].iter().for_each(|key| block(&mut core, *key));
        core.config.index_bytes = core.queue.bytes() + 1;
        let tried = |core: &mut Core<NoContent>, at| {
            core.session.now.at = at;
            choose_lane(core);
            assert_eq!(core.queue.unread.kept, core.queue.unread.reading.into_iter().collect());
            core.queue.unread.reading
        };
        for (number, key) in (0..).zip(&lanes[1..]) {
            assert_eq!(tried(&mut core, TRY_FOR * number), Some(*key));
            assert_eq!(tried(&mut core, TRY_FOR * (number + 1) - LOOK_EVERY), Some(*key));
        }
        let end = TRY_FOR * key_of(lanes.len());
        assert_eq!(tried(&mut core, end), Some(lanes[1]), "the first again");
        // Reads that bring nothing end its turn, and its next one comes later.
        core.queue.unread.reads = TRY_READS;
        assert_eq!(tried(&mut core, end + LOOK_EVERY), Some(lanes[2]));
        assert!(!is_untried(&core, lanes[1]));
        core.session.now.at += TRY_AGAIN;
        assert!(is_untried(&core, lanes[1]));
        block(&mut core, lanes[0]);
        // Nothing is tried without any room.
        let room = std::mem::replace(&mut core.config.index_bytes, core.queue.bytes());
        assert_eq!(tried(&mut core, end + SECOND), None);
        core.config.index_bytes = room;
        core.queue.unread.last = None;
        assert_eq!(tried(&mut core, end + 2 * SECOND), Some(lanes[0]));
    }

    #[test]
    fn another_lane_is_chosen_once_one_is_read() {
        let (mut core, lanes) = core(&[2; UNREAD_FEW + 1]);
        for (number, lane) in lanes.iter().enumerate() {
            core.session.now.at = LOOK_EVERY * key_of(number);
            choose_lane(&mut core);
            assert_eq!(core.queue.unread.reading, Some(*lane));
            core.queue.lanes.get_mut(*lane).expect("lane").rest = None;
            core.session.now.at += LOOK_EVERY / 2;
            choose_lane(&mut core);
            assert_eq!(core.queue.unread.reading, Some(*lane), "too early");
        }
    }
}
