//! Webhooks that wait, and one webhook's life.

use axum::extract::State;
use axum::{Extension, Json};
use spillway_console::model::webhook::{
    StoryQuery, WebhookContent, WebhookList, WebhookQuery, WebhookStory,
};
use spillway_console::{Caller, ConsoleRoute, Permission, ProblemDetails};

use super::jobs::actor;
use crate::console::ask;
use crate::console::extract::{ApiPath, ApiQuery};
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/api/v1/webhooks", Permission::Search, list)
            .answers::<WebhookList>("Waiting webhooks")
            .with_query::<WebhookQuery>(),
        ConsoleRoute::read("/api/v1/webhooks/{id}", Permission::Search, story)
            .answers::<WebhookStory>("Everything that is known about one webhook")
            .with_query::<StoryQuery>(),
        ConsoleRoute::read("/api/v1/webhooks/{id}/content", Permission::Personal, content)
            .answers::<WebhookContent>("A webhook as it was received, by its Spillway-Id"),
    ]
}

async fn list(
    State(console): State<ConsoleState>,
    ApiQuery(query): ApiQuery<WebhookQuery>,
) -> Result<Json<WebhookList>, ProblemDetails> {
    ask::webhooks::list(&console, &query).await.map(Json)
}

async fn story(
    State(console): State<ConsoleState>,
    ApiPath(id): ApiPath<String>,
    ApiQuery(query): ApiQuery<StoryQuery>,
) -> Result<Json<WebhookStory>, ProblemDetails> {
    ask::webhooks::story(&console, &id, query.after.as_deref()).await.map(Json)
}

async fn content(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<WebhookContent>, ProblemDetails> {
    ask::webhooks::content(&console, &actor(&caller), &id).await.map(Json)
}
