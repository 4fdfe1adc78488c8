//! `GET /api/v1/gaps`: shops and topics of which webhooks may be missing.

use axum::Json;
use axum::extract::State;
use spillway_console::model::gaps::{GapList, GapQuery};
use spillway_console::{ConsoleRoute, Permission, ProblemDetails};

use crate::console::extract::ApiQuery;
use crate::console::problem::problem_of;
use crate::console::state::ConsoleState;
use crate::gaps;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/api/v1/gaps", Permission::Search, list)
            .answers::<GapList>("Gaps: shops and topics of which webhooks may be missing")
            .with_query::<GapQuery>(),
    ]
}

async fn list(
    State(console): State<ConsoleState>,
    ApiQuery(query): ApiQuery<GapQuery>,
) -> Result<Json<GapList>, ProblemDetails> {
    let found = gaps::find(&console.place, &query).await;
    found.map(Json).map_err(|failure| problem_of(&failure))
}
