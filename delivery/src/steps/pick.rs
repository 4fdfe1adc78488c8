//! Picks the next shop, lane and resource among the lanes that `turns` prefers, and schedules the
//! next check of blocked lanes.

use std::time::Duration;

use spillway_webhook::position::Position;

use crate::classified::{Class, Content};
use crate::state::Core;
use crate::state::fairness::TurnsBy;
use crate::state::index::LaneKey;
use crate::state::lane::Lane;
use crate::state::ready::ReadyKind;
use crate::state::shop::ShopKey;
use crate::steps::gate;
use crate::steps::gate::LEFT_AFTER;
use crate::turn::{Blocked, Turn};

/// Most shops that are examined for a preferred lane.
const PROBE_LOOKS: usize = 512;

/// Time between two checks if a slow or suspect lane may have a slot. It grows by the same time for
/// every [`SLOT_LOOKS`] lanes that wait.
const SLOT_LOOK_EVERY: Duration = Duration::from_millis(50);

const SLOT_LOOKS: u32 = 64;

/// Lanes from which the next turn is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preferred {
    /// All lanes.
    Any,
    /// Lanes that have not failed and were not tried since the backend stopped.
    Unfailed,
    /// All lanes except the unfailed ones.
    Failed,
    /// Lanes of which the previous leader left nothing behind.
    Fresh,
    /// Lanes of shops that are served while slow attempts hold most slots.
    Proven,
}

/// Chooses by turns of shops, and within a shop in stream order. If a lane of the shop fails,
/// its lanes take turns.
pub(crate) fn pick<C: Content>(core: &mut Core<C>, preferred: Preferred) -> Option<Turn> {
    let now = core.session.now.at;
    let by = if core.backend.is_stopped() { TurnsBy::Number } else { TurnsBy::Time };
    for class in core.queue.shops.classes.order(by) {
        let mut set_aside = Vec::new();
        let mut found = None;
        while let Some(shop) = core.queue.shops.next(class, by, now) {
            if let Some(turn) = pick_of(core, shop, class, preferred) {
                core.queue.shops.keep_turn(shop, class, by);
                found = Some(turn);
                break;
            }
            // One that has nothing now gets a turn again when it has.
            if preferred != Preferred::Any && anything_waits(core, shop, class) {
                set_aside.push(shop);
                if set_aside.len() == PROBE_LOOKS {
                    break;
                }
            }
        }
        // Shops that were skipped keep their places before the chosen one.
        if found.is_some() {
            set_aside.iter().rev().for_each(|shop| core.queue.shops.put_back(*shop, class));
        } else {
            set_aside.iter().for_each(|shop| core.queue.shops.give_turn(*shop, class));
        }
        if let Some(turn) = found {
            core.queue.shops.classes.used(class);
            return Some(turn);
        }
    }
    None
}

/// Takes the oldest ready resource of a shop's open lanes.
fn pick_of<C: Content>(
    core: &mut Core<C>,
    shop: ShopKey,
    class: Class,
    preferred: Preferred,
) -> Option<Turn> {
    loop {
        let (lane, kind) = oldest_ready(core, shop, class, preferred)?;
        let turn = take_from(core, shop, lane, class, kind)?;
        if turn.is_some() {
            return turn;
        }
    }
}

/// True if a webhook of the shop waits for a turn of this class, or may wait in the part of a lane that is not
/// indexed.
fn anything_waits<C: Content>(core: &mut Core<C>, shop: ShopKey, class: Class) -> bool {
    let index = &core.queue.index;
    let Some(shop) = core.queue.shops.get(shop) else { return false };
    for key in &shop.lanes {
        let Some(lane) = core.queue.lanes.get_mut(*key) else { continue };
        let is_ready = |position, resource| index.is_ready(*key, resource, position);
        if lane.rest.is_some() || lane.ready.peek(class, None, is_ready).is_some() {
            return true;
        }
    }
    false
}

/// Takes the oldest ready resource of a lane.
pub(crate) fn pick_of_lane<C: Content>(
    core: &mut Core<C>,
    shop: ShopKey,
    key: LaneKey,
    class: Class,
) -> Option<Turn> {
    loop {
        let index = &core.queue.index;
        let lane = core.queue.lanes.get_mut(key)?;
        let fresh_first = lane.breaker.prefers_fresh();
        let is_ready = |position, resource| index.is_ready(key, resource, position);
        let (_, kind) = lane.ready.peek(class, fresh_first, is_ready)?;
        let turn = take_from(core, shop, key, class, kind)?;
        if turn.is_some() {
            return turn;
        }
    }
}

/// Takes the next resource of a lane. The inner value is `None` if a barrier came before the
/// resource.
pub(crate) fn take_from<C: Content>(
    core: &mut Core<C>,
    shop: ShopKey,
    lane: LaneKey,
    class: Class,
    kind: ReadyKind,
) -> Option<Option<Turn>> {
    let resource = core.queue.lanes.get_mut(lane)?.ready.pop(class, kind)?;
    let turn = Turn { shop, lane, resource };
    if is_open(core, &turn) {
        return Some(Some(turn));
    }
    core.queue.place_by_head(resource, core.session.now.at);
    Some(None)
}

pub(crate) fn is_open<C: Content>(core: &Core<C>, turn: &Turn) -> bool {
    let head = core.queue.index.head(turn.resource);
    core.queue.index.head_node(turn.resource).is_some_and(|head| head.is_replay)
        || head.is_some_and(|head| core.queue.is_open(turn.shop, head))
}

fn oldest_ready<C: Content>(
    core: &mut Core<C>,
    shop: ShopKey,
    class: Class,
    preferred: Preferred,
) -> Option<(LaneKey, ReadyKind)> {
    let about = core.queue.shops.get(shop)?;
    if preferred == Preferred::Proven && !core.attempts.proven.contains(about.hash) {
        return None;
    }
    // If turns may be rare, the lanes of a shop take turns. The oldest lane may be the only one
    // that fails, or for which the shop is paused again and again.
    let lanes = &core.queue.lanes;
    let is_failing = |key: &LaneKey| lanes.get(*key).is_some_and(Lane::has_failed);
    let are_rare = core.backend.is_stopped()
        || (!about.paused_until.is_zero() && core.config.shop_bounds.spacing.is_zero())
        || (about.lanes.len() > 1 && about.lanes.iter().any(is_failing));
    let stopped_at = core.backend.stopped_at();
    let mut oldest: Option<((Duration, Position), LaneKey, ReadyKind)> = None;
    for at in 0.. {
        let Some(key) = core.queue.shops.get(shop)?.lanes.get(at).copied() else { break };
        let index = &core.queue.index;
        let Some(lane) = core.queue.lanes.get_mut(key) else { continue };
        let is_preferred = match preferred {
            Preferred::Any => true,
            Preferred::Unfailed => lane.is_unfailed(stopped_at),
            Preferred::Failed => !lane.is_unfailed(stopped_at),
            Preferred::Fresh => !lane.flow.is_left,
            Preferred::Proven => !lane.flow.is_slow(),
        };
        if !is_preferred {
            continue;
        }
        let fresh_first = lane.breaker.prefers_fresh();
        let is_ready = |position, resource| index.is_ready(key, resource, position);
        let Some((position, kind)) = lane.ready.peek(class, fresh_first, is_ready) else {
            if lane.rest.is_some() {
                core.queue.lanes.list(key);
            }
            continue;
        };
        let tried_at = if are_rare { lane.flow.began_at } else { Duration::ZERO };
        if oldest.is_some_and(|(before, _, _)| before <= (tried_at, position)) {
            continue;
        }
        let Some(lane) = core.queue.lanes.get(key) else { continue };
        match gate::lane_gate(core, lane) {
            Ok(()) => oldest = Some(((tried_at, position), key, kind)),
            Err(blocked) => wait_for_lane(core, key, blocked),
        }
    }
    oldest.map(|(_, lane, kind)| (lane, kind))
}

/// Schedules the next check of a blocked lane.
fn wait_for_lane<C: Content>(core: &mut Core<C>, key: LaneKey, blocked: Blocked) {
    let now = core.session.now.at;
    if blocked == Blocked::SlowSlots {
        line_up(core, key);
    }
    let Some(lane) = core.queue.lanes.get(key) else { return };
    let at = match blocked {
        Blocked::LaneBreaker => lane.breaker.probe_at(),
        Blocked::LaneSuspect => lane.flow.suspect.map(|suspect| suspect.until),
        Blocked::NotLeading => Some(LEFT_AFTER),
        // The more lanes wait for a slot, the less often each is checked.
        _ => Some(now + SLOT_LOOK_EVERY * (1 + core.queue.lanes.due() / SLOT_LOOKS)),
    };
    // If an attempt is under way, its end gives turns again.
    let at = at.filter(|at| *at > now);
    if let Some(at) = at {
        core.queue.lanes.wake_at(key, at);
    }
}

/// Adds a suspect lane to the queue for a slot.
fn line_up<C: Content>(core: &mut Core<C>, key: LaneKey) {
    if let Some(lane) = core.queue.lanes.get_mut(key)
        && !std::mem::replace(&mut lane.flow.is_in_line, true)
    {
        core.attempts.suspects.waiting.push_back(key);
    }
}
