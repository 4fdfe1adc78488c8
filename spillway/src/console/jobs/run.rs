//! The run of a job, from its count to its end.

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::kept::{JobEnd, JobProgress, KeptJob};
use super::phase::JobEvent;
use super::turns::JobTurns;
use super::{CountedJob, JobWork, MadeJob};
use crate::console::problem::problem_of;
use crate::failure::Failure;
use crate::out::now_ms;

/// Wait for a turn after which a job counts again: what was confirmed may be long gone.
pub(super) const RECOUNT_AFTER: Duration = Duration::from_secs(10);

/// Rules by which a job runs.
pub(super) struct JobPlan {
    /// Time for which it waits after its count.
    pub undo_for: Duration,
    /// Turns, which all jobs share.
    pub turns: Arc<JobTurns>,
}

/// Runs a job to its end.
pub(super) async fn run<W: JobWork>(mut work: W, job: Arc<KeptJob>, plan: JobPlan) {
    let _end = JobEnd(job.clone());
    let prepared = tokio::select! {
        prepared = prepare(&mut work, &job, &plan) => prepared,
        () = job.end.cancelled() => {
            job.step(JobEvent::Undone);
            None
        }
    };
    let Some((found, progress)) = prepared else { return };
    if !job.step(JobEvent::Begun) {
        return;
    }
    match work.make(found, progress).await {
        Ok(MadeJob { done, not_yet, is_exact, is_cut }) => {
            job.status.send_modify(|status| {
                status.done = done;
                status.not_yet = not_yet;
                status.is_exact = is_exact;
            });
            job.step(if is_cut { JobEvent::Cut } else { JobEvent::Made });
        }
        Err(failure) => {
            job.step(JobEvent::Failed(problem_of(&failure).detail));
        }
    }
}

/// Counts, waits for an undo and for a turn, and counts again if that took long. Returns what is to be changed, if the
/// job goes on.
async fn prepare<W: JobWork>(
    work: &mut W,
    job: &Arc<KeptJob>,
    plan: &JobPlan,
) -> Option<(W::Found, JobProgress)> {
    let mut found = count(work, job, plan).await?;
    if !plan.undo_for.is_zero() {
        let wait_ms = u64::try_from(plan.undo_for.as_millis()).unwrap_or(u64::MAX);
        job.step(JobEvent::Delayed(now_ms().saturating_add(wait_ms)));
        sleep(plan.undo_for).await;
    }
    let since = Instant::now();
    let mut waiting = pin!(plan.turns.change(&job.order));
    let turn = tokio::select! {
        biased;
        turn = waiting.as_mut() => turn,
        () = ready(()) => {
            job.step(JobEvent::Queued);
            waiting.await
        }
    };
    if since.elapsed() >= RECOUNT_AFTER {
        drop(found);
        found = count(work, job, plan).await?;
    }
    Some((found, JobProgress::new(job, turn)))
}

/// Counts, in a turn to count, and compares that with what the caller expects.
async fn count<W: JobWork>(work: &mut W, job: &Arc<KeptJob>, plan: &JobPlan) -> Option<W::Found> {
    let turn = plan.turns.count(&job.order).await;
    let counted = work.count(JobProgress::new(job, turn)).await;
    admit(job, counted)
}

/// Notes the count, and returns what is to be changed, if that goes on.
fn admit<F>(job: &KeptJob, counted: Result<CountedJob<F>, Failure>) -> Option<F> {
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
    let Some(expected) = &job.order.expected else {
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
