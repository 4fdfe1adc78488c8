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

/// Time between two looks for notes.
const NOTES_EVERY: Duration = Duration::from_secs(5);
/// Time between two reports of how often shops and topics come. A silence is noticed that much later.
const RHYTHM_EVERY: Duration = Duration::from_secs(60);
/// Part of the least silence after which its end has to be reported.
const SILENCE_PART: u32 = 4;
/// Response timeout of Redis.
const PATIENCE: Duration = Duration::from_secs(2);
/// Notes that are kept while Redis takes none, some 3 MB. The oldest of the rest are left out, and logged.
const NOTES_MAX: usize = 20_000;

struct GapWriter {
    log: Arc<GapLog>,
    redis: Redis,
    connection: Option<Connection>,
    reporter: RhythmReporter,
    notes: Vec<NotedGap>,
    pairs: Vec<SeenPair>,
}

/// Writes until `stop`, and once more then. `least` is the least silence that counts.
pub async fn run(log: Arc<GapLog>, redis: Redis, least: Duration, stop: CancellationToken) {
    let reporter = RhythmReporter::new(redis.clone(), least);
    let (notes, pairs) = Default::default();
    let mut writer = GapWriter { log, redis, connection: None, reporter, notes, pairs };
    let rhythm_every = RHYTHM_EVERY.min(least / SILENCE_PART);
    let every = NOTES_EVERY.min(rhythm_every);
    let mut reported_at = Instant::now();
    loop {
        let is_over = stop.run_until_cancelled(sleep(every)).await.is_none();
        let is_due = is_over || reported_at.elapsed() >= rhythm_every;
        if is_due {
            reported_at = Instant::now();
        }
        writer.write(is_due).await;
        if is_over {
            return;
        }
    }
}

impl GapWriter {
    async fn write(&mut self, with_seen: bool) {
        // What is not written yet stays as it is. What comes meanwhile is counted by the log.
        let taken = self.log.take(with_seen && self.pairs.is_empty());
        self.notes.extend(taken.notes);
        self.pairs.extend(taken.seen);
        self.bound();
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
        let reported = self.reporter.report(connection, &self.pairs, wall_clock_ms()).await;
        let full = match reported {
            Ok(()) => {
                self.pairs.clear();
                None
            }
            Err((added, error)) => {
                self.pairs.drain(..added);
                Some(error)
            }
        };
        // A full Redis takes notes, though.
        if let Some(error) = full.filter(|error| !matches!(error, QueueError::Full(_))) {
            return Err(error);
        }
        if !self.notes.is_empty() {
            gaps::note(&self.redis, connection, &self.notes).await?;
            self.notes.clear();
        }
        Ok(())
    }

    /// Leaves out notes that are too many to keep.
    fn bound(&mut self) {
        let excess = self.notes.len().saturating_sub(NOTES_MAX);
        if excess > 0 {
            self.notes.drain(..excess);
            tracing::warn!(
                notes = excess,
                "notes about refused webhooks are left out: redis took none for long"
            );
        }
    }
}
