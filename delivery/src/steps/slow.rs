//! Slow attempts: marking them, and cutting them off if others wait for their slots.

use std::time::Duration;

use crate::classified::Content;
use crate::event::Effect;
use crate::state::attempts::{Attempt, AttemptId};
use crate::state::index::ResourceKey;
use crate::state::suspects::{SLICE, luby};
use crate::state::{Core, mixed};
use crate::steps::{ended, gate, slots, spent};

/// Bits of an id that choose the slice. The longest slice is sixteen times the shortest.
const SLICE_BITS: u32 = 5;

/// Length of a probe's slice while the backend is down, in shortest slices. It depends on the id
/// and not on the number of failures, because a lane that has not failed must get long slices, too.
fn slices(id: AttemptId) -> u32 {
    let number = mixed(id.0) >> (u64::BITS - SLICE_BITS);
    luby(1 + u32::try_from(number).unwrap_or(0))
}

/// Cuts slow attempts off if others wait for their slots. Cuts all of them off if everything
/// waits for the next leader.
pub(crate) fn cut_off<C: Content>(core: &mut Core<C>) -> Vec<Effect<C>> {
    let now = core.session.now.at;
    if now < core.session.looks.slow_at {
        return Vec::new();
    }
    core.session.looks.slow_at = now + Duration::from_millis(50);
    let most = if core.backend.is_down() { probe_slice(core) } else { Duration::MAX };
    for slow in core.attempts.mark_slow(now, core.queue.shops.usual.get(), most) {
        if let Some(shop) = core.queue.shops.get(slow.shop) {
            core.attempts.proven.on_slow(shop.hash);
        }
        if let Some(lane) = core.queue.lanes.get_mut(slow.lane)
            && !lane.flow.has_succeeded_since(slow.began)
        {
            lane.flow.stalled += 1;
        }
    }
    let (long, lasting) = core.attempts.mark_long(now);
    for shop in long {
        if let Some(shop) = core.queue.shops.get_mut(shop) {
            shop.mark_long();
        }
    }
    for shop in lasting {
        if let Some(shop) = core.queue.shops.get_mut(shop) {
            shop.pace.lasted_at = Some(now);
        }
    }
    let ids: Vec<_> = if core.session.is_stopping {
        core.attempts.all_to_cut(now)
    } else if core.backend.is_down() {
        down_probes_to_cut(core)
    } else {
        let longest = some_to_cut(core);
        longest.iter().for_each(|id| core.attempts.mark_cut(*id, now));
        // The longest attempts may include probes.
        let mut over = probes_to_cut(core);
        over.retain(|id| !longest.contains(id));
        core.attempts.suspects.failed(over.len());
        longest.into_iter().chain(over).collect()
    };
    ids.iter().for_each(|id| ended::was_cut_off(core, *id));
    ids.into_iter().map(Effect::Cancel).collect()
}

/// Probes of a backend that is down whose slice is over while others wait. With several slots,
/// the longest probe keeps its full time. With a single slot, probes with full time and probes
/// with a slice alternate.
fn down_probes_to_cut<C: Content>(core: &Core<C>) -> Vec<AttemptId> {
    let Some(waiting) = core.waiting_turn else { return Vec::new() };
    let now = core.session.now.at;
    let in_flight = core.attempts.len();
    let slots = slots::probe_slots(core, waiting.lane);
    if core.limiter.concurrency(now) == 0 || in_flight < slots || gate::may_begin(core).is_err() {
        return Vec::new();
    }
    let has_scout = slots > 1 || core.backend.probes.is_whole_due();
    let is_over = |id: AttemptId, attempt: &Attempt| {
        now.saturating_sub(attempt.began) >= probe_slice(core) * slices(id)
    };
    let slow = core.attempts.slow().into_iter().skip(usize::from(has_scout));
    let over = slow.filter(|(id, attempt)| is_over(*id, attempt)).take(in_flight + 1 - slots);
    over.map(|(id, _)| id).collect()
}

/// Shortest slice of a probe of a backend that is down.
fn probe_slice<C: Content>(core: &Core<C>) -> Duration {
    SLICE.max(core.queue.shops.usual.get() * 2)
}

/// Attempts to cut off for a lane that waits for a slot.
fn some_to_cut<C: Content>(core: &Core<C>) -> Vec<AttemptId> {
    let now = core.session.now.at;
    let concurrency = core.limiter.concurrency(now);
    // If the rate, a pause or the leader holds the turn back, a slot would not help it.
    if concurrency == 0 || gate::may_begin(core).is_err() {
        return Vec::new();
    }
    let slots = concurrency + slots::spare_slots(core);
    let waiting = core.waiting_turn.filter(|turn| {
        let lane = core.queue.lanes.get(turn.lane);
        core.attempts.len() >= slots + slots::more_slots(core, turn.shop)
            && lane.is_some_and(|lane| lane.flow.suspect.is_none() && lane.flow.stalled == 0)
    });
    let Some(waiting) = waiting else { return Vec::new() };
    let lanes = &core.queue.lanes;
    let last = last_attempt(core);
    // An attempt of a lane that succeeds may only be slow. The first one of a webhook is cut off if such
    // attempts hold all slots.
    let are_all_held = slots::are_all_held(core) && !slots::is_holding_slots(core, waiting.shop);
    let may_cut = |attempt: &Attempt| {
        attempt.lane != waiting.lane
            && Some(attempt.resource) != last
            && lanes.get(attempt.lane).is_some_and(|lane| {
                (are_all_held && attempt.number == 1)
                    || !lane.flow.has_succeeded_since(attempt.began)
            })
    };
    // At least two slots are allowed while two shops send.
    let limit = concurrency.max(2.min(core.config.bounds.concurrency_max));
    core.attempts.to_cut(limit, now, may_cut)
}

/// Probes whose slice is over while others wait for their slots.
fn probes_to_cut<C: Content>(core: &Core<C>) -> Vec<AttemptId> {
    let now = core.session.now.at;
    let may_begin = core.limiter.concurrency(now) > 0 && gate::may_begin(core).is_ok();
    let is_wanted = may_begin
        && !core.backend.is_stopped()
        && !core.attempts.suspects.waiting.is_empty()
        && slots::free_for_suspects(core) == 0;
    if !is_wanted {
        return Vec::new();
    }
    let slice_of = |lane| {
        let suspect = core.queue.lanes.get(lane).and_then(|lane| lane.flow.suspect);
        core.attempts.suspects.slice(suspect.map_or(0, |suspect| suspect.probes))
    };
    let is_over = |attempt: &Attempt| now.saturating_sub(attempt.began) >= slice_of(attempt.lane);
    let probes = core.attempts.slow_probes();
    // One of several probes gets the full timeout, to find out how long the others need.
    let longest = probes.first().filter(|_| probes.len() > 1);
    let scout = last_attempt(core).or(longest.map(|(_, attempt)| attempt.resource));
    let over =
        probes.iter().filter(|(_, attempt)| Some(attempt.resource) != scout && is_over(attempt));
    let mut over: Vec<AttemptId> = over.map(|(id, _)| *id).collect();
    over.truncate(core.attempts.suspects.waiting.len());
    over
}

/// Resource of the longest probe that is the last attempt of its webhook, of a lane that never
/// had the full timeout. It is not cut off; there is one at a time.
fn last_attempt<C: Content>(core: &Core<C>) -> Option<ResourceKey> {
    let probes = core.attempts.slow_probes();
    let last = probes.into_iter().find(|(_, attempt)| spent::is_last(core, attempt));
    last.map(|(_, attempt)| attempt.resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_do_not_fall_in_step_with_the_round_of_lanes() {
        for lanes in 20..420 {
            for first in 1..=lanes {
                let is_long = |round: u64| slices(AttemptId(first + lanes * round)) >= 4;
                assert!((0..100).any(is_long), "{lanes} lanes, attempt {first}");
            }
        }
    }
}
