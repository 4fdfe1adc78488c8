//! Gives suspect lanes their turns, and takes them away.

use std::time::Duration;

use crate::classified::Content;
use crate::state::Core;
use crate::state::fairness::TurnsBy;
use crate::state::index::LaneKey;
use crate::state::shop::ShopGate;
use crate::steps::{gate, pick, slots};
use crate::turn::Turn;

/// Time after which a called lane is checked again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A slot is kept for a shop that waits for its rate if the wait ends within this time.
const OPENS_WITHIN: Duration = Duration::from_secs(1);

/// Most lanes that keep their place in the queue although their shop may send nothing at present.
const SHUT_MAX: usize = 16;

/// Time for which a lane keeps its turn. Its bytes may have to be read.
const CALLED_FOR: Duration = Duration::from_millis(500);

/// Gives turns to the first lanes in the queue while slots are free.
pub(crate) fn call_suspects<C: Content>(core: &mut Core<C>) {
    let now = core.session.now.at;
    if core.backend.is_stopped() {
        return;
    }
    call_back(core);
    let lanes = &core.queue.lanes;
    core.attempts.suspects.called.retain_mut(|(key, until)| {
        let flow = lanes.get(*key).map(|lane| &lane.flow);
        // A lead of the lane is recorded before it is sent.
        if flow.is_some_and(|flow| flow.recording > 0) {
            *until = now + CALLED_FOR;
        }
        *until > now && flow.is_some_and(|flow| flow.in_flight == 0)
    });
    // Some lanes began an attempt meanwhile, while no other lane was served.
    let is_gone = |key: &LaneKey| lanes.get(*key).is_none_or(|lane| !lane.flow.is_in_line);
    while core.attempts.suspects.waiting.pop_front_if(|key| is_gone(key)).is_some() {}
    let mut shut = Vec::new();
    while slots::free_for_suspects(core) > core.attempts.suspects.called.len()
        && let Some(key) = core.attempts.suspects.waiting.pop_front()
    {
        let Some(lane) = core.queue.lanes.get(key).filter(|lane| lane.flow.is_in_line) else {
            // Another lane uses the key of one that is gone.
            continue;
        };
        let shop = lane.shop;
        let is_ready = !lane.ready.is_empty();
        // A slot is kept for a lane whose shop's pause ends soon. The place in the queue is
        // kept for a lane whose shop waits for bytes or for the end of a delivery. Other lanes
        // join again when their shop may have turns.
        let opens_at = match core.queue.shops.gate(shop, now) {
            ShopGate::Open => Some(now),
            ShopGate::PausedUntil(at) if at <= now + OPENS_WITHIN => Some(at),
            // Another lane of the shop may cause pauses again and again.
            ShopGate::PausedUntil(_) if is_ready && shut.len() < 2 * SHUT_MAX => {
                shut.push(key);
                continue;
            }
            ShopGate::Starved | ShopGate::Full if is_ready && shut.len() < SHUT_MAX => {
                shut.push(key);
                continue;
            }
            ShopGate::PausedUntil(_) | ShopGate::Stopped | ShopGate::Starved | ShopGate::Full => {
                None
            }
        };
        if let Some(at) = opens_at.filter(|_| is_ready) {
            core.attempts.suspects.called.push((key, at + CALLED_FOR));
            core.queue.lanes.wake_at(key, at.max(now + LOOK_AGAIN));
        }
        out_of_line(core, key);
        core.queue.shops.give_turns(shop);
    }
    for key in shut.into_iter().rev() {
        core.attempts.suspects.waiting.push_front(key);
    }
}

/// Puts lanes that were called while there were more slots back to the front of the queue.
/// Otherwise the missed turns would fall to the same few lanes again and again.
fn call_back<C: Content>(core: &mut Core<C>) {
    if core.attempts.suspects.called.is_empty() {
        return;
    }
    let free = slots::free_for_suspects(core);
    while core.attempts.suspects.called.len() > free
        && let Some((key, _)) = core.attempts.suspects.called.pop()
    {
        if let Some(lane) = core.queue.lanes.get_mut(key)
            && lane.flow.in_flight == 0
            && !std::mem::replace(&mut lane.flow.is_in_line, true)
        {
            core.attempts.suspects.waiting.push_front(key);
        }
    }
}

fn out_of_line<C: Content>(core: &mut Core<C>, key: LaneKey) {
    if let Some(lane) = core.queue.lanes.get_mut(key) {
        lane.flow.is_in_line = false;
    }
}

/// Takes the turn of a called lane. It does not wait for those of other shops, and they do not
/// wait for it.
pub(crate) fn next_called<C: Content>(core: &mut Core<C>) -> Option<Turn> {
    let slots = core.limiter.concurrency(core.session.now.at) + slots::spare_slots(core);
    if core.attempts.len() >= slots || core.backend.is_stopped() {
        return None;
    }
    for at in 0..core.attempts.suspects.called.len() {
        let key = core.attempts.suspects.called[at].0;
        let Some(lane) = core.queue.lanes.get(key) else { continue };
        let shop = lane.shop;
        if gate::shop_gate(core, shop).is_err() || gate::lane_gate(core, lane).is_err() {
            continue;
        }
        for class in core.queue.shops.classes.order(TurnsBy::Time) {
            let turn = pick::pick_of_lane(core, shop, key, class);
            if turn.is_some() {
                return turn;
            }
        }
    }
    None
}
