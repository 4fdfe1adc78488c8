//! Turns: which shop, lane and resource is next, and when a blocked lane is looked at again.

use std::time::Duration;

use spillway_webhook::position::Position;

use crate::core::Core;
use crate::dispatch::{Blocked, LEFT_AFTER, Turn};
use crate::fairness::TurnsBy;
use crate::index::LaneKey;
use crate::lane::Lane;
use crate::ready::ReadyKind;
use crate::resource::State;
use crate::shop::ShopKey;
use crate::sorted::{Class, Content};

/// Shops that are looked at for a lane that is preferred.
const PROBE_LOOKS: usize = 512;
/// Between two looks for others, where there were none.
const FRESH_LOOK_EVERY: Duration = Duration::from_millis(50);
/// The same for lanes that have not failed, while the backend is stopped; and so many of their probes come before
/// one of the others.
const UNFAILED_LOOK_EVERY: Duration = Duration::from_millis(50);
const PROBES_UNFAILED: u32 = 7;
/// Between two looks whether a slow or suspect lane may have a slot, and as much again for so many
/// lanes that wait.
const SLOT_LOOK_EVERY: Duration = Duration::from_millis(50);
const SLOT_LOOKS: u32 = 64;
/// Up to this time, all other lanes go first.
const LEFT_LAST: Duration = Duration::from_secs(10);

/// Lanes that are picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preferred {
    /// Any.
    Any,
    /// Those that have not failed, and were not tried since the backend stopped.
    Unfailed,
    /// The others.
    Failed,
    /// Those of which the leader before left nothing behind.
    Fresh,
    /// Those of shops that are served while most slots are held.
    Proven,
}

impl<C: Content> Core<C> {
    /// The next turn.
    pub(crate) fn next_turn(&mut self) -> Option<Turn> {
        // By turns with the one that waits, so that a single slot is not the line's alone.
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

    /// The next turn while the backend is stopped: of a lane that has not failed, if there is one. After seven such
    /// probes one is of a lane that has: new ones that fail may come faster than they are probed.
    fn next_probe(&mut self) -> Option<Turn> {
        let waiting = self.take_waiting();
        let is_waiting_unfailed = waiting.is_some_and(|turn| self.is_unfailed(turn.lane));
        let unfailed_probes = self.session.looks.unfailed_probes;
        // While it refuses, one that failed begins only if nothing else is under way.
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
            // The one that waits keeps its place.
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

    /// The turn that waits for a slot, if it is still due.
    fn take_waiting(&mut self) -> Option<Turn> {
        let turn = self.next.take()?;
        if self.is_still_due(&turn) {
            return Some(turn);
        }
        if self.queue.index.state(turn.resource) == Some(State::Ready) {
            self.release(turn.resource);
        }
        None
    }

    /// True if a lane has not failed, and was not tried since the backend stopped.
    pub(crate) fn is_unfailed(&self, lane: LaneKey) -> bool {
        let stopped_at = self.backend.stopped_at();
        self.queue.lanes.get(lane).is_some_and(|lane| lane.is_unfailed(stopped_at))
    }

    fn is_still_due(&self, turn: &Turn) -> bool {
        let Some(lane) = self.queue.lanes.get(turn.lane) else { return false };
        self.queue.index.state(turn.resource) == Some(State::Ready)
            && self.queue.index.lane(turn.resource) == Some(turn.lane)
            && self.may_send(lane).is_ok()
            && self.is_open(turn)
    }

    pub(crate) fn is_open(&self, turn: &Turn) -> bool {
        let head = self.queue.index.head(turn.resource);
        self.queue.index.is_replay(turn.resource)
            || head.is_some_and(|head| self.queue.is_open(turn.shop, head))
    }

    /// Picks by turns of shops, and within a shop in stream order, or by turns of its lanes where one fails.
    fn pick(&mut self, preferred: Preferred) -> Option<Turn> {
        let now = self.session.now.at;
        let by = if self.backend.is_stopped() { TurnsBy::Number } else { TurnsBy::Time };
        for class in self.queue.shops.first_class(by) {
            let (mut set_aside, mut found) = (Vec::new(), None);
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
            // Those that were passed over keep their places before the one that was found.
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

    /// The oldest ready resource of a shop's lanes that are open.
    fn pick_of(&mut self, shop: ShopKey, class: Class, preferred: Preferred) -> Option<Turn> {
        loop {
            let (lane, kind) = self.oldest_ready(shop, class, preferred)?;
            let turn = self.take_from(shop, lane, class, kind)?;
            if turn.is_some() {
                return turn;
            }
        }
    }

    /// The oldest ready resource of a lane.
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

    /// Takes a lane's next resource; `None` inside where a barrier has come before it.
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
        // Where turns may be rare, lanes of a shop take them one after the other: the oldest may be the only one
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

    /// Notes when a blocked lane is to be looked at again.
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
            // The more of them wait for a slot, the less often each is looked at.
            _ => Some(now + SLOT_LOOK_EVERY * (1 + self.queue.lanes.due() / SLOT_LOOKS)),
        };
        // With an attempt under way, its end gives turns again.
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
