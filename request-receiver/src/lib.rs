//! The receiver: takes webhooks by HTTP and stores them as packs.
//!
//! Path of a webhook: [`accept`] (accepts, hands to a [`shard`]) → [`connection`] → [`receive`] (one
//! request: [`head`] → [`apps`] → [`admit`] → [`body`] → [`secrets`] (authenticates it) →
//! [`inspect`] → [`ignored`] → [`shares`]) → [`batch`] → [`batcher`] (group commit) → [`store`]
//! (appends to Redis, or writes to the overflow log, which is [`spill`]) → [`receive`] answers 200,
//! or [`reply`] says why not.

pub mod accept;
pub mod admit;
pub mod apps;
pub mod batch;
pub mod batcher;
pub mod body;
pub mod connection;
pub mod descriptors;
pub mod gaps;
pub mod head;
pub mod ignored;
pub mod inspect;
pub mod metrics;
pub mod phase;
pub mod receive;
pub mod reply;
pub mod secrets;
pub mod settings;
pub mod shard;
pub mod shared;
pub mod shares;
pub mod shutdown;
#[cfg(feature = "spill")]
pub mod spill;
pub mod store;
pub mod stream;
mod sync;
pub mod tls;
pub mod topics;
pub mod trace;

use std::sync::Arc;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity};
use spillway_process::admin::AdminEndpoint;
use spillway_process::background::TaskEnded;
use spillway_process::error::chain;
use spillway_process::listen::Listener;
use spillway_process::metrics::register;
use spillway_process::reload::{self, FromFiles};
use spillway_process::start::Unavailable;
use spillway_process::supervisor;
use spillway_process::{Background, Readiness};
use spillway_trace::TraceExport;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::accept::Acceptor;
use crate::admit::{Admission, InFlightMetric};
use crate::apps::Apps;
use crate::descriptors::connection_limits;
use crate::gaps::writer;
use crate::ignored::Ignored;
use crate::metrics::ReceiverMetrics;
use crate::reply::OUTCOMES;
use crate::secrets::ClientSecrets;
use crate::secrets::source::SecretSource;
use crate::settings::ReceiverSettings;
use crate::shard::Shard;
use crate::shared::ShardContext;
use crate::shares::{Judge, ShopShares};
use crate::shutdown::Shutdown;
use crate::store::Store;
use crate::store::log::LogMetrics;
use crate::store::watch::RedisWatch;
use crate::tls::TlsEndpoint;
use crate::tls::certificates::Certificates;
use crate::topics::TopicMetrics;

/// Time for which connections wait for the first look at Redis, a part of Shopify's 5 s.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Time that the restorer has to stop. Redis knows the outcome of any call that is cut off.
const RESTORER_STOPS_WITHIN: Duration = Duration::from_millis(500);
/// Time to bring the last notes about gaps to Redis, and to log those that it does not take.
const NOTED_WITHIN: Duration = Duration::from_millis(500);
const _: () = assert!(
    writer::LAST_WRITE.as_millis() < NOTED_WITHIN.as_millis(),
    "it is logged what could not be written"
);

/// Runs a receiver until `stop`.
///
/// # Errors
/// If an address can't be bound, if too few files may be open, if Redis is absent and the settings
/// say to give up then, and if a shard or a background task ends before `stop`.
pub async fn run(settings: ReceiverSettings, stop: CancellationToken) -> anyhow::Result<()> {
    let limits = connection_limits(settings.connections_max, shard_count())?;
    let settings = Arc::new(settings);
    let mut metrics = ReceiverMetrics::new(&OUTCOMES);
    let traces =
        TraceExport::start(settings.common.trace.as_ref(), "request-receiver", &metrics.registry)?;
    metrics.tracer = traces.tracer();
    let topics = TopicMetrics::new(&metrics.registry);
    let background = Background::start()?;
    let secrets = client_secrets(&settings, &metrics, &background)?;
    let apps = apps(&settings, &secrets, &metrics)?;
    let ignored = Arc::new(Ignored::new(settings.ignore.clone()));
    let (tls, certificates) = tls(&settings, &metrics)?.unzip();
    let states = states(&settings, &secrets, apps.as_ref(), &ignored, certificates);
    background.spawn("reading the files again", reload::start(states, &metrics.registry)?);
    let endpoint = AdminEndpoint::new(settings.admin_listen, &settings.common, &metrics.registry);
    let (readiness, after_all) = endpoint.start(&background).await?;
    let listeners = listeners(&settings).await?;
    let stop_restoring = CancellationToken::new();
    let (store, restoring) = open_store(&settings, &background, &stop_restoring).await?;
    let log = store.log().map(|log| (store.gate().clone(), log.clone()));
    register(&metrics.registry, &LogMetrics::new(log));
    let shares = Arc::new(ShopShares::new(settings.shop_limit.priority_topics.clone()));
    let watch = redis_watch(&settings, &store, &readiness, &metrics, &shares);
    if settings.common.exit_if_unavailable {
        let looked = watch.look_once().await;
        looked.map_err(|error| Unavailable(format!("REDIS_URL: {}", chain(&error))))?;
    }
    background.spawn("health check of redis", watch.run(after_all.clone()));
    let noting = start_notes(&settings, &store, &background, &after_all);
    log_start(&listeners);
    let shutdown = Shutdown::default();
    let shards = start_shards(ShardContext {
        admission: watched_admission(&settings, &metrics),
        settings: settings.clone(),
        store: store.clone(),
        secrets,
        apps,
        ignored,
        shares,
        metrics: metrics.clone(),
        topics,
        tls,
        shutdown: shutdown.clone(),
        background: background.clone(),
    })?;
    let acceptor = Acceptor::new(listeners, shards, background, limits, metrics);
    first_look(&store, &stop).await;
    supervisor::ready();
    let (accepted, stop_by) =
        receive_until(acceptor, &stop, &readiness, &shutdown, settings.shutdown_timeout).await;
    stop_restoring.cancel();
    if let Some(restoring) = restoring {
        timeout_at(stop_by + RESTORER_STOPS_WITHIN, restoring).await.ok();
    }
    after_all.cancel();
    timeout(NOTED_WITHIN, noting).await.ok();
    traces.finish().await;
    Ok(accepted?)
}

fn redis_watch(
    settings: &ReceiverSettings,
    store: &Store,
    readiness: &Readiness,
    metrics: &ReceiverMetrics,
    shares: &Arc<ShopShares>,
) -> RedisWatch {
    let gauge = metrics.queue.shops_over.clone();
    let judge = Judge::new(settings.shop_limit.clone(), shares.clone(), gauge);
    RedisWatch::new(settings, store.clone(), readiness.clone(), metrics, judge)
}

/// Starts the task that brings notes about gaps to Redis.
fn start_notes(
    settings: &ReceiverSettings,
    store: &Store,
    background: &Background,
    stop: &CancellationToken,
) -> JoinHandle<()> {
    let redis = settings.common.redis.clone();
    let writing = writer::run(store.gaps().clone(), redis, settings.silent_after, stop.clone());
    background.spawn("notes about gaps", writing)
}

/// Returns the client secrets. Starts what keeps those of a source fresh.
fn client_secrets(
    settings: &ReceiverSettings,
    metrics: &ReceiverMetrics,
    background: &Background,
) -> anyhow::Result<Arc<ClientSecrets>> {
    let source = settings.secrets.source.clone();
    let source = source.map(|source| SecretSource::start(source, &metrics.registry, background));
    let secrets = ClientSecrets::new(settings.secrets.clone(), source.transpose()?)?;
    register(&metrics.registry, secrets.matches());
    Ok(Arc::new(secrets))
}

fn apps(
    settings: &ReceiverSettings,
    secrets: &ClientSecrets,
    metrics: &ReceiverMetrics,
) -> anyhow::Result<Option<Arc<Apps>>> {
    let Some(apps) = settings.apps.clone() else { return Ok(None) };
    let has_default = !settings.secrets.is_empty();
    let apps = Apps::new(apps, has_default, secrets.matches().clone(), &metrics.registry);
    Ok(Some(Arc::new(apps.map_err(anyhow::Error::msg)?)))
}

/// State that is read again when its files change. It is watched before anything waits for Redis: a
/// change or a SIGHUP meanwhile is noticed.
fn states(
    settings: &ReceiverSettings,
    secrets: &Arc<ClientSecrets>,
    apps: Option<&Arc<Apps>>,
    ignored: &Arc<Ignored>,
    certificates: Option<Arc<Certificates>>,
) -> Vec<Arc<dyn FromFiles>> {
    let mut states = settings.common.states();
    states.extend([secrets.clone() as Arc<dyn FromFiles>, ignored.clone()]);
    states.extend(apps.cloned().map(|apps| apps as Arc<dyn FromFiles>));
    states.extend(certificates.map(|certificates| certificates as Arc<dyn FromFiles>));
    states
}

/// Serves HTTPS, if it is set.
fn tls(
    settings: &ReceiverSettings,
    metrics: &ReceiverMetrics,
) -> anyhow::Result<Option<(TlsEndpoint, Arc<Certificates>)>> {
    let Some(tls) = &settings.tls else { return Ok(None) };
    let certificates = Arc::new(Certificates::new(tls.files.clone(), tls.certificates.clone()));
    let endpoint = TlsEndpoint::new(certificates.clone(), &metrics.registry)?;
    Ok(Some((endpoint, certificates)))
}

/// Accepts connections until `stop`, and serves what is under way for as long as `within` then.
/// Returns the time at which that is over.
async fn receive_until(
    mut acceptor: Acceptor,
    stop: &CancellationToken,
    readiness: &Readiness,
    shutdown: &Shutdown,
    within: Duration,
) -> (Result<(), TaskEnded>, Instant) {
    let mut accepted = acceptor.accept_until(stop).await;
    readiness.stopping();
    let stop_by = Instant::now() + within;
    shutdown.begin(stop_by);
    if accepted.is_ok() {
        accepted = acceptor.last_call(within).await;
    }
    if let Err(error) = &accepted {
        tracing::error!(%error, "exiting, so that the supervisor restarts this process");
    }
    acceptor.finish(stop_by).await;
    (accepted, stop_by)
}

/// Takes the sockets of systemd, and binds what is missing.
async fn listeners(settings: &ReceiverSettings) -> anyhow::Result<Vec<Listener>> {
    let tls = settings.tls.as_ref().map(|tls| tls.listen);
    Listener::all(&settings.listen, tls).await
}

fn log_start(listeners: &[Listener]) {
    let addresses: Vec<_> = listeners.iter().map(Listener::to_string).collect();
    let address = addresses.join(", ");
    tracing::info!(%address, version = spillway_process::version(), "receiving");
}

/// Waits for the first look at Redis, for a second at most. Before it, webhooks would be refused
/// that could be stored.
async fn first_look(store: &Store, stop: &CancellationToken) {
    stop.run_until_cancelled(timeout(FIRST_LOOK, store.looked())).await;
}

/// Opens the store, and starts the task that restores its log if it has one. Fails if another
/// receiver spills for this cell.
async fn open_store(
    settings: &ReceiverSettings,
    background: &Background,
    stop: &CancellationToken,
) -> anyhow::Result<(Store, Option<JoinHandle<()>>)> {
    let redis = &settings.common.redis;
    #[cfg(feature = "spill")]
    if let Some(spill_settings) = &settings.spill {
        let ack_timeout = settings.ack_timeout;
        let (store, restoring) =
            spill::start(spill_settings, ack_timeout, redis, background, stop).await?;
        return Ok((store, Some(restoring)));
    }
    #[cfg(not(feature = "spill"))]
    let _ = (background, stop);
    store::claim::ensure_free(redis).await?;
    Ok((Store::without_log(), None))
}

/// Starts a shard for each core.
fn start_shards(shared: ShardContext) -> std::io::Result<Vec<Shard>> {
    let shards = shard_count();
    let cores = cores_for(shards);
    let start = |number| Shard::start(shared.clone(), number, cores.get(number).copied());
    (0..shards).map(start).collect()
}

fn shard_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Returns a core for each shard, or none at all. Where a quota grants less than the cores that the
/// process may run on, other processes run there, too. A shard that is bound to one core would wait
/// while the next is idle.
fn cores_for(shards: usize) -> Vec<usize> {
    let Ok(ours) = sched_getaffinity(None) else { return Vec::new() };
    let cores: Vec<_> = (0..CpuSet::MAX_CPU).filter(|core| ours.is_set(*core)).collect();
    if cores.len() == shards { cores } else { Vec::new() }
}

fn watched_admission(settings: &ReceiverSettings, metrics: &ReceiverMetrics) -> Admission {
    let admission = Admission::new(settings.in_flight_bytes_max);
    register(&metrics.registry, &InFlightMetric::new(admission.clone()));
    admission
}
