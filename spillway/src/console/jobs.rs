//! Jobs: counts, replays and drops that take some time. They live in memory: one that did not begin when the process stops
//! has changed nothing.
//!
//! A job counts first. Without an expected number that is all (a dry run). With one, the job goes on if the number is
//! still the same, and the digest if one is given: a replay waits for some seconds, in which it can be undone. Then each
//! waits for its turn ([`turns`]), in which it can be undone too, and after a long wait it counts again. A replay that
//! runs can be cancelled between two batches. The same order again, as of a double click, is the same job.

mod held;
mod kept;
mod phase;
mod run;
mod turns;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spillway_console::model::change::{JobPhase, JobStatus, WebhookSelection};
use spillway_console::{Caller, Permission, ProblemDetails};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::failure::Failure;
pub(super) use held::HELD_BYTES;
use held::HeldIds;
pub(super) use kept::JobProgress;
use kept::KeptJob;
use phase::JobEvent;
use run::{JobPlan, run};
use turns::JobTurns;

/// Jobs that are kept.
const JOBS_KEPT: usize = 100;
/// Jobs of one caller that are not over.
const UNFINISHED_MAX: usize = 8;
const _: () = assert!(UNFINISHED_MAX < JOBS_KEPT, "one caller never takes all places");
/// Time for which a replay waits before it begins.
const UNDO_FOR: Duration = Duration::from_secs(10);
/// Time for jobs that run when the process stops: a batch, and the record of the end.
const STOP_WITHIN: Duration = Duration::from_secs(3);

/// Kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobVerb {
    /// Delivers dead letters again.
    DeadReplay,
    /// Drops dead letters.
    DeadDrop,
    /// Drops webhooks that wait.
    Drop,
    /// Delivers archived webhooks again.
    ArchiveReplay,
}

/// Order of a job.
#[derive(Debug, Clone)]
pub(super) struct JobOrder {
    /// Kind of the job.
    pub verb: JobVerb,
    /// Consumer that it changes.
    pub consumer: String,
    /// Webhooks that are meant, in words. Times are absolute here.
    pub filter: String,
    /// Webhooks that are meant, with times as they were given.
    pub selection: WebhookSelection,
    /// Caller who ordered it.
    pub actor: String,
    /// Count of a dry run that is confirmed; `None` for a dry run.
    pub expected: Option<ExpectedCount>,
    /// Number per second.
    pub rate: Option<u32>,
    /// True to drop compliance topics too.
    pub force: bool,
}

/// Count that a caller confirms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExpectedCount {
    /// Number that was counted.
    pub number: u64,
    /// Digest of what was counted, if the caller gave it.
    pub digest: Option<String>,
}

/// Work of a job.
pub(super) trait JobWork: Send + 'static {
    /// Webhooks that were found.
    type Found: Send;

    /// Finds and counts what is meant. Changes nothing.
    fn count(
        &mut self,
        progress: JobProgress,
    ) -> impl Future<Output = Result<CountedJob<Self::Found>, Failure>> + Send;

    /// Changes what was found.
    fn make(
        &mut self,
        found: Self::Found,
        progress: JobProgress,
    ) -> impl Future<Output = Result<MadeJob, Failure>> + Send;
}

/// Webhooks that a job counted.
pub(super) struct CountedJob<F> {
    /// Number that is meant.
    pub number: u64,
    /// Number that is kept because of its topic.
    pub kept: u64,
    /// Digest of the webhooks that are meant.
    pub digest: String,
    /// The webhooks.
    pub found: F,
}

/// Result of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MadeJob {
    /// Number that was changed.
    pub done: u64,
    /// Number whose change is ordered and not carried out yet.
    pub not_yet: u64,
    /// False if it is not known how many of these are carried out.
    pub is_exact: bool,
    /// True if it was cancelled before its end.
    pub is_cut: bool,
}

/// Jobs of a console.
pub(super) struct Jobs {
    table: Mutex<JobTable>,
    turns: Arc<JobTurns>,
    held: Arc<AtomicU64>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct JobTable {
    last: u64,
    jobs: VecDeque<Arc<KeptJob>>,
}

impl JobOrder {
    /// True if both mean the same change. How long ago a time was is compared as it was given: a retry has the same text.
    fn is_same(&self, other: &Self) -> bool {
        let Self { verb, consumer, filter: _, selection, actor, expected, rate, force } = self;
        *verb == other.verb
            && *consumer == other.consumer
            && *selection == other.selection
            && *actor == other.actor
            && *expected == other.expected
            && *rate == other.rate
            && *force == other.force
    }
}

impl JobVerb {
    /// Command, as the audit has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DeadReplay => "dead replay",
            Self::DeadDrop => "dead drop",
            Self::Drop => "queue drop",
            Self::ArchiveReplay => "replay",
        }
    }

    /// True if it delivers again.
    fn is_replay(self) -> bool {
        match self {
            Self::DeadReplay | Self::ArchiveReplay => true,
            Self::DeadDrop | Self::Drop => false,
        }
    }

    /// Time for which the job waits before it begins.
    fn undo_for(self) -> Duration {
        if self.is_replay() { UNDO_FOR } else { Duration::ZERO }
    }
}

impl Jobs {
    /// No jobs yet.
    pub(super) fn new() -> Self {
        let turns = Arc::new(JobTurns::new());
        let table = Mutex::new(JobTable::default());
        Self { table, turns, held: Arc::default(), tasks: TaskTracker::new() }
    }

    /// Begins a job, or returns the one that carries out the same order already. `stop` ends one that has not begun to
    /// change anything, and a replay between two batches.
    pub(super) fn begin(
        &self,
        order: JobOrder,
        work: impl JobWork,
        stop: &CancellationToken,
    ) -> Result<JobStatus, ProblemDetails> {
        let plan = JobPlan { undo_for: order.verb.undo_for(), turns: self.turns.clone() };
        let (job, is_new) = self.keep(order, stop)?;
        let status = job.status.borrow().clone();
        if is_new {
            self.tasks.spawn(run(work, job, plan));
        }
        Ok(status)
    }

    /// Waits until all jobs have ended after the process was told to stop, so that the audit has their ends. Not for long:
    /// Redis may be away.
    pub(super) async fn wait_for_ends(&self) {
        self.tasks.close();
        if timeout(STOP_WITHIN, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                "stopping although some jobs have not ended: the audit has no end of them"
            );
        }
    }

    /// Status of a job.
    pub(super) fn status(&self, id: u64) -> Option<JobStatus> {
        self.find(id).map(|job| job.status.borrow().clone())
    }

    /// Ids of the dead letters that a job was ordered for, with spaces between them.
    pub(super) fn chosen(&self, id: u64) -> Option<String> {
        self.find(id)?.order.selection.ids.as_ref().map(|ids| ids.join(" "))
    }

    /// All jobs that are kept, newest first.
    pub(super) fn list(&self) -> Vec<JobStatus> {
        let table = self.table();
        table.jobs.iter().rev().map(|job| job.status.borrow().clone()).collect()
    }

    /// Watches a job. The first change comes at once.
    pub(super) fn watch(&self, id: u64) -> Option<watch::Receiver<JobStatus>> {
        let mut latest = self.find(id)?.status.subscribe();
        latest.mark_changed();
        Some(latest)
    }

    /// Undoes a job that has not begun, and cancels a replay that runs: its own caller may, and one who may order everything.
    pub(super) fn undo(&self, id: u64, caller: &Caller) -> Result<JobStatus, ProblemDetails> {
        let job = self.find(id).ok_or_else(|| absent(id))?;
        let is_own = job.order.actor == caller.name;
        if !is_own && !caller.may(Permission::Operate) {
            let needed = Permission::Operate.description();
            return Err(ProblemDetails::forbidden(format!(
                "another one ordered the job {id}: {} needs {needed} to undo it",
                caller.name
            )));
        }
        let is_cancelled = !job.step(JobEvent::Undone);
        if is_cancelled && !job.can_be_cancelled() {
            return Err(ProblemDetails::conflict(format!(
                "the job {id} is over, or a drop that has begun: it can't be undone"
            )));
        }
        job.undo();
        let status = job.status.borrow().clone();
        Ok(status)
    }

    /// Waits until a job has counted, or for this time. A number that is not the expected one is a conflict.
    pub(super) async fn counted(
        &self,
        id: u64,
        wait: Duration,
    ) -> Result<JobStatus, ProblemDetails> {
        let job = self.find(id).ok_or_else(|| absent(id))?;
        let mut latest = job.status.subscribe();
        drop(timeout(wait, latest.wait_for(|job| job.phase != JobPhase::Counting)).await);
        let status = latest.borrow().clone();
        match &status.phase {
            JobPhase::Failed(reason) if job.is_conflict.load(Ordering::Acquire) => {
                Err(ProblemDetails::conflict(reason.clone()))
            }
            _ => Ok(status),
        }
    }

    fn find(&self, id: u64) -> Option<Arc<KeptJob>> {
        self.table().jobs.iter().find(|job| job.id == id).cloned()
    }

    fn table(&self) -> std::sync::MutexGuard<'_, JobTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a new job, for which the oldest one that is over makes room, or finds the one that carries out the same
    /// order. True if it is new.
    fn keep(
        &self,
        order: JobOrder,
        stop: &CancellationToken,
    ) -> Result<(Arc<KeptJob>, bool), ProblemDetails> {
        let mut table = self.table();
        if let Some(same) = table.jobs.iter().find(|job| job.carries_out(&order)) {
            return Ok((same.clone(), false));
        }
        let is_own = |job: &&Arc<KeptJob>| job.order.actor == order.actor;
        let unfinished = table.jobs.iter().filter(is_own).filter(|job| !job.is_over()).count();
        if unfinished >= UNFINISHED_MAX {
            let told = format!(
                "{UNFINISHED_MAX} jobs of {} are not over: wait for some of them, or undo them",
                order.actor
            );
            return Err(ProblemDetails::unavailable(told));
        }
        if table.jobs.len() >= JOBS_KEPT {
            let Some(at) = table.jobs.iter().position(|job| job.is_over()) else {
                let told = format!("{JOBS_KEPT} jobs are not over: wait for some of them");
                return Err(ProblemDetails::unavailable(told));
            };
            table.jobs.remove(at);
        }
        table.last += 1;
        let held = HeldIds::new(self.held.clone());
        let job = Arc::new(KeptJob::new(table.last, order, stop.child_token(), held));
        table.jobs.push_back(job.clone());
        Ok((job, true))
    }
}

/// Problem for a job that is not kept.
pub(super) fn absent(id: u64) -> ProblemDetails {
    ProblemDetails::not_found(format!(
        "there is no job {id}: the last {JOBS_KEPT} are kept, until the console stops; the audit has what was changed"
    ))
}

#[cfg(test)]
mod tests;
