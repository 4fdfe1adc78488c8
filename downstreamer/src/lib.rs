//! The downstreamer: packs in, HTTP out, in order per resource, at the speed the backend can bear.
//!
//! Start reading at [`ownership`] (who may deliver) and [`drain`] (what happens to a webhook):
//! [`intake`] → [`sort`] → [`index`] → [`schedule`] → [`deliver`] ([`connect`]) → [`judge`] → settled. Beside
//! them: [`fetch`] and [`cache`] (packs read again), [`seen`] (duplicates), `spillway_limiter`,
//! [`destination`] with its [`refusals`], and [`backoff`] (when, and how many at once).

pub mod backoff;
pub mod cache;
pub mod connect;
pub mod deliver;
pub mod destination;
pub mod drain;
pub mod fetch;
pub mod index;
pub mod intake;
pub mod judge;
pub mod metrics;
pub mod ownership;
pub mod refusals;
pub mod schedule;
pub mod seen;
pub mod settings;
pub mod sort;

use std::sync::Arc;

use spillway_drain::watch::{self, Watched};
use spillway_queue::drains::HTTP;
use spillway_queue::health;
use spillway_service::admin;
use spillway_service::error::chain;
use spillway_service::start::Unavailable;
use spillway_service::supervisor::{self, Watchdog};
use tokio_util::sync::CancellationToken;

use crate::deliver::Sender;
use crate::metrics::Metrics;
use crate::ownership::Instance;
use crate::settings::Settings;

/// Runs a downstreamer until `shutdown`.
///
/// # Errors
/// When the admin address can't be bound, or Redis is absent and the settings say to give up then.
pub async fn run(settings: Settings, shutdown: CancellationToken) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    let metrics = Arc::new(Metrics::new());
    let (readiness, after_all) = admin::start(settings.admin_listen, &metrics.registry).await?;
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
    tokio::spawn(watch::run(watched, after_all.clone()));
    let sender = Arc::new(Sender::new(&settings)?);
    tracing::info!(
        backend = ?settings.backend, version = env!("CARGO_PKG_VERSION"), "delivering"
    );
    supervisor::ready();
    readiness.stops_with(&shutdown);
    let watchdog = Watchdog::start();
    let instance = Instance { settings, metrics, sender, readiness, watchdog };
    ownership::run(&instance, &shutdown).await;
    after_all.cancel();
    Ok(())
}
