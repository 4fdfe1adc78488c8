//! Jobs: counts, replays and drops that take some time. They live in memory: one that did not begin when the process stops
//! has changed nothing.
//!
//! A job counts first. Without an expected number that is all (a dry run). With one, the job goes on if the number is
//! still the same, and the digest if one is given: a replay waits for some seconds, in which it can be undone, and a
//! drop begins at once. A replay that runs can be cancelled between two batches.

mod held;
mod phase;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spillway_console::model::change::{JobPhase, JobStatus};
use spillway_console::{Caller, Permission, ProblemDetails};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::problem::problem_of;
use crate::failure::Failure;
use crate::out::now_ms;
use held::HeldIds;
use phase::{JobEvent, next_phase};

/// Jobs that are kept.
const JOBS_KEPT: usize = 100;
/// Jobs of one caller that are not over.
const UNFINISHED_MAX: usize = 8;
/// Jobs that count at once.
const COUNTS_AT_ONCE: usize = 4;
/// Jobs that change something at once. A slow one may take hours: it keeps nobody from counting.
const CHANGES_AT_ONCE: usize = 4;
const _: () = assert!(UNFINISHED_MAX < JOBS_KEPT, "one caller never takes all places");
/// Time for which a replay waits before it begins.
const UNDO_FOR: Duration = Duration::from_secs(10);

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
    /// Webhooks that are meant, in words.
    pub filter: String,
    /// Caller who ordered it.
    pub actor: String,
    /// Ids of the dead letters that are chosen, with spaces between them.
    pub chosen: Option<String>,
    /// Count of a dry run that is confirmed; `None` for a dry run.
    pub expected: Option<ExpectedCount>,
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MadeJob {
    /// Number that was changed.
    pub done: u64,
    /// Number whose change is ordered and not carried out yet.
    pub not_yet: u64,
    /// True if it was cancelled before its end.
    pub is_cut: bool,
}

/// Jobs of a console.
pub(super) struct Jobs {
    table: Mutex<JobTable>,
    turns: JobTurns,
    held: Arc<AtomicU64>,
}

/// Turns of jobs.
#[derive(Clone)]
struct JobTurns {
    counts: Arc<Semaphore>,
    changes: Arc<Semaphore>,
}

#[derive(Default)]
struct JobTable {
    last: u64,
    jobs: VecDeque<Arc<KeptJob>>,
}

struct KeptJob {
    id: u64,
    chosen: Option<String>,
    status: watch::Sender<JobStatus>,
    /// Cancelled when the job is undone, and when the process stops.
    end: CancellationToken,
    is_undone: AtomicBool,
    is_conflict: AtomicBool,
    held: HeldIds,
}

/// Progress of a job, for its work. It holds the turn of the job: work that goes on after its job was undone keeps it.
#[derive(Clone)]
pub(super) struct JobProgress {
    job: Arc<KeptJob>,
    _turn: Option<Arc<OwnedSemaphorePermit>>,
}

/// Lets go of what a job holds, however it ends.
struct JobEnd(Arc<KeptJob>);

/// Rules by which a job runs.
struct JobPlan {
    expected: Option<ExpectedCount>,
    undo_for: Duration,
    turns: JobTurns,
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

    /// Time for which the job waits before it begins.
    fn undo_for(self) -> Duration {
        match self {
            Self::DeadReplay | Self::ArchiveReplay => UNDO_FOR,
            Self::DeadDrop | Self::Drop => Duration::ZERO,
        }
    }
}

impl Jobs {
    /// No jobs yet.
    pub(super) fn new() -> Self {
        let turns = JobTurns {
            counts: Arc::new(Semaphore::new(COUNTS_AT_ONCE)),
            changes: Arc::new(Semaphore::new(CHANGES_AT_ONCE)),
        };
        Self { table: Mutex::new(JobTable::default()), turns, held: Arc::default() }
    }

    /// Begins a job. `stop` ends one that has not begun to change anything, and a replay between two batches.
    pub(super) fn begin(
        &self,
        order: JobOrder,
        work: impl JobWork,
        stop: &CancellationToken,
    ) -> Result<JobStatus, ProblemDetails> {
        let plan = JobPlan {
            expected: order.expected.clone(),
            undo_for: order.verb.undo_for(),
            turns: self.turns.clone(),
        };
        let job = self.keep(order, stop)?;
        let status = job.status.borrow().clone();
        tokio::spawn(run(work, job, plan));
        Ok(status)
    }

    /// Status of a job.
    pub(super) fn status(&self, id: u64) -> Option<JobStatus> {
        self.find(id).map(|job| job.status.borrow().clone())
    }

    /// Ids of the dead letters that a job was ordered for, with spaces between them.
    pub(super) fn chosen(&self, id: u64) -> Option<String> {
        self.find(id)?.chosen.clone()
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
        let is_own = job.status.borrow().actor == caller.name;
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
        job.is_undone.store(true, Ordering::Release);
        job.end.cancel();
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

    /// Keeps a new job. The oldest one that is over makes room.
    fn keep(
        &self,
        order: JobOrder,
        stop: &CancellationToken,
    ) -> Result<Arc<KeptJob>, ProblemDetails> {
        let mut table = self.table();
        let is_own = |job: &&Arc<KeptJob>| job.status.borrow().actor == order.actor;
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
        let id = table.last;
        let status = JobStatus {
            id,
            verb: order.verb.name().to_owned(),
            consumer: order.consumer,
            filter: order.filter,
            actor: order.actor,
            phase: JobPhase::Counting,
            done: 0,
            not_yet: 0,
            total: None,
            digest: None,
            kept: 0,
        };
        let job = Arc::new(KeptJob {
            id,
            chosen: order.chosen,
            status: watch::Sender::new(status),
            end: stop.child_token(),
            is_undone: AtomicBool::new(false),
            is_conflict: AtomicBool::new(false),
            held: HeldIds::new(self.held.clone()),
        });
        table.jobs.push_back(job.clone());
        Ok(job)
    }
}

/// Problem for a job that is not kept.
pub(super) fn absent(id: u64) -> ProblemDetails {
    ProblemDetails::not_found(format!(
        "there is no job {id}: the last {JOBS_KEPT} are kept, until the console stops; the audit has what was changed"
    ))
}

impl KeptJob {
    /// Goes to the next phase. False if the event does not change the phase.
    fn step(&self, event: JobEvent) -> bool {
        self.status.send_if_modified(|status| match next_phase(&status.phase, event) {
            Some(phase) => {
                status.phase = phase;
                true
            }
            None => false,
        })
    }

    fn is_over(&self) -> bool {
        next_phase(&self.status.borrow().phase, JobEvent::Failed(String::new())).is_none()
    }

    /// True for a replay that runs.
    fn can_be_cancelled(&self) -> bool {
        let status = self.status.borrow();
        let is_replay = [JobVerb::DeadReplay, JobVerb::ArchiveReplay]
            .iter()
            .any(|verb| status.verb == verb.name());
        is_replay && status.phase == JobPhase::Running
    }
}

impl Drop for JobEnd {
    fn drop(&mut self) {
        self.0.held.release();
    }
}

impl JobProgress {
    /// Waits for a turn of the job.
    async fn with_turn(job: &Arc<KeptJob>, turns: &Arc<Semaphore>) -> Self {
        let turn = turns.clone().acquire_owned().await.ok();
        Self { job: job.clone(), _turn: turn.map(Arc::new) }
    }

    /// Notes the number so far.
    pub(super) fn note(&self, done: u64) {
        self.job.status.send_if_modified(|status| {
            let is_new = status.done != done;
            status.done = done;
            is_new
        });
    }

    /// Notes the number of ids that the job holds in memory. Refused beyond a bound, and once the job is over.
    pub(super) fn hold(&self, number: u64) -> Result<(), Failure> {
        self.job.held.hold(number)
    }

    /// Cancelled when the job is undone or cancelled, and when the process stops.
    pub(super) fn end(&self) -> &CancellationToken {
        &self.job.end
    }

    /// True if a caller has undone or cancelled the job.
    pub(super) fn is_undone(&self) -> bool {
        self.job.is_undone.load(Ordering::Acquire)
    }
}

/// Runs a job to its end.
async fn run<W: JobWork>(mut work: W, job: Arc<KeptJob>, plan: JobPlan) {
    let _end = JobEnd(job.clone());
    let counting = async {
        let progress = JobProgress::with_turn(&job, &plan.turns.counts).await;
        work.count(progress).await
    };
    let counted = tokio::select! {
        counted = counting => Some(counted),
        () = job.end.cancelled() => None,
    };
    let Some(counted) = counted else {
        job.step(JobEvent::Undone);
        return;
    };
    let Some(found) = admit(&job, &plan, counted) else { return };
    if !plan.undo_for.is_zero() {
        let wait_ms = u64::try_from(plan.undo_for.as_millis()).unwrap_or(u64::MAX);
        job.step(JobEvent::Delayed(now_ms().saturating_add(wait_ms)));
        tokio::select! {
            () = sleep(plan.undo_for) => {}
            () = job.end.cancelled() => {
                job.step(JobEvent::Undone);
                return;
            }
        }
    }
    let progress = tokio::select! {
        progress = JobProgress::with_turn(&job, &plan.turns.changes) => progress,
        () = job.end.cancelled() => {
            job.step(JobEvent::Undone);
            return;
        }
    };
    if !job.step(JobEvent::Begun) {
        return;
    }
    match work.make(found, progress).await {
        Ok(MadeJob { done, not_yet, is_cut }) => {
            job.status.send_modify(|status| {
                status.done = done;
                status.not_yet = not_yet;
            });
            job.step(if is_cut { JobEvent::Cut } else { JobEvent::Made });
        }
        Err(failure) => {
            job.step(JobEvent::Failed(problem_of(&failure).detail));
        }
    }
}

/// Notes the count, and returns what is to be changed, if that goes on.
fn admit<F>(job: &KeptJob, plan: &JobPlan, counted: Result<CountedJob<F>, Failure>) -> Option<F> {
    let CountedJob { number, kept, digest, found } = match counted {
        Ok(counted) => counted,
        Err(failure) => {
            job.step(JobEvent::Failed(problem_of(&failure).detail));
            return None;
        }
    };
    job.status.send_modify(|status| {
        status.done = 0;
        status.total = Some(number);
        status.digest = Some(digest.clone());
        status.kept = kept;
    });
    let Some(expected) = &plan.expected else {
        job.status.send_modify(|status| status.done = number);
        job.step(JobEvent::Counted);
        return None;
    };
    let told = if expected.number != number {
        format!("{number} match now, not {}: nothing was changed; count again", expected.number)
    } else if expected.digest.as_ref().is_some_and(|expected| *expected != digest) {
        format!("other webhooks match now, as many ({number}): nothing was changed; count again")
    } else {
        return Some(found);
    };
    job.is_conflict.store(true, Ordering::Release);
    job.step(JobEvent::Failed(told));
    None
}

#[cfg(test)]
mod tests;
