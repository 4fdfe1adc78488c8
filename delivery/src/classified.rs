//! Attributes that decide when a webhook is delivered, and its bytes as the core sees them.

use std::num::NonZeroU32;

use spillway_webhook::BodyState;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

/// Class of a webhook in the order of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Webhooks of `PRIORITY_TOPICS`, which have four turns of five.
    Priority,
    /// All other webhooks.
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

/// Part of a webhook in the comparison of updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateRole {
    /// Shows no state that is compared.
    None,
    /// May show a state of its resource, of a kind whose updates are compared, and is not compared itself.
    MayShow,
    /// Compared with the last update delivered of its resource.
    Compared,
    /// May show or change the state of any resource that is compared: it names none, or is a barrier.
    HidesAll,
}

/// Attributes that decide when a webhook is delivered. All hashes are the same after a restart,
/// because Redis keeps them.
#[derive(Debug, Clone, Copy)]
pub struct Classified {
    /// Hash of the unit of order: under `ORDER_BY=resource` the shop, the kind and the id.
    pub resource: u64,
    /// Hash of the lane: the shop and the kind, or the shop alone under `ORDER_BY=shop`.
    pub lane: u64,
    /// Hash of the shop.
    pub shop: u64,
    /// Class in the order of turns.
    pub class: Class,
    /// True if the webhook waits for everything that its shop sent before, and holds back what the
    /// shop sent after.
    pub is_barrier: bool,
    /// Events of one resource with the same number may stand for each other; 0 for none.
    pub coalesces: u32,
    /// Part in the comparison of updates.
    pub role: StateRole,
    /// Fingerprint to find duplicates, kept only if events are coalesced.
    pub fingerprint: Option<Fingerprint>,
    /// Time at which the payload of a stub expires, in milliseconds since the Unix epoch.
    pub expires_at_ms: Option<u64>,
    /// True if the consumer's filter excludes the webhook: it is settled without delivery, unless it is
    /// replayed. The filter does not change while a leader works.
    pub is_excluded: bool,
}

/// State that an update shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateState {
    /// Number of the update's subscription: its topic, path, app and name.
    pub subscription: NonZeroU32,
    /// State that the body shows.
    pub body: BodyState,
}

/// Bytes of a decoded pack. The core passes them on and does not parse them.
pub trait Content: Clone + std::fmt::Debug {
    /// Reason and answer for a dead letter. The default is that of an attempt that was cut off.
    type Evidence: std::fmt::Debug + Default;
    /// Filter of a pause that concerns anything other than a whole shop.
    type Filter: std::fmt::Debug + Clone + PartialEq;

    /// Decoded size in bytes.
    fn raw_bytes(&self) -> usize;
    /// Decoded size of the record at `index` in bytes.
    fn record_bytes(&self, index: u32) -> usize;
    /// Returns the record at `index` as separate content, at index 0.
    fn pluck(&self, index: u32) -> Self;
    /// Fingerprint of the record at `index`, to find duplicates.
    fn fingerprint(&self, index: u32) -> Option<Fingerprint>;
    /// State that the record at `index` shows, if it can be compared with that of another.
    fn update(&self, _index: u32) -> Option<UpdateState> {
        None
    }
    /// Hash of the only shop whose webhooks `filter` can match; `None` if it can match any shop.
    fn shop_of(filter: &Self::Filter) -> Option<u64>;
    /// True if `filter` matches the record at `index`, which was accepted at `position`.
    fn is_matched(&self, index: u32, position: Position, filter: &Self::Filter) -> bool;
    /// Size in Redis of a dead letter of the record at `index`, in bytes.
    fn dead_bytes(&self, index: u32, evidence: &Self::Evidence) -> u64;
}

/// Raw bytes of a chunk, in the type that its row uses.
pub(crate) fn raw_bytes<C: Content>(content: &C) -> u32 {
    u32::try_from(content.raw_bytes()).unwrap_or(u32::MAX)
}
