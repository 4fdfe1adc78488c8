//! Locks of the batch queue. Its models in `tests/batches.rs` bring others, which try every interleaving.

pub use std::sync::{Arc, Mutex, MutexGuard};
