//! The receiver: HTTP in, packs out.
//!
//! The path of a webhook: [`serve`] (accepts, hands to a [`shard`]) → [`connection`] → [`receive`]
//! (one request, step by step: admit → read the body → authenticate → inspect → shares) → [`batch`] →
//! [`batcher`] (group commit) → [`store`] (appends to Redis, or writes to the overflow log, which is
//! [`spill`]) → [`reply`] (what the sender is answered).

pub mod admit;
pub mod batch;
pub mod batcher;
pub mod body;
pub mod closing;
pub mod connection;
pub mod descriptors;
pub mod inspect;
pub mod metrics;
pub mod phase;
pub mod receive;
pub mod reply;
pub mod secrets;
pub mod serve;
pub mod settings;
pub mod shard;
pub mod shared;
pub mod shares;
#[cfg(feature = "spill")]
pub mod spill;
pub mod store;
pub mod stream;
mod sync;
pub mod topics;

use std::sync::Arc;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity};
use spillway_service::Background;
use spillway_service::admin;
use spillway_service::error::chain;
use spillway_service::listen::Listener;
use spillway_service::metrics::register;
use spillway_service::start::Unavailable;
use spillway_service::supervisor::{self, Watchdog};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::admit::{Admission, InFlightMetric};
use crate::closing::Closing;
use crate::descriptors::connection_limits;
use crate::metrics::Metrics;
use crate::reply::OUTCOMES;
use crate::secrets::ClientSecrets;
use crate::serve::Acceptor;
use crate::settings::Settings;
use crate::shard::Shard;
use crate::shared::Shared;
use crate::shares::{Judge, ShopShares};
use crate::store::Store;
use crate::store::log::LogMetrics;
use crate::store::watch::Watch;
use crate::topics::TopicMetrics;

/// How long who connects first may have to wait for what Redis says: a part of Shopify's 5 s.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// What the feeder may have on its way, which Redis knows the outcome of in any case.
const FEEDER_STOPS_WITHIN: Duration = Duration::from_millis(500);

/// Runs a receiver until `shutdown`.
///
/// # Errors
/// When an address can't be bound, when too few files may be open, when Redis is absent and the settings
/// say to give up then, and when a shard or a background task ends before `shutdown`.
pub async fn run(settings: Settings, shutdown: CancellationToken) -> anyhow::Result<()> {
    let limits = connection_limits(settings.connections_max, shard_count())?;
    let settings = Arc::new(settings);
    let metrics = Metrics::new(&OUTCOMES);
    let topics = TopicMetrics::new(&metrics.registry);
    let secrets =
        Arc::new(ClientSecrets::new(&settings.secrets.secrets, settings.secrets.file.clone()));
    register(&metrics.registry, secrets.matches());
    let background = Background::default();
    let (readiness, after_all) =
        admin::start(settings.admin_listen, &metrics.registry, &background).await?;
    let listeners = Listener::all(&settings.listen).await?;
    let stop_feeding = CancellationToken::new();
    let (store, feeding) = open_store(&settings, &background, &stop_feeding).await?;
    let log = store.log().map(|log| (store.gate().clone(), log.clone()));
    register(&metrics.registry, &LogMetrics::new(log));
    let shares = Arc::new(ShopShares::new(settings.shop_limit.priority_topics.clone()));
    let judge =
        Judge::new(settings.shop_limit.clone(), shares.clone(), metrics.queue.shops_over.clone());
    let watch = Watch::new(&settings, store.clone(), readiness.clone(), &metrics, judge);
    if settings.common.exit_if_unavailable {
        watch
            .look_once()
            .await
            .map_err(|error| Unavailable(format!("REDIS_URL: {}", chain(&error))))?;
    }
    background.spawn("the watch of the queue", watch.run(after_all.clone()));
    let reloading = secrets::reload_on_hangup(secrets.clone())?;
    background.spawn("reading the secrets again", reloading);

    log_start(&listeners);
    let closing = Closing::default();
    let shards = start_shards(Shared {
        admission: watched_admission(&settings, &metrics),
        settings: settings.clone(),
        store: store.clone(),
        secrets,
        shares,
        metrics: metrics.clone(),
        topics,
        watchdog: Watchdog::start(),
        closing: closing.clone(),
        background: background.clone(),
    })?;
    let mut acceptor = Acceptor::new(listeners, shards, background, limits, metrics);
    first_look(&store, &shutdown).await;
    supervisor::ready();
    let mut accepted = acceptor.accept_until(&shutdown).await;
    readiness.stopping();
    let stop_by = Instant::now() + settings.shutdown_timeout;
    closing.begin(stop_by);
    if accepted.is_ok() {
        accepted = acceptor.last_call(settings.shutdown_timeout).await;
    }
    if let Err(error) = &accepted {
        tracing::error!(%error, "stopping, to be started again");
    }
    acceptor.finish(stop_by).await;
    stop_feeding.cancel();
    if let Some(feeding) = feeding {
        timeout_at(stop_by + FEEDER_STOPS_WITHIN, feeding).await.ok();
    }
    after_all.cancel();
    Ok(accepted?)
}

fn log_start(listeners: &[Listener]) {
    let addresses: Vec<_> = listeners.iter().map(Listener::to_string).collect();
    let address = addresses.join(", ");
    tracing::info!(%address, version = env!("CARGO_PKG_VERSION"), "receiving");
}

/// Waits for the first look at Redis, for a second at most: until it is known that the queue is usable,
/// webhooks would be refused that could be stored.
async fn first_look(store: &Store, shutdown: &CancellationToken) {
    shutdown.run_until_cancelled(timeout(FIRST_LOOK, store.looked())).await;
}

/// The store, with what restores its log if it has one. A second receiver beside one that spills ends here.
async fn open_store(
    settings: &Settings,
    background: &Background,
    stop: &CancellationToken,
) -> anyhow::Result<(Store, Option<JoinHandle<()>>)> {
    let redis = &settings.common.redis;
    #[cfg(feature = "spill")]
    if let Some(spill_settings) = &settings.spill {
        let ack_timeout = settings.ack_timeout;
        let (store, feeding) =
            spill::start(spill_settings, ack_timeout, redis, background, stop).await?;
        return Ok((store, Some(feeding)));
    }
    #[cfg(not(feature = "spill"))]
    let _ = (background, stop);
    store::claim::ensure_free(redis).await?;
    Ok((Store::without_log(), None))
}

/// A shard for each core.
fn start_shards(shared: Shared) -> std::io::Result<Vec<Shard>> {
    let shards = shard_count();
    let cores = cores_for(shards);
    (0..shards).map(|shard| Shard::start(shared.clone(), cores.get(shard).copied())).collect()
}

fn shard_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A core for each shard, or none at all: where a quota grants less than the cores we may run on,
/// others run there too, and a shard that is bound to one would wait while the next is idle.
fn cores_for(shards: usize) -> Vec<usize> {
    let Ok(ours) = sched_getaffinity(None) else { return Vec::new() };
    let cores: Vec<_> = (0..CpuSet::MAX_CPU).filter(|core| ours.is_set(*core)).collect();
    if cores.len() == shards { cores } else { Vec::new() }
}

fn watched_admission(settings: &Settings, metrics: &Metrics) -> Admission {
    let admission = Admission::new(settings.in_flight_bytes_max);
    register(&metrics.registry, &InFlightMetric::new(admission.clone()));
    admission
}
