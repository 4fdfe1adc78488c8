//! The Kafka producer: packs in, records out, each webhook exactly once, in order per key.
//!
//! Start reading at [`drain`] (what happens to a pack): [`intake`] → [`mod@format`] with [`key`] →
//! [`open`] (a transaction) → [`link`] (all that is said to Kafka) → settled. Beside them:
//! [`position`] and [`resume`] (how far, and where to go on), [`fault`] (what to do about an
//! error), [`calls`] (whether librdkafka answers at all), [`reports`] (what it says on its own),
//! [`settings`], [`properties`] and [`options`].

pub mod calls;
pub mod drain;
pub mod fault;
pub mod format;
pub mod intake;
pub mod key;
pub mod link;
pub mod metrics;
pub mod open;
pub mod options;
pub mod ownership;
pub mod position;
pub mod properties;
pub mod reports;
pub mod resume;
pub mod settings;

use std::sync::Arc;

use spillway_drain::watch::{self, Watched};
use spillway_queue::drains::KAFKA;
use spillway_queue::health;
use spillway_service::Background;
use spillway_service::admin;
use spillway_service::error::chain;
use spillway_service::start::Unavailable;
use spillway_service::supervisor::{self, Watchdog};
use tokio_util::sync::CancellationToken;

use crate::calls::Calls;
use crate::link::Link;
use crate::metrics::Metrics;
use crate::ownership::Instance;
use crate::settings::Settings;

/// Runs a Kafka producer until `shutdown`.
///
/// # Errors
/// When the admin address can't be bound, when Redis or Kafka is absent and the settings say to give
/// up then, and when a background task ends before `shutdown`.
pub async fn run(settings: Settings, shutdown: CancellationToken) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    let metrics = Arc::new(Metrics::new());
    let background = Background::default();
    let (readiness, after_all) =
        admin::start(settings.admin_listen, &metrics.registry, &background).await?;
    if settings.common.exit_if_unavailable {
        let reached = health::reach(&settings.common.redis).await;
        reached.map_err(|error| Unavailable(format!("REDIS_URL: {}", chain(&error))))?;
        reach_kafka(&settings).await?;
    }
    let watched = Watched {
        redis: settings.common.redis.clone(),
        drain: KAFKA,
        gauges: metrics.queue.clone(),
        dead_keep: settings.dead_keep,
    };
    background.spawn("the watch of the queue", watch::run(watched, after_all.clone()));
    tracing::info!(
        kafka = settings.servers,
        topic = settings.topic,
        version = env!("CARGO_PKG_VERSION"),
        "producing"
    );
    supervisor::ready();
    // Nothing is watched but the runtime itself, which confirms the ownership: the drain's own thread
    // waits for Kafka for as long as Kafka takes.
    Watchdog::start();
    readiness.stops_with(&shutdown);
    let instance = Instance::new(settings, metrics, readiness);
    let ended = background.supervise(&shutdown, ownership::run(&instance, &shutdown)).await;
    after_all.cancel();
    Ok(ended??)
}

/// Whether Kafka is there and has the topic.
async fn reach_kafka(settings: &Arc<Settings>) -> anyhow::Result<()> {
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
