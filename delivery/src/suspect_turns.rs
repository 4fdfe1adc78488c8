//! Gives suspect lanes their turns, and takes them away.

use std::time::Duration;

use crate::attempts::{Attempt, AttemptId};
use crate::core::Core;
use crate::fairness::TurnsBy;
use crate::index::{LaneKey, ResourceKey};
use crate::shop::ShopGate;
use crate::sorted::Content;
use crate::turn::Turn;

/// Time after which a called lane is checked again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A slot is kept for a shop that waits for its rate if the wait ends within this time.
const OPENS_WITHIN: Duration = Duration::from_secs(1);

/// Most lanes that keep their place in the queue although their shop may send nothing at present.
const SHUT_MAX: usize = 16;

/// With fewer slots, a quarter of them is a whole slot. Then suspect lanes have it for a quarter of
/// the time.
const SLOTS_FEW: usize = 4;

/// Time for which a lane keeps its turn. Its bytes may have to be read.
const CALLED_FOR: Duration = Duration::from_millis(500);

impl<C: Content> Core<C> {
    /// Adds a suspect lane to the queue for a slot.
    pub(crate) fn line_up(&mut self, key: LaneKey) {
        if let Some(lane) = self.queue.lanes.get_mut(key)
            && !std::mem::replace(&mut lane.flow.is_in_line, true)
        {
            self.attempts.suspects.waiting.push_back(key);
        }
    }

    /// Number of free slots for suspect lanes: of those that they share, or all if nothing was
    /// delivered lately.
    pub(crate) fn free_for_suspects(&self) -> usize {
        let now = self.session.now.at;
        let limit = self.limiter.concurrency(now);
        let rests = limit < SLOTS_FEW && now < self.attempts.suspects.rests_until;
        let shared = if rests { 0 } else { self.attempts.free_for_suspects(limit) };
        if self.attempts.has_succeeded_lately(now) {
            return shared;
        }
        let free = (limit + self.spare_slots()).saturating_sub(self.attempts.len());
        shared.max(free)
    }

    /// Gives turns to the first lanes in the queue while slots are free.
    pub(crate) fn call_suspects(&mut self) {
        let now = self.session.now.at;
        if self.backend.is_stopped() {
            return;
        }
        self.call_back();
        let lanes = &self.queue.lanes;
        self.attempts.suspects.called.retain_mut(|(key, until)| {
            let flow = lanes.get(*key).map(|lane| &lane.flow);
            // A lead of the lane is recorded before it is sent.
            if flow.is_some_and(|flow| flow.recording > 0) {
                *until = now + CALLED_FOR;
            }
            *until > now && flow.is_some_and(|flow| flow.in_flight == 0)
        });
        // Some lanes began an attempt meanwhile, while no other lane was served.
        let is_gone = |key: &LaneKey| lanes.get(*key).is_none_or(|lane| !lane.flow.is_in_line);
        while self.attempts.suspects.waiting.pop_front_if(|key| is_gone(key)).is_some() {}
        let mut shut = Vec::new();
        while self.free_for_suspects() > self.attempts.suspects.called.len()
            && let Some(key) = self.attempts.suspects.waiting.pop_front()
        {
            let Some(lane) = self.queue.lanes.get(key).filter(|lane| lane.flow.is_in_line) else {
                // Another lane uses the key of one that is gone.
                continue;
            };
            let shop = lane.shop;
            let is_ready = !lane.ready.is_empty();
            // A slot is kept for a lane whose shop's pause ends soon. The place in the queue is
            // kept for a lane whose shop waits for bytes or for the end of a delivery. Other lanes
            // join again when their shop may have turns.
            let opens_at = match self.queue.shops.gate(shop, now) {
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
                ShopGate::PausedUntil(_)
                | ShopGate::Stopped
                | ShopGate::Starved
                | ShopGate::Full => None,
            };
            if let Some(at) = opens_at.filter(|_| is_ready) {
                self.attempts.suspects.called.push((key, at + CALLED_FOR));
                self.queue.lanes.wake_at(key, at.max(now + LOOK_AGAIN));
            }
            self.out_of_line(key);
            self.queue.shops.give_turns(shop);
        }
        for key in shut.into_iter().rev() {
            self.attempts.suspects.waiting.push_front(key);
        }
    }

    /// Puts lanes that were called while there were more slots back to the front of the queue.
    /// Otherwise the missed turns would fall to the same few lanes again and again.
    fn call_back(&mut self) {
        if self.attempts.suspects.called.is_empty() {
            return;
        }
        let free = self.free_for_suspects();
        while self.attempts.suspects.called.len() > free
            && let Some((key, _)) = self.attempts.suspects.called.pop()
        {
            if let Some(lane) = self.queue.lanes.get_mut(key)
                && lane.flow.in_flight == 0
                && !std::mem::replace(&mut lane.flow.is_in_line, true)
            {
                self.attempts.suspects.waiting.push_front(key);
            }
        }
    }

    fn out_of_line(&mut self, key: LaneKey) {
        if let Some(lane) = self.queue.lanes.get_mut(key) {
            lane.flow.is_in_line = false;
        }
    }

    /// Takes the turn of a called lane. It does not wait for those of other shops, and they do not
    /// wait for it.
    pub(crate) fn next_called(&mut self) -> Option<Turn> {
        let slots = self.limiter.concurrency(self.session.now.at) + self.spare_slots();
        if self.attempts.len() >= slots || self.backend.is_stopped() {
            return None;
        }
        for at in 0..self.attempts.suspects.called.len() {
            let key = self.attempts.suspects.called[at].0;
            let Some(lane) = self.queue.lanes.get(key) else { continue };
            let shop = lane.shop;
            if self.shop_gate(shop).is_err() || self.lane_gate(lane).is_err() {
                continue;
            }
            for class in self.queue.shops.first_class(TurnsBy::Time) {
                let turn = self.pick_of_lane(shop, key, class);
                if turn.is_some() {
                    return turn;
                }
            }
        }
        None
    }

    /// Resource of the longest probe that is the last attempt of its webhook, of a lane that never
    /// had the full timeout. It is not cut off; there is one at a time.
    pub(crate) fn last_attempt(&self) -> Option<ResourceKey> {
        let probes = self.attempts.slow_probes();
        let last = probes.into_iter().find(|(_, attempt)| self.is_last(attempt));
        last.map(|(_, attempt)| attempt.resource)
    }

    /// Probes whose slice is over while others wait for their slots.
    pub(crate) fn probes_to_cut(&self) -> Vec<AttemptId> {
        let now = self.session.now.at;
        let may_begin = self.limiter.concurrency(now) > 0 && self.may_begin().is_ok();
        let is_wanted = may_begin
            && !self.backend.is_stopped()
            && !self.attempts.suspects.waiting.is_empty()
            && self.free_for_suspects() == 0;
        if !is_wanted {
            return Vec::new();
        }
        let slice_of = |lane| {
            let suspect = self.queue.lanes.get(lane).and_then(|lane| lane.flow.suspect);
            self.attempts.suspects.slice(suspect.map_or(0, |suspect| suspect.probes))
        };
        let is_over =
            |attempt: &Attempt| now.saturating_sub(attempt.began) >= slice_of(attempt.lane);
        let probes = self.attempts.slow_probes();
        // One of several probes gets the full timeout, to find out how long the others need.
        let longest = probes.first().filter(|_| probes.len() > 1);
        let scout = self.last_attempt().or(longest.map(|(_, attempt)| attempt.resource));
        let over = probes
            .iter()
            .filter(|(_, attempt)| Some(attempt.resource) != scout && is_over(attempt));
        let mut over: Vec<AttemptId> = over.map(|(id, _)| *id).collect();
        over.truncate(self.attempts.suspects.waiting.len());
        over
    }
}
