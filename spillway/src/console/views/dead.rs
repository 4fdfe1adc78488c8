//! The view of dead letters: filter, select, dry run, replay, drop.

pub(super) mod jobs;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use spillway_console::model::dead::DeadQuery;
use spillway_console::pages::dead;
use spillway_console::pages::extract::{PageForm, PagePath, PageQuery};
use spillway_console::pages::forms::{ChangeForm, ViewQuery};
use spillway_console::pages::problem::PageProblem;
use spillway_console::{Caller, ConsoleRoute, Permission};

use crate::console::ask;
use crate::console::jobs::JobVerb;
use crate::console::state::ConsoleState;

/// Routes of this area, and those of its jobs.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    let mut routes = vec![
        ConsoleRoute::read("/dead", Permission::Search, list),
        ConsoleRoute::read("/dead/{id}", Permission::Search, one),
        ConsoleRoute::change("/dead/replay", Permission::Replay, replay),
        ConsoleRoute::change("/dead/drop", Permission::Operate, drop_letters),
    ];
    routes.extend(jobs::routes());
    routes
}

async fn list(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageQuery(query): PageQuery<DeadQuery>,
) -> Result<Response, PageProblem> {
    let found = ask::dead::list(&console, &query).await?;
    Ok(dead::page(&caller, &found, &query).into_response())
}

async fn one(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PagePath(id): PagePath<String>,
    PageQuery(view): PageQuery<ViewQuery>,
) -> Result<Response, PageProblem> {
    let consumer = view.consumer.as_deref();
    let letter = ask::dead::one(&console, consumer, &id).await?;
    // A link from a list names the consumer. Without it, the letter was looked for in the same place as a list.
    let consumer = match consumer {
        Some(consumer) => consumer.to_owned(),
        None => {
            let query = DeadQuery { limit: Some(1), ..DeadQuery::default() };
            ask::dead::list(&console, &query).await?.consumer
        }
    };
    Ok(dead::letter_page(&caller, &consumer, &letter).into_response())
}

async fn replay(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageForm(form): PageForm<ChangeForm>,
) -> Result<Redirect, PageProblem> {
    Ok(jobs::order(&console, &caller, JobVerb::DeadReplay, &form)?)
}

async fn drop_letters(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageForm(form): PageForm<ChangeForm>,
) -> Result<Redirect, PageProblem> {
    Ok(jobs::order(&console, &caller, JobVerb::DeadDrop, &form)?)
}
