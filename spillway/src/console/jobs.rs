//! Jobs: counts, replays and drops that take some time. They live in memory: one that did not begin when the process stops
//! has changed nothing.
//!
//! A job counts first. Without an expected number that is all (a dry run). With one, the job goes on if the number is
//! still the same: a replay waits for some seconds, in which it can be undone, and a drop begins at once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spillway_console::model::change::{JobPhase, JobStatus};
use spillway_console::{Caller, Permission, ProblemDetails};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::problem::problem_of;
use crate::failure::Failure;
use crate::out::now_ms;

/// Jobs that are kept.
const JOBS_KEPT: usize = 100;
/// Jobs that count or change something at once.
const AT_ONCE: usize = 4;
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
    /// Number that a dry run counted; `None` for a dry run.
    pub expected: Option<u64>,
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

    /// Changes what was found, and returns the number.
    fn make(
        &mut self,
        found: Self::Found,
        progress: JobProgress,
    ) -> impl Future<Output = Result<u64, Failure>> + Send;
}

/// Webhooks that a job counted.
pub(super) struct CountedJob<F> {
    /// Number that is meant.
    pub number: u64,
    /// Number that is kept because of its topic.
    pub kept: u64,
    /// The webhooks.
    pub found: F,
}

/// Jobs of a console.
pub(super) struct Jobs {
    table: Mutex<JobTable>,
    turns: Arc<Semaphore>,
}

#[derive(Default)]
struct JobTable {
    last: u64,
    jobs: VecDeque<Arc<KeptJob>>,
}

struct KeptJob {
    id: u64,
    status: watch::Sender<JobStatus>,
    undo: CancellationToken,
    is_conflict: AtomicBool,
}

/// Progress of a job, for its work.
#[derive(Clone)]
pub(super) struct JobProgress(Arc<KeptJob>);

/// Rules by which a job runs.
struct JobPlan {
    expected: Option<u64>,
    undo_for: Duration,
    turns: Arc<Semaphore>,
    stop: CancellationToken,
}

/// Event in the life of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
enum JobEvent {
    /// A dry run has counted.
    Counted,
    /// The job has counted, and waits until this time.
    Delayed(u64),
    /// The job begins to change something.
    Begun,
    Made,
    Undone,
    Failed(String),
}

/// Phase after an event; `None` if the event does not change this phase.
fn next_phase(phase: &JobPhase, event: JobEvent) -> Option<JobPhase> {
    let is_over = matches!(
        phase,
        JobPhase::Counted | JobPhase::Undone | JobPhase::Done | JobPhase::Failed(_)
    );
    let is_begun = matches!(phase, JobPhase::Running);
    match event {
        _ if is_over => None,
        JobEvent::Made => is_begun.then_some(JobPhase::Done),
        JobEvent::Failed(reason) => Some(JobPhase::Failed(reason)),
        _ if is_begun => None,
        JobEvent::Counted => Some(JobPhase::Counted),
        JobEvent::Delayed(until_ms) => Some(JobPhase::Waiting(until_ms)),
        JobEvent::Begun => Some(JobPhase::Running),
        JobEvent::Undone => Some(JobPhase::Undone),
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
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        Self { table: Mutex::new(JobTable::default()), turns }
    }

    /// Begins a job. `stop` ends one that has not begun to change anything.
    pub(super) fn begin(
        &self,
        order: JobOrder,
        work: impl JobWork,
        stop: CancellationToken,
    ) -> Result<JobStatus, ProblemDetails> {
        let plan = JobPlan {
            expected: order.expected,
            undo_for: order.verb.undo_for(),
            turns: self.turns.clone(),
            stop,
        };
        let job = self.keep(order)?;
        let status = job.status.borrow().clone();
        tokio::spawn(run(work, job, plan));
        Ok(status)
    }

    /// Status of a job.
    pub(super) fn status(&self, id: u64) -> Option<JobStatus> {
        self.find(id).map(|job| job.status.borrow().clone())
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

    /// Undoes a job that has not begun: its own caller may, and one who may order everything.
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
        if !job.step(JobEvent::Undone) {
            return Err(ProblemDetails::conflict(format!(
                "the job {id} has begun or is over: it can't be undone"
            )));
        }
        job.undo.cancel();
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
    fn keep(&self, order: JobOrder) -> Result<Arc<KeptJob>, ProblemDetails> {
        let mut table = self.table();
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
            total: None,
            kept: 0,
        };
        let job = Arc::new(KeptJob {
            id,
            status: watch::Sender::new(status),
            undo: CancellationToken::new(),
            is_conflict: AtomicBool::new(false),
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

    /// Resolves when the job is undone, or the process stops.
    async fn given_up(&self, stop: &CancellationToken) {
        tokio::select! {
            () = self.undo.cancelled() => {}
            () = stop.cancelled() => {}
        }
    }
}

impl JobProgress {
    /// Notes the number so far.
    pub(super) fn note(&self, done: u64) {
        self.0.status.send_if_modified(|status| {
            let is_new = status.done != done;
            status.done = done;
            is_new
        });
    }
}

/// Runs a job to its end.
async fn run<W: JobWork>(mut work: W, job: Arc<KeptJob>, plan: JobPlan) {
    let progress = JobProgress(job.clone());
    let counting = async {
        let _turn = plan.turns.acquire().await;
        work.count(progress.clone()).await
    };
    let counted = tokio::select! {
        counted = counting => Some(counted),
        () = job.given_up(&plan.stop) => None,
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
            () = job.given_up(&plan.stop) => {
                job.step(JobEvent::Undone);
                return;
            }
        }
    }
    let _turn = plan.turns.acquire().await;
    if !job.step(JobEvent::Begun) {
        return;
    }
    match work.make(found, progress.clone()).await {
        Ok(made) => {
            progress.note(made);
            job.step(JobEvent::Made);
        }
        Err(failure) => {
            job.step(JobEvent::Failed(problem_of(&failure).detail));
        }
    }
}

/// Notes the count, and returns what is to be changed, if that goes on.
fn admit<F>(job: &KeptJob, plan: &JobPlan, counted: Result<CountedJob<F>, Failure>) -> Option<F> {
    let CountedJob { number, kept, found } = match counted {
        Ok(counted) => counted,
        Err(failure) => {
            job.step(JobEvent::Failed(problem_of(&failure).detail));
            return None;
        }
    };
    job.status.send_modify(|status| {
        status.done = 0;
        status.total = Some(number);
        status.kept = kept;
    });
    let Some(expected) = plan.expected else {
        job.status.send_modify(|status| status.done = number);
        job.step(JobEvent::Counted);
        return None;
    };
    if expected != number {
        job.is_conflict.store(true, Ordering::Release);
        job.step(JobEvent::Failed(format!(
            "{number} match now, not {expected}: nothing was changed; count again"
        )));
        return None;
    }
    Some(found)
}

#[cfg(test)]
mod tests;
