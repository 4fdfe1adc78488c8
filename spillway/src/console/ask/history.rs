//! Metrics of the last hours.

use bytes::Bytes;
use spillway_console::ProblemDetails;
use spillway_console::model::history::{HistoryQuery, MetricHistory, MetricSource};

use crate::console::state::Console;

/// Metrics of the last hours as JSON, from Prometheus or as far as this process has them: it keeps them from its start
/// on.
pub(in crate::console) async fn recent(
    console: &Console,
    query: &HistoryQuery,
) -> Result<Bytes, ProblemDetails> {
    if console.prometheus.is_none() {
        // Without a look at the cell, the reason is of more use than an empty plot.
        console.overview.status().await?;
        return Ok(console.history.recent_json(query));
    }
    let history = shown(console, query).await;
    if history.source == MetricSource::Memory {
        console.overview.status().await?;
    }
    let json = serde_json::to_vec(&history);
    Ok(json.expect("BUG: a history has no map whose keys are no text").into())
}

/// Metrics for a page. While Prometheus can't be read, they are those in memory, with the problem.
pub(in crate::console) async fn shown(console: &Console, query: &HistoryQuery) -> MetricHistory {
    let Some(prometheus) = &console.prometheus else { return console.history.recent(query) };
    match prometheus.recent(query).await {
        Ok(history) => history,
        Err(problem) => MetricHistory { problem: Some(problem), ..console.history.recent(query) },
    }
}
