//! Deduplication window: fingerprints of recent deliveries, so that a duplicate is recognized when
//! its turn comes, and marks of events that were given up.
//!
//! Each fingerprint has 16 bytes. They are kept in generations by age. The oldest generation is
//! dropped as a whole when it leaves the window, or when there is no memory for another one. The
//! window ends when the oldest webhook that waits was accepted: a copy that waits for days is still
//! recognized. A forgotten fingerprint causes a second delivery. Redis holds the same fingerprints, so
//! that a restart forgets nothing. Pure: time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_webhook::fingerprint::Fingerprint;

use crate::state::folded::FoldedSet;

/// Number of generations. With more, forgetting is more even, but each costs a lookup.
const GENERATIONS: u32 = 8;
const _: () = assert!(GENERATIONS >= 2, "only the oldest part is forgotten");
/// Bytes of one fingerprint in a table of the least favourable size: 17 bytes for each of 16/7
/// places.
const FINGERPRINT_BYTES: usize = 39;

/// Fingerprints of the deliveries within a window.
#[derive(Debug)]
pub struct DedupWindow {
    window_ms: u64,
    generation_ms: u64,
    generation_max: usize,
    /// Time at which the oldest webhook that waits was accepted; 0 while it is not known.
    oldest_ms: u64,
    /// Generations, oldest first.
    generations: VecDeque<Generation>,
}

#[derive(Debug)]
struct Generation {
    /// Time of the first delivery, in milliseconds since the Unix epoch.
    from_ms: u64,
    last_ms: u64,
    fingerprints: FoldedSet<Fingerprint>,
}

/// Mark by which an event that was given up is remembered: its fingerprint with all bits inverted. A
/// late copy of the event is sent, but stands for no other one.
pub(crate) fn given_up(fingerprint: Fingerprint) -> Fingerprint {
    !fingerprint
}

impl DedupWindow {
    /// Creates a window of `window`, with about `bytes` at most. A window of zero keeps nothing.
    pub fn new(window: Duration, bytes: usize) -> Self {
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        Self {
            window_ms,
            generation_ms: (window_ms / u64::from(GENERATIONS)).max(1),
            generation_max: (bytes / GENERATIONS as usize / FINGERPRINT_BYTES).max(1),
            oldest_ms: 0,
            generations: VecDeque::new(),
        }
    }

    /// Notes that all webhooks that wait were accepted at `oldest_ms` or later.
    pub(crate) fn set_oldest(&mut self, oldest_ms: u64) {
        self.oldest_ms = oldest_ms;
    }

    /// True if deliveries are remembered at all.
    pub fn is_on(&self) -> bool {
        self.window_ms > 0
    }

    /// Beginning of the window.
    fn begins_ms(&self, now_ms: u64) -> u64 {
        now_ms.min(self.oldest_ms).saturating_sub(self.window_ms)
    }

    /// True if the fingerprint was delivered within the window.
    pub fn contains(&self, fingerprint: Fingerprint, now_ms: u64) -> bool {
        let begins_ms = self.begins_ms(now_ms);
        // Most duplicates are of a recent delivery, so the newest generation is checked first.
        self.generations
            .iter()
            .rev()
            .take_while(|old| old.last_ms >= begins_ms)
            .any(|old| old.fingerprints.contains(&fingerprint))
    }

    /// Check if an event was delivered, or given up, within the window.
    pub(crate) fn ended(&self, now_ms: u64) -> impl Fn(Fingerprint) -> bool {
        move |one| self.contains(one, now_ms) || self.contains(given_up(one), now_ms)
    }

    /// Adds a delivery at `now_ms`. Times must not go back.
    pub fn insert(&mut self, fingerprint: Fingerprint, now_ms: u64) {
        if !self.is_on() {
            return;
        }
        let begins_ms = self.begins_ms(now_ms);
        let is_needed = self.generations.front().is_some_and(|oldest| oldest.last_ms > begins_ms);
        // With more generations, each look takes longer.
        let is_last = is_needed && self.generations.len() >= GENERATIONS as usize;
        let has_room = self.generations.back().is_some_and(|newest| {
            let is_young = now_ms.saturating_sub(newest.from_ms) < self.generation_ms;
            newest.fingerprints.len() < self.generation_max && (is_young || is_last)
        });
        if !has_room {
            self.begin_generation(now_ms);
        }
        if let Some(newest) = self.generations.back_mut() {
            newest.last_ms = now_ms;
            newest.fingerprints.insert(fingerprint);
        }
    }

    /// Time before which all deliveries are forgotten.
    pub fn forgets_before_ms(&self, now_ms: u64) -> u64 {
        let window_begins = self.begins_ms(now_ms);
        if self.generations.len() < GENERATIONS as usize {
            return window_begins;
        }
        self.generations.front().map_or(window_begins, |oldest| oldest.from_ms.max(window_begins))
    }

    fn begin_generation(&mut self, now_ms: u64) {
        let begins = self.begins_ms(now_ms);
        let most = self.generation_max * (GENERATIONS as usize - 1);
        let mut count: usize = self.generations.iter().map(|one| one.fingerprints.len()).sum();
        while let Some(oldest) = self.generations.front() {
            if oldest.last_ms > begins && count <= most {
                break;
            }
            count -= oldest.fingerprints.len();
            self.generations.pop_front();
        }
        self.generations.push_back(Generation {
            from_ms: now_ms,
            last_ms: now_ms,
            fingerprints: FoldedSet::default(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn seen(bytes: usize) -> DedupWindow {
        DedupWindow::new(Duration::from_secs(8 * 3600), bytes)
    }

    fn spread(number: u64) -> Fingerprint {
        u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 3
    }

    #[test]
    fn what_is_within_the_window_is_known_and_then_forgotten() {
        let mut seen = seen(1 << 20);
        for hour in 0..20u64 {
            seen.set_oldest(hour * HOUR_MS);
            seen.insert(spread(hour), hour * HOUR_MS);
        }
        for hour in 13..20 {
            assert!(seen.contains(spread(hour), 19 * HOUR_MS), "{hour}");
        }
        for hour in 0..11 {
            assert!(!seen.contains(spread(hour), 19 * HOUR_MS), "{hour}");
        }
        assert!(!seen.contains(spread(20), 19 * HOUR_MS));
        seen.set_oldest(28 * HOUR_MS);
        assert!(!seen.contains(spread(19), 28 * HOUR_MS));
    }

    #[test]
    fn nothing_is_forgotten_that_a_waiting_webhook_may_be_a_copy_of() {
        let mut seen = seen(1 << 20);
        seen.set_oldest(8 * HOUR_MS);
        (0..100).for_each(|hour| seen.insert(spread(hour), hour * HOUR_MS));
        let all = |seen: &DedupWindow, from| {
            (from..100).all(|of| seen.contains(spread(of), 99 * HOUR_MS))
        };
        assert!(all(&seen, 1) && seen.forgets_before_ms(99 * HOUR_MS) == HOUR_MS);
        seen.set_oldest(99 * HOUR_MS);
        seen.insert(spread(100), 100 * HOUR_MS);
        assert!(seen.forgets_before_ms(100 * HOUR_MS) == 91 * HOUR_MS && all(&seen, 92));
    }

    #[test]
    fn nothing_is_displaced_while_there_is_memory() {
        let mut seen = seen(8 * 39 * 100);
        // Seven generations with one fingerprint each, and then many at once.
        (0..707).for_each(|number| seen.insert(spread(number), (number.min(7) + 1) * HOUR_MS));
        assert!((0..707).all(|number| seen.contains(spread(number), 8 * HOUR_MS)));
        (707..2_000).for_each(|number| seen.insert(spread(number), 9 * HOUR_MS));
        let held: usize = seen.generations.iter().map(|one| one.fingerprints.len()).sum();
        assert!((700..=800).contains(&held) && seen.generations.len() <= 15, "{held}");
        assert!(!seen.contains(spread(0), 9 * HOUR_MS));
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_are_forgotten_first() {
        let mut seen = seen(8 * 39 * 100);
        (0..10_000).for_each(|number| seen.insert(spread(number), number));
        let held: usize = seen.generations.iter().map(|one| one.fingerprints.len()).sum();
        assert!((700..=800).contains(&held), "{held}");
        assert!(seen.contains(spread(9_999), 10_000) && seen.contains(spread(9_300), 10_000));
        assert!(!seen.contains(spread(1_000), 10_000));
        assert_eq!(seen.forgets_before_ms(10_000), 9_200);
    }

    #[test]
    fn a_window_of_zero_remembers_nothing() {
        let mut seen = DedupWindow::new(Duration::ZERO, 1 << 20);
        seen.insert(1, 5);
        assert!(!seen.is_on() && !seen.contains(1, 6));
    }
}
