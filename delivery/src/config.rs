//! Settings of the core, in its own units.

use std::time::Duration;

use spillway_limiter::Bounds;

use crate::state::backoff::Backoff;
use crate::state::shop::ShopBounds;

/// Settings of the core.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Limits of deliveries at once and per second.
    pub bounds: Bounds,
    /// Limits of one shop.
    pub shop_bounds: ShopBounds,
    /// Wait between attempts.
    pub backoff: Backoff,
    /// Time for retries after failures.
    pub retry_for: Duration,
    /// Time for retries after refusals.
    pub retry_refused_for: Duration,
    /// Longest time between an event and the one that stands for it.
    pub coalesce_wait_max: Duration,
    /// Time for which the front of the main stream may be blocked before it moves into lanes.
    pub park_after: Duration,
    /// Memory for the index, in bytes.
    pub index_bytes: usize,
    /// True if the fingerprints of all waiting webhooks are kept.
    pub keeps_fingerprints: bool,
    /// Dropping of updates that show nothing new.
    pub suppression: Suppression,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Sizes that no setting changes.
    pub tuning: Tuning,
}

/// Dropping of updates that show nothing new.
#[derive(Debug, Clone, Copy, Default)]
pub struct Suppression {
    /// Memory for the last delivered state of each resource, in bytes; 0: nothing is compared.
    pub bytes: usize,
    /// True if updates that are older than the last delivered one are dropped.
    pub drops_stale: bool,
    /// Most milliseconds by which the clock that dates acceptance, Redis', is behind the one that dates updates, Shopify's.
    pub clock_skew_ms: u64,
}

/// Sizes that no setting changes; the simulator makes them small.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// A window with at most this many webhooks is filled again.
    pub window_low: u32,
    /// Chunks in one read.
    pub chunks_at_once: u32,
    /// Packs requested by one scan of the front of the main stream. Hundreds of packs with one or
    /// two webhooks may arrive per second, and one settlement moves the packs of one scan.
    pub moved_packs: usize,
    /// Raw bytes that one settlement moves at most, except for a single larger pack. A chunk holds
    /// no more than that, so it can be decoded.
    pub moved_bytes: usize,
    /// Size and frequency of settlements.
    pub settlements: SettlementBounds,
    /// Bounds of what may have piled up behind one webhook.
    pub at_once: AtOnce,
    /// Deliveries that may wait for settlement, in addition to those under way. A crash can repeat
    /// this many.
    pub unsettled: usize,
    /// Bytes of decoded packs in memory.
    pub cache_bytes: usize,
    /// First failures of a lane in a row that open its circuit breaker.
    pub breaker_failures: u32,
    /// Active time after which the circuit breaker of a failing lane opens, even with few attempts.
    pub breaker_opens_after: Duration,
    /// Time after `retry_for` in which an attempt may still be the last one of a webhook.
    pub expiry_grace: Duration,
}

/// Size and frequency of settlements.
#[derive(Debug, Clone, Copy)]
pub struct SettlementBounds {
    /// Webhooks in one settlement. Bounds the time for which its script blocks Redis.
    pub webhooks: usize,
    /// Approximate number of lanes that one settlement changes, for the same reason.
    pub lanes: usize,
    /// Time from one settlement to the next while other turns can go on, but webhooks wait for it. A
    /// settlement costs Redis about as much for a hundred webhooks as for one.
    pub every: Duration,
    /// The same while waiting delays nothing but the record: no webhook waits for it.
    pub every_calm: Duration,
}

/// Part of what one webhook held back, and that goes on with one settlement or event. The rest follows with
/// the next ones.
#[derive(Debug, Clone, Copy)]
pub struct AtOnce {
    /// Packs that the cursor passes with one settlement. The script deletes them from Redis.
    pub passed_packs: u64,
    /// Webhooks in these packs, except for those of the last one.
    pub passed_webhooks: u64,
    /// Resources of one shop released with one event, of those that a barrier held back.
    pub released: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            window_low: 512,
            chunks_at_once: 4,
            moved_packs: 64,
            moved_bytes: 512 << 10,
            settlements: SettlementBounds {
                webhooks: 2048,
                lanes: 128,
                every: Duration::from_millis(2),
                every_calm: Duration::from_millis(6),
            },
            at_once: AtOnce { passed_packs: 1024, passed_webhooks: 16 << 10, released: 4096 },
            unsettled: 256,
            cache_bytes: 20 << 20,
            breaker_failures: 16,
            breaker_opens_after: Duration::from_secs(600),
            expiry_grace: Duration::from_secs(60),
        }
    }
}
