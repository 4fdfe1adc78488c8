//! The view of the audit, and the same as CSV.

use axum::Extension;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use spillway_console::model::audit::AuditQuery;
use spillway_console::pages::audit;
use spillway_console::pages::extract::PageQuery;
use spillway_console::pages::problem::PageProblem;
use spillway_console::{Caller, ConsoleRoute, Permission};

use crate::console::links::apart;
use crate::console::problem::problem_of;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/audit", Permission::Search, list),
        ConsoleRoute::read("/audit.csv", Permission::Search, csv),
    ]
}

async fn list(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    PageQuery(query): PageQuery<AuditQuery>,
) -> Result<Response, PageProblem> {
    let found = crate::audit::find(&console.place, &query).await;
    let found = found.map_err(|failure| problem_of(&failure))?;
    Ok(audit::page(&caller, &found, &query).into_response())
}

async fn csv(
    State(console): State<ConsoleState>,
    PageQuery(query): PageQuery<AuditQuery>,
) -> Result<Response, PageProblem> {
    let place = console.place.clone();
    let room = console.links.gate.enter().await?;
    let text = apart(move || async move {
        let _room = room;
        crate::audit::csv_of(&place, &query).await
    });
    let text = text.await.map_err(|failure| problem_of(&failure))?;
    let headers = [
        (CONTENT_TYPE, "text/csv; charset=utf-8"),
        (CONTENT_DISPOSITION, "attachment; filename=\"audit.csv\""),
    ];
    Ok((headers, text).into_response())
}
