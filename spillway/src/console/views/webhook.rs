//! The view of waiting webhooks and of one webhook, with the search and the drop.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use spillway_console::model::webhook::WebhookQuery;
use spillway_console::pages::extract::{PageForm, PagePath, PageQuery};
use spillway_console::pages::forms::{ChangeForm, ViewQuery};
use spillway_console::pages::problem::PageProblem;
use spillway_console::pages::{links, webhook, webhooks};
use spillway_console::{Caller, ConsoleRoute, Permission};

use super::dead::jobs::{actor_of, order};
use crate::console::ask;
use crate::console::jobs::JobVerb;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/webhooks", Permission::Search, list),
        ConsoleRoute::read("/webhooks/{id}", Permission::Search, one),
        ConsoleRoute::read("/webhooks/{id}/content", Permission::Personal, content),
        ConsoleRoute::change("/webhooks/drop", Permission::Operate, drop_waiting),
    ]
}

/// The list; with an id, it leads to that webhook.
async fn list(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageQuery(query): PageQuery<WebhookQuery>,
    PageQuery(view): PageQuery<ViewQuery>,
) -> Result<Response, PageProblem> {
    if let Some(id) = &view.id {
        return Ok(Redirect::to(&links::webhook(id)).into_response());
    }
    let found = ask::webhooks::list(&console, &query).await?;
    Ok(webhooks::page(&caller, &found, &query).into_response())
}

async fn one(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PagePath(id): PagePath<String>,
    PageQuery(view): PageQuery<ViewQuery>,
) -> Result<Response, PageProblem> {
    let story = ask::webhooks::story(&console, &id, view.after.as_deref()).await?;
    Ok(webhook::page(&caller, &story).into_response())
}

/// The content of a webhook; with a consumer, that of its dead letter.
async fn content(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PagePath(id): PagePath<String>,
    PageQuery(view): PageQuery<ViewQuery>,
) -> Result<Response, PageProblem> {
    let actor = actor_of(&caller);
    let content = match view.consumer.as_deref() {
        None => ask::webhooks::content(&console, &actor, &id).await?,
        consumer => ask::dead::content(&console, &actor, consumer, &id).await?,
    };
    Ok(webhook::content_page(&caller, &content).into_response())
}

async fn drop_waiting(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageForm(form): PageForm<ChangeForm>,
) -> Result<Redirect, PageProblem> {
    Ok(order(&console, &caller, JobVerb::Drop, &form)?)
}
