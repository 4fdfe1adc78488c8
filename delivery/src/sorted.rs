//! The part of a webhook that decides when it is delivered, and its bytes as the core sees them.

use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

/// One of the two rounds of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `PRIORITY_TOPICS`: four turns of five.
    Priority,
    /// All others.
    Rest,
}

impl Class {
    /// Index of this class in an array of two.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Priority => 0,
            Self::Rest => 1,
        }
    }
}

/// Everything about a webhook that decides when it is delivered. All hashes are stable over
/// restarts, because Redis keeps them.
#[derive(Debug, Clone, Copy)]
pub struct Sorted {
    /// Hash of the unit of order: under `ORDER_BY=resource` the shop, the kind and the id.
    pub resource: u64,
    /// Hash of the lane: the shop and the kind, or the shop alone under `ORDER_BY=shop`.
    pub lane: u64,
    /// Hash of the shop.
    pub shop: u64,
    /// Round it takes part in.
    pub class: Class,
    /// Waits for everything of its shop that was accepted before it, and holds back what came after.
    pub is_barrier: bool,
    /// Events of one resource with the same number may stand for each other; 0: for none.
    pub coalesces: u8,
    /// Identity for duplicates, kept only where events are coalesced.
    pub fingerprint: Option<Fingerprint>,
}

/// The bytes of a decoded pack. The core hands them on and never looks inside by itself.
pub trait Content: Clone + std::fmt::Debug {
    /// Reason and answer that go into a dead letter; the default is that of an attempt that was cut off.
    type Evidence: std::fmt::Debug + Default;
    /// A pause by anything else than a whole shop.
    type Filter: std::fmt::Debug + Clone + PartialEq;

    /// Decoded size in bytes.
    fn raw_bytes(&self) -> usize;
    /// Decoded size of the record at `index` in bytes.
    fn record_bytes(&self, index: u32) -> usize;
    /// The record at `index` as content of its own, at index 0.
    fn pluck(&self, index: u32) -> Self;
    /// Identity of the record at `index` for duplicates.
    fn fingerprint(&self, index: u32) -> Option<Fingerprint>;
    /// Hash of the only shop of which `filter` matches anything; `None`: it may be any.
    fn shop_of(filter: &Self::Filter) -> Option<u64>;
    /// Whether `filter` matches the record at `index`, which was accepted at `position`.
    fn is_matched(&self, index: u32, position: Position, filter: &Self::Filter) -> bool;
    /// Size in Redis of a dead letter of the record at `index`, in bytes.
    fn dead_bytes(&self, index: u32, evidence: &Self::Evidence) -> u64;
}

/// Raw bytes of a chunk, as its row holds them.
pub(crate) fn raw_bytes<C: Content>(content: &C) -> u32 {
    u32::try_from(content.raw_bytes()).unwrap_or(u32::MAX)
}
