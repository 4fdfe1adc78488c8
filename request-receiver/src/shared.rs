//! What all shards of the process share.

use std::sync::Arc;

use spillway_service::Background;
use spillway_service::supervisor::Watchdog;

use crate::admit::Admission;
use crate::closing::Closing;
use crate::metrics::Metrics;
use crate::secrets::ClientSecrets;
use crate::settings::Settings;
use crate::shares::ShopShares;
use crate::store::Store;
use crate::topics::TopicMetrics;

/// What all shards share.
#[derive(Clone)]
pub struct Shared {
    /// The receiver's settings.
    pub settings: Arc<Settings>,
    /// Bounds what is in flight.
    pub admission: Admission,
    /// Way of webhooks into the queue.
    pub store: Store,
    /// The client secrets in force.
    pub secrets: Arc<ClientSecrets>,
    /// Shops that take too much of it.
    pub shares: Arc<ShopShares>,
    /// What is counted.
    pub metrics: Metrics,
    /// What is counted by topic.
    pub topics: TopicMetrics,
    /// Has the batchers answer to the supervisor.
    pub watchdog: Watchdog,
    /// Whether and until when the process stops.
    pub closing: Closing,
    /// Ends the process when a shard ends, for whatever reason.
    pub background: Background,
}
