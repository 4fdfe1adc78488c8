//! Size of a chunk that is restored, and time limit of its answer.
//!
//! A distant or slow Redis may not take in time what another takes at once. After a chunk without
//! an answer in time, the size is halved, down to one pack. For one pack, the time limit is doubled
//! at each try. So restoring progresses on any connection, and on a fast one a dead connection is
//! noticed soon. As in TCP: halve at a loss, grow after a success.

use std::time::Duration;

/// Most bytes that one script appends. Large enough that a sync serves many packs, small enough
/// that Redis stays responsive to the consumers.
const BYTES_MAX: usize = 4 << 20;
/// Time after which Redis is asked for the result on another connection. That repeats nothing.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Time limit for one pack on the slowest connection. The kernel notices a peer that is gone after
/// ten seconds. This limit is for a peer that accepts everything and answers nothing.
const ANSWER_WITHIN_MAX: Duration = Duration::from_secs(600);
const _: () = assert!(
    ANSWER_WITHIN.as_millis() < ANSWER_WITHIN_MAX.as_millis(),
    "the time grows with the size"
);

/// Limits of the next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestorePace {
    /// Most bytes that are sent at once. One pack is sent in any case.
    pub bytes_max: usize,
    /// Time limit of the answer.
    pub answer_within: Duration,
}

impl Default for RestorePace {
    fn default() -> Self {
        Self { bytes_max: BYTES_MAX, answer_within: ANSWER_WITHIN }
    }
}

impl RestorePace {
    /// Lowers the limits after no answer came in time to `packs` packs of `bytes` bytes in all.
    pub fn was_late(&mut self, packs: usize, bytes: usize) {
        if packs > 1 {
            self.bytes_max = self.bytes_max.min(bytes) / 2;
        } else {
            self.answer_within = (self.answer_within * 2).min(ANSWER_WITHIN_MAX);
        }
    }

    /// Raises the limits after `bytes` bytes were taken within `took`.
    pub fn was_taken(&mut self, bytes: usize, took: Duration) {
        // Twice as many bytes would have been in time, too.
        if took * 2 < ANSWER_WITHIN {
            self.answer_within = ANSWER_WITHIN;
            self.bytes_max = self.bytes_max.max(bytes.saturating_mul(2)).min(BYTES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays packs of these sizes over a connection of so many bytes a second. Returns the time
    /// that takes, and how often something was sent again.
    fn restored(mut packs: &[usize], bytes_per_second: usize) -> (Duration, usize) {
        let mut pace = RestorePace::default();
        let mut took = Duration::ZERO;
        let mut again = 0;
        while !packs.is_empty() {
            let mut count = 1;
            while count < packs.len() && packs[..=count].iter().sum::<usize>() <= pace.bytes_max {
                count += 1;
            }
            let bytes: usize = packs[..count].iter().sum();
            let needs = Duration::from_secs_f64(bytes as f64 / bytes_per_second as f64);
            if needs > pace.answer_within {
                took += pace.answer_within;
                again += 1;
                pace.was_late(count, bytes);
                assert!(again < 1000, "it does not get on: {pace:?}");
            } else {
                took += needs;
                pace.was_taken(bytes, needs);
                packs = &packs[count..];
            }
        }
        (took, again)
    }

    #[test]
    fn it_gets_on_however_slow_the_way_is() {
        let packs: Vec<usize> = (0..2000).map(|number| 500 + number % 37 * 100).collect();
        let bytes: usize = packs.iter().sum();
        for bytes_per_second in [100, 1_000, 10_000, 100_000, 1_000_000, 100_000_000] {
            let (took, again) = restored(&packs, bytes_per_second);
            let least = bytes as f64 / bytes_per_second as f64;
            assert!(again <= 30, "{again} times at {bytes_per_second}/s");
            assert!(took.as_secs_f64() < least * 1.1 + 60.0, "{took:?} at {bytes_per_second}/s");
        }
        assert_eq!(restored(&packs, 100_000_000).1, 0);
    }

    #[test]
    fn one_pack_has_the_time_it_takes() {
        let (took, again) = restored(&[1_000, 1_000, 10 << 20, 1_000, 1_000], 100 << 10);
        // 100 s for the large one, after tries of 5, 10, 20, 40 and 80 s.
        assert!(again <= 20 && took < Duration::from_secs(350), "{again} times, {took:?}");
    }

    #[test]
    fn what_went_slowly_once_goes_fast_again() {
        let mut pace = RestorePace::default();
        for _ in 0..30 {
            pace.was_late(2, pace.bytes_max);
        }
        pace.was_late(1, 700);
        assert_eq!(pace, RestorePace { bytes_max: 0, answer_within: ANSWER_WITHIN * 2 });
        for _ in 0..20 {
            pace.was_taken(pace.bytes_max.max(700), Duration::from_millis(20));
        }
        assert_eq!(pace, RestorePace::default());
    }

    #[test]
    fn a_dead_connection_is_noticed_within_a_bound() {
        let mut pace = RestorePace::default();
        for _ in 0..100 {
            pace.was_late(1, 1);
        }
        assert_eq!(pace.answer_within, ANSWER_WITHIN_MAX);
    }
}
