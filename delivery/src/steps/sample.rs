//! A core for unit tests of single steps.

use std::time::Duration;

use spillway_limiter::Bounds;
use spillway_webhook::StreamId;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use crate::classified::{Class, Classified, Content, StateRole};
use crate::config::{Config, Suppression, Tuning};
use crate::event::Loaded;
use crate::state::Core;
use crate::state::backoff::Backoff;
use crate::state::index::{IndexEntry, LaneKey, ResourceKey};
use crate::state::seen::DedupWindow;
use crate::state::shop::ShopBounds;
use crate::steps::arrive;

/// Content of no bytes.
#[derive(Debug, Clone)]
pub(crate) struct NoContent;

impl Content for NoContent {
    type Evidence = ();
    type Filter = ();

    fn raw_bytes(&self) -> usize {
        0
    }

    fn record_bytes(&self, _: u32) -> usize {
        0
    }

    fn pluck(&self, _: u32) -> Self {
        Self
    }

    fn fingerprint(&self, _: u32) -> Option<Fingerprint> {
        None
    }

    fn shop_of((): &()) -> Option<u64> {
        None
    }

    fn is_matched(&self, _: u32, _: Position, (): &()) -> bool {
        false
    }

    fn dead_bytes(&self, _: u32, (): &()) -> u64 {
        0
    }
}

/// Position of the first webhook of the pack of a millisecond.
pub(crate) fn at(ms: u64) -> Position {
    Position::new(StreamId { ms, seq: 0 }, 0)
}

/// A core with an index of this size. It sends one webhook at a time, and at once.
pub(crate) fn core(index_bytes: usize, loaded: Loaded) -> Core<NoContent> {
    let mut config = Config {
        bounds: Bounds { concurrency_min: 1, concurrency_max: 1, rate_max: None },
        shop_bounds: ShopBounds { concurrency_max: 1, spacing: Duration::ZERO },
        backoff: Backoff { first: Duration::ZERO, longest: Duration::ZERO },
        retry_for: Duration::ZERO,
        retry_refused_for: Duration::ZERO,
        coalesce_wait_max: Duration::ZERO,
        park_after: Duration::ZERO,
        index_bytes,
        keeps_fingerprints: false,
        suppression: Suppression::default(),
        seed: 1,
        tuning: Tuning::default(),
    };
    config.tuning.settlements.every = Duration::ZERO;
    config.tuning.settlements.every_calm = Duration::ZERO;
    Core::new(config, loaded, DedupWindow::new(Duration::ZERO, 0))
}

/// An event of a resource in a lane of its own shop, which is the only one.
pub(crate) fn classified(resource: u64, lane: u64) -> Classified {
    Classified {
        resource,
        lane,
        shop: lane,
        class: Class::Rest,
        is_barrier: false,
        coalesces: 1,
        role: StateRole::None,
        fingerprint: None,
        expires_at_ms: None,
        is_excluded: false,
    }
}

/// Two lanes of one shop.
pub(crate) fn lanes(core: &mut Core<NoContent>) -> [LaneKey; 2] {
    let shop = core.queue.shops.intern(1);
    [1, 2].map(|hash| core.queue.lane(hash, shop))
}

/// Indexes an event of a lane, or a replay. Returns its resource.
pub(crate) fn add(
    core: &mut Core<NoContent>,
    lane: LaneKey,
    resource: u64,
    position: Position,
    is_replay: bool,
) -> ResourceKey {
    let replay = is_replay.then_some(position.entry());
    let entry = IndexEntry { position, classified: classified(resource, 1), replay };
    arrive::index_webhook(core, lane, &entry);
    core.queue.index.by_hash(resource).expect("it is indexed")
}

/// Times of the webhooks of a resource, in milliseconds, the head first.
pub(crate) fn order(core: &Core<NoContent>, resource: ResourceKey) -> Vec<u64> {
    let index = &core.queue.index;
    index.all_of(resource).into_iter().map(|node| index.node(node).position.ms).collect()
}
