//! Brings what was collected to Redis, in the background.

use std::sync::Arc;
use std::time::Duration;

use spillway_process::clock::wall_clock_ms;
use spillway_process::error::chain;
use spillway_queue::accepting::{self, AcceptedTime};
use spillway_queue::gaps::{self, NotedGap};
use spillway_queue::rhythm::{RhythmReporter, SeenPair};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_webhook::freshness::rfc3339;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::gaps::{GapLog, RefusalSpan};

/// Time between two looks for notes, and between attempts to write them.
const NOTES_EVERY: Duration = Duration::from_secs(5);
/// Longest time between two notes of a shop and topic that keep being refused: it begins with the time between two
/// reports, and doubles. So an outage of hours is some notes of each, and all of them find room in Redis.
const REFUSALS_EVERY_MAX: Duration = Duration::from_secs(30 * 60);
/// Time between two reports of how often shops and topics come. A silence is noticed that much later.
const RHYTHM_EVERY: Duration = Duration::from_secs(60);
/// Part of the least silence after which its end has to be reported.
const SILENCE_PART: u32 = 4;
/// Reports that may be missing before the start of a process until the time without a receiver is noted as a gap: so a
/// restart is none, and neither is one after a crash, which leaves its last report undone.
const REPORTS_MISSED: u32 = 2;
/// Time between two log lines about refusals that can't be written.
const UNWRITTEN_EVERY: Duration = Duration::from_secs(60);
/// Time for the last attempt to write, at the end of the process.
pub const LAST_WRITE: Duration = Duration::from_millis(400);
/// Names of what is written, for the log.
const ACCEPTANCE: &str = "the times in which webhooks are accepted";
const RHYTHM: &str = "the rhythm of shops and topics";
/// Response timeout of Redis.
const PATIENCE: Duration = Duration::from_secs(2);

struct GapWriter {
    log: Arc<GapLog>,
    redis: Redis,
    connection: Option<Connection>,
    reporter: RhythmReporter,
    notes: Vec<NotedGap>,
    pairs: Vec<SeenPair>,
    /// Least time without a receiver that the first report notes as a gap; `None` after it.
    noted: Option<Duration>,
    /// True if it is logged that the times of acceptance can't be written.
    is_warned_of_times: bool,
    /// True if it is logged that the rhythm can't be written.
    is_warned_of_rhythm: bool,
    /// True if the last attempt to write failed.
    is_failing: bool,
}

/// Decides when it is logged that refusals are not written. It knows no clock.
#[derive(Default)]
struct UnwrittenPace {
    /// Begin of the failure, or time of the last log line.
    since_ms: Option<u64>,
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
    let rhythm_every = RHYTHM_EVERY.min(least / SILENCE_PART);
    let mut writer = GapWriter::new(log, redis, least, rhythm_every);
    let mut pace = RefusalPace::new(rhythm_every);
    let mut unwritten = UnwrittenPace::default();
    let every = NOTES_EVERY.min(rhythm_every);
    let mut reported_at = Instant::now();
    loop {
        let is_over = stop.run_until_cancelled(sleep(every)).await.is_none();
        let is_due = is_over || reported_at.elapsed() >= rhythm_every;
        if is_due {
            reported_at = Instant::now();
        }
        let newest_ms = writer.log.refusals().map(|refusals| refusals.to_ms);
        let is_room = writer.notes.is_empty();
        let with_notes = is_over || is_room && pace.on_look(newest_ms, wall_clock_ms());
        let writing = writer.write(is_due, with_notes);
        if !is_over {
            writing.await;
        } else if timeout(LAST_WRITE, writing).await.is_err() {
            writer.is_failing = true;
        }
        if unwritten.on_attempt(writer.is_failing, is_over, wall_clock_ms()) {
            writer.log_unwritten(is_over);
        }
        if is_over {
            return;
        }
    }
}

impl GapWriter {
    fn new(log: Arc<GapLog>, redis: Redis, least: Duration, rhythm_every: Duration) -> Self {
        Self {
            log,
            reporter: RhythmReporter::new(redis.clone(), least),
            redis,
            connection: None,
            notes: Vec::new(),
            pairs: Vec::new(),
            noted: Some(rhythm_every * REPORTS_MISSED),
            is_warned_of_times: false,
            is_warned_of_rhythm: false,
            is_failing: false,
        }
    }

    /// Logs the refusals that are not written: Redis may be away until this process ends.
    fn log_unwritten(&self, is_over: bool) {
        let noted = RefusalSpan::of(self.notes.iter());
        let spans = noted.into_iter().chain(self.log.refusals());
        let Some(RefusalSpan { from_ms, to_ms, count }) = spans.reduce(RefusalSpan::and) else {
            return;
        };
        let [from, to] = [from_ms, to_ms].map(rfc3339);
        if is_over {
            tracing::warn!(
                from,
                to,
                count,
                "redis took no notes: `spillway gaps` will not list the shops and topics of these refusals"
            );
        } else {
            tracing::warn!(
                from,
                to,
                count,
                "redis takes no notes: `spillway gaps` does not list these refusals yet"
            );
        }
    }

    async fn write(&mut self, with_seen: bool, with_notes: bool) {
        // What is not written yet stays as it is. What comes meanwhile is merged by the log, which has bounds.
        let taken = self.log.take(with_seen && self.pairs.is_empty(), with_notes);
        self.notes.extend(taken.notes);
        self.pairs.extend(taken.seen);
        // The first ones soon: they show how long there was no receiver.
        let is_due = with_seen || self.noted.is_some();
        let times = if is_due { self.log.acceptance().times() } else { Vec::new() };
        if self.notes.is_empty() && self.pairs.is_empty() && times.is_empty() {
            return;
        }
        let written = self.try_write(&times).await;
        self.is_failing = written.is_err() && !self.notes.is_empty();
        if let Err(error) = written {
            self.connection = None;
            tracing::debug!(
                error = chain(&error),
                "notes about gaps are kept until redis takes them"
            );
        }
    }

    async fn try_write(&mut self, times: &[AcceptedTime]) -> Result<(), QueueError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.redis.connect(Some(PATIENCE)).await?),
        };
        // Before the pairs: a time in which nothing could come is none of their silences.
        let times_failed = if times.is_empty() {
            None
        } else {
            let now_ms = wall_clock_ms();
            match accepting::report(&self.redis, connection, times, self.noted, now_ms).await {
                Ok(()) => {
                    self.noted = None;
                    self.log.acceptance().on_reported(times);
                    warn_once(&mut self.is_warned_of_times, ACCEPTANCE, None)
                }
                // Nothing else would get there now.
                Err(error @ QueueError::Unreachable(_)) => return Err(error),
                Err(error) => warn_once(&mut self.is_warned_of_times, ACCEPTANCE, Some(error)),
            }
        };
        // Before the notes: refusals of a shop and topic count once one of it was verified.
        let reported = self.reporter.report(connection, &self.pairs).await;
        let rhythm_failed = match reported {
            Ok(()) => {
                self.pairs.clear();
                None
            }
            Err((added, error)) => {
                self.pairs.drain(..added);
                Some(error)
            }
        };
        // A full Redis takes notes, though, and so may one that fails with the others.
        let written = gaps::note(&self.redis, connection, &self.notes).await;
        if let Err((written, error)) = written {
            self.notes.drain(..written);
            return Err(error);
        }
        self.notes.clear();
        let rhythm_failed = warn_once(&mut self.is_warned_of_rhythm, RHYTHM, rhythm_failed);
        times_failed.or(rhythm_failed).map_or(Ok(()), Err)
    }
}

/// Logs a failure to write, unless the attempt before also failed. A full Redis is none. Returns the failure.
fn warn_once(
    is_warned: &mut bool,
    what: &'static str,
    failed: Option<QueueError>,
) -> Option<QueueError> {
    let failed = failed.filter(|error| !matches!(error, QueueError::Full(_)));
    if let Some(error) = &failed
        && !*is_warned
    {
        tracing::warn!(error = chain(error), "{what} can't be written; trying again");
    }
    *is_warned = failed.is_some();
    failed
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

impl UnwrittenPace {
    /// Handles an attempt to write. Returns true if it is to be logged what is not written: at the end of the process, and
    /// once a minute.
    fn on_attempt(&mut self, is_failing: bool, is_over: bool, now_ms: u64) -> bool {
        if !is_failing {
            self.since_ms = None;
            return false;
        }
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        let has_passed =
            now_ms < since_ms || Duration::from_millis(now_ms - since_ms) >= UNWRITTEN_EVERY;
        if has_passed {
            self.since_ms = Some(now_ms);
        }
        is_over || has_passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    #[test]
    fn what_is_not_written_is_logged_each_minute_and_at_the_end() {
        let mut pace = UnwrittenPace::default();
        assert!(!pace.on_attempt(false, true, 0), "all is written");
        let attempts = (0..=36).map(|attempt| attempt * 5_000);
        let logged: Vec<u64> =
            attempts.filter(|now_ms| pace.on_attempt(true, false, *now_ms)).collect();
        assert_eq!(logged, [MINUTE, 2 * MINUTE, 3 * MINUTE]);
        assert!(pace.on_attempt(true, true, 3 * MINUTE + 1), "the end");
        assert!(!pace.on_attempt(false, false, 4 * MINUTE));
        assert!(!pace.on_attempt(true, false, 4 * MINUTE + 5_000), "it has just begun to fail");
    }

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
