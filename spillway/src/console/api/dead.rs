//! Dead letters: listed, shown, replayed and dropped.

use axum::extract::State;
use axum::{Extension, Json};
use spillway_console::model::change::{ChangeRequest, JobStatus};
use spillway_console::model::dead::{DeadList, DeadQuery, DeadSummary, LetterQuery};
use spillway_console::model::webhook::WebhookContent;
use spillway_console::{Caller, ConsoleRoute, Permission, ProblemDetails};

use super::jobs::{actor, order};
use crate::console::ask;
use crate::console::extract::{ApiJson, ApiPath, ApiQuery};
use crate::console::jobs::JobVerb;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/api/v1/dead", Permission::Search, list)
            .answers::<DeadList>("Dead letters, oldest first")
            .with_query::<DeadQuery>(),
        ConsoleRoute::read("/api/v1/dead/{id}", Permission::Search, one)
            .answers::<DeadSummary>("One dead letter, by its Spillway-Id or Shopify's webhook id")
            .with_query::<LetterQuery>(),
        ConsoleRoute::read("/api/v1/dead/{id}/content", Permission::Personal, content)
            .answers::<WebhookContent>("A dead letter as it was received")
            .with_query::<LetterQuery>(),
        ConsoleRoute::change(
            "/api/v1/consumers/{consumer}/dead/replay",
            Permission::Replay,
            replay,
        )
        .answers::<JobStatus>("Deliver dead letters again; without `expected`, count them")
        .with_body::<ChangeRequest>(),
        ConsoleRoute::change("/api/v1/consumers/{consumer}/dead/drop", Permission::Operate, drop)
            .answers::<JobStatus>("Drop dead letters for good; without `expected`, count them")
            .with_body::<ChangeRequest>(),
    ]
}

async fn list(
    State(console): State<ConsoleState>,
    ApiQuery(query): ApiQuery<DeadQuery>,
) -> Result<Json<DeadList>, ProblemDetails> {
    ask::dead::list(&console, &query).await.map(Json)
}

async fn one(
    State(console): State<ConsoleState>,
    ApiPath(id): ApiPath<String>,
    ApiQuery(query): ApiQuery<LetterQuery>,
) -> Result<Json<DeadSummary>, ProblemDetails> {
    ask::dead::one(&console, query.consumer.as_deref(), &id).await.map(Json)
}

async fn content(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    ApiPath(id): ApiPath<String>,
    ApiQuery(query): ApiQuery<LetterQuery>,
) -> Result<Json<WebhookContent>, ProblemDetails> {
    let actor = actor(&caller);
    ask::dead::content(&console, &actor, query.consumer.as_deref(), &id).await.map(Json)
}

async fn replay(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    ApiPath(consumer): ApiPath<String>,
    ApiJson(request): ApiJson<ChangeRequest>,
) -> Result<Json<JobStatus>, ProblemDetails> {
    order(console, caller, &consumer, JobVerb::DeadReplay, request).await
}

async fn drop(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    ApiPath(consumer): ApiPath<String>,
    ApiJson(request): ApiJson<ChangeRequest>,
) -> Result<Json<JobStatus>, ProblemDetails> {
    order(console, caller, &consumer, JobVerb::DeadDrop, request).await
}
