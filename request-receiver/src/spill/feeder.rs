//! Feeds what was spilled to Redis, in order, and holds the claim to be the only one that does.
//!
//! Invariants: nothing is fed while an append is under way; nothing is let go of that Redis did not
//! confirm; Redis says where to go on, never a memory of our own. A call without an answer is asked
//! after, not repeated. Bounded: one chunk on its way and one read ahead.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use spillway_queue::append::Fence;
use spillway_queue::feed::{Claim, Claimed, Fed};
use spillway_queue::owner::{BUMP_EVERY, Watch};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_service::error::chain;
use spillway_spill::{Chunk, Reader};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::spill::channel::SpillChannel;
use crate::spill::pace::Pace;
use crate::store::gate::Gate;
use crate::store::looks::Looks;
use crate::store::mode::{StoreEvent, StoreMode};

/// What one script appends, however small its packs are.
const CHUNK_RECORDS: usize = 256;
/// What confirming a claim may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How soon something is tried again that waits for something else to end, or did not work.
const AGAIN: Duration = Duration::from_millis(100);
const AGAIN_AFTER_ERROR: Duration = Duration::from_millis(250);

/// Feeds one log.
pub struct Feeder {
    spill: Arc<SpillChannel>,
    gate: Arc<Gate>,
    looks: Arc<Looks>,
    claim: Claim,
    /// For the claim, which is confirmed while something is fed as well.
    claiming: Line,
    feeding: Line,
    pace: Pace,
    numbers: Numbers,
    progress: Progress,
    claimed: ClaimView,
    logged: Logged,
    /// Removes what was fed when the log was last empty.
    freeing: Option<JoinHandle<()>>,
}

/// Numbers of records.
#[derive(Default)]
struct Numbers {
    /// The newest that Redis knows of: the next chunk goes behind it.
    fed: Option<u64>,
    /// The newest that lay there at start.
    found_last: u64,
}

/// Claim as Redis has it.
#[derive(Default)]
struct ClaimView {
    /// When it was last confirmed as ours.
    confirmed: Option<Instant>,
    /// Counter of another receiver's.
    watch: Watch,
    looked: Option<Instant>,
    /// The claim as it stands, once it may be taken over.
    held: String,
}

/// What the log says already.
struct Logged {
    error: Option<String>,
    /// Whether the way back to Redis is one: at a start with nothing on disk it is not.
    is_way_back: bool,
}

/// A connection to Redis, made when it is asked for and there is none.
struct Line {
    redis: Redis,
    /// `None`: whoever calls sees to that itself.
    answer_within: Option<Duration>,
    connection: Option<Connection>,
}

/// Where the feeder is in the log.
#[derive(Default)]
struct Progress {
    reader: Option<Reader>,
    /// Read, and not fed yet.
    ahead: Option<Chunk>,
    /// Fed, and not let go of yet.
    done: Option<Chunk>,
}

#[derive(Debug, thiserror::Error)]
enum FeedError {
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

impl Feeder {
    /// For the log `log_id`, which nobody else has.
    pub fn new(
        spill: Arc<SpillChannel>,
        gate: &Arc<Gate>,
        looks: &Arc<Looks>,
        log_id: u64,
        redis: Redis,
    ) -> Self {
        let claim = Claim::new(redis.clone(), log_id, rand::rng().random());
        let numbers = Numbers { found_last: spill.index.last(), ..Numbers::default() };
        let is_way_back = spill.holds_any();
        Self {
            spill,
            gate: gate.clone(),
            looks: looks.clone(),
            claim,
            claiming: Line::new(redis.clone(), Some(ANSWER_WITHIN)),
            feeding: Line::new(redis, None),
            pace: Pace::default(),
            numbers,
            progress: Progress::default(),
            claimed: ClaimView::default(),
            logged: Logged { error: None, is_way_back },
            freeing: None,
        }
    }

    /// Feeds until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        // Before, it is not known whether Redis takes anything.
        tokio::select! {
            () = self.looks.looked() => {}
            () = stop.cancelled() => {}
        }
        // A turn may take as long as Redis does. What it was sent is asked after by the next start.
        while let Some(turned) = stop.run_until_cancelled(self.turn()).await {
            let pause = match turned {
                Ok(pause) => pause,
                Err(error) => {
                    self.tell(&error);
                    self.failed(&error);
                    // Every pack that is spilled meanwhile would be a reason to try again.
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = sleep(AGAIN_AFTER_ERROR) => {}
                    }
                    Duration::ZERO
                }
            };
            self.spill.settled.cancel();
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.gate.changed() => {}
                () = sleep(pause) => {}
            }
        }
        self.gate.on(StoreEvent::ChunkFailed);
        self.end().await;
    }

    /// Takes or confirms the claim, and learns from Redis where to go on.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn confirm(&mut self) -> Result<Claimed, QueueError> {
        let from = std::mem::take(&mut self.claimed.held);
        let claimed = self.claim.confirm(self.claiming.connected().await?, &from).await?;
        match &claimed {
            Claimed::Ours { fed, is_new } => {
                self.gate.on(StoreEvent::ClaimOurs { is_new: *is_new });
                self.claimed.confirmed = Some(Instant::now());
                self.go_on_after(*fed).await?;
            }
            Claimed::Theirs(held) => self.is_anothers(held),
        }
        Ok(claimed)
    }

    /// One step; says how long to wait for the next unless something happens.
    async fn turn(&mut self) -> Result<Duration, FeedError> {
        // A hold is short: no call that can wait comes into it.
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
            StoreMode::Restoring | StoreMode::Closing => self.feed().await,
        }
    }

    /// Ends what earlier processes may have on their way to Redis: it must not arrive behind what is
    /// fed. Nothing of this process is under way now.
    async fn fence(&mut self) -> Result<(), QueueError> {
        let connections = Fence::of_all(self.claiming.redis.clone()).close().await?;
        if connections > 0 {
            tracing::info!(connections, "an earlier process' connections to redis were ended");
        }
        self.looks.renew_connections();
        self.gate.on(StoreEvent::Fenced);
        Ok(())
    }

    /// Feeds a chunk. The claim is confirmed meanwhile, however long the disk or Redis take.
    async fn feed(&mut self) -> Result<Duration, FeedError> {
        self.claiming.connected().await?;
        let skip_through = self.skip_through();
        let Self { spill, gate, looks, claim, claiming, feeding, pace, numbers, .. } = self;
        let (progress, logged) = (&mut self.progress, &mut self.logged);
        let chunk = async {
            let chunk = match progress.ahead.take() {
                Some(chunk) if !chunk.records.is_empty() => chunk,
                _ => progress.next(spill, skip_through, *pace).await?,
            };
            // Past the last chunk, what is left is on its way to the disk now, or is held.
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
            let feeding = feeding.connected().await?;
            let after = numbers.fed.unwrap_or(0);
            let began = Instant::now();
            let sending = async {
                let sent = timeout(pace.answer_within, send(claim, feeding, after, &chunk)).await;
                (sent, began.elapsed())
            };
            // The next chunk is read while this one is on its way.
            let ((fed, took), ahead) =
                tokio::join!(sending, progress.next(spill, skip_through, *pace));
            let Ok(fed) = fed else {
                let bytes = chunk.bytes();
                pace.was_late(chunk.records.len(), bytes);
                return Err(FeedError::Late { bytes });
            };
            fed?;
            pace.was_taken(chunk.bytes(), took);
            gate.restored_in(took);
            numbers.fed = Some(last);
            logged.is_way_back = true;
            progress.ahead = Some(ahead?);
            progress.done = Some(chunk);
            Ok(Some(Duration::ZERO))
        };
        let fed = tokio::select! {
            biased;
            fed = chunk => fed?,
            never = keep(claim, claiming, gate, looks) => match never {},
        };
        if let Some(pause) = fed {
            return Ok(pause);
        }
        self.finish();
        Ok(AGAIN)
    }

    /// Has batches go to Redis directly, if all that was spilled is fed.
    fn finish(&mut self) {
        let Some(reader) = self.progress.reader.as_mut() else { return };
        let index = &self.spill.index;
        let mut last = 0;
        let is_fed = || {
            let is_fed = reader.is_at_end();
            if is_fed {
                // Here, as nothing is written before this is decided.
                index.all_fed();
                last = index.last();
            }
            is_fed
        };
        if self.gate.finish_if(is_fed) {
            self.spill.begins_anew(last);
            if std::mem::replace(&mut self.logged.is_way_back, true) {
                tracing::info!("what was spilled is fed; webhooks go to redis directly");
            }
            self.progress.let_go();
            let freeing = tokio::spawn(self.spill.clone().free_fed());
            if let Some(before) = self.freeing.replace(freeing) {
                before.abort();
            }
        }
    }

    /// Redis knows our log up to `fed`.
    async fn go_on_after(&mut self, fed: u64) -> Result<(), QueueError> {
        let floor = self.spill.index.floor().max(self.spill.emptied());
        // What it was told before, or what is not there to be told again.
        let known = self.numbers.fed.unwrap_or(floor).max(floor);
        let mut fed = fed;
        if fed < known {
            // Nothing more is appended directly before what lies here.
            self.looks.suspect();
            let (lost_after, lost_through) = (fed, fed.max(floor));
            tracing::error!(
                lost_after,
                lost_through,
                known,
                "redis does not know packs that it was fed: it came back with older data, or is another one; what is not \
                 on disk any more is lost"
            );
            fed = lost_through;
            self.spill.errors.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.spill.index.again_after(fed);
            if let Some(connection) = self.claiming.connection.as_mut() {
                self.claim.note(connection, fed).await?;
            }
        }
        if self.numbers.fed != Some(fed) {
            self.progress = Progress::default();
            self.numbers.fed = Some(fed);
        }
        Ok(())
    }

    /// Up to which number records are passed over. A directory that was put back from a copy is older
    /// than what Redis knows; what was spilled since the start is new all the same.
    fn skip_through(&self) -> u64 {
        let fed = self.numbers.fed.unwrap_or(0);
        if fed > self.spill.index.last() { self.numbers.found_last } else { fed }
    }

    fn is_anothers(&mut self, held: &str) {
        stand_back(&self.gate, held);
        let now = Instant::now();
        let since = self.claimed.looked.replace(now).map_or(Duration::ZERO, |before| now - before);
        if self.claimed.watch.may_take(held, since) {
            self.claimed.held = held.to_owned();
        }
    }

    /// While Redis is away the watch says so; what it says to nobody else is told once.
    fn tell(&mut self, error: &FeedError) {
        let error = chain(error);
        tracing::debug!(error, "what was spilled cannot be fed now");
        if self.looks.is_usable() && self.logged.error.as_ref() != Some(&error) {
            tracing::warn!(error, "redis is usable, and what was spilled could not be fed");
            self.logged.error = Some(error);
        }
    }

    /// Has Redis asked again where to go on. One that did not answer may be another since: it must be looked at before
    /// anything is fed to it and let go of.
    fn failed(&mut self, error: &FeedError) {
        match error {
            FeedError::Queue(QueueError::Full(_)) => self.looks.set_full(),
            FeedError::Queue(QueueError::Fenced | QueueError::OutOfStep) => {}
            FeedError::Queue(_) | FeedError::Late { .. } => self.looks.suspect(),
            FeedError::Disk(_) | FeedError::Reader(_) => {}
        }
        self.gate.on(StoreEvent::ChunkFailed);
        (self.claiming.connection, self.feeding.connection) = (None, None);
        // What was on its way may have been taken.
        self.progress = Progress::default();
    }

    /// Leaves the claim standing if something waits: nobody should begin at once then.
    async fn end(mut self) {
        if self.spill.holds_any() {
            let (waiting, bytes) = (self.spill.index.webhooks(), self.spill.index.bytes());
            tracing::warn!(waiting, bytes, "spilled webhooks wait on disk for the next start");
            return;
        }
        let by = Instant::now() + AGAIN * 5;
        if let Some(connection) = self.claiming.connection.as_mut() {
            timeout_at(by, self.claim.release(connection)).await.ok();
        }
    }
}

impl Progress {
    /// Lets go of what is fed, and reads on. Both may wait for the disk.
    async fn next(
        &mut self,
        spill: &Arc<SpillChannel>,
        skip_through: u64,
        pace: Pace,
    ) -> Result<Chunk, FeedError> {
        let index = spill.index.clone();
        let reader = self.reader.take();
        let done = self.done.take();
        let (reader, chunk) = tokio::task::spawn_blocking(move || {
            let mut reader = reader.unwrap_or_else(|| Reader::after(index, skip_through));
            if let Some(done) = done {
                reader.fed(&done);
            }
            let chunk = reader.read(CHUNK_RECORDS, pace.bytes_max);
            (reader, chunk)
        })
        .await?;
        self.reader = Some(reader);
        Ok(chunk?)
    }

    fn let_go(&mut self) {
        if let (Some(reader), Some(done)) = (&self.reader, self.done.take()) {
            reader.fed(&done);
        }
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
    claim: &Claim,
    feeding: &mut Connection,
    after: u64,
    chunk: &Chunk,
) -> Result<(), QueueError> {
    let packs: Vec<Fed<'_>> = chunk
        .records
        .iter()
        .map(|record| (record.number, record.webhooks, record.pack.as_slice()))
        .collect();
    claim.feed(feeding, after, &packs).await
}

/// Reports that another receiver has the claim, and logs that once.
fn stand_back(gate: &Gate, held: &str) {
    if gate.on(StoreEvent::ClaimTheirs) {
        tracing::error!(claim = held, "another receiver spills for this cell: none is taken in");
    }
}

/// Confirms the claim for as long as it is polled: another receiver would take one that stands still.
async fn keep(claim: &Claim, claiming: &mut Line, gate: &Gate, looks: &Looks) -> Infallible {
    loop {
        sleep(BUMP_EVERY).await;
        // Without the claim, Redis refuses what is being fed. A connection that broke is made again.
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
