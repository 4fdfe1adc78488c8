//! The downstreamer: packs in, HTTP out, in order per resource, at the speed the backend can bear.
//!
//! `ownership` (who may deliver) starts a `worker`, which carries out what the delivery core
//! (`spillway_delivery`) decides: `intake` → `sort` → core → `deliver` (`connect`) →
//! `judge` → core → `settling`. Beside them: `reader` (packs and chunks read again),
//! `controls` (an operator's) and `status`.

mod backend;
mod body;
mod connect;
pub mod content;
mod controls;
mod deliver;
mod intake;
pub mod judge;
mod metrics;
mod names;
mod ownership;
mod reader;
mod settings;
mod settling;
mod shares;
mod sort;
mod status;
mod worker;

pub use crate::settings::{Settings, Written};

use std::sync::Arc;

use spillway_drain::watch::{self, Watched};
use spillway_queue::drains::HTTP;
use spillway_queue::health;
use spillway_service::Background;
use spillway_service::admin;
use spillway_service::error::chain;
use spillway_service::start::Unavailable;
use spillway_service::supervisor::{self, Watchdog};
use tokio_util::sync::CancellationToken;

use crate::deliver::Sender;
use crate::metrics::Metrics;
use crate::ownership::Instance;

/// Runs a downstreamer until `shutdown`.
///
/// # Errors
/// When the admin address can't be bound, when Redis is absent and the settings say to give up then, and
/// when a background task ends before `shutdown`.
pub async fn run(settings: Settings, shutdown: CancellationToken) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    let metrics = Arc::new(Metrics::new());
    let background = Background::default();
    let (readiness, after_all) =
        admin::start(settings.admin_listen, &metrics.registry, &background).await?;
    if settings.common.exit_if_unavailable {
        let reached = health::reach(&settings.common.redis).await;
        reached.map_err(|error| Unavailable(format!("REDIS_URL: {}", chain(&error))))?;
    }
    let watched = Watched {
        redis: settings.common.redis.clone(),
        drain: HTTP,
        gauges: metrics.queue.clone(),
        dead_keep: settings.dead_keep,
    };
    background.spawn("the watch of the queue", watch::run(watched, after_all.clone()));
    let sender = Arc::new(Sender::new(&settings)?);
    tracing::info!(
        backend = ?settings.backend, version = env!("CARGO_PKG_VERSION"), "delivering"
    );
    supervisor::ready();
    readiness.stops_with(&shutdown);
    let watchdog = Watchdog::start();
    let instance = Instance { settings, metrics, sender, readiness, watchdog };
    let ended = background.supervise(&shutdown, ownership::run(&instance, &shutdown)).await;
    after_all.cancel();
    Ok(ended?)
}
