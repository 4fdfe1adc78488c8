//! The archiver: reads packs and writes them, as they are, into objects of an archive, each webhook exactly once.
//!
//! Start reading at `session` (the path of a pack): intake → `overlap` (is it archived already?) → `filling`
//! (the object that grows) → `upload` (one durable put) → `settling` (Redis advances the cursor). Also:
//! `access` (requests to the archive, repeated until they succeed) and `troubles` (what they wait for), `checkpoint`
//! (what the consumers have settled), `controls` (pauses), `redundant` and `expire` (objects to delete),
//! `leadership` and `settings`.

mod access;
mod checkpoint;
mod controls;
mod expire;
mod filling;
mod instance;
mod leadership;
mod metrics;
mod overlap;
mod redundant;
mod session;
mod settings;
mod settling;
mod troubles;
mod upload;

use std::sync::Arc;
use std::time::Duration;

use spillway_archive::{ArchiveStore, StoreError};
use spillway_consumer::Routes;
use spillway_consumer::watch::{self, WatchTarget};
use spillway_process::Background;
use spillway_process::admin::AdminEndpoint;
use spillway_process::error::chain;
use spillway_process::reload::FromFiles;
use spillway_process::start::Unavailable;
use spillway_process::{reload, supervisor};
use spillway_queue::health;
use tokio_util::sync::CancellationToken;

use crate::instance::ArchiverInstance;
use crate::metrics::ArchiverMetrics;
pub use crate::settings::ArchiverArgs;
use crate::settings::ArchiverSettings;

/// Time for which dead letters of this consumer would be kept. It makes none: a webhook that cannot be
/// archived waits.
const DEAD_KEEP: Duration = Duration::from_secs(3650 * 86_400);

/// Runs an archiver until `shutdown`.
///
/// # Errors
/// If the admin address can't be bound, if Redis or the archive is absent and the settings say to give up
/// then, and if a background task ends before `shutdown`.
pub async fn run(settings: ArchiverSettings, shutdown: CancellationToken) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    let metrics = Arc::new(ArchiverMetrics::new(&settings.consumer.name));
    let background = Background::start()?;
    let endpoint =
        AdminEndpoint::of_consumer(settings.admin_listen, &settings.common, &metrics.registry);
    let (readiness, after_all) = endpoint.start(&background).await?;
    // Before anything is waited for: a file that changes meanwhile would be missed.
    let mut states = settings.common.states();
    states.push(settings.keys.clone() as Arc<dyn FromFiles>);
    let reloading = reload::start(states, &metrics.registry)?;
    background.spawn("reading the files again", reloading);
    if settings.common.exit_if_unavailable {
        let reached = health::reach(&settings.common.redis).await;
        reached.map_err(|error| Unavailable(format!("REDIS_URL: {}", chain(&error))))?;
        reach_archive(&settings).await?;
    }
    let watched = WatchTarget {
        redis: settings.common.redis.clone(),
        routes: Arc::new(Routes::new(settings.consumer.clone())),
        gauges: metrics.queue.clone(),
        dead_keep: DEAD_KEEP,
    };
    background.spawn("health check of redis", watch::run(watched, after_all.clone()));
    tracing::info!(archive = %settings.url, version = spillway_process::version(), "archiving");
    supervisor::ready();
    let leading = background.watch("the election");
    readiness.stops_with(&shutdown);
    let instance = ArchiverInstance { settings, metrics, readiness };
    let leading = leading.attend(leadership::run(&instance, &shutdown));
    let ended = background.supervise(&shutdown, leading).await;
    after_all.cancel();
    ended?;
    Ok(())
}

/// Checks that the archive can be listed.
async fn reach_archive(settings: &ArchiverSettings) -> Result<(), Unavailable> {
    let unavailable = |error: StoreError| Unavailable(format!("ARCHIVE_URL: {}", chain(&error)));
    let store = ArchiveStore::open(&settings.url).map_err(unavailable)?;
    store.cells().await.map(|_| ()).map_err(unavailable)
}
