//! `GET /api/v1/gaps`: shops and topics of which webhooks may be missing.

use axum::Json;
use axum::extract::State;
use spillway_console::model::gaps::{GapList, GapQuery};
use spillway_console::{ConsoleRoute, Permission, ProblemDetails};

use crate::console::ask;
use crate::console::extract::ApiQuery;
use crate::console::state::ConsoleState;

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
    ask::gaps::list(&console, &query).await.map(Json)
}
