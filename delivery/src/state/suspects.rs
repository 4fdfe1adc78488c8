//! Queue of suspect lanes for the slots that they share: in order, each for a slice of time.
//!
//! A lane that hangs holds a slot for up to `DELIVERY_TIMEOUT`. Among hundreds of such lanes, one
//! that has recovered would wait half an hour for its turn. Therefore a probe ends after its slice
//! if others wait. Slices follow the sequence of Luby, Sinclair and Zuckerman (1993) for restarts
//! of unknown length: 1, 1, 2, 1, 1, 2, 4. Most slices are short, and a lane that is only slow
//! eventually gets its full time. A success in the queue makes all slices longer than it took,
//! because lanes of one endpoint recover together. Failed probes reduce that length again.

use std::collections::VecDeque;
use std::time::Duration;

use crate::state::index::LaneKey;

/// The shortest slice.
pub(crate) const SLICE: Duration = Duration::from_millis(500);

/// Pause of few slots after a probe, in durations of that probe.
const REST_TIMES: u32 = 3;

/// Highest lower bound of all slices that a success can set.
const LEAST_MAX: Duration = Duration::from_secs(10);

/// `WORN`/`WORN_OF` of the least slice is left after a probe that was cut off.
const WORN: u32 = 9;
const WORN_OF: u32 = 10;
const _: () = assert!(WORN < WORN_OF, "slices get shorter again");
const _: () =
    assert!(SLICE.as_millis() < LEAST_MAX.as_millis(), "a success can make slices longer");

/// Queue of suspect lanes.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// Lanes in the queue.
    pub waiting: VecDeque<LaneKey>,
    /// Lanes that have their turn, and the time at which it ends.
    pub called: Vec<(LaneKey, Duration)>,
    /// Lower bound of all slices.
    least: Duration,
    /// Time before which no probe begins, if slots are few.
    pub rests_until: Duration,
    /// Set if a suspect lane had the last turn.
    pub has_gone: bool,
}

impl Suspects {
    /// True if a lane may take a slot while `free` of the shared slots are free.
    pub(crate) fn may_go(&self, key: LaneKey, free: usize) -> bool {
        self.is_called(key) || (self.waiting.is_empty() && free > self.called.len())
    }

    /// True if the lane has its turn.
    pub(crate) fn is_called(&self, key: LaneKey) -> bool {
        self.called.iter().any(|(called, _)| *called == key)
    }

    /// Notes that an attempt of a suspect lane ended after `took`.
    pub(crate) fn ended(&mut self, took: Duration, now: Duration) {
        self.rests_until = now + took.min(LEAST_MAX) * REST_TIMES;
    }

    /// Notes that a slow attempt of a suspect lane succeeded after `took`.
    pub(crate) fn succeeded(&mut self, took: Duration) {
        self.least = self.least.max(took * 2).min(LEAST_MAX);
    }

    /// Notes that `probes` probes were cut off after their slice, or timed out.
    pub(crate) fn failed(&mut self, probes: usize) {
        (0..probes).for_each(|_| self.least = self.least * WORN / WORN_OF);
    }

    pub(crate) fn slice(&self, probes: u32) -> Duration {
        self.least.max(slice(probes))
    }
}

/// Slice of the probe after `probes` failed ones.
fn slice(probes: u32) -> Duration {
    SLICE * luby(probes + 1)
}

/// Term of the Luby sequence with this number, from 1.
pub(crate) fn luby(mut number: u32) -> u32 {
    loop {
        let above = (number + 1).next_power_of_two();
        if above == number + 1 {
            return above / 2;
        }
        number -= above / 2 - 1;
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
        // More than `DELIVERY_TIMEOUT`. Most probes take a sixteenth of it.
        let total: u32 = (1..=127).map(luby).sum();
        assert_eq!(total, 7 * 64);
    }
}
