//! Tables whose keys nobody can choose so that they collide: keys that are hashes, or that this crate
//! or Redis numbers. They need no keyed hash, which takes several times as long.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Hasher that multiplies, and folds both halves of the product into one word.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Folded(u64);

/// Table keyed by such keys.
pub(crate) type FoldedMap<K, V> = HashMap<K, V, BuildHasherDefault<Folded>>;

/// Set of such keys.
pub(crate) type FoldedSet<K> = HashSet<K, BuildHasherDefault<Folded>>;

/// Table keyed by hashes.
pub(crate) type ByHash<V> = FoldedMap<u64, V>;

/// The golden ratio's fraction, times 2^64: odd, and without a pattern in its bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // With a constant added, zeros change the hash, too.
        let product = u128::from(self.0.wrapping_add(FACTOR) ^ number) * u128::from(FACTOR);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write_u128(&mut self, number: u128) {
        self.write_u64(number as u64);
        self.write_u64((number >> 64) as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, Hash};

    use spillway_webhook::StreamId;

    use super::*;
    use crate::pack_key::PackKey;

    /// Largest number of keys whose hashes agree in the lowest and the highest bits, by which a
    /// table finds them.
    fn most_together(keys: impl Iterator<Item = impl Hash>) -> usize {
        let hashes = BuildHasherDefault::<Folded>::default();
        let mut counts: HashMap<(u64, u64), usize> = HashMap::new();
        for key in keys {
            let hash = hashes.hash_one(key);
            *counts.entry((hash & 0xfff, hash >> 57)).or_default() += 1;
        }
        counts.into_values().max().unwrap_or_default()
    }

    #[test]
    fn numbers_that_follow_one_another_are_spread() {
        let entries = (0..1000_u64).flat_map(|ms| (0..10).map(move |seq| StreamId { ms, seq }));
        let keys = entries.clone().map(PackKey::Main);
        let chunks = (0..100_u64).flat_map(|lane| (0..100).map(move |n| PackKey::Chunk(lane, n)));
        // 10,000 keys in 524,288 places: seven in one of them are less likely than one in a million.
        assert!(most_together(keys) < 7);
        assert!(most_together(entries.map(PackKey::Replay)) < 7);
        assert!(most_together(chunks) < 7);
        assert!(most_together(0..10_000_u64) < 7);
        assert!(most_together((0..10_000_u128).map(|n| n << 64)) < 7);
    }

    #[test]
    fn the_kind_of_a_key_counts() {
        let hashes = BuildHasherDefault::<Folded>::default();
        let entry = StreamId { ms: 0, seq: 0 };
        assert_ne!(hashes.hash_one(PackKey::Main(entry)), hashes.hash_one(PackKey::Replay(entry)));
    }
}
