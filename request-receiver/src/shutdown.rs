//! Shutdown of the process: that it has begun, and its deadline.
//!
//! One deadline for everything that is left to do. It is set once, before any of it begins.

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

/// Shutdown state. Shared by the acceptor, the shards and their connections.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(Arc<OnceLock<Instant>>);

impl Shutdown {
    /// Begins the shutdown. Every connection ends with its next answer, and everything ends by
    /// `stop_by`.
    pub fn begin(&self, stop_by: Instant) {
        self.0.get_or_init(|| stop_by);
    }

    /// Returns true if the shutdown has begun. As cheap as reading a flag.
    pub fn has_begun(&self) -> bool {
        self.0.get().is_some()
    }

    /// Deadline of the shutdown. Now, if it has not begun.
    pub fn stop_by(&self) -> Instant {
        self.0.get().copied().unwrap_or_else(Instant::now)
    }
}
