//! Where packs go while Redis takes none: a log on this machine's disk, which is fed to Redis in order
//! once it takes them again.
//!
//! [`mode`] decides where batches go, [`gate`] lets them pass, [`writer`] syncs what is spilled,
//! [`mod@feeder`] feeds it, [`pace`] how fast, [`claim`] sees to it that one receiver spills for a cell. The
//! files are `spillway-spill`'s.
//!
//! Bounded by `SPILL_MAX` on disk, and by one pack for each shard and two chunks of the feeder in memory.

pub mod claim;
pub mod feeder;
pub mod gate;
pub mod mode;
pub mod pace;
#[cfg(test)]
mod simulation;
pub mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use spillway_queue::Redis;
use spillway_service::Background;
use spillway_service::clock::wall_clock_ms;
use spillway_service::error::chain;
use spillway_service::start::Misconfigured;
use spillway_spill::disk::RealDisk;
use spillway_spill::segment::HeadError;
use spillway_spill::{Directory, DirectoryError, Index, Limits, WriteError};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::reply::Refusal;
use crate::spill::feeder::Feeder;
use crate::spill::gate::{Gate, Passed, WritePass};
use crate::spill::mode::{StoreEvent, StoreMode};
use crate::spill::writer::Writing;

/// What an append may take, as a part of ACK_TIMEOUT, before Redis counts as hanging: what arrives
/// from then on goes to the disk, with most of its time left.
const STALL_PART: u32 = 6;
/// However long ACK_TIMEOUT is: the batcher answers to nobody meanwhile.
const STALL_MAX: Duration = Duration::from_secs(1);
/// A segment is let go of whole: many of them, so that room comes back bit by bit.
const SEGMENTS: u64 = 16;
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// After a write that failed, requests are refused before their bodies are read for so long; then
/// the next one tries.
const REFUSE_FOR: Duration = Duration::from_millis(250);
/// A load balancer sends nothing to a receiver that is not ready: so it tries the disk by itself.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Where and how much.
#[derive(Debug, Clone)]
pub struct SpillSettings {
    /// The directory.
    pub directory: PathBuf,
    /// Bytes on disk.
    pub bytes_max: u64,
}

/// The way to the disk, shared by all shards.
pub struct Spill {
    gate: Arc<Gate>,
    writing: Writing,
    index: Arc<Index>,
    limits: Limits,
    stall_after: Duration,
    problem: Problem,
    spilled: AtomicU64,
    errors: AtomicU64,
    /// Cancelled once the feeder has had a first look.
    settled: CancellationToken,
}

/// What keeps the disk from taking packs, since when; a success ends it.
struct Problem {
    began: Instant,
    kind: AtomicU8,
    /// In ms since `began`.
    refuse_until: AtomicU64,
}

const NONE: u8 = 0;
const FULL: u8 = 1;
const FAILING: u8 = 2;

impl Spill {
    /// Takes up what lies in the directory. Until the feeder has looked at Redis, everything spills.
    ///
    /// # Errors
    /// [`Misconfigured`] when the directory is not one to use; any other when it can't be now.
    pub fn open(
        settings: &SpillSettings,
        ack_timeout: Duration,
        background: &Background,
    ) -> anyhow::Result<(Arc<Self>, u64)> {
        let bytes_max = settings.bytes_max;
        let segment_bytes = (bytes_max / SEGMENTS).min(SEGMENT_BYTES_MAX);
        let limits = Limits { bytes_max, segment_bytes };
        // A disk that fails may be well again soon: then a restart helps. The rest is for a person.
        let unusable = |error: DirectoryError| {
            let text = format!("SPILL_DIR: {}", chain(&error));
            match &error {
                DirectoryError::Io { error, .. }
                | DirectoryError::Segment { error: HeadError::Io(error), .. }
                    if !is_mistake(error) =>
                {
                    anyhow::Error::msg(text)
                }
                _ => Misconfigured(text).into(),
            }
        };
        let directory = Directory::take(&settings.directory).map_err(unusable)?;
        let log_id = directory.id();
        let now_us = wall_clock_ms() * 1000;
        let (index, writer) = spillway_spill::open(directory, Box::new(RealDisk), limits, now_us)
            .map_err(unusable)?;
        if index.holds_any() {
            tracing::warn!(bytes = index.bytes(), "spilled before, and not fed to redis yet");
            let index = index.clone();
            std::thread::Builder::new().name("spill-count".to_owned()).spawn(move || {
                spillway_spill::count(&index);
                tracing::info!(webhooks = index.webhooks(), "what was spilled before is counted");
            })?;
        }
        let spill = Self {
            gate: Gate::new(),
            writing: Writing::start(writer, background.guard("the spill's writer"))?,
            index,
            limits,
            stall_after: (ack_timeout / STALL_PART).min(STALL_MAX),
            problem: Problem {
                began: Instant::now(),
                kind: AtomicU8::new(NONE),
                refuse_until: AtomicU64::new(0),
            },
            spilled: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            settled: CancellationToken::new(),
        };
        Ok((Arc::new(spill), log_id))
    }

    /// Passes a batch that is ready: it says where the batch goes.
    pub async fn pass(&self) -> Passed {
        self.gate.pass().await
    }

    /// Takes in whether Redis takes appends.
    pub fn set_queue(&self, is_usable: bool) {
        self.gate.on(StoreEvent::Queue { is_usable });
    }

    /// Whether nothing is appended directly.
    pub fn is_spilling(&self) -> bool {
        self.gate.mode() != StoreMode::Direct
    }

    /// How long an append may take before Redis counts as hanging.
    pub fn stall_after(&self) -> Duration {
        self.stall_after
    }

    /// Whether a pack would be taken, as far as is known.
    ///
    /// # Errors
    /// Why not.
    pub fn takes(&self) -> Result<(), Refusal> {
        if self.stands_back() {
            return Err(Refusal::QueueUnavailable);
        }
        match self.problem.kind.load(Ordering::Relaxed) {
            NONE => Ok(()),
            _ if self.problem.now_ms() >= self.problem.refuse_until.load(Ordering::Relaxed) => {
                Ok(())
            }
            FULL => Err(Refusal::QueueFull),
            _ => Err(Refusal::QueueUnavailable),
        }
    }

    /// What keeps it from taking packs, for an operator.
    pub fn trouble(&self) -> Option<&'static str> {
        if self.stands_back() {
            return Some("spill_claimed: another receiver spills for this cell");
        }
        match self.problem.kind.load(Ordering::Relaxed) {
            NONE => None,
            FULL => Some("spill_full: SPILL_MAX is reached, or its disk is full"),
            _ => Some("spill_failing: the disk of SPILL_DIR cannot be written"),
        }
    }

    /// Writes a pack; `Ok` once it survives a power cut.
    ///
    /// # Errors
    /// What its waiters are to be told.
    pub async fn write(
        &self,
        _pass: &WritePass,
        pack: Vec<u8>,
        webhooks: u32,
    ) -> Result<(), Refusal> {
        match self.writing.write(pack, webhooks).await {
            Ok(()) => {
                self.spilled.fetch_add(webhooks.into(), Ordering::Relaxed);
                self.is_well();
                Ok(())
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Tries a disk that took nothing until it does again, for as long as this is polled.
    pub async fn try_again(&self) {
        loop {
            sleep(TRY_EVERY).await;
            if self.problem.kind.load(Ordering::Relaxed) == NONE {
                continue;
            }
            match self.writing.probe().await {
                Ok(()) => self.is_well(),
                Err(error) => self.note(&error),
            }
        }
    }

    /// Waits until the feeder has looked at Redis once, whatever it found.
    pub async fn settled(&self) {
        self.settled.cancelled().await;
    }

    /// Whether anything waits on disk, as far as is known.
    pub fn holds_any(&self) -> bool {
        self.index.holds_any()
    }

    /// Webhooks that wait on disk; fewer until what a start has found there is counted.
    pub fn webhooks(&self) -> u64 {
        self.index.webhooks()
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// Bytes that they may take.
    pub fn limit_bytes(&self) -> u64 {
        self.limits.bytes_max
    }

    /// Webhooks spilled since the start.
    pub fn spilled(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }

    /// Writes that failed, and damage that was met.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed) + self.index.damages()
    }

    fn stands_back(&self) -> bool {
        self.gate.mode() == StoreMode::StandingBack
    }

    fn is_well(&self) {
        // Mostly it was before: then nothing is written that other cores read.
        if self.problem.kind.load(Ordering::Relaxed) != NONE {
            self.problem.kind.store(NONE, Ordering::Relaxed);
            tracing::info!("the spill takes webhooks again");
        }
    }

    /// What kept the disk from taking packs is past: the next outage may find it well.
    fn begins_anew(&self) {
        self.problem.kind.store(NONE, Ordering::Relaxed);
    }

    fn failed(&self, error: &WriteError) -> Refusal {
        let until = self.problem.now_ms() + REFUSE_FOR.as_millis() as u64;
        self.problem.refuse_until.store(until, Ordering::Relaxed);
        self.note(error);
        match error {
            WriteError::Limit | WriteError::Full(_) => Refusal::QueueFull,
            WriteError::Failed(_) => Refusal::QueueUnavailable,
            WriteError::Unknown(_) => Refusal::AckTimeout,
        }
    }

    /// What keeps the disk from taking packs. Logged at the change only.
    fn note(&self, error: &WriteError) {
        let kind = match error {
            WriteError::Limit | WriteError::Full(_) => FULL,
            WriteError::Failed(_) | WriteError::Unknown(_) => FAILING,
        };
        if kind == FAILING {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        if self.problem.kind.swap(kind, Ordering::Relaxed) != kind {
            tracing::error!(
                error = chain(error),
                "webhooks cannot be spilled; they are answered 503"
            );
        }
    }
}

/// Whether an error of the file system is one of whoever chose the directory.
fn is_mistake(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::NotFound | K::NotADirectory | K::AlreadyExists | K::PermissionDenied | K::IsADirectory
    )
}

impl Problem {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A feeder for what was opened, with the claim settled if Redis can be asked.
///
/// # Errors
/// [`Misconfigured`] when another receiver spills for this cell.
pub async fn feeder(
    spill: &Arc<Spill>,
    log_id: u64,
    redis: &Redis,
) -> Result<Feeder, Misconfigured> {
    let mut feeder = Feeder::new(spill.clone(), log_id, redis.clone());
    claim::settle(&mut feeder).await?;
    Ok(feeder)
}
