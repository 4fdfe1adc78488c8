//! State that all shards of the process share.

use std::sync::Arc;

use spillway_process::Background;

use crate::admit::Admission;
use crate::apps::Apps;
use crate::ignored::Ignored;
use crate::metrics::ReceiverMetrics;
use crate::secrets::ClientSecrets;
use crate::settings::ReceiverSettings;
use crate::shares::ShopShares;
use crate::shutdown::Shutdown;
use crate::store::Store;
use crate::tls::TlsEndpoint;
use crate::topics::TopicMetrics;

/// State that all shards share.
#[derive(Clone)]
pub struct ShardContext {
    /// The receiver's settings.
    pub settings: Arc<ReceiverSettings>,
    /// Limit on the bytes in flight.
    pub admission: Admission,
    /// Store for webhooks.
    pub store: Store,
    /// The client secrets in force.
    pub secrets: Arc<ClientSecrets>,
    /// Apps with secrets of their own.
    pub apps: Option<Arc<Apps>>,
    /// Webhooks that are not stored.
    pub ignored: Arc<Ignored>,
    /// Shops that take too much of the queue.
    pub shares: Arc<ShopShares>,
    /// Metrics of requests, packs and the queue.
    pub metrics: ReceiverMetrics,
    /// Metrics by topic.
    pub topics: TopicMetrics,
    /// HTTPS, if it is served.
    pub tls: Option<TlsEndpoint>,
    /// Shutdown state.
    pub shutdown: Shutdown,
    /// Ends the process when a shard ends for whatever reason. It asks the shards for answers.
    pub background: Background,
}
