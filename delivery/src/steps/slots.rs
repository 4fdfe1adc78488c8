//! Slots for deliveries: those of the limiter, and those that slow shops, suspect lanes and probes
//! have in addition or leave to others.

use crate::classified::Content;
use crate::state::Core;
use crate::state::index::{LaneKey, usize_of};
use crate::state::shop::ShopKey;
use crate::turn::{Blocked, Turn};

/// Most probes under way while the backend is stopped, including slow ones.
const PROBES_MAX: usize = 4;

/// A shop holds slots if it has at least 1/`HELD_PART` of them and its deliveries are long.
const HELD_PART: usize = 4;

/// Other shops get 1/`MORE_PART` of the slots in addition while some are held.
const MORE_PART: usize = 8;

/// With fewer slots, a quarter of them is a whole slot. Then suspect lanes have it for a quarter of
/// the time.
const SLOTS_FEW: usize = 4;

/// Requests a slot from the limiter for a delivery of this shop. While long deliveries hold a
/// quarter of the slots, other shops may use an eighth more. If the limit plus that eighth
/// exceeds `concurrency_max`, the shop that holds slots leaves the excess free.
pub(crate) fn ensure_slot<C: Content>(
    core: &mut Core<C>,
    turn: &Turn,
    is_holding: bool,
) -> Result<(), Blocked> {
    if core.backend.is_stopped() && core.attempts.len() >= probe_slots(core, turn.lane) {
        return Err(Blocked::Limit);
    }
    let slots = core.attempts.len() - spare_slots(core);
    let slots =
        if is_holding { slots + left_slots(core) } else { slots - more_slots(core, turn.shop) };
    let is_admitted = core.limiter.admit(slots, core.session.now.at);
    if is_admitted { Ok(()) } else { Err(Blocked::Limit) }
}

/// True if a shop holds a quarter of the slots with long deliveries, or had one lately while such
/// deliveries of all shops hold half of them. Webhooks of other shops would wait as long.
pub(crate) fn is_holding_slots<C: Content>(core: &Core<C>, key: ShopKey) -> bool {
    let now = core.session.now.at;
    let part = (core.limiter.concurrency(now) / HELD_PART).max(1);
    let are_most_held = are_most_held(core);
    core.queue.shops.get(key).is_some_and(|shop| {
        let is_holding = shop.is_long() && usize_of(shop.in_flight) >= part;
        (is_holding || (are_most_held && shop.was_long_lately(now)))
            && core.backend.has_served_other(shop.hash)
    })
}

/// True if long deliveries hold half of the slots while others succeed. Several shops may hold
/// together what none of them holds alone.
fn are_most_held<C: Content>(core: &Core<C>) -> bool {
    let now = core.session.now.at;
    let limit = core.limiter.concurrency(now);
    let are_many = limit >= MORE_PART && 2 * core.attempts.long() >= limit;
    are_many && core.attempts.has_succeeded_lately(now)
}

/// True if long deliveries hold all slots that shops with such deliveries may have.
pub(crate) fn are_all_held<C: Content>(core: &Core<C>) -> bool {
    core.attempts.long() + left_slots(core).max(1) > core.limiter.concurrency(core.session.now.at)
}

/// Slots that a shop with long deliveries leaves to others.
fn left_slots<C: Content>(core: &Core<C>) -> usize {
    let limit = core.limiter.concurrency(core.session.now.at);
    let most = core.config.bounds.concurrency_max;
    (limit + (limit / MORE_PART).max(1)).saturating_sub(most)
}

/// Slots in addition to the limiter's for a shop that does not hold slots.
pub(crate) fn more_slots<C: Content>(core: &Core<C>, key: ShopKey) -> usize {
    let limit = core.limiter.concurrency(core.session.now.at);
    let in_flight = core.attempts.len();
    let are_held = core.attempts.long() >= (limit / HELD_PART).max(1);
    let is_usual = are_held
        && limit > 0
        && in_flight < core.config.bounds.concurrency_max
        && !core.backend.is_stopped()
        && !is_holding_slots(core, key);
    if is_usual { (limit / MORE_PART).max(1).min(in_flight - spare_slots(core)) } else { 0 }
}

/// Slots in addition to the limiter's. A single slot could be held by one hanging shop, so two
/// are allowed while two shops send.
pub(crate) fn spare_slots<C: Content>(core: &Core<C>) -> usize {
    let in_flight = core.attempts.len();
    if in_flight == 0 || in_flight >= core.config.bounds.concurrency_max {
        0
    } else if core.backend.is_stopped() {
        // Slow probes do not count.
        if in_flight < PROBES_MAX { in_flight - core.attempts.usual() } else { 0 }
    } else {
        let concurrency = core.limiter.concurrency(core.session.now.at);
        usize::from(core.queue.shops.len() > 1 && concurrency == 1)
    }
}

/// True if a slow lane may take more than its share: no other lane had a success lately, and a
/// slot is free. It does not wait for a slot, because others would then wait for it.
pub(crate) fn has_free_slot_alone<C: Content>(core: &Core<C>, lane: LaneKey) -> bool {
    let now = core.session.now.at;
    core.attempts.len() < core.limiter.concurrency(now) + spare_slots(core)
        && core.attempts.is_alone(lane, now)
}

/// Number of free slots for suspect lanes: of those that they share, or all if nothing was
/// delivered lately.
pub(crate) fn free_for_suspects<C: Content>(core: &Core<C>) -> usize {
    let now = core.session.now.at;
    let limit = core.limiter.concurrency(now);
    let rests = limit < SLOTS_FEW && now < core.attempts.suspects.rests_until;
    let shared = if rests { 0 } else { core.attempts.free_for_suspects(limit) };
    if core.attempts.has_succeeded_lately(now) {
        return shared;
    }
    let free = (limit + spare_slots(core)).saturating_sub(core.attempts.len());
    shared.max(free)
}

/// Slots for probes of a lane while the backend is stopped. A backend that refuses may cost a
/// webhook for each probe. Then a lane that failed has one, if nothing else is under way.
pub(crate) fn probe_slots<C: Content>(core: &Core<C>, lane: LaneKey) -> usize {
    let is_alone = !core.backend.is_down() && !is_unfailed(core, lane);
    let most = if is_alone { 1 } else { PROBES_MAX };
    most.min(core.config.bounds.concurrency_max)
}

/// True if a lane has not failed and was not tried since the backend stopped.
pub(crate) fn is_unfailed<C: Content>(core: &Core<C>, lane: LaneKey) -> bool {
    let stopped_at = core.backend.stopped_at();
    core.queue.lanes.get(lane).is_some_and(|lane| lane.is_unfailed(stopped_at))
}
