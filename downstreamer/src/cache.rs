//! Decoded packs at hand, bounded in bytes.
//!
//! What intake reads ahead is kept while there is room; what delivery needs is kept at the expense
//! of what was put in first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use spillway_webhook::pack::Pack;

use crate::index::PackKey;

/// Decoded packs by key.
#[derive(Debug)]
pub struct Cache {
    packs: HashMap<PackKey, Arc<Pack>>,
    oldest_first: VecDeque<PackKey>,
    bytes: usize,
    bytes_max: usize,
}

impl Cache {
    /// Holds up to `bytes_max`, or one pack if that is larger.
    pub fn new(bytes_max: usize) -> Self {
        Self { packs: HashMap::new(), oldest_first: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// How many packs are here.
    pub fn packs(&self) -> usize {
        self.packs.len()
    }

    /// Whether the pack is here.
    pub fn holds(&self, key: PackKey) -> bool {
        self.packs.contains_key(&key)
    }

    /// The pack, if it is here.
    pub fn get(&self, key: PackKey) -> Option<Arc<Pack>> {
        self.packs.get(&key).cloned()
    }

    /// Keeps a pack that was read ahead, if there is room.
    pub fn offer(&mut self, key: PackKey, pack: Arc<Pack>) {
        if self.bytes + pack.raw_bytes() <= self.bytes_max {
            self.insert(key, pack);
        }
    }

    /// Keeps a pack that is needed now, at the expense of the oldest ones.
    pub fn put(&mut self, key: PackKey, pack: Arc<Pack>) {
        while self.bytes + pack.raw_bytes() > self.bytes_max {
            let Some(oldest) = self.oldest_first.pop_front() else { break };
            self.forget(oldest);
        }
        self.insert(key, pack);
    }

    /// Lets go of a pack that is settled.
    pub fn remove(&mut self, key: PackKey) {
        self.forget(key);
        // The queue of ages may keep keys of packs that are gone, but not many more than packs.
        if self.oldest_first.len() > 2 * self.packs.len() + 16 {
            let packs = &self.packs;
            self.oldest_first.retain(|key| packs.contains_key(key));
        }
    }

    fn insert(&mut self, key: PackKey, pack: Arc<Pack>) {
        self.bytes += pack.raw_bytes();
        self.oldest_first.push_back(key);
        if let Some(replaced) = self.packs.insert(key, pack) {
            self.bytes -= replaced.raw_bytes();
        }
    }

    fn forget(&mut self, key: PackKey) {
        if let Some(pack) = self.packs.remove(&key) {
            self.bytes -= pack.raw_bytes();
        }
    }
}
