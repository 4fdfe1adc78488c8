//! `GET /api/v1/audit`: who changed what.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use spillway_console::model::audit::{AuditList, AuditQuery};
use spillway_console::{ConsoleRoute, Permission, ProblemDetails};

use crate::audit;
use crate::console::problem::problem_of;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/api/v1/audit", Permission::Search, list)
            .answers::<AuditList>("Changes of the cell with who made them, newest first")
            .with_query::<AuditQuery>(),
    ]
}

async fn list(
    State(console): State<ConsoleState>,
    query: Result<Query<AuditQuery>, QueryRejection>,
) -> Result<Json<AuditList>, ProblemDetails> {
    let query = query.map_err(|problem| ProblemDetails::bad_request(problem.body_text()));
    let Query(query) = query?;
    let found = audit::find(&console.place, &query).await;
    found.map(Json).map_err(|failure| problem_of(&failure))
}
