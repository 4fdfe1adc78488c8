//! Turns: choice of the next shop, lane and resource, and the next check of blocked lanes.

use std::time::Duration;

use spillway_webhook::position::Position;

use crate::core::Core;
use crate::dispatch::LEFT_AFTER;
use crate::fairness::TurnsBy;
use crate::index::LaneKey;
use crate::lane::Lane;
use crate::ready::ReadyKind;
use crate::resource::HeadState;
use crate::shop::ShopKey;
use crate::sorted::{Class, Content};
use crate::turn::{Blocked, Turn};

/// Most shops that are examined for a preferred lane.
const PROBE_LOOKS: usize = 512;
/// Time between two scans for lanes that the previous leader did not leave behind, if there were
/// none.
const FRESH_LOOK_EVERY: Duration = Duration::from_millis(50);
/// The same for lanes that have not failed while the backend is stopped. This many of their probes
/// come before one of the other lanes.
const UNFAILED_LOOK_EVERY: Duration = Duration::from_millis(50);
const PROBES_UNFAILED: u32 = 7;
/// Time between two checks if a slow or suspect lane may have a slot. It grows by the same time for
/// every so many lanes that wait.
const SLOT_LOOK_EVERY: Duration = Duration::from_millis(50);
const SLOT_LOOKS: u32 = 64;
/// Time up to which lanes that the previous leader left behind go last.
const LEFT_LAST: Duration = Duration::from_secs(10);
const _: () = assert!(
    LEFT_AFTER.as_millis() < LEFT_LAST.as_millis(),
    "lanes that were left behind come after the others for a while"
);

/// Lanes from which the next turn is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preferred {
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

impl<C: Content> Core<C> {
    /// Chooses the next turn.
    pub(crate) fn next_turn(&mut self) -> Option<Turn> {
        // Suspect lanes and the waiting turn alternate, so that suspect lanes cannot take a single
        // slot for themselves.
        let is_next = self.attempts.suspects.has_gone && self.next.is_some();
        if !is_next && let Some(called) = self.next_called() {
            self.attempts.suspects.has_gone = true;
            return Some(called);
        }
        if self.backend.is_stopped() {
            return self.next_probe();
        }
        if let Some(turn) = self.take_waiting() {
            return Some(turn);
        }
        let now = self.session.now.at;
        if self.attempts.proven.has_turn(now) {
            let turn = self.pick(Preferred::Proven);
            if turn.is_some() {
                return turn;
            }
            self.attempts.proven.had_nothing(now);
        }
        if now < LEFT_LAST && now >= self.session.looks.fresh_at {
            let turn = self.pick(Preferred::Fresh);
            if turn.is_some() {
                return turn;
            }
            self.session.looks.fresh_at = now + FRESH_LOOK_EVERY;
        }
        self.pick(Preferred::Any)
    }

    /// Chooses the next turn while the backend is stopped: of a lane that has not failed, if there
    /// is one. After seven such probes comes one of a lane that failed, because new failing lanes
    /// may appear faster than they are probed.
    fn next_probe(&mut self) -> Option<Turn> {
        let waiting = self.take_waiting();
        let is_waiting_unfailed = waiting.is_some_and(|turn| self.is_unfailed(turn.lane));
        let unfailed_probes = self.session.looks.unfailed_probes;
        // While the backend refuses, a lane that failed is probed only if nothing else is under
        // way.
        let may_fail = self.backend.is_down() || self.attempts.len() == 0;
        if !may_fail && unfailed_probes >= 2 * PROBES_UNFAILED {
            self.next = waiting;
            return None;
        }
        let is_failed_due = may_fail && unfailed_probes >= PROBES_UNFAILED;
        if is_failed_due
            && (waiting.is_none() || is_waiting_unfailed)
            && let Some(failed) = self.pick(Preferred::Failed)
        {
            // The waiting turn keeps its place.
            self.next = waiting;
            return Some(failed);
        }
        if waiting.is_some() && (self.backend.is_down() || is_waiting_unfailed || is_failed_due) {
            return waiting;
        }
        let Some(unfailed) = self.pick_unfailed() else {
            return waiting.or_else(|| self.pick(Preferred::Any));
        };
        self.next = waiting;
        Some(unfailed)
    }

    fn pick_unfailed(&mut self) -> Option<Turn> {
        let now = self.session.now.at;
        if now < self.session.looks.unfailed_at {
            return None;
        }
        let turn = self.pick(Preferred::Unfailed);
        if turn.is_none() {
            self.session.looks.unfailed_at = now + UNFAILED_LOOK_EVERY;
        }
        turn
    }

    /// Takes the turn that waits for a slot, if it is still due.
    fn take_waiting(&mut self) -> Option<Turn> {
        let turn = self.next.take()?;
        if self.is_still_due(&turn) {
            return Some(turn);
        }
        if self.queue.index.state(turn.resource) == Some(HeadState::Ready) {
            self.release(turn.resource);
        }
        None
    }

    /// True if a lane has not failed and was not tried since the backend stopped.
    pub(crate) fn is_unfailed(&self, lane: LaneKey) -> bool {
        let stopped_at = self.backend.stopped_at();
        self.queue.lanes.get(lane).is_some_and(|lane| lane.is_unfailed(stopped_at))
    }

    fn is_still_due(&self, turn: &Turn) -> bool {
        let Some(lane) = self.queue.lanes.get(turn.lane) else { return false };
        self.queue.index.state(turn.resource) == Some(HeadState::Ready)
            && self.queue.index.lane(turn.resource) == Some(turn.lane)
            && self.may_send(lane).is_ok()
            && self.is_open(turn)
    }

    pub(crate) fn is_open(&self, turn: &Turn) -> bool {
        let head = self.queue.index.head(turn.resource);
        self.queue.index.is_replay(turn.resource)
            || head.is_some_and(|head| self.queue.is_open(turn.shop, head))
    }

    /// Chooses by turns of shops, and within a shop in stream order. If a lane of the shop fails,
    /// its lanes take turns.
    fn pick(&mut self, preferred: Preferred) -> Option<Turn> {
        let now = self.session.now.at;
        let by = if self.backend.is_stopped() { TurnsBy::Number } else { TurnsBy::Time };
        for class in self.queue.shops.first_class(by) {
            let mut set_aside = Vec::new();
            let mut found = None;
            while let Some(shop) = self.queue.shops.next(class, by, now) {
                if let Some(turn) = self.pick_of(shop, class, preferred) {
                    self.queue.shops.keep_turn(shop, class, by);
                    found = Some(turn);
                    break;
                }
                if preferred != Preferred::Any {
                    set_aside.push(shop);
                    if set_aside.len() == PROBE_LOOKS {
                        break;
                    }
                }
            }
            // Shops that were skipped keep their places before the chosen one.
            if found.is_some() {
                set_aside.iter().rev().for_each(|shop| self.queue.shops.put_back(*shop, class));
            } else {
                set_aside.iter().for_each(|shop| self.queue.shops.give_turn(*shop, class));
            }
            if let Some(turn) = found {
                self.queue.shops.used(class);
                return Some(turn);
            }
        }
        None
    }

    /// Takes the oldest ready resource of a shop's open lanes.
    fn pick_of(&mut self, shop: ShopKey, class: Class, preferred: Preferred) -> Option<Turn> {
        loop {
            let (lane, kind) = self.oldest_ready(shop, class, preferred)?;
            let turn = self.take_from(shop, lane, class, kind)?;
            if turn.is_some() {
                return turn;
            }
        }
    }

    /// Takes the oldest ready resource of a lane.
    pub(crate) fn pick_of_lane(
        &mut self,
        shop: ShopKey,
        key: LaneKey,
        class: Class,
    ) -> Option<Turn> {
        loop {
            let index = &self.queue.index;
            let lane = self.queue.lanes.get_mut(key)?;
            let fresh_first = lane.breaker.prefers_fresh();
            let is_ready = |position, resource| index.is_ready(key, resource, position);
            let (_, kind) = lane.ready.peek(class, fresh_first, is_ready)?;
            let turn = self.take_from(shop, key, class, kind)?;
            if turn.is_some() {
                return turn;
            }
        }
    }

    /// Takes the next resource of a lane. The inner value is `None` if a barrier came before the
    /// resource.
    pub(crate) fn take_from(
        &mut self,
        shop: ShopKey,
        lane: LaneKey,
        class: Class,
        kind: ReadyKind,
    ) -> Option<Option<Turn>> {
        let resource = self.queue.lanes.get_mut(lane)?.ready.pop(class, kind)?;
        let turn = Turn { shop, lane, resource };
        if self.is_open(&turn) {
            return Some(Some(turn));
        }
        self.release(resource);
        Some(None)
    }

    fn oldest_ready(
        &mut self,
        shop: ShopKey,
        class: Class,
        preferred: Preferred,
    ) -> Option<(LaneKey, ReadyKind)> {
        let about = self.queue.shops.get(shop)?;
        if preferred == Preferred::Proven && !self.attempts.proven.contains(about.hash) {
            return None;
        }
        // If turns may be rare, the lanes of a shop take turns. The oldest lane may be the only one
        // that fails, or for which the shop is paused again and again.
        let lanes = &self.queue.lanes;
        let is_failing = |key: &LaneKey| lanes.get(*key).is_some_and(Lane::has_failed);
        let are_rare = self.backend.is_stopped()
            || (!about.paused_until.is_zero() && self.config.shop_bounds.spacing.is_zero())
            || (about.lanes.len() > 1 && about.lanes.iter().any(is_failing));
        let stopped_at = self.backend.stopped_at();
        let mut oldest: Option<((Duration, Position), LaneKey, ReadyKind)> = None;
        for at in 0.. {
            let Some(key) = self.queue.shops.get(shop)?.lanes.get(at).copied() else { break };
            let index = &self.queue.index;
            let Some(lane) = self.queue.lanes.get_mut(key) else { continue };
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
                    self.queue.lanes.list(key);
                }
                continue;
            };
            let tried_at = if are_rare { lane.flow.began_at } else { Duration::ZERO };
            if oldest.is_some_and(|(before, _, _)| before <= (tried_at, position)) {
                continue;
            }
            let Some(lane) = self.queue.lanes.get(key) else { continue };
            match self.lane_gate(lane) {
                Ok(()) => oldest = Some(((tried_at, position), key, kind)),
                Err(blocked) => self.wait_for_lane(key, blocked),
            }
        }
        oldest.map(|(_, lane, kind)| (lane, kind))
    }

    /// Schedules the next check of a blocked lane.
    fn wait_for_lane(&mut self, key: LaneKey, blocked: Blocked) {
        let now = self.session.now.at;
        if blocked == Blocked::SlowSlots {
            self.line_up(key);
        }
        let Some(lane) = self.queue.lanes.get(key) else { return };
        let at = match blocked {
            Blocked::LaneBreaker => lane.breaker.probe_at(),
            Blocked::LaneSuspect => lane.flow.suspect.map(|suspect| suspect.until),
            Blocked::NotLeading => Some(LEFT_AFTER),
            // The more lanes wait for a slot, the less often each is checked.
            _ => Some(now + SLOT_LOOK_EVERY * (1 + self.queue.lanes.due() / SLOT_LOOKS)),
        };
        // If an attempt is under way, its end gives turns again.
        let at = at.filter(|at| *at > now);
        if let Some(at) = at {
            self.queue.lanes.wake_at(key, at);
        }
    }

    /// Lanes whose wait is over have turns again.
    pub(crate) fn wake_lanes(&mut self) {
        let now = self.session.now.at;
        while let Some(key) = self.queue.lanes.next_awake(now) {
            if let Some(lane) = self.queue.lanes.get(key) {
                self.queue.shops.give_turns(lane.shop);
            }
        }
    }
}
