//! Updates the metrics of the queue, learns of the other consumers, and lets dead letters age out while
//! this instance is the leader.

use std::sync::Arc;
use std::time::Duration;

use spillway_process::error::chain;
use spillway_queue::dead::{self, AGE_OUT_EVERY, AgedOut};
use spillway_queue::{Connection, QueueError, Redis, status};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::gauges::QueueGauges;
use crate::routes::Routes;

const SHOW_EVERY: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Subject of the watch.
pub struct WatchTarget {
    /// Redis that holds the queue.
    pub redis: Redis,
    /// The consumer, which learns of the others.
    pub routes: Arc<Routes>,
    /// Metrics to update.
    pub gauges: Arc<QueueGauges>,
    /// Time for which the consumer's dead letters are kept.
    pub dead_keep: Duration,
}

/// Runs until `stop`.
pub async fn run(watched: WatchTarget, stop: CancellationToken) {
    let mut connection = None;
    let mut aged_out_at = Instant::now();
    let mut was_bounded = false;
    while !stop.is_cancelled() {
        let is_due = aged_out_at.elapsed() >= AGE_OUT_EVERY && watched.gauges.leader.get() == 1;
        if is_due {
            aged_out_at = Instant::now();
        }
        match look(&watched, &mut connection, is_due).await {
            Ok(Some(aged)) => report(aged, &mut was_bounded),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(error = chain(&error), "the queue's status could not be read");
                connection = None;
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SHOW_EVERY) => {}
        }
    }
}

async fn look(
    watched: &WatchTarget,
    connection: &mut Option<Connection>,
    age_out: bool,
) -> Result<Option<AgedOut>, QueueError> {
    let WatchTarget { redis, routes, gauges, dead_keep } = watched;
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(redis.connect(Some(ANSWER_TIMEOUT)).await?),
    };
    let status = status::read(redis, connection).await?;
    gauges.show(&status);
    routes.learn(&status.consumers);
    if !age_out {
        return Ok(None);
    }
    // The clock of Redis is used, since it gives dead letters their ids.
    let now_ms = dead::now_ms(connection).await?;
    dead::age_out(redis, connection, routes.name(), *dead_keep, now_ms).await.map(Some)
}

/// Logs dead letters that aged out, and warns once when the bound begins to hold letters back.
fn report(aged: AgedOut, was_bounded: &mut bool) {
    let AgedOut { dropped, is_bounded } = aged;
    if dropped > 0 {
        tracing::info!(dropped, "dead letters aged out");
    }
    if is_bounded && !std::mem::replace(was_bounded, is_bounded) {
        tracing::warn!(
            dropped,
            "more dead letters are older than DEAD_KEEP than may age out in an hour: either many \
             were given up at once, or the clock of redis' machine is wrong. They go a few at a \
             time; save them (spillway dead) if it is the clock"
        );
    }
    *was_bounded = is_bounded;
}
