//! Locks of the batch queue. `tests/batches.rs` replaces them with loom's locks, to try every
//! interleaving.

pub(crate) use std::sync::atomic::AtomicBool;
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};
