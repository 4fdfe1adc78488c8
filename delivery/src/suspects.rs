//! Suspect lanes that wait for one of the slots that they share: in order, each for a slice of time.
//!
//! A lane that hangs holds a slot up to `DELIVERY_TIMEOUT`. Among hundreds, one that has recovered would
//! wait its turn for half an hour. So a probe that others wait for ends after its slice. Slices follow
//! the sequence of Luby, Sinclair and Zuckerman (1993) for restarts of unknown length, 1, 1, 2, 1, 1, 2, 4:
//! most are short, and a lane that is merely slow has its whole time in the end. What succeeds in the line makes
//! all slices longer than it took, until probes that fail wear that down: lanes of one endpoint recover together.

use std::collections::VecDeque;
use std::time::Duration;

use crate::attempts::{Attempt, AttemptId};
use crate::core::Core;
use crate::dispatch::Turn;
use crate::fairness::TurnsBy;
use crate::index::{LaneKey, ResourceKey};
use crate::shop::ShopGate;
use crate::sorted::Content;

/// The shortest slice.
pub(crate) const SLICE: Duration = Duration::from_millis(500);
/// A lane whose turn has come has it for so long: its bytes may have to be read.
const CALLED_FOR: Duration = Duration::from_millis(500);

/// A quarter of fewer slots is a whole one. Then suspect lanes have a quarter of its time.
const SLOTS_FEW: usize = 4;
const REST_TIMES: u32 = 3;
/// No success makes all slices longer than this.
const LEAST_MAX: Duration = Duration::from_secs(10);
/// Lanes that keep their place in line although their shop may send nothing just now.
const SHUT_MAX: usize = 16;
/// A shop that waits for its rate is waited for if that is over so soon.
const OPENS_WITHIN: Duration = Duration::from_secs(1);
/// A lane that is called is looked at again after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Part of the least slice that is left after a probe that was cut off.
const WORN: u32 = 9;
const WORN_OF: u32 = 10;

/// Suspect lanes in line.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// Lanes in line.
    waiting: VecDeque<LaneKey>,
    /// Lanes whose turn has come, and until when.
    called: Vec<(LaneKey, Duration)>,
    /// No slice is shorter.
    least: Duration,
    /// Where slots are few, no probe begins before.
    rests_until: Duration,
    /// Set if a suspect lane had the last turn.
    pub has_gone: bool,
}

impl Suspects {
    /// Whether a lane may take a slot if so many of those that suspect lanes share are free.
    pub fn may_go(&self, key: LaneKey, free: usize) -> bool {
        self.is_called(key) || (self.waiting.is_empty() && free > self.called.len())
    }

    /// True if it is a lane's turn.
    pub fn is_called(&self, key: LaneKey) -> bool {
        self.called.iter().any(|(called, _)| *called == key)
    }

    /// An attempt of a suspect lane has held a slot for so long.
    pub fn ended(&mut self, took: Duration, now: Duration) {
        self.rests_until = now + took.min(LEAST_MAX) * REST_TIMES;
    }

    /// A slow attempt of a suspect lane succeeded after `took`.
    pub fn succeeded(&mut self, took: Duration) {
        self.least = self.least.max(took * 2).min(LEAST_MAX);
    }

    /// So many probes were cut off after their slice, or timed out.
    pub fn failed(&mut self, probes: usize) {
        (0..probes).for_each(|_| self.least = self.least * WORN / WORN_OF);
    }

    fn slice(&self, probes: u32) -> Duration {
        self.least.max(slice(probes))
    }
}

/// Slice of the probe after so many that failed.
fn slice(probes: u32) -> Duration {
    SLICE * luby(probes + 1)
}

/// The term of the sequence with this number, from 1.
pub(crate) fn luby(mut number: u32) -> u32 {
    loop {
        let above = (number + 1).next_power_of_two();
        if above == number + 1 {
            return above / 2;
        }
        number -= above / 2 - 1;
    }
}

impl<C: Content> Core<C> {
    /// A suspect lane waits for a slot.
    pub(crate) fn line_up(&mut self, key: LaneKey) {
        if let Some(lane) = self.queue.lanes.get_mut(key)
            && !std::mem::replace(&mut lane.flow.is_in_line, true)
        {
            self.attempts.suspects.waiting.push_back(key);
        }
    }

    /// Slots that suspect lanes share and none of them holds: all free ones, where nothing was delivered lately.
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

    /// Those first in line have their turn while slots are free.
    pub(crate) fn call_suspects(&mut self) {
        let now = self.session.now.at;
        if self.backend.is_stopped() {
            return;
        }
        self.call_back();
        let lanes = &self.queue.lanes;
        self.attempts.suspects.called.retain_mut(|(key, until)| {
            let flow = lanes.get(*key).map(|lane| &lane.flow);
            // What is to be sent for others is recorded first.
            if flow.is_some_and(|flow| flow.recording > 0) {
                *until = now + CALLED_FOR;
            }
            *until > now && flow.is_some_and(|flow| flow.in_flight == 0)
        });
        // Some began meanwhile, while nobody else was served.
        let is_gone = |key: &LaneKey| lanes.get(*key).is_none_or(|lane| !lane.flow.is_in_line);
        while self.attempts.suspects.waiting.pop_front_if(|key| is_gone(key)).is_some() {}
        let mut shut = Vec::new();
        while self.free_for_suspects() > self.attempts.suspects.called.len()
            && let Some(key) = self.attempts.suspects.waiting.pop_front()
        {
            let Some(lane) = self.queue.lanes.get(key).filter(|lane| lane.flow.is_in_line) else {
                // Another lane has the key of one that is gone.
                continue;
            };
            let (shop, is_ready) = (lane.shop, !lane.ready.is_empty());
            // A slot is kept for one whose shop is soon let go on, and the place for one whose shop waits for
            // bytes or for the end of a delivery. Others line up again when their shop may have turns.
            let opens_at = match self.queue.shops.gate(shop, now) {
                ShopGate::Open => Some(now),
                ShopGate::PausedUntil(at) if at <= now + OPENS_WITHIN => Some(at),
                // Another kind of the shop may ask for pauses again and again.
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

    /// Lanes that were called while there were more slots are first in line again: turns that passed meanwhile would
    /// fall to the same few lanes again and again.
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

    /// The turn of a lane that is called: it does not wait for those of other shops, and is not waited for.
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

    /// Resource of the longest probe that is the last attempt of its webhook, of a lane of which none had
    /// all the time that there is. It is not cut off: one at a time.
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
        // One of several has all the time that there is: it finds out how long the others need.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_slices_are_short_and_each_length_comes_again() {
        let first: Vec<u32> = (1..=15).map(luby).collect();
        assert_eq!(first, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
        assert_eq!(slice(0), SLICE);
        assert_eq!(luby(127), 64);
        // More than `DELIVERY_TIMEOUT`, of which most probes take a sixteenth.
        let total: u32 = (1..=127).map(luby).sum();
        assert_eq!(total, 7 * 64);
    }
}
