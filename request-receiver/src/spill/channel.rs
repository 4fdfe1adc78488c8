//! Overflow log of a receiver with `SPILL_DIR`: opened at the start, written to by all shards.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use spillway_process::Background;
use spillway_process::clock::wall_clock_ms;
use spillway_process::error::chain;
use spillway_process::start::Misconfigured;
use spillway_spill::disk::RealDisk;
use spillway_spill::segment::HeadError;
use spillway_spill::{Directory, DirectoryError, Limits, SegmentIndex, WriteError};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::reply::Refusal;
use crate::settings::SpillSettings;
use crate::spill::writer::Writing;
use crate::store::log::{LogFigures, OverflowLog};

/// Divisor of SPILL_MAX: size of a segment. A segment is only freed as a whole. With many of them,
/// room comes back bit by bit.
const SEGMENTS: u64 = 16;
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// Time after a failed write in which requests are refused before their bodies are read. The next
/// one after it tries the disk.
const REFUSE_FOR: Duration = Duration::from_millis(250);
/// Time after which a disk that has not done what it was asked for counts as stalled.
const STALLED_AFTER: Duration = Duration::from_secs(2);
/// Time between tries of a disk that took nothing. A load balancer sends nothing to a receiver that
/// is not ready, so no request would try it.
const TRY_EVERY: Duration = Duration::from_secs(1);
const _: () = assert!(SEGMENTS >= 2, "one segment is written while another one is restored");
const _: () = assert!(
    REFUSE_FOR.as_millis() < TRY_EVERY.as_millis(),
    "refusing ends before the disk is tried"
);
const _: () = assert!(
    TRY_EVERY.as_millis() < STALLED_AFTER.as_millis(),
    "a stalled disk is tried before it counts as stalled"
);

/// Overflow log, shared by all shards.
pub struct SpillChannel {
    pub(super) writing: Writing,
    pub(super) index: Arc<SegmentIndex>,
    /// Last 32 bits of the log's id.
    id: u32,
    limits: Limits,
    device: Option<u64>,
    problem: Problem,
    spilled: AtomicU64,
    /// Number of the newest record when the log was last empty.
    emptied: AtomicU64,
    pub(super) errors: AtomicU64,
    /// Cancelled once the restorer has made its first turn.
    pub(super) first_turn_over: CancellationToken,
}

/// Reason for which the disk takes no packs. A success ends it.
struct Problem {
    began: Instant,
    kind: AtomicU8,
    /// Time until which requests are refused, in ms since `began`.
    refuse_until: AtomicU64,
}

const NONE: u8 = 0;
const FULL: u8 = 1;
const FAILING: u8 = 2;

impl SpillChannel {
    /// Opens the log with what lies in the directory. Everything is written to it until the restorer
    /// has looked at Redis.
    ///
    /// # Errors
    /// [`Misconfigured`] if the directory can't be used at all. Any other error if it can't be used
    /// now.
    pub fn open(
        settings: &SpillSettings,
        background: &Background,
    ) -> anyhow::Result<(Arc<Self>, u64)> {
        let bytes_max = settings.bytes_max;
        let segment_bytes = (bytes_max / SEGMENTS).min(SEGMENT_BYTES_MAX);
        let limits = Limits { bytes_max, segment_bytes };
        // A disk that fails may recover soon, and then a restart helps. The other errors need a
        // person.
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
            tracing::warn!(
                bytes = index.bytes(),
                "the overflow log is not empty: it is restored first"
            );
            let index = index.clone();
            std::thread::Builder::new().name("spill-count".to_owned()).spawn(move || {
                spillway_spill::count(&index);
                tracing::info!(webhooks = index.webhooks(), "the overflow log is counted");
            })?;
        }
        let device = rustix::fs::stat(&settings.directory).ok().map(|stat| stat.st_dev);
        let channel = Self {
            writing: Writing::start(writer, background.guard("the spill's writer"))?,
            index,
            id: u32::try_from(log_id & u64::from(u32::MAX)).expect("BUG: 32 bits"),
            limits,
            device,
            problem: Problem {
                began: Instant::now(),
                kind: AtomicU8::new(NONE),
                refuse_until: AtomicU64::new(0),
            },
            spilled: AtomicU64::new(0),
            emptied: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            first_turn_over: CancellationToken::new(),
        };
        Ok((Arc::new(channel), log_id))
    }

    /// Tries a disk that took nothing until it does again, for as long as this is polled.
    pub async fn try_again(&self) {
        loop {
            sleep(TRY_EVERY).await;
            if self.problem.kind.load(Ordering::Relaxed) == NONE {
                continue;
            }
            match self.writing.probe().await {
                Ok(()) => self.clear_problem(),
                Err(error) => self.note(&error),
            }
        }
    }

    /// Returns true if anything waits on disk, as far as is known.
    pub fn holds_any(&self) -> bool {
        self.index.holds_any()
    }

    fn clear_problem(&self) {
        // Mostly there was no problem. Then nothing is written that other cores read.
        if self.problem.kind.load(Ordering::Relaxed) != NONE {
            self.problem.kind.store(NONE, Ordering::Relaxed);
            tracing::info!("the spill takes webhooks again");
        }
    }

    /// Notes that the log is empty up to this record. Clears the problem of the disk: it may be
    /// healthy in the next outage.
    pub fn begins_anew(&self, emptied: u64) {
        self.emptied.store(emptied, Ordering::Relaxed);
        self.problem.kind.store(NONE, Ordering::Relaxed);
    }

    /// Record up to which this process has restored everything. Nothing up to it is restored again:
    /// webhooks may have been appended directly since.
    pub fn emptied(&self) -> u64 {
        self.emptied.load(Ordering::Relaxed)
    }

    /// Deletes what was restored until the log was empty, the last segment too. Tries again while
    /// the disk fails.
    pub async fn free_restored(self: Arc<Self>) {
        // Before the next segment is made: a disk that is full may have room for it only then.
        self.free_emptied().await;
        while let Err(error) = self.writing.rotate().await {
            tracing::debug!(error = chain(&error), "the spill's last segment is kept for now");
            sleep(TRY_EVERY).await;
        }
        self.free_emptied().await;
    }

    /// Deletes the segments up to the record that the log was last empty at, except the newest. On a
    /// thread of its own: a removal lasts as long as the disk hangs.
    async fn free_emptied(&self) {
        let index = self.index.clone();
        let emptied = self.emptied();
        tokio::task::spawn_blocking(move || index.free_through(emptied)).await.ok();
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

    /// Sets the problem of the disk. Logs only a change.
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

impl OverflowLog for SpillChannel {
    fn write(&self, pack: Vec<u8>, webhooks: u32) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            match self.writing.write(pack, webhooks).await {
                Ok(()) => {
                    self.spilled.fetch_add(webhooks.into(), Ordering::Relaxed);
                    self.clear_problem();
                    Ok(())
                }
                Err(error) => Err(self.failed(&error)),
            }
        })
    }

    fn takes(&self) -> Result<(), Refusal> {
        let kind = self.problem.kind.load(Ordering::Relaxed);
        let refuse_until = self.problem.refuse_until.load(Ordering::Relaxed);
        match kind {
            NONE => Ok(()),
            _ if self.problem.now_ms() >= refuse_until => Ok(()),
            FULL => Err(Refusal::QueueFull),
            _ => Err(Refusal::QueueUnavailable),
        }
    }

    fn trouble(&self) -> Option<&'static str> {
        match self.problem.kind.load(Ordering::Relaxed) {
            _ if self.writing.waits_for() >= STALLED_AFTER => {
                Some("spill_stalled: the disk of SPILL_DIR does not answer")
            }
            NONE => None,
            FULL => Some("spill_full: SPILL_MAX is reached, or its disk is full"),
            _ => Some("spill_failing: the disk of SPILL_DIR cannot be written"),
        }
    }

    fn first_turn_over(&self) -> &CancellationToken {
        &self.first_turn_over
    }

    fn device(&self) -> Option<u64> {
        self.device
    }

    fn figures(&self) -> LogFigures {
        LogFigures {
            webhooks: self.index.webhooks(),
            bytes: self.index.bytes(),
            limit_bytes: self.limits.bytes_max,
            id: self.id,
            written: self.spilled.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed) + self.index.damages(),
        }
    }
}

/// Returns true if the choice of the directory causes the error.
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
