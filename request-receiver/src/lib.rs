//! The receiver: HTTP in, packs out.
//!
//! The path of a webhook: [`serve`] (accepts, hands to a [`shard`]) → [`connection`] → [`receive`]
//! (one request, step by step: admit → read the body → authenticate → inspect → enqueue) →
//! [`waiting`] → [`enqueue`] (group commit into Redis, or by [`spill`] to disk) → [`reply`] (what the
//! sender is told).

pub mod admit;
pub mod body;
pub mod closing;
pub mod connection;
pub mod descriptors;
pub mod enqueue;
pub mod inspect;
pub mod metrics;
pub mod queue_state;
pub mod receive;
pub mod reply;
pub mod secrets;
pub mod serve;
pub mod settings;
pub mod shard;
pub mod shares;
pub mod spill;
pub mod stream;
pub mod topics;
pub mod waiting;

use std::sync::Arc;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity};
use spillway_service::Background;
use spillway_service::admin;
use spillway_service::error::chain;
use spillway_service::listen::Listener;
use spillway_service::start::Unavailable;
use spillway_service::supervisor::{self, Watchdog};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::admit::Admission;
use crate::closing::Closing;
use crate::descriptors::connection_limits;
use crate::metrics::Metrics;
use crate::queue_state::QueueState;
use crate::serve::Acceptor;
use crate::settings::Settings;
use crate::shard::{Shard, Shared};
use crate::shares::{Judge, ShopShares};
use crate::spill::Spill;

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
    let metrics = Metrics::new(settings.secrets.matches());
    let background = Background::default();
    let (readiness, after_all) =
        admin::start(settings.admin_listen, &metrics.registry, &background).await?;
    let listeners = Listener::all(&settings.listen).await?;
    let stop_feeding = CancellationToken::new();
    let (state, feeding) = spill_or_not(&settings, &metrics, &background, &stop_feeding).await?;
    let shares = Arc::new(ShopShares::new(settings.shop_limit.priority_topics.clone()));
    let judge =
        Judge::new(settings.shop_limit.clone(), shares.clone(), metrics.queue.shops_over.clone());
    let watch =
        queue_state::Watch::new(&settings, state.clone(), readiness.clone(), &metrics, judge);
    if settings.common.exit_if_unavailable {
        watch
            .look_once()
            .await
            .map_err(|error| Unavailable(format!("REDIS_URL: {}", chain(&error))))?;
    }
    background.spawn("the watch of the queue", watch.run(after_all.clone()));
    let reloading = secrets::reload_on_hangup(settings.secrets.clone())?;
    background.spawn("reading the secrets again", reloading);

    log_start(&listeners);
    let closing = Closing::default();
    let shards = start_shards(Shared {
        admission: watched_admission(&settings, &metrics),
        settings: settings.clone(),
        state: state.clone(),
        shares,
        metrics: metrics.clone(),
        watchdog: Watchdog::start(),
        closing: closing.clone(),
        background: background.clone(),
    })?;
    let mut acceptor = Acceptor::new(listeners, shards, background, limits, metrics);
    first_look(&state, &shutdown).await;
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
async fn first_look(state: &QueueState, shutdown: &CancellationToken) {
    shutdown.run_until_cancelled(timeout(FIRST_LOOK, looked(state))).await;
}

/// What is known of the queue, with the way around it if there is one; a second receiver beside one
/// that spills ends here.
async fn spill_or_not(
    settings: &Settings,
    metrics: &Metrics,
    background: &Background,
    stop: &CancellationToken,
) -> anyhow::Result<(QueueState, Option<JoinHandle<()>>)> {
    let redis = &settings.common.redis;
    let Some(spill_settings) = &settings.spill else {
        spill::claim::settle_without(redis).await?;
        metrics.watch_spill(None);
        return Ok((QueueState::new(None), None));
    };
    let (spill, log_id) = Spill::open(spill_settings, settings.ack_timeout, background)?;
    let feeder = spill::feeder(&spill, log_id, redis).await?;
    metrics.watch_spill(Some(spill.clone()));
    background.spawn("trying the disk of the spill again", {
        let (spill, stop) = (spill.clone(), stop.clone());
        async move {
            stop.run_until_cancelled(spill.try_again()).await;
        }
    });
    let state = QueueState::new(Some(spill));
    let feeding = background.spawn("the spill's feeder", feeder.run(state.clone(), stop.clone()));
    Ok((state, Some(feeding)))
}

/// Waits until Redis was looked at, and what was spilled before as well.
async fn looked(state: &QueueState) {
    state.looked().await;
    if let Some(spill) = state.spill() {
        spill.settled().await;
    }
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
    metrics.watch_in_flight(admission.clone());
    admission
}
