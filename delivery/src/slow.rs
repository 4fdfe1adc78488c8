//! Slow attempts: marking them, and cutting them off if others wait for their slots.

use std::time::Duration;

use crate::attempts::{Attempt, AttemptId};
use crate::core::{Core, mixed};
use crate::event::Effect;
use crate::sorted::Content;
use crate::suspects::{SLICE, luby};

/// Bits of an id that choose the slice. The longest slice is sixteen times the shortest.
const SLICE_BITS: u32 = 5;

/// Length of a probe's slice while the backend is down, in shortest slices. It depends on the id
/// and not on the number of failures, because a lane that has not failed must get long slices, too.
fn slices(id: AttemptId) -> u32 {
    let number = mixed(id.0) >> (u64::BITS - SLICE_BITS);
    luby(1 + u32::try_from(number).unwrap_or(0))
}

impl<C: Content> Core<C> {
    /// Cuts slow attempts off if others wait for their slots. Cuts all of them off if everything
    /// waits for the next leader.
    pub(crate) fn cut_off(&mut self) -> Vec<Effect<C>> {
        let now = self.session.now.at;
        if now < self.session.looks.slow_at {
            return Vec::new();
        }
        self.session.looks.slow_at = now + Duration::from_millis(50);
        let most = if self.backend.is_down() { self.probe_slice() } else { Duration::MAX };
        for slow in self.attempts.mark_slow(now, self.queue.shops.usual(), most) {
            if let Some(shop) = self.queue.shops.get(slow.shop) {
                self.attempts.proven.on_slow(shop.hash);
            }
            if let Some(lane) = self.queue.lanes.get_mut(slow.lane)
                && !lane.flow.has_succeeded_since(slow.began)
            {
                lane.flow.stalled += 1;
            }
        }
        for shop in self.attempts.mark_long(now) {
            self.queue.shops.mark_long(shop);
        }
        let ids: Vec<_> = if self.session.is_stopping {
            self.attempts.all_to_cut(now)
        } else if self.backend.is_down() {
            self.down_probes_to_cut()
        } else {
            let longest = self.some_to_cut();
            longest.iter().for_each(|id| self.attempts.mark_cut(*id, now));
            // The longest attempts may include probes.
            let mut over = self.probes_to_cut();
            over.retain(|id| !longest.contains(id));
            self.attempts.suspects.failed(over.len());
            longest.into_iter().chain(over).collect()
        };
        ids.iter().for_each(|id| self.was_cut_off(*id));
        ids.into_iter().map(Effect::Cancel).collect()
    }

    /// Probes of a backend that is down whose slice is over while others wait. With several slots,
    /// the longest probe keeps its full time. With a single slot, probes with full time and probes
    /// with a slice alternate.
    fn down_probes_to_cut(&self) -> Vec<AttemptId> {
        let Some(waiting) = self.next else { return Vec::new() };
        let now = self.session.now.at;
        let in_flight = self.attempts.len();
        let slots = self.probe_slots(waiting.lane);
        if self.limiter.concurrency(now) == 0 || in_flight < slots || self.may_begin().is_err() {
            return Vec::new();
        }
        let has_scout = slots > 1 || self.backend.probes.is_whole_due();
        let is_over = |id: AttemptId, attempt: &Attempt| {
            now.saturating_sub(attempt.began) >= self.probe_slice() * slices(id)
        };
        let slow = self.attempts.slow().into_iter().skip(usize::from(has_scout));
        let over = slow.filter(|(id, attempt)| is_over(*id, attempt)).take(in_flight + 1 - slots);
        over.map(|(id, _)| id).collect()
    }

    /// Shortest slice of a probe of a backend that is down.
    fn probe_slice(&self) -> Duration {
        SLICE.max(self.queue.shops.usual() * 2)
    }

    /// Attempts to cut off for a lane that waits for a slot.
    fn some_to_cut(&self) -> Vec<AttemptId> {
        let now = self.session.now.at;
        let concurrency = self.limiter.concurrency(now);
        // If the rate, a pause or the leader holds the turn back, a slot would not help it.
        let may_begin = concurrency > 0 && self.may_begin().is_ok();
        let waiting = self.next.filter(|turn| {
            let slots = concurrency + self.spare_slots() + self.more_slots(turn.shop);
            let lane = self.queue.lanes.get(turn.lane);
            may_begin
                && self.attempts.len() >= slots
                && lane.is_some_and(|lane| lane.flow.suspect.is_none() && lane.flow.stalled == 0)
        });
        let Some(waiting) = waiting else { return Vec::new() };
        let lanes = &self.queue.lanes;
        let last = self.last_attempt();
        let may_cut = |attempt: &Attempt| {
            attempt.lane != waiting.lane
                && Some(attempt.resource) != last
                && lanes
                    .get(attempt.lane)
                    .is_some_and(|lane| !lane.flow.has_succeeded_since(attempt.began))
        };
        // At least two slots are allowed while two shops send.
        let limit = concurrency.max(2.min(self.config.bounds.concurrency_max));
        self.attempts.to_cut(limit, now, may_cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_do_not_fall_in_step_with_the_round_of_lanes() {
        for lanes in 20..420 {
            for first in 1..=lanes {
                let is_long = |round: u64| slices(AttemptId(first + lanes * round)) >= 4;
                assert!((0..100).any(is_long), "{lanes} lanes, attempt {first}");
            }
        }
    }
}
