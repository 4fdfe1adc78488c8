//! Metrics of the last hours.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use spillway_console::model::history::{HistoryQuery, MetricHistory};
use spillway_console::{ConsoleRoute, Permission, ProblemDetails};

use crate::console::ask;
use crate::console::extract::ApiQuery;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/api/v1/metrics", Permission::Look, metrics)
            .answers::<MetricHistory>("Metrics of the last hours, from Prometheus or from memory")
            .with_query::<HistoryQuery>(),
    ]
}

async fn metrics(
    State(console): State<ConsoleState>,
    ApiQuery(query): ApiQuery<HistoryQuery>,
) -> Result<impl IntoResponse, ProblemDetails> {
    let history = ask::history::recent(&console, &query).await?;
    Ok(([(CONTENT_TYPE, "application/json")], history))
}
