//! A turn to send, and the reasons for which nothing is sent.

use crate::state::index::{LaneKey, ResourceKey};
use crate::state::shop::ShopKey;

/// Reason why something is not sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocked {
    /// The leader stops, its lease is not confirmed, or the first replays are being read. Or it has
    /// just begun, and the previous leader left webhooks of this lane behind.
    NotLeading,
    /// An operator paused everything.
    AllPaused,
    /// As many webhooks wait for settlement as a crash may repeat.
    Unsettled,
    /// The backend is down. It is probed from time to time.
    BackendDown,
    /// The backend refuses most webhooks of most shops.
    BackendRefuses,
    /// An operator paused the shop.
    ShopPaused,
    /// An operator's filter pauses the webhooks that are left in the lane.
    FilterPaused,
    /// A redaction or uninstall waits for earlier webhooks of its shop and holds back later ones.
    Barrier,
    /// `SHOP_MAX_RATE` is reached, or the backend requested a pause for the shop.
    ShopRate,
    /// `SHOP_MAX_CONCURRENCY` is reached.
    ShopConcurrency,
    /// The lane's circuit breaker is open.
    LaneBreaker,
    /// The last attempt of the lane timed out or was cut off. It has one attempt at a time.
    LaneSuspect,
    /// An attempt of the lane takes much longer than usual.
    LaneSlow,
    /// Slow lanes hold as many slots as they may.
    SlowSlots,
    /// The webhook's bytes are being read.
    Reading,
    /// The concurrency limit or `MAX_RATE` is reached.
    Limit,
}

/// A resource that has its turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub shop: ShopKey,
    pub lane: LaneKey,
    pub resource: ResourceKey,
}
