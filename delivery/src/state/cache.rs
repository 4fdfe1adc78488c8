//! Cache of decoded packs, bounded in bytes.
//!
//! The cache has two parts, so that neither can use the space of the other. One part holds packs
//! that were read for their turn; the least recently used is dropped first. The other part holds
//! packs that were read for indexing or for a single webhook. These are used soon or not at all.

use std::collections::BTreeMap;

use crate::classified::Content;
use crate::pack_key::PackKey;
use crate::state::folded::FoldedMap;

/// Packs read for indexing or for a single webhook get 1/`PASSING_PART` of the bytes.
const PASSING_PART: usize = 4;

/// Decoded packs by key.
#[derive(Debug)]
pub(crate) struct Cache<C> {
    needed: CachedPart<C>,
    passing: CachedPart<C>,
}

#[derive(Debug)]
struct CachedPart<C> {
    packs: FoldedMap<PackKey, (C, u64)>,
    /// Keys by last use.
    by_use: BTreeMap<u64, PackKey>,
    bytes: usize,
    bytes_max: usize,
    uses: u64,
}

impl<C: Content> Cache<C> {
    /// Creates a cache of up to `bytes_max`, or of two packs if these are larger.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let passing = bytes_max / PASSING_PART;
        Self { needed: CachedPart::new(bytes_max - passing), passing: CachedPart::new(passing) }
    }

    /// Returns the size of a cached pack.
    pub(crate) fn holds(&self, key: PackKey) -> Option<usize> {
        let found = self.needed.packs.get(&key).or_else(|| self.passing.packs.get(&key));
        found.map(|(pack, _)| pack.raw_bytes())
    }

    /// True if a pack is kept for its turn.
    #[cfg(test)]
    pub(crate) fn is_needed(&self, key: PackKey) -> bool {
        self.needed.packs.contains_key(&key)
    }

    /// Returns a cached pack.
    pub(crate) fn get(&mut self, key: PackKey) -> Option<C> {
        self.needed.get(key).or_else(|| self.passing.get(key))
    }

    /// Keeps a pack whose turn comes. Returns true if other packs were dropped for it.
    pub(crate) fn need(&mut self, key: PackKey, pack: C) -> bool {
        self.passing.remove(key);
        self.needed.put(key, pack)
    }

    /// Keeps a pack for a while, unless it is cached already.
    pub(crate) fn pass(&mut self, key: PackKey, pack: C) {
        if self.holds(key).is_none() {
            self.passing.put(key, pack);
        }
    }

    /// Drops a pack that is settled.
    pub(crate) fn remove(&mut self, key: PackKey) {
        self.needed.remove(key);
        self.passing.remove(key);
    }
}

impl<C: Content> CachedPart<C> {
    fn new(bytes_max: usize) -> Self {
        Self { packs: FoldedMap::default(), by_use: BTreeMap::new(), bytes: 0, bytes_max, uses: 0 }
    }

    fn get(&mut self, key: PackKey) -> Option<C> {
        self.uses += 1;
        let (pack, used) = self.packs.get_mut(&key)?;
        self.by_use.remove(used);
        self.by_use.insert(self.uses, key);
        *used = self.uses;
        Some(pack.clone())
    }

    fn put(&mut self, key: PackKey, pack: C) -> bool {
        self.remove(key);
        let before = self.packs.len();
        while self.bytes + pack.raw_bytes() > self.bytes_max {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            self.remove(oldest);
        }
        self.uses += 1;
        self.bytes += pack.raw_bytes();
        let is_dear = self.packs.len() < before;
        self.packs.insert(key, (pack, self.uses));
        self.by_use.insert(self.uses, key);
        is_dear
    }

    fn remove(&mut self, key: PackKey) {
        if let Some((pack, used)) = self.packs.remove(&key) {
            self.by_use.remove(&used);
            self.bytes -= pack.raw_bytes();
        }
    }
}
