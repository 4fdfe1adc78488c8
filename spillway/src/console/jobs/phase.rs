//! Phases of a job, and the events between them.

use spillway_console::model::change::JobPhase;

/// Event in the life of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobEvent {
    /// A dry run has counted.
    Counted,
    /// The job has counted, and waits until this time.
    Delayed(u64),
    /// The job waits for its turn.
    Queued,
    /// The job begins to change something.
    Begun,
    /// The job has made its change.
    Made,
    /// The job was cancelled after it had begun.
    Cut,
    /// The job was undone before it had begun.
    Undone,
    /// The job failed for this reason.
    Failed(String),
}

/// Phase after an event; `None` if the event does not change this phase.
pub(super) fn next_phase(phase: &JobPhase, event: JobEvent) -> Option<JobPhase> {
    let is_over = matches!(
        phase,
        JobPhase::Counted
            | JobPhase::Undone
            | JobPhase::Cancelled
            | JobPhase::Done
            | JobPhase::Failed(_)
    );
    let is_begun = matches!(phase, JobPhase::Running);
    match event {
        _ if is_over => None,
        JobEvent::Made => is_begun.then_some(JobPhase::Done),
        JobEvent::Cut => is_begun.then_some(JobPhase::Cancelled),
        JobEvent::Failed(reason) => Some(JobPhase::Failed(reason)),
        _ if is_begun => None,
        JobEvent::Counted => Some(JobPhase::Counted),
        JobEvent::Delayed(until_ms) => Some(JobPhase::Waiting(until_ms)),
        JobEvent::Queued => Some(JobPhase::Queued),
        JobEvent::Begun => Some(JobPhase::Running),
        JobEvent::Undone => Some(JobPhase::Undone),
    }
}
