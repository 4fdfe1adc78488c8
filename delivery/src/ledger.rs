//! What waits for its settlement, the settlement that is being composed, and the one under way.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use spillway_webhook::StreamId;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use crate::by_hash::ByHash;
use crate::index::{LaneKey, NodeKey, ResourceKey};
use crate::seen::Seen;
use crate::settlement::{DeadLetter, Settlement};
use crate::shop::ShopKey;
use crate::sorted::Content;

/// A head that is done with.
pub(crate) struct Finished<C: Content> {
    pub resource: ResourceKey,
    pub end: Ended<C>,
    pub fingerprint: Option<Fingerprint>,
    pub attempts: u32,
}

/// How a head ended.
pub(crate) enum Ended<C: Content> {
    /// The backend has it.
    Delivered,
    /// The backend had it before.
    Duplicate,
    /// It is given up; with the letter's size in Redis.
    Dead(Box<DeadLetter<C>>, u64),
}

/// A webhook that is dropped, and not indexed any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dropped {
    pub lane: LaneKey,
    pub position: Position,
    pub replay: Option<StreamId>,
}

/// Everything that waits for a settlement.
pub(crate) struct Ledger<C: Content> {
    pub finished: Vec<Finished<C>>,
    pub dropped: VecDeque<Dropped>,
    /// Leads to record before they are sent.
    pub new_leads: Vec<(ResourceKey, u64, Position)>,
    /// Lanes whose row may have changed.
    pub changed: Vec<LaneKey>,
    /// Webhooks in lanes whose retry state changed, and their lanes.
    pub retries: BTreeMap<Position, LaneKey>,
    /// Bytes of what is being sent, for a dead letter.
    pub sent: HashMap<ResourceKey, (C, u32)>,
    /// The next settlement.
    pub draft: Draft<C>,
    pub settling: Option<Settling>,
    pub seen: Seen,
    /// Bytes of dead letters that are not settled.
    pub dying_bytes: u64,
    /// Heads among those that are done with that have expired.
    pub expired: usize,
}

/// A settlement that is being composed.
pub(crate) struct Draft<C: Content> {
    pub settlement: Settlement<C>,
    pub settling: Settling,
    /// Packs of which something is settled.
    pub packs: BTreeSet<StreamId>,
    /// Chunks of which something is settled.
    pub chunks: BTreeSet<(LaneKey, u32)>,
    /// Webhooks that it moves and that are not indexed.
    pub unread: Vec<Position>,
    /// Raw bytes that it moves into lanes.
    pub moved_bytes: usize,
    /// Index of the chunk that it writes of a lane.
    pub chunk_of: ByHash<usize>,
}

/// What follows once a settlement is applied.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    pub nodes: Vec<NodeKey>,
    pub heads: Vec<ResourceKey>,
    pub seen: Vec<Fingerprint>,
    pub leads: Vec<(ResourceKey, u64, Position)>,
    pub barriers: Vec<(ShopKey, Position)>,
    pub dead_bytes: u64,
    /// Heads that have expired.
    pub expired: usize,
    /// Lanes that it changes.
    pub lanes: BTreeSet<LaneKey>,
}

impl<C: Content> Ledger<C> {
    pub fn new(seen: Seen) -> Self {
        Self {
            finished: Vec::new(),
            dropped: VecDeque::new(),
            new_leads: Vec::new(),
            changed: Vec::new(),
            retries: BTreeMap::new(),
            sent: HashMap::new(),
            draft: Draft::default(),
            settling: None,
            seen,
            dying_bytes: 0,
            expired: 0,
        }
    }

    /// True if nothing waits for a settlement.
    pub fn is_quiet(&self) -> bool {
        let is_written = self.changed.is_empty() && self.retries.is_empty();
        self.finished.is_empty() && self.settling.is_none() && is_written
    }

    /// Heads that are done with and not settled, those left out that have expired.
    pub fn unsettled(&self) -> usize {
        let settling = self.settling.as_ref().map_or(0, |settling| settling.heads.len());
        (self.finished.len() + settling).saturating_sub(self.expiring())
    }

    /// Heads that have expired and are not settled.
    pub fn expiring(&self) -> usize {
        self.expired + self.settling.as_ref().map_or(0, |settling| settling.expired)
    }
}

impl<C: Content> Default for Draft<C> {
    fn default() -> Self {
        Self {
            settlement: Settlement::default(),
            settling: Settling::default(),
            packs: BTreeSet::new(),
            chunks: BTreeSet::new(),
            unread: Vec::new(),
            moved_bytes: 0,
            chunk_of: ByHash::default(),
        }
    }
}
