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
}
