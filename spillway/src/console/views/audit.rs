//! The view of the audit.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use spillway_console::model::audit::AuditQuery;
use spillway_console::pages::audit;
use spillway_console::pages::extract::PageQuery;
use spillway_console::pages::problem::PageProblem;
use spillway_console::{Caller, ConsoleRoute, Permission};

use crate::console::problem::problem_of;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![ConsoleRoute::read("/audit", Permission::Search, list)]
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
