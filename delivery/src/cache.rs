//! Decoded packs at hand, bounded in bytes.
//!
//! Two parts, so that neither takes the other's room: packs read for their turn, of which the least
//! recently used goes first, and packs that passed by, on their way into the index or for a single
//! webhook of theirs, which are used soon or not at all.

use std::collections::{BTreeMap, HashMap};

use crate::reading::PackKey;
use crate::sorted::Content;

/// Of the bytes, this part is for what passes by.
const PASSING_PART: usize = 4;

/// Decoded packs by key.
#[derive(Debug)]
pub struct Cache<C> {
    needed: Part<C>,
    passing: Part<C>,
}

#[derive(Debug)]
struct Part<C> {
    packs: HashMap<PackKey, (C, u64)>,
    /// By their last use.
    by_use: BTreeMap<u64, PackKey>,
    bytes: usize,
    bytes_max: usize,
    uses: u64,
}

impl<C: Content> Cache<C> {
    /// Holds up to `bytes_max`, or two packs if those are larger.
    pub fn new(bytes_max: usize) -> Self {
        let passing = bytes_max / PASSING_PART;
        Self { needed: Part::new(bytes_max - passing), passing: Part::new(passing) }
    }

    /// The size of the pack, if it is here.
    pub fn holds(&self, key: PackKey) -> Option<usize> {
        let found = self.needed.packs.get(&key).or_else(|| self.passing.packs.get(&key));
        found.map(|(pack, _)| pack.raw_bytes())
    }

    /// The pack, if it is here.
    pub fn get(&mut self, key: PackKey) -> Option<C> {
        self.needed.get(key).or_else(|| self.passing.get(key))
    }

    /// Keeps a pack whose turn comes. Returns whether that cost others their place.
    pub fn need(&mut self, key: PackKey, pack: C) -> bool {
        self.passing.remove(key);
        self.needed.put(key, pack)
    }

    /// Keeps a pack for a while, unless it is here.
    pub fn pass(&mut self, key: PackKey, pack: C) {
        if self.holds(key).is_none() {
            self.passing.put(key, pack);
        }
    }

    /// Lets go of a pack that is settled.
    pub fn remove(&mut self, key: PackKey) {
        self.needed.remove(key);
        self.passing.remove(key);
    }
}

impl<C: Content> Part<C> {
    fn new(bytes_max: usize) -> Self {
        Self { packs: HashMap::new(), by_use: BTreeMap::new(), bytes: 0, bytes_max, uses: 0 }
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
