//! Turns: whether a suspect lane, the turn that waits, a probe or any lane is next. Wakes lanes whose
//! wait is over.

use std::time::Duration;

use crate::classified::Content;
use crate::state::Core;
use crate::state::resource::HeadState;
use crate::steps::gate::LEFT_AFTER;
use crate::steps::pick::Preferred;
use crate::steps::{gate, pick, slots, suspect_turns};
use crate::turn::Turn;

/// Time between two scans for lanes that the previous leader did not leave behind, if there were
/// none.
const FRESH_LOOK_EVERY: Duration = Duration::from_millis(50);

/// The same for lanes that have not failed while the backend is stopped.
const UNFAILED_LOOK_EVERY: Duration = Duration::from_millis(50);

/// Probes of lanes that have not failed that come before one of another lane.
const PROBES_UNFAILED: u32 = 7;

/// Time up to which lanes that the previous leader left behind go last.
const LEFT_LAST: Duration = Duration::from_secs(10);

const _: () = assert!(
    LEFT_AFTER.as_millis() < LEFT_LAST.as_millis(),
    "lanes that were left behind come after the others for a while"
);

/// Chooses the next turn.
pub(crate) fn next_turn<C: Content>(core: &mut Core<C>) -> Option<Turn> {
    // Suspect lanes and the waiting turn alternate, so that suspect lanes cannot take a single
    // slot for themselves.
    let is_next = core.attempts.suspects.has_gone && core.waiting_turn.is_some();
    if !is_next && let Some(called) = suspect_turns::next_called(core) {
        core.attempts.suspects.has_gone = true;
        return Some(called);
    }
    if core.backend.is_stopped() {
        return next_probe(core);
    }
    if let Some(turn) = take_waiting(core) {
        return Some(turn);
    }
    let now = core.session.now.at;
    if core.attempts.proven.take_turn(now) {
        let turn = pick::pick(core, Preferred::Proven);
        if turn.is_some() {
            return turn;
        }
        core.attempts.proven.had_nothing(now);
    }
    if now < LEFT_LAST && now >= core.session.looks.fresh_at {
        let turn = pick::pick(core, Preferred::Fresh);
        if turn.is_some() {
            return turn;
        }
        core.session.looks.fresh_at = now + FRESH_LOOK_EVERY;
    }
    pick::pick(core, Preferred::Any)
}

/// Chooses the next turn while the backend is stopped: of a lane that has not failed, if there
/// is one. After seven such probes comes one of a lane that failed, because new failing lanes
/// may appear faster than they are probed.
fn next_probe<C: Content>(core: &mut Core<C>) -> Option<Turn> {
    let waiting = take_waiting(core);
    let is_waiting_unfailed = waiting.is_some_and(|turn| slots::is_unfailed(core, turn.lane));
    let unfailed_probes = core.session.looks.unfailed_probes;
    // While the backend refuses, a lane that failed is probed only if nothing else is under
    // way.
    let may_fail = core.backend.is_down() || core.attempts.len() == 0;
    if !may_fail && unfailed_probes >= 2 * PROBES_UNFAILED {
        core.waiting_turn = waiting;
        return None;
    }
    let is_failed_due = may_fail && unfailed_probes >= PROBES_UNFAILED;
    if is_failed_due
        && (waiting.is_none() || is_waiting_unfailed)
        && let Some(failed) = pick::pick(core, Preferred::Failed)
    {
        // The waiting turn keeps its place.
        core.waiting_turn = waiting;
        return Some(failed);
    }
    if waiting.is_some() && (core.backend.is_down() || is_waiting_unfailed || is_failed_due) {
        return waiting;
    }
    let Some(unfailed) = pick_unfailed(core) else {
        return waiting.or_else(|| pick::pick(core, Preferred::Any));
    };
    core.waiting_turn = waiting;
    Some(unfailed)
}

fn pick_unfailed<C: Content>(core: &mut Core<C>) -> Option<Turn> {
    let now = core.session.now.at;
    if now < core.session.looks.unfailed_at {
        return None;
    }
    let turn = pick::pick(core, Preferred::Unfailed);
    if turn.is_none() {
        core.session.looks.unfailed_at = now + UNFAILED_LOOK_EVERY;
    }
    turn
}

/// Takes the turn that waits for a slot, if it is still due.
fn take_waiting<C: Content>(core: &mut Core<C>) -> Option<Turn> {
    let turn = core.waiting_turn.take()?;
    if is_still_due(core, &turn) {
        return Some(turn);
    }
    if core.queue.index.state(turn.resource) == Some(HeadState::Ready) {
        core.queue.place_by_head(turn.resource, core.session.now.at);
    }
    None
}

fn is_still_due<C: Content>(core: &Core<C>, turn: &Turn) -> bool {
    let Some(lane) = core.queue.lanes.get(turn.lane) else { return false };
    core.queue.index.state(turn.resource) == Some(HeadState::Ready)
        && core.queue.index.lane(turn.resource) == Some(turn.lane)
        && gate::may_send(core, lane).is_ok()
        && pick::is_open(core, turn)
}

/// Lanes whose wait is over have turns again.
pub(crate) fn wake_lanes<C: Content>(core: &mut Core<C>) {
    let now = core.session.now.at;
    while let Some(key) = core.queue.lanes.next_awake(now) {
        if let Some(lane) = core.queue.lanes.get(key) {
            core.queue.shops.give_turns(lane.shop);
        }
    }
}
