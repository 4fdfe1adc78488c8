//! The gate. If something may not be sent now, it names the reason ([`Blocked`]).
//!
//! A webhook passes these checks in order: leader and operator, backend (here), its shop
//! (`state/shop.rs`), lane (here), barriers (`pick`), limiter (`slots`), coalescing, bytes in memory
//! and pauses (`choose`), duplicates, and updates that show nothing new (`dispatch`).

use std::time::Duration;

use crate::classified::Content;
use crate::state::Core;
use crate::state::backend::Allowed;
use crate::state::lane::Lane;
use crate::state::shop::{ShopGate, ShopKey};
use crate::state::suspects::SLICE;
use crate::steps::slots;
use crate::turn::Blocked;

/// Time before which lanes get no turn if the previous leader left webhooks of them behind. They
/// had a turn before and may hang.
pub(crate) const LEFT_AFTER: Duration = Duration::from_secs(1);

/// Leads that one settlement records.
const LEADS_MAX: usize = 256;

/// Checks if a head of this lane may be sent now, except for the checks of its own resource and
/// of the limiter.
pub(crate) fn may_send<C: Content>(core: &Core<C>, lane: &Lane) -> Result<(), Blocked> {
    may_begin(core)?;
    shop_gate(core, lane.shop)?;
    lane_gate(core, lane)
}

/// Checks if any attempt may begin.
pub(crate) fn may_begin<C: Content>(core: &Core<C>) -> Result<(), Blocked> {
    may_go_on(core)?;
    let at_risk = core.attempts.len() + core.ledger.unsettled();
    if at_risk >= core.config.bounds.concurrency_max + core.config.tuning.unsettled {
        return Err(Blocked::Unsettled);
    }
    let now = core.session.now.at;
    match core.backend.allows(now) {
        Allowed::Nothing => Err(stopped_by(core)),
        // A slow probe does not block a lane that has not failed.
        Allowed::Probe if has_quick_probe(core) => Err(stopped_by(core)),
        Allowed::Probe | Allowed::All => Ok(()),
    }
}

/// Checks if anything may begin, or end without an attempt.
pub(crate) fn may_go_on<C: Content>(core: &Core<C>) -> Result<(), Blocked> {
    let session = &core.session;
    if session.is_stopping || !session.are_replays_loaded || session.now.at >= session.lease_until {
        return Err(Blocked::NotLeading);
    }
    if core.controls.pauses.is_all() {
        return Err(Blocked::AllPaused);
    }
    if core.ledger.new_leads.len() >= LEADS_MAX {
        return Err(Blocked::Unsettled);
    }
    Ok(())
}

/// True if a probe under way may end soon. A backend that is down gets another probe after the
/// shortest slice. One that refuses gets another only if those under way are slow, because each
/// probe may cost a webhook.
fn has_quick_probe<C: Content>(core: &Core<C>) -> bool {
    if core.backend.is_refusing() {
        return core.attempts.has_quick(Duration::ZERO);
    }
    core.attempts.has_quick(core.session.now.at.saturating_sub(SLICE))
}

fn stopped_by<C: Content>(core: &Core<C>) -> Blocked {
    if core.backend.is_refusing() { Blocked::BackendRefuses } else { Blocked::BackendDown }
}

pub(crate) fn shop_gate<C: Content>(core: &Core<C>, shop: ShopKey) -> Result<(), Blocked> {
    match core.queue.shops.gate(shop, core.session.now.at) {
        ShopGate::Open => Ok(()),
        ShopGate::Stopped => Err(Blocked::ShopPaused),
        ShopGate::Starved => Err(Blocked::Reading),
        ShopGate::Full => Err(Blocked::ShopConcurrency),
        ShopGate::PausedUntil(_) => Err(Blocked::ShopRate),
    }
}

/// True if a shop may send now or within a second, as one that waits for its rate.
pub(crate) fn opens_soon<C: Content>(core: &Core<C>, shop: ShopKey) -> bool {
    let now = core.session.now.at;
    match core.queue.shops.gate(shop, now) {
        ShopGate::Stopped => false,
        ShopGate::PausedUntil(at) => at <= now + Duration::from_secs(1),
        ShopGate::Open | ShopGate::Full | ShopGate::Starved => true,
    }
}

/// Checks if the lane's own attempts allow another one.
pub(crate) fn lane_gate<C: Content>(core: &Core<C>, lane: &Lane) -> Result<(), Blocked> {
    let now = core.session.now.at;
    if lane.flow.is_left && now < LEFT_AFTER {
        return Err(Blocked::NotLeading);
    }
    if core.backend.is_stopped() {
        // The backend itself is probed instead.
        return Ok(());
    }
    if let Some(probe_at) = lane.breaker.probe_at()
        && (lane.flow.is_at_work() || now < probe_at)
    {
        return Err(Blocked::LaneBreaker);
    }
    let Some(key) = core.queue.lanes.by_hash(lane.hash) else { return Ok(()) };
    if let Some(suspect) = lane.flow.suspect {
        if lane.flow.is_at_work() || now < suspect.until {
            return Err(Blocked::LaneSuspect);
        }
        if !core.attempts.suspects.may_go(key, slots::free_for_suspects(core)) {
            return Err(Blocked::SlowSlots);
        }
    }
    if lane.flow.stalled > 0 && !slots::has_free_slot_alone(core, key) {
        return Err(Blocked::LaneSlow);
    }
    Ok(())
}

/// True if no webhook of a lane can be delivered at present.
pub(crate) fn is_blocked<C: Content>(core: &Core<C>, lane: &Lane) -> bool {
    let is_shop_blocked = core.queue.shops.get(lane.shop).is_some_and(|shop| {
        shop.is_stopped
            || shop.paused_until > core.session.now.at
            || shop.barriers.as_ref().is_some_and(|barriers| !barriers.held.is_empty())
    });
    is_shop_blocked || lane.is_failing() || (lane.flow.paused > 0 && lane.ready.is_empty())
}

/// Reason why nothing of a blocked lane is sent. Reasons that concern all lanes come first.
pub(crate) fn blocked_by<C: Content>(core: &Core<C>, lane: &Lane) -> Blocked {
    if core.backend.is_stopped() {
        return stopped_by(core);
    }
    if let Err(blocked @ (Blocked::ShopPaused | Blocked::ShopRate)) = shop_gate(core, lane.shop) {
        return blocked;
    }
    if lane.breaker.is_open() {
        Blocked::LaneBreaker
    } else if lane.flow.suspect.is_some() {
        Blocked::LaneSuspect
    } else if lane.flow.stalled > 0 {
        Blocked::LaneSlow
    } else if lane.flow.paused > 0 {
        Blocked::FilterPaused
    } else {
        Blocked::Barrier
    }
}
