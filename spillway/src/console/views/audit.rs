//! The view of the audit.

use spillway_console::ConsoleRoute;

use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    Vec::new()
}
