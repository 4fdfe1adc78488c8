//! That the process was told to stop, and by when it must have.
//!
//! One deadline for everything that is left to do: it is set once, before any of it begins.

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

/// Shared by the acceptor, the shards and their connections.
#[derive(Debug, Clone, Default)]
pub struct Closing(Arc<OnceLock<Instant>>);

impl Closing {
    /// From now on every connection ends with its next answer, and everything by `stop_by`.
    pub fn begin(&self, stop_by: Instant) {
        self.0.get_or_init(|| stop_by);
    }

    /// Whether it has begun; as cheap as reading a flag.
    pub fn has_begun(&self) -> bool {
        self.0.get().is_some()
    }

    /// By when all must be over; now, if it has not begun.
    pub fn stop_by(&self) -> Instant {
        self.0.get().copied().unwrap_or_else(Instant::now)
    }
}
