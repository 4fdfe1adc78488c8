//! The view of the doctor.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use spillway_console::pages::doctor;
use spillway_console::pages::problem::PageProblem;
use spillway_console::{Caller, ConsoleRoute, Permission};

use crate::console::ask;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![ConsoleRoute::read("/doctor", Permission::Look, report)]
}

async fn report(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, PageProblem> {
    let report = ask::doctor::report(&console).await?;
    Ok(doctor::page(&caller, &report).into_response())
}
