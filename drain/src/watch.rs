//! Shows what Redis holds, and lets dead letters age out while this instance owns the drain.

use std::sync::Arc;
use std::time::Duration;

use spillway_queue::{Connection, QueueError, Redis, dead, status};
use spillway_service::clock::wall_clock_ms;
use spillway_service::error::chain;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::gauges::QueueGauges;

const SHOW_EVERY: Duration = Duration::from_secs(1);
const AGE_OUT_EVERY: Duration = Duration::from_secs(60);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What is watched.
pub struct Watched {
    /// Where the queue is.
    pub redis: Redis,
    /// The drain's name.
    pub drain: &'static str,
    /// Where it is shown.
    pub gauges: Arc<QueueGauges>,
    /// How long its dead letters are kept.
    pub dead_keep: Duration,
}

/// Runs until `stop`.
pub async fn run(watched: Watched, stop: CancellationToken) {
    let mut connection = None;
    let mut aged_out_at = Instant::now();
    while !stop.is_cancelled() {
        let is_due = aged_out_at.elapsed() >= AGE_OUT_EVERY && watched.gauges.owner.get() == 1;
        if is_due {
            aged_out_at = Instant::now();
        }
        if let Err(error) = look(&watched, &mut connection, is_due).await {
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
    watched: &Watched,
    connection: &mut Option<Connection>,
    age_out: bool,
) -> Result<(), QueueError> {
    let Watched { redis, drain, gauges, dead_keep } = watched;
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(redis.connect(Some(ANSWER_TIMEOUT)).await?),
    };
    gauges.show(&status::read(redis, connection).await?);
    if age_out {
        let now_ms = wall_clock_ms();
        let gone = dead::age_out(redis, connection, drain, *dead_keep, now_ms).await?;
        if gone > 0 {
            tracing::info!(gone, "dead letters aged out");
        }
    }
    Ok(())
}
