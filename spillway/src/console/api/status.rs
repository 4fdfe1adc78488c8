//! `GET /api/v1/status`: the cell at a glance.

use axum::Json;
use axum::extract::State;
use spillway_console::model::overview::CellOverview;
use spillway_console::{ConsoleRoute, Permission, ProblemDetails};

use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/api/v1/status", Permission::Look, status)
            .answers::<CellOverview>("State of the cell at a glance"),
    ]
}

async fn status(State(console): State<ConsoleState>) -> Result<Json<CellOverview>, ProblemDetails> {
    console.overview.current().await.map(Json)
}
