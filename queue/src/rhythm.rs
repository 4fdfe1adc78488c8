//! Rhythm of shops and topics: when each was last seen, and its longest silence lately.
//!
//! Stored as six numbers for each shop and topic: time of the first and of the last webhook, their count, longest silence
//! of this period and of the one before, number of the period. The script merges what several receivers saw.

use std::time::Duration;

use redis::{Script, cmd};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::gaps::{KEPT_FOR, NOTES_MAX};

/// Pairs of a shop and a topic that are kept: some 7 MB. Those beyond have no rhythm.
const PAIRS_KEPT: usize = 50_000;
/// Pairs of one call of the script, which bounds the time for which it blocks Redis.
const PAIRS_OF_A_CALL: usize = 200;
/// Period in which the longest silence counts: a week has all that repeats, such as nights and weekends.
const PERIOD: Duration = Duration::from_secs(7 * 24 * 3600);
/// Webhooks from which a pair has a rhythm. `rhythm.lua` has the same.
const COUNT_MIN: u64 = 20;
/// Number of least silences for which a pair was seen before it has a rhythm. `rhythm.lua` has the same.
const KNOWN_FOR: u64 = 24;
/// Pairs that Redis scans for one answer.
const SCAN_COUNT: usize = 1000;

/// Webhooks of one shop and topic since the last report of the same receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPair {
    /// Shop domain, without a space.
    pub shop: String,
    /// Topic.
    pub topic: String,
    /// Time of the first one, in milliseconds since the Unix epoch.
    pub first_ms: u64,
    /// Time of the last one.
    pub last_ms: u64,
    /// Number of webhooks.
    pub count: u64,
    /// Longest time between two of them.
    pub longest_ms: u64,
}

/// Rhythm of a shop and topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PairRhythm {
    /// Time of the first webhook that is known, in milliseconds since the Unix epoch.
    pub first_ms: u64,
    /// Time of the last one.
    pub last_ms: u64,
    /// Number of webhooks.
    pub count: u64,
    /// Longest time between two of them, in this week and the one before.
    pub longest_ms: u64,
}

/// Reporter of what a receiver saw.
#[derive(Debug)]
pub struct RhythmReporter {
    redis: Redis,
    least: Duration,
    /// Cursor of the sweep over pairs that were not seen for long.
    cursor: String,
}

impl PairRhythm {
    /// True if nothing came for so long that it is not usual. A silence has to last longer than `least_ms`, and than
    /// twice the longest one of this week and the last.
    pub fn is_silent(&self, now_ms: u64, least_ms: u64) -> bool {
        let is_known = self.count >= COUNT_MIN
            && self.last_ms.saturating_sub(self.first_ms) >= KNOWN_FOR.saturating_mul(least_ms);
        let silence = now_ms.saturating_sub(self.last_ms);
        is_known && silence > least_ms.max(self.longest_ms.saturating_mul(2))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let [first_ms, last_ms, count] = [next()?, next()?, next()?];
        let longest_ms = next()?.max(next()?);
        Some(Self { first_ms, last_ms, count, longest_ms })
    }
}

impl RhythmReporter {
    /// A reporter that notes silences which ended, if they were longer than `least`.
    pub fn new(redis: Redis, least: Duration) -> Self {
        Self { redis, least, cursor: "0".to_owned() }
    }

    /// Adds what a receiver saw. Times in which it accepted webhooks are reported before, by [`crate::accepting`]. After a
    /// failure, the rest may be reported again.
    ///
    /// # Errors
    /// The number of pairs that are added, and the error of Redis. [`QueueError::Full`] if Redis has no room.
    pub async fn report(
        &mut self,
        connection: &mut Connection,
        pairs: &[SeenPair],
    ) -> Result<(), (usize, QueueError)> {
        let script = Script::new(include_str!("lua/rhythm.lua"));
        for (number, some) in pairs.chunks(PAIRS_OF_A_CALL).enumerate() {
            let mut call = script.key(self.redis.keys.rhythm());
            call.key(self.redis.keys.gaps())
                .key(self.redis.keys.gaps_accepting())
                .arg(PAIRS_KEPT)
                .arg(millis(self.least))
                .arg(millis(PERIOD))
                .arg(NOTES_MAX)
                .arg(&self.cursor)
                .arg(millis(KEPT_FOR));
            for pair in some {
                call.arg(field_of(pair)).arg(pair.first_ms).arg(pair.last_ms);
                call.arg(pair.count).arg(pair.longest_ms);
            }
            let swept: Result<String, _> = call.invoke_async(connection).await;
            let added = number * PAIRS_OF_A_CALL;
            self.cursor = swept.map_err(|error| (added, QueueError::from(error)))?;
        }
        Ok(())
    }
}

/// Reads some pairs, from a cursor of the scan; 0 is the begin. Returns them with the next cursor; 0 is the end. A pair may
/// come twice.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn scan(
    redis: &Redis,
    connection: &mut Connection,
    cursor: u64,
) -> Result<(u64, Vec<(String, String, PairRhythm)>), QueueError> {
    let (next, found): (u64, Vec<(String, String)>) = cmd("HSCAN")
        .arg(redis.keys.rhythm())
        .arg(cursor)
        .arg("COUNT")
        .arg(SCAN_COUNT)
        .query_async(connection)
        .await?;
    // A value that can't be read belongs to no rhythm: nothing is decided by it.
    let pairs = found.into_iter().filter_map(|(field, value)| {
        let (shop, topic) = field.split_once(' ')?;
        Some((shop.to_owned(), topic.to_owned(), PairRhythm::parse(&value)?))
    });
    Ok((next, pairs.collect()))
}

fn field_of(pair: &SeenPair) -> String {
    format!("{} {}", pair.shop, pair.topic)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    #[test]
    fn a_pair_is_silent_only_against_its_own_rhythm() {
        let day = 24 * HOUR;
        let busy = PairRhythm { first_ms: 0, last_ms: 2 * day, count: 500, longest_ms: 600_000 };
        assert!(!busy.is_silent(2 * day + HOUR, HOUR), "the least silence");
        assert!(busy.is_silent(2 * day + HOUR + 1, HOUR));
        let nightly = PairRhythm { longest_ms: 10 * HOUR, ..busy };
        assert!(!nightly.is_silent(2 * day + 20 * HOUR, HOUR));
        assert!(nightly.is_silent(2 * day + 20 * HOUR + 1, HOUR));
    }

    #[test]
    fn a_pair_that_is_hardly_known_has_no_rhythm() {
        let burst = PairRhythm { first_ms: 0, last_ms: HOUR, count: 500, longest_ms: 10 };
        assert!(!burst.is_silent(100 * HOUR, HOUR), "an import");
        let rare = PairRhythm { first_ms: 0, last_ms: 30 * HOUR, count: 19, longest_ms: HOUR };
        assert!(!rare.is_silent(100 * HOUR, HOUR), "too few");
        assert!(PairRhythm { count: 20, ..rare }.is_silent(100 * HOUR, HOUR));
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_silence() {
        let busy = PairRhythm { first_ms: 0, last_ms: 48 * HOUR, count: 500, longest_ms: 10 };
        assert!(!busy.is_silent(HOUR, HOUR));
    }

    #[test]
    fn a_rhythm_is_read_as_the_script_writes_it() {
        let expected = PairRhythm { first_ms: 1, last_ms: 9, count: 3, longest_ms: 7 };
        assert_eq!(PairRhythm::parse("1 9 3 5 7 2900"), Some(expected));
        assert_eq!(PairRhythm::parse("1 9 3 5"), None);
        assert_eq!(PairRhythm::parse("1 9 x 5 7 2900"), None);
    }
}
