//! Settings of the core, in its own units.

use std::time::Duration;

use spillway_limiter::Bounds;

use crate::backoff::Backoff;
use crate::shop::ShopBounds;

/// Settings of the core.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Deliveries at once and per second.
    pub bounds: Bounds,
    /// The same for one shop.
    pub shop_bounds: ShopBounds,
    /// Wait between attempts.
    pub backoff: Backoff,
    /// Time for retries after failures.
    pub retry_for: Duration,
    /// Time for retries after refusals.
    pub retry_refused_for: Duration,
    /// Most that an event is older than the one that stands for it.
    pub coalesce_wait_max: Duration,
    /// Time for which the front of the main stream may be blocked before it moves into lanes.
    pub park_after: Duration,
    /// Memory for the index, in bytes.
    pub index_bytes: usize,
    /// Whether fingerprints of all that waits are kept.
    pub keeps_fingerprints: bool,
    /// Seed of all chance.
    pub seed: u64,
    /// Sizes that no setting changes.
    pub tuning: Tuning,
}

/// Sizes that no setting changes; the simulator makes them small.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// A window with fewer webhooks is filled again.
    pub window_low: u32,
    /// Chunks in one read.
    pub chunks_at_once: u32,
    /// Packs asked for by one look at the front of the main stream. There may be hundreds a second of
    /// a webhook or two each, and one settlement moves what one look found.
    pub moved_packs: usize,
    /// Raw bytes moved by one settlement, at most, except for a single larger pack: a chunk holds no
    /// more than that, so it can be decoded.
    pub moved_bytes: usize,
    /// Webhooks in one settlement: bounds the time its script holds Redis.
    pub settled_webhooks: usize,
    /// Lanes that one settlement changes, about: for the same reason.
    pub settled_lanes: usize,
    /// Deliveries that may wait for their settlement, beside those under way: what a crash can
    /// repeat.
    pub unsettled: usize,
    /// Decoded packs at hand, in bytes.
    pub cache_bytes: usize,
    /// First failures of a lane in a row that open its circuit breaker.
    pub breaker_failures: u32,
    /// Active time after which the circuit breaker of a lane that gets few attempts opens, however few it had.
    pub breaker_opens_after: Duration,
    /// Time beyond that for retries in which an attempt of its own may be the last of a webhook.
    pub expiry_grace: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            window_low: 512,
            chunks_at_once: 4,
            moved_packs: 64,
            moved_bytes: 512 << 10,
            settled_webhooks: 2048,
            settled_lanes: 128,
            unsettled: 256,
            cache_bytes: 32 << 20,
            breaker_failures: 16,
            breaker_opens_after: Duration::from_secs(600),
            expiry_grace: Duration::from_secs(60),
        }
    }
}
