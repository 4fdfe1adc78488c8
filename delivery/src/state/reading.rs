//! Reads of webhook bytes: ahead in stream order, or on demand for turns out of stream order.
//!
//! The index holds millions of webhooks, the cache some dozens of packs. In stream order each pack
//! is read once. Fairness goes out of stream order, so one webhook of a small shop may cost the
//! read of a whole pack. Such reads have a budget. With a slow backend the budget has no effect.
//! With a fast backend, webhooks whose bytes are in memory go first. A webhook that was read on
//! demand is kept by itself until its turn.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::pack_key::PackKey;
use crate::state::cache::Cache;
use crate::state::chunk_reads::ChunkReads;
use crate::state::folded::FoldedMap;
use crate::state::index::ResourceKey;
use crate::turn::Turn;

/// Highest load of all reads at once: four packs.
pub(crate) const READS_MAX: u32 = 4 * LARGE_LOAD;

/// Load of one read. A small pack, as from a quiet receiver, has a load of 1.
pub(crate) const LARGE_LOAD: u32 = 8;

/// Webhooks in a small pack.
const SMALL: u32 = 16;

/// Reads on demand per second of packs of usual size. At 1 ms each, they take a third of a core.
pub(crate) const READS_PER_SECOND: f64 = 300.0;

/// Cost of a read in addition to its bytes.
pub(crate) const LEAST_COST: f64 = 0.03;

/// The same for a pack of the main stream. Several chunks are read together, and each pack by itself:
/// however small it is, Redis takes 25 µs, and the worker more.
pub(crate) const PACK_COST: f64 = 0.1;

/// Packs of the main stream that are read at once for rests of lanes.
const RESTS_MAX: usize = 8;

/// Bytes of webhooks that were read on demand and wait for their turn, at most.
pub(crate) const PLUCKED_BYTES: usize = 8 << 20;

/// Reads that the budget can save up.
pub(crate) const BUDGET_MAX: f64 = 16.0;

/// A read that is under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadUnderWay {
    load: u32,
    /// True if the front of the stream is read, which is kept in memory.
    is_front: bool,
}

/// Packs that are being read, and the turns that wait for them.
#[derive(Debug)]
pub(crate) struct Reading<C> {
    /// Decoded packs in memory.
    pub cache: Cache<C>,
    pub under_way: FoldedMap<PackKey, ReadUnderWay>,
    /// Sum of the loads of all reads under way.
    pub load: u32,
    /// Packs to read on demand, in the order of the requests.
    pub wanted: VecDeque<PackKey>,
    pub waiting: FoldedMap<PackKey, Vec<Turn>>,
    /// Webhooks that were read on demand.
    pub plucked: HashMap<ResourceKey, (Position, C)>,
    pub plucked_bytes: usize,
    /// Chunks that are being read for windows.
    pub chunks: ChunkReads,
    /// Packs that are being read for rests of lanes.
    pub rests: BTreeSet<StreamId>,
    pub budget: f64,
    pub earned_at: Duration,
    /// Set if the front of the stream may have moved since it was last read.
    pub is_front_new: bool,
}

impl<C: Content> Reading<C> {
    pub(crate) fn new(cache_bytes: usize) -> Self {
        Self {
            cache: Cache::new(cache_bytes),
            under_way: FoldedMap::default(),
            load: 0,
            wanted: VecDeque::new(),
            waiting: FoldedMap::default(),
            plucked: HashMap::new(),
            plucked_bytes: 0,
            chunks: ChunkReads::default(),
            rests: BTreeSet::new(),
            budget: BUDGET_MAX,
            earned_at: Duration::ZERO,
            is_front_new: true,
        }
    }

    /// True if no other pack may be read for rests now.
    pub(crate) fn are_rests_full(&self) -> bool {
        self.rests.len() >= RESTS_MAX
    }

    /// Drops the bytes of a resource that has another head, or none.
    pub(crate) fn forget(&mut self, resource: ResourceKey) -> Option<(Position, C)> {
        let plucked = self.plucked.remove(&resource)?;
        self.plucked_bytes -= plucked.1.raw_bytes();
        Some(plucked)
    }

    /// Time at which the budget allows the next wanted read.
    pub(crate) fn wakes_at(&self) -> Option<Duration> {
        let has_room = self.plucked_bytes < PLUCKED_BYTES;
        let is_wanted = has_room && !self.wanted.is_empty() && self.load < READS_MAX;
        let missing =
            Duration::from_secs_f64((LEAST_COST - self.budget).max(0.0) / READS_PER_SECOND);
        is_wanted.then(|| self.earned_at + missing)
    }

    pub(crate) fn begin(&mut self, key: PackKey, load: u32, is_front: bool) {
        let before = self.under_way.insert(key, ReadUnderWay { load, is_front });
        self.load = self.load + load - before.map_or(0, |before| before.load);
    }

    /// Ends a read. Returns true if it was of the front of the stream.
    pub(crate) fn ended(&mut self, key: PackKey) -> bool {
        let Some(ended) = self.under_way.remove(&key) else { return false };
        self.load -= ended.load;
        ended.is_front
    }

    /// Notes that the cursor moved, or that a pack was settled in part.
    pub(crate) fn front_moved(&mut self) {
        self.is_front_new = true;
    }
}

/// Load of reading a pack of `count` webhooks.
pub(crate) fn load(count: u32) -> u32 {
    if count <= SMALL { 1 } else { LARGE_LOAD }
}
