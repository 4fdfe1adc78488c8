//! Pause, resume, and drops of what waits.

use axum::extract::State;
use axum::{Extension, Json};
use spillway_console::model::change::{ChangeRequest, JobStatus, PauseChange, PauseRequest};
use spillway_console::{Caller, ConsoleRoute, Permission, ProblemDetails};

use super::jobs::{actor, order};
use crate::console::ask;
use crate::console::extract::{ApiJson, ApiPath};
use crate::console::jobs::JobVerb;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::change("/api/v1/consumers/{consumer}/pause", Permission::Operate, pause)
            .answers::<PauseChange>("Pause webhooks of a consumer")
            .with_body::<PauseRequest>(),
        ConsoleRoute::change("/api/v1/consumers/{consumer}/resume", Permission::Operate, resume)
            .answers::<PauseChange>("End pauses of a consumer")
            .with_body::<PauseRequest>(),
        ConsoleRoute::change("/api/v1/consumers/{consumer}/drop", Permission::Operate, drop)
            .answers::<JobStatus>("Drop waiting webhooks for good; without `expected`, count them")
            .with_body::<ChangeRequest>(),
    ]
}

async fn pause(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    ApiPath(consumer): ApiPath<String>,
    ApiJson(request): ApiJson<PauseRequest>,
) -> Result<Json<PauseChange>, ProblemDetails> {
    ask::controls::pause(&console, &actor(&caller), &consumer, &request).await.map(Json)
}

async fn resume(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    ApiPath(consumer): ApiPath<String>,
    ApiJson(request): ApiJson<PauseRequest>,
) -> Result<Json<PauseChange>, ProblemDetails> {
    ask::controls::resume(&console, &actor(&caller), &consumer, &request).await.map(Json)
}

async fn drop(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    ApiPath(consumer): ApiPath<String>,
    ApiJson(request): ApiJson<ChangeRequest>,
) -> Result<Json<JobStatus>, ProblemDetails> {
    order(console, caller, &consumer, JobVerb::Drop, request).await
}
