//! The view of gaps, and the same as CSV for the app's own reconciliation.

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use spillway_console::model::gaps::GapQuery;
use spillway_console::pages::gaps::page;
use spillway_console::pages::problem::PageProblem;
use spillway_console::{Caller, ConsoleRoute, Permission};

use crate::console::ask;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/gaps", Permission::Search, list),
        ConsoleRoute::read("/gaps.csv", Permission::Search, csv),
    ]
}

async fn list(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<GapQuery>,
) -> Result<Response, PageProblem> {
    let found = ask::gaps::list(&console, &query).await?;
    Ok(page(&caller, &found, &query).into_response())
}

async fn csv(
    State(console): State<ConsoleState>,
    Query(query): Query<GapQuery>,
) -> Result<Response, PageProblem> {
    let found = ask::gaps::csv(&console, &query).await?;
    let headers = [
        (CONTENT_TYPE, "text/csv; charset=utf-8"),
        (CONTENT_DISPOSITION, "attachment; filename=\"gaps.csv\""),
    ];
    Ok((headers, found).into_response())
}
