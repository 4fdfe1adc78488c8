//! Suspect lanes that wait for one of the slots that they share: in order, each for a slice of time.
//!
//! A lane that hangs holds a slot up to `DELIVERY_TIMEOUT`. Among hundreds, one that has recovered would
//! wait its turn for half an hour. So a probe that others wait for ends after its slice. Slices follow
//! the sequence of Luby, Sinclair and Zuckerman (1993) for restarts of unknown length, 1, 1, 2, 1, 1, 2, 4:
//! most are short, and a lane that is merely slow has its whole time in the end.

use std::collections::VecDeque;
use std::time::Duration;

use crate::attempts::AttemptId;
use crate::core::Core;
use crate::index::LaneKey;
use crate::sorted::Content;

/// The shortest slice.
const SLICE: Duration = Duration::from_millis(500);
/// A lane whose turn has come has it for so long: its bytes may have to be read.
const CALLED_FOR: Duration = Duration::from_millis(500);

/// Suspect lanes in line.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// Lanes in line.
    waiting: VecDeque<LaneKey>,
    /// Lanes whose turn has come, and until when.
    called: Vec<(LaneKey, Duration)>,
}

impl Suspects {
    /// Whether a lane may take a slot if so many of those that suspect lanes share are free.
    pub fn may_go(&self, key: LaneKey, free: usize) -> bool {
        let is_called = self.called.iter().any(|(called, _)| *called == key);
        is_called || (self.waiting.is_empty() && free > self.called.len())
    }
}

/// Slice of the probe after so many that failed.
fn slice(probes: u32) -> Duration {
    SLICE * luby(probes + 1)
}

/// The term of the sequence with this number, from 1.
fn luby(mut number: u32) -> u32 {
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

    /// Slots that suspect lanes share and none of them holds.
    pub(crate) fn free_for_suspects(&self) -> usize {
        self.attempts.free_for_odd(self.limiter.concurrency(self.session.now.at))
    }

    /// Those first in line have their turn while slots are free.
    pub(crate) fn call_suspects(&mut self) {
        let now = self.session.now.at;
        let lanes = &self.queue.lanes;
        self.attempts.suspects.called.retain(|(key, until)| {
            *until > now && lanes.get(*key).is_some_and(|lane| !lane.flow.is_at_work())
        });
        while self.free_for_suspects() > self.attempts.suspects.called.len()
            && let Some(key) = self.attempts.suspects.waiting.pop_front()
        {
            let Some(lane) = self.queue.lanes.get_mut(key) else { continue };
            // Another lane has the key of one that is gone.
            if !std::mem::take(&mut lane.flow.is_in_line) {
                continue;
            }
            let (shop, is_ready) = (lane.shop, !lane.ready.is_empty());
            if is_ready && self.shop_gate(shop).is_ok() {
                self.attempts.suspects.called.push((key, now + CALLED_FOR));
                self.queue.lanes.wake_at(key, now + CALLED_FOR);
            }
            self.queue.shops.give_turns(shop);
        }
    }

    /// Probes whose slice is over while others wait for their slots.
    pub(crate) fn probes_to_cut(&self) -> Vec<AttemptId> {
        let now = self.session.now.at;
        if self.attempts.suspects.waiting.is_empty() || self.free_for_suspects() > 0 {
            return Vec::new();
        }
        let slice_of = |lane| {
            let suspect = self.queue.lanes.get(lane).and_then(|lane| lane.flow.suspect);
            slice(suspect.map_or(0, |suspect| suspect.probes))
        };
        let mut over = self.attempts.probes_over(now, slice_of);
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
