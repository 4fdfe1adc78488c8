//! Shows what Redis holds, and lets dead letters age out while this instance owns the drain.

use std::sync::Arc;
use std::time::Duration;

use spillway_queue::drains::HTTP;
use spillway_queue::{Connection, QueueError, dead, status};
use spillway_service::clock::wall_clock_ms;
use spillway_service::error::chain;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::settings::Settings;

const SHOW_EVERY: Duration = Duration::from_secs(1);
const AGE_OUT_EVERY: Duration = Duration::from_secs(60);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs until `stop`.
pub async fn run(settings: Arc<Settings>, metrics: Arc<Metrics>, stop: CancellationToken) {
    let mut connection = None;
    let mut aged_out_at = Instant::now();
    while !stop.is_cancelled() {
        let is_due = aged_out_at.elapsed() >= AGE_OUT_EVERY && metrics.owner.get() == 1;
        if is_due {
            aged_out_at = Instant::now();
        }
        if let Err(error) = look(&settings, &metrics, &mut connection, is_due).await {
            tracing::debug!(error = chain(&error), "the queue's status could not be read");
            connection = None;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SHOW_EVERY) => {}
        }
    }
}

async fn look(
    settings: &Settings,
    metrics: &Metrics,
    connection: &mut Option<Connection>,
    age_out: bool,
) -> Result<(), QueueError> {
    let redis = &settings.common.redis;
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(redis.connect(Some(ANSWER_TIMEOUT)).await?),
    };
    metrics.queue(&status::read(redis, connection).await?);
    if age_out {
        let now_ms = wall_clock_ms();
        let gone = dead::age_out(redis, connection, HTTP, settings.dead_keep, now_ms).await?;
        if gone > 0 {
            tracing::info!(gone, "dead letters aged out");
        }
    }
    Ok(())
}
