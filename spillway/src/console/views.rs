//! The pages: each view has a file with its routes and their handlers. A handler finds out, and the page is a
//! function of what it found (`spillway-console`).

mod archive;
mod audit;
mod dead;
mod demo;
mod doctor;
mod gaps;
mod lanes;
mod login;
mod overview;
mod shops;
mod webhook;

use spillway_console::ConsoleRoute;

use super::state::ConsoleState;

/// Routes of all views.
pub(super) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    let views = [
        overview::routes(),
        lanes::routes(),
        webhook::routes(),
        dead::routes(),
        archive::routes(),
        shops::routes(),
        audit::routes(),
        doctor::routes(),
        gaps::routes(),
        login::routes(),
        demo::routes(),
    ];
    views.into_iter().flatten().collect()
}
