//! Webhooks that wait for settlement, the settlement that is being composed, and the one under way.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::settlement::{GivenUp, PendingSettlement};
use crate::state::folded::ByHash;
use crate::state::index::{LaneKey, NodeKey, ResourceKey};
use crate::state::last_delivered::{LastDelivered, SentUpdate};
use crate::state::seen::DedupWindow;
use crate::state::shop::ShopKey;

/// A head that has ended and waits for settlement.
pub(crate) struct Finished<C: Content> {
    pub resource: ResourceKey,
    pub end: HeadEnd<C>,
    pub fingerprint: Option<Fingerprint>,
    pub attempts: u32,
    /// State that was delivered, if it is compared.
    pub update: Option<SentUpdate>,
}

/// Result of a head.
pub(crate) enum HeadEnd<C: Content> {
    /// The backend accepted the webhook.
    Delivered,
    /// The webhook was delivered before.
    Duplicate,
    /// The update shows the state that was delivered last.
    Suppressed,
    /// The update is older than that state.
    Stale,
    /// The webhook is given up. Holds the dead letter and its size in Redis.
    Dead(Box<GivenUp<C>>, u64),
}

/// One webhook, by its place in the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WebhookPlace {
    pub lane: LaneKey,
    pub position: Position,
    pub replay: Option<StreamId>,
}

/// Webhooks that are settled without being delivered or given up.
#[derive(Debug, Default)]
pub(crate) struct UndeliveredPlaces {
    /// Webhooks that an operator dropped.
    pub dropped: VecDeque<WebhookPlace>,
    /// Webhooks in lanes that the filter excludes.
    pub excluded: VecDeque<WebhookPlace>,
}

/// Everything that waits for a settlement.
pub(crate) struct Ledger<C: Content> {
    pub finished: Vec<Finished<C>>,
    pub undelivered: UndeliveredPlaces,
    /// Leads to record before they are sent.
    pub new_leads: Vec<(ResourceKey, u64, Position)>,
    /// Lanes whose row may have changed.
    pub changed: Vec<LaneKey>,
    /// Webhooks whose retry state changed, and their lanes.
    pub retries: BTreeMap<Position, LaneKey>,
    /// Bytes of the webhooks that are being sent, for dead letters.
    pub sent: HashMap<ResourceKey, (C, u32)>,
    /// Next settlement.
    pub draft: Draft<C>,
    pub settling: Option<Settling>,
    pub seen: DedupWindow,
    pub last_delivered: LastDelivered,
    /// Bytes of dead letters that are not settled yet.
    pub dying_bytes: u64,
    /// Number of heads in `finished` that have expired.
    pub expired: usize,
}

/// A settlement that is being composed.
pub(crate) struct Draft<C: Content> {
    pub settlement: PendingSettlement<C>,
    pub settling: Settling,
    /// Time up to which it may gather more webhooks, although others wait for it.
    pub due_at: Duration,
    /// The same while none waits for it.
    pub due_in_calm_at: Duration,
    /// True if webhooks wait for it, of resources whose heads it settles.
    pub is_awaited: bool,
    /// Packs with webhooks that it settles.
    pub packs: BTreeSet<StreamId>,
    /// Chunks with webhooks that it settles.
    pub chunks: BTreeSet<(LaneKey, u32)>,
    /// Webhooks that it moves and that are not indexed.
    pub unread: Vec<Position>,
    /// Raw bytes that it moves into lanes.
    pub moved_bytes: usize,
    /// Index of the chunk that it writes for each lane.
    pub chunk_of: ByHash<usize>,
}

/// Changes to make once a settlement is applied.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    pub nodes: Vec<NodeKey>,
    pub heads: Vec<ResourceKey>,
    pub seen: Vec<Fingerprint>,
    /// Delivered states, with the hash of their resource.
    pub delivered: Vec<(u64, SentUpdate)>,
    pub leads: Vec<(ResourceKey, u64, Position)>,
    pub barriers: Vec<(ShopKey, Position)>,
    pub dead_bytes: u64,
    /// Number of heads that have expired.
    pub expired: usize,
    /// Lanes that the settlement changes.
    pub lanes: BTreeSet<LaneKey>,
}

impl<C: Content> Ledger<C> {
    pub(crate) fn new(seen: DedupWindow, last_delivered: LastDelivered) -> Self {
        Self {
            finished: Vec::new(),
            undelivered: UndeliveredPlaces::default(),
            new_leads: Vec::new(),
            changed: Vec::new(),
            retries: BTreeMap::new(),
            sent: HashMap::new(),
            draft: Draft::default(),
            settling: None,
            seen,
            last_delivered,
            dying_bytes: 0,
            expired: 0,
        }
    }

    /// True if nothing waits for a settlement.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_written = self.changed.is_empty() && self.retries.is_empty();
        self.finished.is_empty() && self.settling.is_none() && is_written
    }

    /// Time up to which the next settlement may gather more webhooks; `None` if that is over, or one
    /// is under way. `is_awaited`: webhooks wait for it.
    pub(crate) fn gathers_until(&self, now: Duration, is_awaited: bool) -> Option<Duration> {
        let Draft { due_at, due_in_calm_at, .. } = self.draft;
        let until = if is_awaited { due_at } else { due_in_calm_at };
        Some(until).filter(|at| *at > now && self.settling.is_none())
    }

    /// Number of heads that have ended and are not settled, without those that have expired.
    pub(crate) fn unsettled(&self) -> usize {
        let settling = self.settling.as_ref().map_or(0, |settling| settling.heads.len());
        (self.finished.len() + settling).saturating_sub(self.expiring())
    }

    /// Number of heads that have expired and are not settled.
    pub(crate) fn expiring(&self) -> usize {
        self.expired + self.settling.as_ref().map_or(0, |settling| settling.expired)
    }
}

impl<C: Content> Default for Draft<C> {
    fn default() -> Self {
        Self {
            settlement: PendingSettlement::default(),
            settling: Settling::default(),
            due_at: Duration::ZERO,
            due_in_calm_at: Duration::ZERO,
            is_awaited: false,
            packs: BTreeSet::new(),
            chunks: BTreeSet::new(),
            unread: Vec::new(),
            moved_bytes: 0,
            chunk_of: ByHash::default(),
        }
    }
}
