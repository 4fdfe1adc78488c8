//! The cell at a glance: status and consumers.

use axum::Json;
use axum::extract::State;
use spillway_console::model::overview::{CellOverview, ConsumerList};
use spillway_console::{ConsoleRoute, Permission, ProblemDetails};

use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/api/v1/status", Permission::Look, status)
            .answers::<CellOverview>("State of the cell at a glance"),
        ConsoleRoute::read("/api/v1/consumers", Permission::Look, consumers)
            .answers::<ConsumerList>("Consumers of the cell"),
    ]
}

async fn status(State(console): State<ConsoleState>) -> Result<Json<CellOverview>, ProblemDetails> {
    console.overview.current().await.map(Json)
}

async fn consumers(
    State(console): State<ConsoleState>,
) -> Result<Json<ConsumerList>, ProblemDetails> {
    let consumers = console.overview.current().await?.consumers;
    Ok(Json(ConsumerList { consumers }))
}
