//! State that all handlers share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::overview::OverviewFeed;
use crate::place::CellArgs;

/// State as the handlers get it.
pub(super) type ConsoleState = Arc<Console>;

/// A running console.
pub(super) struct Console {
    /// The cell, with the access to Redis that the console has.
    pub place: CellArgs,
    /// Overview of the cell, read once for all who watch.
    pub overview: OverviewFeed,
    /// Cancelled when the process stops: every stream of events ends then.
    pub stop: CancellationToken,
}

impl Console {
    /// A console of this cell, which has not looked at it yet.
    pub(super) fn new(place: CellArgs, stop: CancellationToken) -> Self {
        Self { place, overview: OverviewFeed::new(), stop }
    }
}
