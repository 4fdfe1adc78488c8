//! Metrics of the last hours.

use bytes::Bytes;
use spillway_console::ProblemDetails;
use spillway_console::model::history::HistoryQuery;

use crate::console::state::Console;

/// Metrics of the last hours as JSON, as far as this process has them: it keeps them from its start on.
pub(in crate::console) async fn recent(
    console: &Console,
    query: &HistoryQuery,
) -> Result<Bytes, ProblemDetails> {
    // Without a look at the cell, the reason is of more use than an empty plot.
    console.overview.status().await?;
    Ok(console.history.recent_json(query))
}
