//! The demo backend, told to fail from the page. Only in a cell of `spillway dev`.

use spillway_console::ConsoleRoute;

use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    Vec::new()
}
