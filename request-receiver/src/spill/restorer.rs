//! Restores the overflow log to Redis, in order, and holds the claim to be the only receiver that
//! does.
//!
//! Invariants: nothing is restored while an append is under way. Nothing is deleted that Redis did
//! not confirm. Redis, not a memory of this process, tells where to continue. After a call without
//! an answer, Redis is asked for its result; the call is not repeated. Bounded: one chunk on its
//! way and one read ahead.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use spillway_process::error::chain;
use spillway_queue::append::Fence;
use spillway_queue::leader::{BUMP_EVERY, StallDetector};
use spillway_queue::restore::{Claimed, Restored, SpillClaim};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_spill::{LogReader, RecordBatch};
use spillway_webhook::StreamId;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::spill::channel::SpillChannel;
use crate::spill::pace::RestorePace;
use crate::store::gate::Gate;
use crate::store::looks::RedisLooks;
use crate::store::mode::{StoreEvent, StoreMode};

/// Most packs that one script appends, however small they are.
const CHUNK_RECORDS: usize = 256;
/// Time limit for confirming a claim.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Pause before something is tried again that failed, or that waits for something else to end.
const AGAIN: Duration = Duration::from_millis(100);
const AGAIN_AFTER_ERROR: Duration = Duration::from_millis(250);
const _: () = assert!(AGAIN.as_millis() < AGAIN_AFTER_ERROR.as_millis(), "an error waits longer");

/// Restores one log.
pub struct Restorer {
    spill: Arc<SpillChannel>,
    gate: Arc<Gate>,
    looks: Arc<RedisLooks>,
    claim: SpillClaim,
    /// Connection for the claim, which is also confirmed while a chunk is on its way.
    claiming: Line,
    restoring: Line,
    pace: RestorePace,
    numbers: Numbers,
    progress: RestoreProgress,
    claimed: ClaimView,
    logged: Logged,
    /// Task that deletes what was restored when the log was last empty.
    freeing: Option<JoinHandle<()>>,
}

/// Numbers of records.
#[derive(Default)]
struct Numbers {
    /// Newest record that Redis has. The next chunk goes after it.
    restored: Option<u64>,
    /// Newest record in the log at start.
    found_last: u64,
}

/// Claim as Redis has it.
#[derive(Default)]
struct ClaimView {
    /// Time at which it was last confirmed as ours.
    confirmed: Option<Instant>,
    /// Counter of another receiver's claim.
    watch: StallDetector,
    looked: Option<Instant>,
    /// The other claim, once it may be taken over.
    held: String,
}

/// State of the log lines.
struct Logged {
    error: Option<String>,
    /// True if direct appends will resume after an outage. False at a start with nothing on disk.
    is_way_back: bool,
}

/// Connection to Redis, made when it is needed.
struct Line {
    redis: Redis,
    /// `None`: the caller sets a time limit.
    answer_within: Option<Duration>,
    connection: Option<Connection>,
}

/// Position of the restorer in the log.
#[derive(Default)]
struct RestoreProgress {
    reader: Option<LogReader>,
    /// Chunk that is read and not restored yet.
    ahead: Option<RecordBatch>,
    /// Chunk that is restored and not deleted yet.
    done: Option<RecordBatch>,
}

#[derive(Debug, thiserror::Error)]
enum RestoreError {
    #[error("redis did not take what was spilled")]
    Queue(#[from] QueueError),
    #[error(
        "redis did not answer in time to {bytes} bytes that were spilled; less or later is tried"
    )]
    Late { bytes: usize },
    #[error("what was spilled cannot be read: it stays where it is, and is tried again")]
    Disk(#[from] std::io::Error),
    #[error("BUG: the spill's reader panicked")]
    Reader(#[from] JoinError),
}

impl Restorer {
    /// Restorer of the log `log_id`, which no other process has open.
    pub fn new(
        spill: Arc<SpillChannel>,
        gate: &Arc<Gate>,
        looks: &Arc<RedisLooks>,
        log_id: u64,
        redis: Redis,
    ) -> Self {
        let claim = SpillClaim::new(redis.clone(), log_id, rand::rng().random());
        let numbers = Numbers { found_last: spill.index.last(), ..Numbers::default() };
        let is_way_back = spill.holds_any();
        Self {
            spill,
            gate: gate.clone(),
            looks: looks.clone(),
            claim,
            claiming: Line::new(redis.clone(), Some(ANSWER_WITHIN)),
            restoring: Line::new(redis, None),
            pace: RestorePace::default(),
            numbers,
            progress: RestoreProgress::default(),
            claimed: ClaimView::default(),
            logged: Logged { error: None, is_way_back },
            freeing: None,
        }
    }

    /// Restores until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        // Until then it is not known if Redis takes anything.
        tokio::select! {
            () = self.looks.looked() => {}
            () = stop.cancelled() => {}
        }
        // A turn may take as long as Redis does. The next start asks Redis about what is cut off
        // here.
        while let Some(turned) = stop.run_until_cancelled(self.turn()).await {
            let pause = match turned {
                Ok(pause) => pause,
                Err(error) => {
                    self.tell(&error);
                    self.failed(&error);
                    // Otherwise every pack that is spilled meanwhile would cause another try.
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = sleep(AGAIN_AFTER_ERROR) => {}
                    }
                    Duration::ZERO
                }
            };
            self.spill.first_turn_over.cancel();
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.gate.changed() => {}
                () = sleep(pause) => {}
            }
        }
        self.gate.on(StoreEvent::ChunkFailed);
        self.end().await;
    }

    /// Takes or confirms the claim. Redis answers with the record to continue after.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn confirm(&mut self) -> Result<Claimed, QueueError> {
        let from = std::mem::take(&mut self.claimed.held);
        let claimed = self.claim.confirm(self.claiming.connected().await?, &from).await?;
        match &claimed {
            Claimed::Ours { restored, is_new } => {
                self.gate.on(StoreEvent::ClaimOurs { is_new: *is_new });
                self.claimed.confirmed = Some(Instant::now());
                self.go_on_after(*restored).await?;
            }
            Claimed::Theirs(held) => self.on_other_claim(held),
        }
        Ok(claimed)
    }

    /// Takes one step. Returns the pause before the next one, unless something happens.
    async fn turn(&mut self) -> Result<Duration, RestoreError> {
        // A hold is short: it has no time for a call that can wait.
        let is_held = self.gate.mode() == StoreMode::Closing;
        let due_after = if is_held { 3 * BUMP_EVERY } else { BUMP_EVERY };
        let is_due =
            self.claimed.confirmed.is_none_or(|confirmed| confirmed.elapsed() >= due_after);
        if (is_due || self.claiming.connection.is_none())
            && let Claimed::Theirs(_) = self.confirm().await?
        {
            return Ok(AGAIN);
        }
        self.gate.tick();
        if self.gate.needs_fence() {
            self.fence().await?;
        }
        match self.gate.mode() {
            StoreMode::Direct => Ok(BUMP_EVERY),
            StoreMode::Spilling | StoreMode::StandingBack | StoreMode::Refusing => Ok(AGAIN),
            StoreMode::Restoring | StoreMode::Closing => self.restore().await,
        }
    }

    /// Closes the connections of earlier processes to Redis: their appends must not arrive after
    /// what is restored. Nothing of this process is under way now.
    async fn fence(&mut self) -> Result<(), QueueError> {
        let connections = Fence::of_all(self.claiming.redis.clone()).close().await?;
        if connections > 0 {
            tracing::info!(connections, "an earlier process' connections to redis were ended");
        }
        self.looks.renew_connections();
        self.gate.on(StoreEvent::Fenced);
        Ok(())
    }

    /// Restores a chunk. The claim is confirmed meanwhile, however long the disk or Redis takes.
    async fn restore(&mut self) -> Result<Duration, RestoreError> {
        self.claiming.connected().await?;
        let skip_through = self.skip_through();
        let Self { spill, gate, looks, claim, claiming, restoring, pace, numbers, .. } = self;
        let progress = &mut self.progress;
        let logged = &mut self.logged;
        let chunk = async {
            let chunk = match progress.ahead.take() {
                Some(chunk) if !chunk.records.is_empty() => chunk,
                _ => progress.next(spill, skip_through, *pace).await?,
            };
            // After the last chunk, the rest is on its way to the disk now, or is held.
            gate.on(StoreEvent::ChunkRead { is_last: chunk.is_last });
            let Some(last) = chunk.last() else {
                progress.done = Some(chunk);
                return Ok(None);
            };
            // The disk may have taken long.
            if !matches!(gate.mode(), StoreMode::Restoring | StoreMode::Closing) {
                progress.ahead = Some(chunk);
                return Ok(Some(AGAIN));
            }
            let restoring = restoring.connected().await?;
            let after = numbers.restored.unwrap_or(0);
            let began = Instant::now();
            let sending = async {
                let sent = timeout(pace.answer_within, send(claim, restoring, after, &chunk)).await;
                (sent, began.elapsed())
            };
            // The next chunk is read while this one is on its way.
            let ((restored, took), ahead) =
                tokio::join!(sending, progress.next(spill, skip_through, *pace));
            let Ok(restored) = restored else {
                let bytes = chunk.bytes();
                pace.was_late(chunk.records.len(), bytes);
                return Err(RestoreError::Late { bytes });
            };
            looks.stored().on_confirmed(restored?.ms);
            pace.was_taken(chunk.bytes(), took);
            gate.restored_in(took);
            numbers.restored = Some(last);
            logged.is_way_back = true;
            progress.ahead = Some(ahead?);
            progress.done = Some(chunk);
            Ok(Some(Duration::ZERO))
        };
        let restored = tokio::select! {
            biased;
            restored = chunk => restored?,
            never = keep(claim, claiming, gate, looks) => match never {},
        };
        if let Some(pause) = restored {
            return Ok(pause);
        }
        self.finish();
        Ok(AGAIN)
    }

    /// Makes batches go to Redis directly, if the whole log is restored.
    fn finish(&mut self) {
        let Some(reader) = self.progress.reader.as_mut() else { return };
        let index = &self.spill.index;
        let mut last = 0;
        let is_restored = || {
            let is_restored = reader.pass_read();
            if is_restored {
                // Done here, since nothing is written before this is decided.
                index.all_restored();
                last = index.last();
            }
            is_restored
        };
        if self.gate.finish_if(is_restored) {
            self.spill.begins_anew(last);
            if std::mem::replace(&mut self.logged.is_way_back, true) {
                tracing::info!("the overflow is restored; webhooks go to redis directly");
            }
            // All of it is restored. It is deleted elsewhere: the disk may hang, and this task answers
            // to the watchdog. Nothing here depends on when that ends.
            self.progress.done = None;
            let freeing = tokio::spawn(self.spill.clone().free_restored());
            if let Some(before) = self.freeing.replace(freeing) {
                before.abort();
            }
        }
    }

    /// Takes `restored`, the record up to which Redis has this log.
    async fn go_on_after(&mut self, restored: u64) -> Result<(), QueueError> {
        let floor = self.spill.index.floor().max(self.spill.emptied());
        // Newest record that Redis had before, or that is not on disk any more.
        let known = self.numbers.restored.unwrap_or(floor).max(floor);
        let (held, mut restored) = (restored, restored);
        if restored < known {
            // Nothing more is appended directly before what lies here.
            self.looks.suspect();
            let lost_after = restored;
            let lost_through = restored.max(floor);
            tracing::error!(
                lost_after,
                lost_through,
                known,
                "redis does not know packs that were restored to it: it came back with older data, or is another one; what is not \
                 on disk any more is lost"
            );
            restored = lost_through;
            self.spill.errors.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.spill.index.again_after(restored);
            if let Some(connection) = self.claiming.connection.as_mut() {
                self.claim.note(connection, held, restored).await?;
            }
        }
        if self.numbers.restored != Some(restored) {
            self.progress = RestoreProgress::default();
            self.numbers.restored = Some(restored);
        }
        Ok(())
    }

    /// Record up to which the reader skips. A directory that was restored from a backup is older
    /// than what Redis knows. Even then, what was spilled since the start is new.
    fn skip_through(&self) -> u64 {
        let restored = self.numbers.restored.unwrap_or(0);
        if restored > self.spill.index.last() { self.numbers.found_last } else { restored }
    }

    fn on_other_claim(&mut self, held: &str) {
        stand_back(&self.gate, held);
        let now = Instant::now();
        let since = self.claimed.looked.replace(now).map_or(Duration::ZERO, |before| now - before);
        if self.claimed.watch.observe(held, since) {
            self.claimed.held = held.to_owned();
        }
    }

    /// Logs an error once. While Redis is away, the watch logs it. An error that only the restorer
    /// meets is logged here.
    fn tell(&mut self, error: &RestoreError) {
        let error = chain(error);
        tracing::debug!(error, "the overflow cannot be restored now");
        if self.looks.is_usable() && self.logged.error.as_ref() != Some(&error) {
            tracing::warn!(error, "redis is usable, but the overflow could not be restored");
            self.logged.error = Some(error);
        }
    }

    /// Makes the next turn ask Redis where to continue. A Redis that did not answer may be another
    /// instance since. It must be looked at before anything is restored to it and deleted here.
    fn failed(&mut self, error: &RestoreError) {
        match error {
            RestoreError::Queue(QueueError::Full(_)) => self.looks.set_full(),
            RestoreError::Queue(QueueError::Fenced | QueueError::OutOfStep) => {}
            RestoreError::Queue(_) | RestoreError::Late { .. } => self.looks.suspect(),
            RestoreError::Disk(_) | RestoreError::Reader(_) => {}
        }
        self.gate.on(StoreEvent::ChunkFailed);
        (self.claiming.connection, self.restoring.connection) = (None, None);
        // Redis may have taken what was on its way.
        self.progress = RestoreProgress::default();
    }

    /// Ends the restorer. Keeps the claim if records wait: no other receiver should start at once
    /// then.
    async fn end(mut self) {
        if self.spill.holds_any() {
            let waiting = self.spill.index.webhooks();
            let bytes = self.spill.index.bytes();
            tracing::warn!(waiting, bytes, "spilled webhooks wait on disk for the next start");
            return;
        }
        let by = Instant::now() + AGAIN * 5;
        if let Some(connection) = self.claiming.connection.as_mut() {
            timeout_at(by, self.claim.release(connection)).await.ok();
        }
    }
}

impl RestoreProgress {
    /// Deletes what is restored, and reads the next chunk. Both may wait for the disk.
    async fn next(
        &mut self,
        spill: &Arc<SpillChannel>,
        skip_through: u64,
        pace: RestorePace,
    ) -> Result<RecordBatch, RestoreError> {
        let index = spill.index.clone();
        let reader = self.reader.take();
        let done = self.done.take();
        let (reader, chunk) = tokio::task::spawn_blocking(move || {
            let mut reader = reader.unwrap_or_else(|| LogReader::after(index, skip_through));
            if let Some(done) = done {
                reader.restored(&done);
            }
            let chunk = reader.read(CHUNK_RECORDS, pace.bytes_max);
            (reader, chunk)
        })
        .await?;
        self.reader = Some(reader);
        Ok(chunk?)
    }
}

impl Line {
    fn new(redis: Redis, answer_within: Option<Duration>) -> Self {
        Self { redis, answer_within, connection: None }
    }

    async fn connected(&mut self) -> Result<&mut Connection, QueueError> {
        match &mut self.connection {
            Some(connection) => Ok(connection),
            none => Ok(none.insert(self.redis.connect(self.answer_within).await?)),
        }
    }
}

async fn send(
    claim: &SpillClaim,
    restoring: &mut Connection,
    after: u64,
    chunk: &RecordBatch,
) -> Result<StreamId, QueueError> {
    let packs: Vec<Restored<'_>> = chunk
        .records
        .iter()
        .map(|record| (record.number, record.webhooks, record.pack.as_slice()))
        .collect();
    claim.restore(restoring, after, &packs).await
}

/// Notes that another receiver has the claim, and logs that once.
fn stand_back(gate: &Gate, held: &str) {
    if gate.on(StoreEvent::ClaimTheirs) {
        tracing::error!(
            claim = held,
            "another receiver spills for this cell: webhooks are refused"
        );
    }
}

/// Confirms the claim for as long as it is polled. Another receiver would take a claim that stands
/// still.
async fn keep(
    claim: &SpillClaim,
    claiming: &mut Line,
    gate: &Gate,
    looks: &RedisLooks,
) -> Infallible {
    loop {
        sleep(BUMP_EVERY).await;
        // Without the claim, Redis refuses the chunk. A connection that broke is made again.
        let confirmed = async { claim.confirm(claiming.connected().await?, "").await };
        match confirmed.await {
            Ok(Claimed::Ours { is_new, .. }) => drop(gate.on(StoreEvent::ClaimOurs { is_new })),
            Ok(Claimed::Theirs(held)) => stand_back(gate, &held),
            Err(_) => {
                claiming.connection = None;
                looks.suspect();
            }
        }
    }
}

#[cfg(test)]
mod tests;
