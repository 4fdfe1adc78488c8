//! The receiver: HTTP in, packs out.
//!
//! The path of a webhook: [`serve`] (accepts, hands to a [`shard`]) → [`connection`] → [`receive`] (one request, step by step:
//! admit → read the body → authenticate → inspect → enqueue) → [`enqueue`] (group commit into
//! Redis) → [`reply`] (what the sender is told).

pub mod admit;
pub mod body;
pub mod connection;
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
pub mod stream;

use std::sync::Arc;

use spillway_service::listen::Listener;
use spillway_service::start::Unavailable;
use spillway_service::{Readiness, admin};
use tokio_util::sync::CancellationToken;

use crate::admit::Admission;
use crate::metrics::Metrics;
use crate::queue_state::QueueState;
use crate::settings::Settings;
use crate::shard::{Shard, Shared};

/// Runs a receiver until `shutdown`.
///
/// # Errors
/// When an address can't be bound, or Redis is absent and the settings say to give up then.
pub async fn run(settings: Settings, shutdown: CancellationToken) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    let metrics = Metrics::new(settings.secrets.load().fingerprints());
    let readiness = Readiness::not_yet("queue_unavailable: redis was not reached yet");
    // Admin first: while Redis is awaited, /readyz says so.
    let admin = admin::bind(settings.admin_listen).await?;
    let listener = Listener::bind(&settings.listen).await?;
    let after_all = CancellationToken::new();
    tokio::spawn(admin::serve(
        admin,
        metrics.registry.clone(),
        readiness.clone(),
        after_all.clone(),
    ));

    let state = QueueState::new();
    let watch = queue_state::Watch::new(&settings, state.clone(), readiness.clone(), &metrics);
    if settings.common.exit_if_unavailable {
        watch.look_once().await.map_err(|error| Unavailable(format!("REDIS_URL: {error}")))?;
    }
    tokio::spawn(watch.run(after_all.clone()));
    tokio::spawn(secrets::reload_on_hangup(settings.secrets.clone()));

    tracing::info!(address = ?settings.listen, version = env!("CARGO_PKG_VERSION"), "receiving");
    sd_notify::notify(&[sd_notify::NotifyState::Ready]).ok();
    let shards = start_shards(&settings, state, &metrics)?;
    serve::until(listener, shards, settings.connections_max, metrics, &shutdown).await;
    readiness.not_ready("stopping");
    after_all.cancel();
    Ok(())
}

/// A shard for each core.
fn start_shards(
    settings: &Arc<Settings>,
    state: QueueState,
    metrics: &Metrics,
) -> std::io::Result<Vec<Shard>> {
    let admission = Admission::new(settings.in_flight_bytes_max);
    metrics.watch_in_flight(admission.clone());
    let shared = Shared { settings: settings.clone(), admission, state, metrics: metrics.clone() };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (0..cores).map(|_| Shard::start(shared.clone())).collect()
}
