//! Brings what was collected to Redis, in the background.

use std::sync::Arc;
use std::time::Duration;

use spillway_process::clock::wall_clock_ms;
use spillway_process::error::chain;
use spillway_queue::gaps::{self, NotedGap};
use spillway_queue::rhythm::{RhythmReporter, SeenPair};
use spillway_queue::{Connection, QueueError, Redis};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::gaps::GapLog;

/// Time between two looks for notes, and between attempts to write them.
const NOTES_EVERY: Duration = Duration::from_secs(5);
/// Longest time between two notes of a shop and topic that keep being refused: it begins with the time between two
/// reports, and doubles. So an outage of hours is some notes of each, and all of them find room in Redis.
const REFUSALS_EVERY_MAX: Duration = Duration::from_secs(30 * 60);
/// Time between two reports of how often shops and topics come. A silence is noticed that much later.
const RHYTHM_EVERY: Duration = Duration::from_secs(60);
/// Part of the least silence after which its end has to be reported.
const SILENCE_PART: u32 = 4;
/// Response timeout of Redis.
const PATIENCE: Duration = Duration::from_secs(2);

struct GapWriter {
    log: Arc<GapLog>,
    redis: Redis,
    connection: Option<Connection>,
    reporter: RhythmReporter,
    notes: Vec<NotedGap>,
    pairs: Vec<SeenPair>,
    /// True if it is logged that the rhythm can't be written.
    is_warned: bool,
}

/// Decides when refusals are taken from the log, which merges them until then. It knows no clock.
struct RefusalPace {
    /// Time between two times at which refusals are taken, at first.
    least: Duration,
    /// The same now: it doubles while refusals go on.
    every: Duration,
    taken_ms: u64,
}

/// Writes until `stop`, and once more then. `least` is the least silence that counts.
pub async fn run(log: Arc<GapLog>, redis: Redis, least: Duration, stop: CancellationToken) {
    let reporter = RhythmReporter::new(redis.clone(), least);
    // Nothing was taken before the start.
    log.on_closed(wall_clock_ms());
    let (notes, pairs) = Default::default();
    let connection = None;
    let mut writer = GapWriter { log, redis, connection, reporter, notes, pairs, is_warned: false };
    let rhythm_every = RHYTHM_EVERY.min(least / SILENCE_PART);
    let mut pace = RefusalPace::new(rhythm_every);
    let every = NOTES_EVERY.min(rhythm_every);
    let mut reported_at = Instant::now();
    loop {
        let is_over = stop.run_until_cancelled(sleep(every)).await.is_none();
        let is_due = is_over || reported_at.elapsed() >= rhythm_every;
        if is_due {
            reported_at = Instant::now();
        }
        let newest_ms = writer.log.newest_refusal_ms();
        let is_room = writer.notes.is_empty();
        let with_notes = is_over || is_room && pace.on_look(newest_ms, wall_clock_ms());
        writer.write(is_due, with_notes).await;
        if is_over {
            return;
        }
    }
}

impl GapWriter {
    async fn write(&mut self, with_seen: bool, with_notes: bool) {
        // What is not written yet stays as it is. What comes meanwhile is merged by the log, which has bounds.
        let taken = self.log.take(with_seen && self.pairs.is_empty(), with_notes);
        self.notes.extend(taken.notes);
        self.pairs.extend(taken.seen);
        if self.notes.is_empty() && self.pairs.is_empty() {
            return;
        }
        if let Err(error) = self.try_write().await {
            self.connection = None;
            tracing::debug!(
                error = chain(&error),
                "notes about gaps are kept until redis takes them"
            );
        }
    }

    async fn try_write(&mut self) -> Result<(), QueueError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.redis.connect(Some(PATIENCE)).await?),
        };
        // Before the notes: refusals of a shop and topic count once one of it was verified.
        let accepts_since_ms = self.log.accepts_since_ms();
        let reported = self.reporter.report(connection, &self.pairs, accepts_since_ms).await;
        let failed = match reported {
            Ok(()) => {
                self.pairs.clear();
                None
            }
            Err((added, error)) => {
                self.pairs.drain(..added);
                Some(error)
            }
        };
        // A full Redis takes notes, though, and so may one that fails with the rhythm.
        let written = gaps::note(&self.redis, connection, &self.notes).await;
        if let Err((written, error)) = written {
            self.notes.drain(..written);
            return Err(error);
        }
        self.notes.clear();
        let failed = failed.filter(|error| !matches!(error, QueueError::Full(_)));
        if let Some(error) = &failed
            && !self.is_warned
        {
            tracing::warn!(
                error = chain(error),
                "the rhythm of shops and topics can't be written; trying again"
            );
        }
        self.is_warned = failed.is_some();
        failed.map_or(Ok(()), Err)
    }
}

impl RefusalPace {
    fn new(least: Duration) -> Self {
        Self { least, every: least, taken_ms: 0 }
    }

    /// Handles a look at the log, whose newest refusal is of this time. Returns true if its refusals are to be taken: it is
    /// time for it, or they ended.
    fn on_look(&mut self, newest_ms: Option<u64>, now_ms: u64) -> bool {
        // A clock that was set back makes nobody wait.
        let is_past = |time_ms: u64, time: Duration| {
            now_ms < time_ms || Duration::from_millis(now_ms - time_ms) >= time
        };
        let has_ended = newest_ms.is_none_or(|newest_ms| is_past(newest_ms, self.least));
        let is_due = newest_ms.is_some() && (has_ended || is_past(self.taken_ms, self.every));
        if has_ended && is_past(self.taken_ms, self.least) {
            self.every = self.least;
        } else if is_due {
            self.every = (self.every * 2).min(REFUSALS_EVERY_MAX);
        }
        if is_due {
            self.taken_ms = now_ms;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    #[test]
    fn a_long_outage_is_few_notes_and_its_end_is_noted_soon() {
        let mut pace = RefusalPace::new(RHYTHM_EVERY);
        let start_ms = 1_767_268_800_000;
        let looks = (0..4 * 60 * 12).map(|look| start_ms + look * 5_000);
        let taken: Vec<u64> = looks.filter(|now_ms| pace.on_look(Some(*now_ms), *now_ms)).collect();
        assert_eq!(taken[0], start_ms, "the first ones at once");
        assert_eq!(taken[1] - taken[0], 2 * MINUTE);
        assert!(taken.len() <= 13, "{taken:?}");
        let last_ms = start_ms + 235 * MINUTE;
        assert!(!pace.on_look(Some(last_ms), last_ms + 5_000));
        assert!(pace.on_look(Some(last_ms), last_ms + MINUTE), "they ended");
        assert!(!pace.on_look(None, last_ms + 3 * MINUTE), "there are none");
        assert!(pace.on_look(Some(last_ms + 9 * MINUTE), last_ms + 9 * MINUTE), "another outage");
    }
}
