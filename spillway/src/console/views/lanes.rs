//! The view of lanes, with pause and resume.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use spillway_console::model::lanes::LaneQuery;
use spillway_console::pages::extract::{PageForm, PageQuery};
use spillway_console::pages::forms::{ChangeForm, ViewQuery};
use spillway_console::pages::problem::PageProblem;
use spillway_console::pages::{lanes, links};
use spillway_console::{Caller, ConsoleRoute, Permission};

use super::dead::jobs::actor_of;
use crate::console::ask;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/lanes", Permission::Look, list),
        ConsoleRoute::change("/lanes/pause", Permission::Operate, pause),
        ConsoleRoute::change("/lanes/resume", Permission::Operate, resume),
    ]
}

async fn list(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageQuery(query): PageQuery<LaneQuery>,
    PageQuery(view): PageQuery<ViewQuery>,
) -> Result<Response, PageProblem> {
    let found = ask::lanes::list(&console, &query).await?;
    Ok(lanes::page(&caller, &found, &query, view.told.as_deref()).into_response())
}

async fn pause(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageForm(form): PageForm<ChangeForm>,
) -> Result<Redirect, PageProblem> {
    let consumer = form.consumer()?;
    ask::controls::pause(&console, &actor_of(&caller), consumer, &form.pause()).await?;
    Ok(back(consumer, "paused"))
}

async fn resume(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageForm(form): PageForm<ChangeForm>,
) -> Result<Redirect, PageProblem> {
    let consumer = form.consumer()?;
    ask::controls::resume(&console, &actor_of(&caller), consumer, &form.pause()).await?;
    Ok(back(consumer, "resumed"))
}

/// The list again, so that loading it once more changes nothing.
fn back(consumer: &str, told: &str) -> Redirect {
    let query = LaneQuery { consumer: Some(consumer.to_owned()), ..LaneQuery::default() };
    Redirect::to(&links::with_query("/lanes", &query, &[("told", told)]))
}
