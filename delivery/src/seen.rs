//! What was delivered lately, so that a duplicate is known when its turn comes.
//!
//! Sixteen bytes for each, in generations by age: the oldest is forgotten whole once it is out of the
//! window, or once there is no memory for another. Forgetting delivers twice; it never drops. The
//! same bytes lie in Redis, so that a restart forgets nothing. Pure: time is an argument.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use spillway_webhook::fingerprint::Fingerprint;

/// More of them forget more evenly; each costs a look.
const GENERATIONS: u32 = 8;
/// What one fingerprint takes in a table of the least favourable size: 17 bytes for each of 16/7
/// places.
const FINGERPRINT_BYTES: usize = 39;

/// Fingerprints of what was delivered within a window.
#[derive(Debug)]
pub struct Seen {
    window_ms: u64,
    generation_ms: u64,
    generation_max: usize,
    /// Oldest first.
    generations: VecDeque<Generation>,
}

#[derive(Debug)]
struct Generation {
    /// Milliseconds since the Unix epoch.
    from_ms: u64,
    last_ms: u64,
    fingerprints: HashSet<Fingerprint, BuildHasherDefault<Folded>>,
}

/// A fingerprint is a hash already.
#[derive(Debug, Default)]
struct Folded(u64);

impl Seen {
    /// Remembers for `window`, in about `bytes` at most. A window of zero remembers nothing.
    pub fn new(window: Duration, bytes: usize) -> Self {
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        Self {
            window_ms,
            generation_ms: (window_ms / u64::from(GENERATIONS)).max(1),
            generation_max: (bytes / GENERATIONS as usize / FINGERPRINT_BYTES).max(1),
            generations: VecDeque::new(),
        }
    }

    /// Whether anything is remembered at all.
    pub fn is_on(&self) -> bool {
        self.window_ms > 0
    }

    /// Whether it was delivered within the window, at `now_ms`.
    pub fn contains(&self, fingerprint: Fingerprint, now_ms: u64) -> bool {
        let begins_ms = now_ms.saturating_sub(self.window_ms);
        // Most duplicates are of something recent.
        self.generations
            .iter()
            .rev()
            .take_while(|old| old.last_ms >= begins_ms)
            .any(|old| old.fingerprints.contains(&fingerprint))
    }

    /// Notes a delivery at `now_ms`; times go up.
    pub fn insert(&mut self, fingerprint: Fingerprint, now_ms: u64) {
        if !self.is_on() {
            return;
        }
        let has_room = self.generations.back().is_some_and(|newest| {
            newest.fingerprints.len() < self.generation_max
                && now_ms.saturating_sub(newest.from_ms) < self.generation_ms
        });
        if !has_room {
            self.begin_generation(now_ms);
        }
        if let Some(newest) = self.generations.back_mut() {
            newest.last_ms = now_ms;
            newest.fingerprints.insert(fingerprint);
        }
    }

    /// What was delivered before this time is forgotten.
    pub fn forgets_before_ms(&self, now_ms: u64) -> u64 {
        let window_begins = now_ms.saturating_sub(self.window_ms);
        if self.generations.len() < GENERATIONS as usize {
            return window_begins;
        }
        self.generations.front().map_or(window_begins, |oldest| oldest.from_ms.max(window_begins))
    }

    fn begin_generation(&mut self, now_ms: u64) {
        let begins = now_ms.saturating_sub(self.window_ms);
        while let Some(oldest) = self.generations.front() {
            if oldest.last_ms > begins && self.generations.len() < GENERATIONS as usize {
                break;
            }
            self.generations.pop_front();
        }
        self.generations.push_back(Generation {
            from_ms: now_ms,
            last_ms: now_ms,
            fingerprints: HashSet::default(),
        });
    }
}

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = (fingerprint as u64) ^ ((fingerprint >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn seen(bytes: usize) -> Seen {
        Seen::new(Duration::from_secs(8 * 3600), bytes)
    }

    fn spread(number: u64) -> Fingerprint {
        u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 3
    }

    #[test]
    fn what_is_within_the_window_is_known_and_then_forgotten() {
        let mut seen = seen(1 << 20);
        for hour in 0..20u64 {
            seen.insert(spread(hour), hour * HOUR_MS);
        }
        for hour in 13..20 {
            assert!(seen.contains(spread(hour), 19 * HOUR_MS), "{hour}");
        }
        for hour in 0..11 {
            assert!(!seen.contains(spread(hour), 19 * HOUR_MS), "{hour}");
        }
        assert!(!seen.contains(spread(20), 19 * HOUR_MS));
        assert!(!seen.contains(spread(19), 28 * HOUR_MS));
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
        let mut seen = Seen::new(Duration::ZERO, 1 << 20);
        seen.insert(1, 5);
        assert!(!seen.is_on() && !seen.contains(1, 6));
    }
}
