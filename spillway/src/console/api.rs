//! The API: each area has a file with its routes and their handlers. A handler answers with a model as
//! JSON, or with a problem.

mod archive;
mod audit;
mod controls;
mod dead;
mod doctor;
mod gaps;
mod history;
mod jobs;
mod lanes;
mod status;
mod webhooks;

use spillway_console::ConsoleRoute;

use super::state::ConsoleState;

/// Routes of all areas.
pub(super) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    let areas = [
        status::routes(),
        history::routes(),
        lanes::routes(),
        webhooks::routes(),
        dead::routes(),
        controls::routes(),
        archive::routes(),
        jobs::routes(),
        doctor::routes(),
        audit::routes(),
        gaps::routes(),
    ];
    areas.into_iter().flatten().collect()
}
