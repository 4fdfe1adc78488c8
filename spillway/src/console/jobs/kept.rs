//! A job that is kept, and its progress as its work notes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spillway_console::model::change::{JobPhase, JobStatus};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::JobOrder;
use super::held::HeldIds;
use super::phase::{JobEvent, next_phase};
use super::turns::JobTurn;
use crate::failure::Failure;

/// A job that is kept.
pub(super) struct KeptJob {
    /// Number of the job.
    pub id: u64,
    /// Order of the job.
    pub order: JobOrder,
    /// Status as it is shown.
    pub status: watch::Sender<JobStatus>,
    /// Cancelled when the job is undone, and when the process stops.
    pub end: CancellationToken,
    /// True if the job failed because others match by now.
    pub is_conflict: AtomicBool,
    is_undone: AtomicBool,
    held: HeldIds,
}

/// Progress of a job, for its work. It holds the turn of the job: work that goes on after its job was undone keeps it.
#[derive(Clone)]
pub(in crate::console) struct JobProgress {
    job: Arc<KeptJob>,
    _turn: Arc<JobTurn>,
}

/// Lets go of what a job holds, however it ends.
pub(super) struct JobEnd(pub Arc<KeptJob>);

impl KeptJob {
    /// A job that has not counted yet.
    pub(super) fn new(id: u64, order: JobOrder, end: CancellationToken, held: HeldIds) -> Self {
        let status = JobStatus {
            id,
            verb: order.verb.name().to_owned(),
            consumer: order.consumer.clone(),
            filter: order.filter.clone(),
            actor: order.actor.clone(),
            phase: JobPhase::Counting,
            done: 0,
            not_yet: 0,
            is_exact: true,
            total: None,
            digest: None,
            kept: 0,
        };
        Self {
            id,
            order,
            status: watch::Sender::new(status),
            end,
            is_conflict: AtomicBool::new(false),
            is_undone: AtomicBool::new(false),
            held,
        }
    }

    /// Goes to the next phase. False if the event does not change the phase.
    pub(super) fn step(&self, event: JobEvent) -> bool {
        self.status.send_if_modified(|status| match next_phase(&status.phase, event) {
            Some(phase) => {
                status.phase = phase;
                true
            }
            None => false,
        })
    }

    /// True if the job has ended.
    pub(super) fn is_over(&self) -> bool {
        next_phase(&self.status.borrow().phase, JobEvent::Failed(String::new())).is_none()
    }

    /// True if the job carries out this order, and nobody has undone it.
    pub(super) fn carries_out(&self, order: &JobOrder) -> bool {
        self.order.is_same(order) && !self.is_over() && !self.is_undone.load(Ordering::Acquire)
    }

    /// True for a replay that runs.
    pub(super) fn can_be_cancelled(&self) -> bool {
        self.order.verb.is_replay() && self.status.borrow().phase == JobPhase::Running
    }

    /// Ends the job for a caller.
    pub(super) fn undo(&self) {
        self.is_undone.store(true, Ordering::Release);
        self.end.cancel();
    }
}

impl Drop for JobEnd {
    fn drop(&mut self) {
        self.0.held.release();
    }
}

impl JobProgress {
    /// Progress of a job that has a turn.
    pub(super) fn new(job: &Arc<KeptJob>, turn: JobTurn) -> Self {
        Self { job: job.clone(), _turn: Arc::new(turn) }
    }

    /// Notes the number so far.
    pub(in crate::console) fn note(&self, done: u64) {
        self.job.status.send_if_modified(|status| {
            let is_new = status.done != done;
            status.done = done;
            is_new
        });
    }

    /// Notes the number of ids that the job holds in memory. Refused beyond a bound, and once the job is over.
    pub(in crate::console) fn hold(&self, number: u64) -> Result<(), Failure> {
        self.job.held.hold(number)
    }

    /// Cancelled when the job is undone or cancelled, and when the process stops.
    pub(in crate::console) fn end(&self) -> &CancellationToken {
        &self.job.end
    }

    /// True if a caller has undone or cancelled the job.
    pub(in crate::console) fn is_undone(&self) -> bool {
        self.job.is_undone.load(Ordering::Acquire)
    }
}
