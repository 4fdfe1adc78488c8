//! The Kafka producer: reads packs and writes records, each webhook exactly once, in order per key.
//!
//! Start reading at `exporter` (the path of a pack): `intake` → `format` with `key` →
//! `open` (a transaction) → `link` (all calls to Kafka) → settled. Also: `position` and
//! `resume` (the cursor, and the position to continue from), `fault` (reaction to an error),
//! `calls` (calls into librdkafka that do not return), `reports` (its reports), `trace` (spans), `settings`,
//! `properties` and `options`.

mod calls;
mod exporter;
mod fault;
mod format;
mod instance;
mod intake;
mod key;
mod leadership;
mod link;
mod metrics;
mod open;
mod operator_options;
mod options;
mod position;
mod properties;
mod reports;
mod resume;
mod settings;
mod trace;

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

use crate::calls::Calls;
use crate::instance::ProducerInstance;
use crate::link::Link;
use crate::metrics::ProducerMetrics;
pub use crate::settings::ProducerArgs;
use crate::settings::ProducerSettings;

/// Runs a Kafka producer until `shutdown`.
///
/// # Errors
/// If the admin address can't be bound, if Redis or Kafka is absent and the settings say to give up
/// then, and if a background task ends before `shutdown`.
pub async fn run(settings: ProducerSettings, shutdown: CancellationToken) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    let mut metrics = ProducerMetrics::new(&settings.consumer.name);
    let traces =
        TraceExport::start(settings.common.trace.as_ref(), "kafka_producer", &metrics.registry)?;
    metrics.tracer = traces.tracer();
    let metrics = Arc::new(metrics);
    let background = Background::start()?;
    let endpoint =
        AdminEndpoint::of_consumer(settings.admin_listen, &settings.common, &metrics.registry);
    let (readiness, after_all) = endpoint.start(&background).await?;
    // Before anything is waited for: a file that changes meanwhile would be missed.
    let reloading = reload::start(settings.common.states(), &metrics.registry)?;
    background.spawn("reading the files again", reloading);
    if settings.common.exit_if_unavailable {
        let reached = health::reach(&settings.common.redis).await;
        reached.map_err(|error| Unavailable(format!("REDIS_URL: {}", chain(&error))))?;
        reach_kafka(&settings).await?;
    }
    let routes = Arc::new(Routes::new(settings.consumer.clone()));
    let watched = WatchTarget {
        redis: settings.common.redis.clone(),
        routes: routes.clone(),
        gauges: metrics.queue.clone(),
        dead_keep: settings.dead_keep,
    };
    background.spawn("health check of redis", watch::run(watched, after_all.clone()));
    tracing::info!(
        kafka = settings.servers,
        topic = settings.topic,
        consumer = %settings.consumer.name,
        webhooks = %settings.consumer.filter,
        version = spillway_process::version(),
        "producing"
    );
    supervisor::ready();
    // The producing thread is not watched: it waits for Kafka for as long as Kafka takes.
    let leading = background.watch("the election");
    readiness.stops_with(&shutdown);
    let instance = ProducerInstance::new(settings, metrics, routes, readiness);
    let leading = leading.attend(leadership::run(&instance, &shutdown));
    let ended = background.supervise(&shutdown, leading).await;
    after_all.cancel();
    traces.finish().await;
    Ok(ended??)
}

/// Checks that Kafka is reachable and has the topic.
async fn reach_kafka(settings: &Arc<ProducerSettings>) -> anyhow::Result<()> {
    let settings = settings.clone();
    // No cell is known yet, and none is needed: the producer only looks.
    let look = move || {
        let link = Link::build(&settings, 0, &Calls::default())?;
        link.look_for_topic().map_err(|error| match link.reports().trouble() {
            Some(trouble) => Unavailable(format!("KAFKA_URL: {}", trouble.text)).into(),
            None => anyhow::Error::from(Unavailable(format!("KAFKA_URL: {error}"))),
        })
    };
    tokio::task::spawn_blocking(look).await?
}
