//! Consumers that a question or an order is for.

use std::sync::Arc;

use spillway_console::ProblemDetails;
use spillway_console::model::overview::PauseOverview;
use spillway_queue::status::{CellStatus, ConsumerStatus};

use crate::console::state::Console;
use crate::place::{is_first, meant, unknown};

/// Consumer that a question is for, with the status of the cell. Without a name, the one that is meant.
pub(in crate::console) async fn named(
    console: &Console,
    name: Option<&str>,
) -> Result<(String, Arc<CellStatus>), ProblemDetails> {
    let status = console.overview.status().await?;
    let name = match name.map(str::trim).filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => meant(&status).map_err(|_| several(&status))?,
    };
    if find(&status, &name).is_none() && !is_first(&name, &status) {
        return Err(ProblemDetails::not_found(unknown(&name, &status).to_string()));
    }
    Ok((name, status))
}

/// Checks that a consumer which is to be changed is there.
pub(in crate::console) async fn ensure_known(
    console: &Console,
    name: &str,
) -> Result<(), ProblemDetails> {
    named(console, Some(name)).await.map(|_| ())
}

/// Status of a consumer.
pub(super) fn find<'a>(status: &'a CellStatus, name: &str) -> Option<&'a ConsumerStatus> {
    status.consumers.iter().find(|known| known.name == name)
}

/// Pauses of a consumer.
pub(super) fn pauses(status: &CellStatus, name: &str) -> Vec<PauseOverview> {
    let pauses = find(status, name).into_iter().flat_map(|known| &known.pauses);
    pauses
        .map(|pause| PauseOverview { filter: pause.filter.to_string(), since_ms: pause.since_ms })
        .collect()
}

fn several(status: &CellStatus) -> ProblemDetails {
    let names: Vec<&str> = status.consumers.iter().map(|known| known.name.as_str()).collect();
    ProblemDetails::bad_request(format!(
        "there are several consumers: name one of them (consumer=): {}",
        names.join(", ")
    ))
}
