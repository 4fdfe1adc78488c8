//! `GET /`: the overview, and its events.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use spillway_console::pages::overview::{EVENTS, page};
use spillway_console::pages::problem::PageProblem;
use spillway_console::{Caller, ConsoleRoute, Permission};

use crate::console::live;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/", Permission::Look, overview),
        ConsoleRoute::read(EVENTS, Permission::Look, live::overview),
    ]
}

async fn overview(
    State(console): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, PageProblem> {
    let overview = console.overview.current().await?;
    Ok(page(&caller, &overview).into_response())
}
