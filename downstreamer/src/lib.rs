//! The downstreamer: reads packs and delivers webhooks by HTTP, in order per resource, at the speed
//! that the backend can bear.
//!
//! `leadership` loads what Redis holds and starts a `worker`, which carries out the decisions of the
//! delivery core (`spillway_delivery`): `intake` → `classify` → core → `deliver` (`payload`, `pool`, `connect`)
//! → `judge` → core → `translate`. Also: `reader` (packs and chunks that the core asks for), `controls` (set by an
//! operator), `status` and `trace` (spans of deliveries).

mod access;
mod answer;
mod backend;
mod body;
mod classify;
mod connect;
pub mod content;
mod controls;
mod deliver;
mod intake;
pub mod judge;
mod leadership;
mod metrics;
mod names;
mod payload;
mod pool;
mod reader;
mod settings;
mod shares;
mod status;
mod suppression;
mod trace;
mod translate;
mod worker;

pub use crate::payload::{PayloadHost, PayloadSettings};
pub use crate::settings::{DownstreamerArgs, DownstreamerSettings};

use std::sync::Arc;

use spillway_consumer::Routes;
use spillway_consumer::watch::{self, WatchTarget};
use spillway_process::Background;
use spillway_process::admin::AdminEndpoint;
use spillway_process::error::chain;
use spillway_process::start::Unavailable;
use spillway_process::{reload, supervisor};
use spillway_queue::health;
use spillway_trace::TraceExport;
use tokio_util::sync::CancellationToken;

use crate::deliver::DeliveryClient;
use crate::leadership::DownstreamerInstance;
use crate::metrics::DownstreamerMetrics;

/// Runs a downstreamer until `shutdown`.
///
/// # Errors
/// If the admin address can't be bound, if Redis is absent and the settings say to give up then,
/// and if a background task ends before `shutdown`.
pub async fn run(
    settings: DownstreamerSettings,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    let mut metrics = DownstreamerMetrics::new(&settings.consumer.name);
    let traces =
        TraceExport::start(settings.common.trace.as_ref(), "downstreamer", &metrics.registry)?;
    metrics.tracer = traces.tracer();
    let metrics = Arc::new(metrics);
    let background = Background::start()?;
    let endpoint =
        AdminEndpoint::of_consumer(settings.admin_listen, &settings.common, &metrics.registry);
    let (readiness, after_all) = endpoint.start(&background).await?;
    // Before anything is waited for: a file that changes meanwhile would be missed.
    let states = [settings.common.states(), settings.access.states()].concat();
    let reloading = reload::start(states, &metrics.registry)?;
    background.spawn("reading the files again", reloading);
    if settings.common.exit_if_unavailable {
        let reached = health::reach(&settings.common.redis).await;
        reached.map_err(|error| Unavailable(format!("REDIS_URL: {}", chain(&error))))?;
    }
    let routes = Arc::new(Routes::new(settings.consumer.clone()));
    let watched = WatchTarget {
        redis: settings.common.redis.clone(),
        routes: routes.clone(),
        gauges: metrics.queue.clone(),
        dead_keep: settings.dead_keep,
    };
    background.spawn("health check of redis", watch::run(watched, after_all.clone()));
    if let Some(identity) = &settings.access.identity {
        identity.register(&metrics.registry);
    }
    let sender = Arc::new(DeliveryClient::new(&settings)?);
    tracing::info!(
        backend = %settings.backend,
        consumer = %settings.consumer.name,
        webhooks = %settings.consumer.filter,
        version = spillway_process::version(),
        "delivering"
    );
    if let Some(warning) = settings.suppression.warning(&settings.consumer.filter) {
        tracing::warn!("{warning}");
    }
    supervisor::ready();
    readiness.stops_with(&shutdown);
    let leading = background.watch("the election");
    let instance =
        DownstreamerInstance { settings, metrics, routes, sender, readiness, background };
    let leading = leading.attend(leadership::run(&instance, &shutdown));
    let ended = instance.background.supervise(&shutdown, leading).await;
    after_all.cancel();
    traces.finish().await;
    Ok(ended?)
}
