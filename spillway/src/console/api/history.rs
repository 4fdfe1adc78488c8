//! Metrics of the last hours.

use spillway_console::ConsoleRoute;

use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    Vec::new()
}
