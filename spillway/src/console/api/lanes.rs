//! Lanes, and the shops, topics and resources with the most waiting webhooks.

use axum::Json;
use axum::extract::State;
use spillway_console::model::lanes::{LaneList, LaneQuery};
use spillway_console::model::top::{TopList, TopQuery};
use spillway_console::{ConsoleRoute, Permission, ProblemDetails};

use crate::console::ask;
use crate::console::extract::ApiQuery;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/api/v1/lanes", Permission::Look, lanes)
            .answers::<LaneList>("Lanes, those with most waiting webhooks first")
            .with_query::<LaneQuery>(),
        ConsoleRoute::read("/api/v1/top", Permission::Look, top)
            .answers::<TopList>("Shops, topics or resources with the most waiting webhooks")
            .with_query::<TopQuery>(),
    ]
}

async fn lanes(
    State(console): State<ConsoleState>,
    ApiQuery(query): ApiQuery<LaneQuery>,
) -> Result<Json<LaneList>, ProblemDetails> {
    ask::lanes::list(&console, &query).await.map(Json)
}

async fn top(
    State(console): State<ConsoleState>,
    ApiQuery(query): ApiQuery<TopQuery>,
) -> Result<Json<TopList>, ProblemDetails> {
    ask::top::list(&console, &query).await.map(Json)
}
