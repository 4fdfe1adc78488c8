//! Probes of the console: `/livez` and `/readyz`, for anybody who reaches it.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use spillway_console::probes::{LIVEZ, READYZ};
use spillway_console::{ConsoleRoute, Permission};

use super::state::ConsoleState;

const ALIVE: &str = "alive\n";
const READY: &str = "ready\n";

/// Routes of the probes.
pub(super) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read(LIVEZ, Permission::Public, || async { ALIVE }),
        ConsoleRoute::read(READYZ, Permission::Public, ready),
    ]
}

/// Ready while the cell can be asked. All who ask share one look at it.
async fn ready(State(console): State<ConsoleState>) -> Response {
    match console.overview.status().await {
        Ok(_) => READY.into_response(),
        Err(_) => {
            let reason = "queue_unavailable: Redis can't be asked now\n";
            (StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
        }
    }
}
