//! Jobs: counts, replays and drops that take some time.

use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use spillway_console::model::change::{ChangeRequest, JobList, JobStatus};
use spillway_console::{Caller, ConsoleRoute, Permission, ProblemDetails};
use spillway_queue::audit::AuditWay;

use crate::audited::Actor;
use crate::console::ask;
use crate::console::extract::ApiPath;
use crate::console::jobs::{JobVerb, absent};
use crate::console::state::{Console, ConsoleState};

/// Time for which an order waits for its count, so that most answers have it.
const COUNT_WAIT: Duration = Duration::from_millis(500);

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/api/v1/jobs", Permission::Search, list)
            .answers::<JobList>("Jobs, newest first"),
        ConsoleRoute::read("/api/v1/jobs/{id}", Permission::Search, one)
            .answers::<JobStatus>("A job"),
        ConsoleRoute::change("/api/v1/jobs/{id}/undo", Permission::Replay, undo)
            .answers::<JobStatus>("Undo a job that has not begun, or cancel a replay that runs"),
    ]
}

/// The caller of the API, as the audit names it.
pub(super) fn actor(caller: &Caller) -> Actor {
    Actor { name: caller.name.clone(), way: AuditWay::Api }
}

/// Orders a job.
pub(super) async fn order(
    console: ConsoleState,
    caller: Caller,
    consumer: &str,
    verb: JobVerb,
    request: ChangeRequest,
) -> Result<Json<JobStatus>, ProblemDetails> {
    if request.force && !caller.may(Permission::Administer) {
        let needed = Permission::Administer.description();
        let told = format!("{} needs {needed} to drop webhooks of compliance topics", caller.name);
        return Err(ProblemDetails::forbidden(told));
    }
    ask::consumers::ensure_known(&console, consumer).await?;
    let job = console.jobs.order(console.clone(), actor(&caller), consumer, verb, request)?;
    begun(&console, &job).await
}

/// Answer to an order: the job, mostly with its count.
pub(super) async fn begun(
    console: &Console,
    job: &JobStatus,
) -> Result<Json<JobStatus>, ProblemDetails> {
    console.jobs.counted(job.id, COUNT_WAIT).await.map(Json)
}

async fn list(State(console): State<ConsoleState>) -> Json<JobList> {
    Json(JobList { jobs: console.jobs.list() })
}

async fn one(
    State(console): State<ConsoleState>,
    ApiPath(id): ApiPath<u64>,
) -> Result<Json<JobStatus>, ProblemDetails> {
    console.jobs.status(id).map(Json).ok_or_else(|| absent(id))
}

async fn undo(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    ApiPath(id): ApiPath<u64>,
) -> Result<Json<JobStatus>, ProblemDetails> {
    console.jobs.undo(id, &caller).map(Json)
}
