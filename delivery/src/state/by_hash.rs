//! Tables whose keys are already hashes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hasher that returns a hash unchanged.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Folded(u64);

/// Table keyed by hashes.
pub(crate) type ByHash<V> = HashMap<u64, V, BuildHasherDefault<Folded>>;

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
