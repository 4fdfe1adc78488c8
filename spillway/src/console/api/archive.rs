//! Replays from the archive.

use axum::extract::State;
use axum::{Extension, Json};
use spillway_console::model::change::{ArchiveReplayRequest, JobStatus};
use spillway_console::{Caller, ConsoleRoute, Permission, ProblemDetails};

use super::jobs::{actor, begun};
use crate::console::ask;
use crate::console::extract::{ApiJson, ApiPath};
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::change("/api/v1/consumers/{consumer}/replay", Permission::Operate, replay)
            .answers::<JobStatus>("Deliver archived webhooks again; without `expected`, count them")
            .with_body::<ArchiveReplayRequest>(),
    ]
}

async fn replay(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    ApiPath(consumer): ApiPath<String>,
    ApiJson(request): ApiJson<ArchiveReplayRequest>,
) -> Result<Json<JobStatus>, ProblemDetails> {
    ask::consumers::ensure_known(&console, &consumer).await?;
    let actor = actor(&caller);
    let job = console.jobs.order_archive(console.clone(), actor, &consumer, request)?;
    begun(&console, &job).await
}
