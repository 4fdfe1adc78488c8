//! `GET /`: the overview, and its events.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use spillway_console::model::history::HistoryQuery;
use spillway_console::pages::extract::PageQuery;
use spillway_console::pages::overview::{EVENTS, page};
use spillway_console::pages::problem::PageProblem;
use spillway_console::{Caller, ConsoleRoute, Permission};

use crate::console::state::ConsoleState;
use crate::console::{ask, live};

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/", Permission::Look, overview),
        ConsoleRoute::read(EVENTS, Permission::Look, live::overview),
    ]
}

async fn overview(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageQuery(query): PageQuery<HistoryQuery>,
) -> Result<Response, PageProblem> {
    let overview = console.overview.current().await?;
    let history = ask::history::shown(&console, &query).await;
    Ok(page(&caller, &overview, &history).into_response())
}
