//! What an owner of the drain does: read what was delivered lately, then deliver.

use std::sync::Arc;

use spillway_delivery::{LaneLoaded, Loaded, Seen};
use spillway_drain::ownership::{self, End, Place, Seat};
use spillway_queue::QueueError;
use spillway_queue::drains::{HTTP, StartAt};
use spillway_queue::lane::{KeyScheme, LaneRow};
use spillway_queue::orders;
use spillway_queue::read::Reader;
use spillway_service::Readiness;
use spillway_service::supervisor::Watchdog;
use spillway_webhook::StreamId;
use tokio_util::sync::CancellationToken;

use crate::deliver::Sender;
use crate::metrics::Metrics;
use crate::settings::{Dedup, Settings};
use crate::sort::shop_hash;
use crate::worker::{Start, Worker};

/// Everything an instance keeps while owners change.
#[derive(Clone)]
pub struct Instance {
    /// Its settings.
    pub settings: Arc<Settings>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// Its connections to the backend.
    pub sender: Arc<Sender>,
    /// What `/readyz` says.
    pub readiness: Readiness,
    /// Has the drain answer to the supervisor.
    pub watchdog: Watchdog,
}

/// Owns the drain whenever it can, until `shutdown`.
pub async fn run(instance: &Instance, shutdown: &CancellationToken) {
    let place = Place {
        redis: instance.settings.common.redis.clone(),
        drain: HTTP,
        start_at: StartAt::Oldest,
        readiness: instance.readiness.clone(),
        gauges: instance.metrics.queue.clone(),
    };
    ownership::run(&place, shutdown, async |seat| own(instance, seat, shutdown).await).await;
}

async fn own(
    instance: &Instance,
    mut seat: Seat,
    shutdown: &CancellationToken,
) -> Result<End, QueueError> {
    let redis = &instance.settings.common.redis;
    let start = load(instance, &mut seat).await?;
    tracing::info!(
        cursor = %start.loaded.cursor, lanes = start.rows.len(), "owning the drain"
    );
    let end = seat.hold(async |tenure| {
        instance.sender.set_tenure(tenure.clone());
        let worker = Worker::start(
            redis,
            instance.settings.clone(),
            instance.metrics.clone(),
            instance.sender.clone(),
            tenure,
            start,
        );
        worker.run(shutdown, &instance.watchdog.watch("the drain")).await
    });
    Ok(end.await)
}

/// Reads the state with which a leader begins. The ownership is confirmed meanwhile.
async fn load(instance: &Instance, seat: &mut Seat) -> Result<Start, QueueError> {
    let redis = &instance.settings.common.redis;
    let reader = Reader::new(redis.clone(), HTTP);
    let progress = reader.progress(seat.connection()).await?;
    seat.confirm().await?;
    let rows = reader.lane_rows(seat.connection()).await?;
    seat.confirm().await?;
    let barriers = reader.barriers(seat.connection()).await?;
    let leads = reader.leads(seat.connection()).await?;
    seat.confirm().await?;
    let retries = reader.main_retries(seat.connection()).await?;
    seat.confirm().await?;
    let seen = seen(&reader, seat, instance.settings.dedup).await?;
    let orders = orders::read(redis, seat.connection(), HTTP).await?;
    let scheme = instance.settings.key_scheme();
    let loaded = Loaded {
        cursor: progress.cursor,
        bits: progress.done,
        lanes: rows.iter().map(|row| lane(row, scheme)).collect(),
        barriers,
        leads,
        retries,
    };
    Ok(Start { consumer: HTTP, loaded, rows, mark: progress.mark, seen, orders })
}

fn lane(row: &LaneRow, scheme: KeyScheme) -> LaneLoaded {
    LaneLoaded {
        lane: row.lane,
        shop: shop_hash(row.shop.as_bytes()),
        is_other_scheme: row.scheme != scheme,
        first_chunk: row.first_chunk,
        last_chunk: row.last_chunk,
        waiting: row.waiting,
        first: row.first,
        last: row.last,
        failing: row.failing.clone(),
        is_tripped: row.tripped,
        is_suspect: row.suspect,
    }
}

/// What was delivered within the window, by this instance or another. The ownership is confirmed
/// meanwhile: there may be millions to read.
async fn seen(reader: &Reader, seat: &mut Seat, dedup: Dedup) -> Result<Seen, QueueError> {
    let mut seen = Seen::new(dedup.window, dedup.bytes);
    let mut after = StreamId { ms: seen.forgets_before_ms(seat.tenure().now_ms()), seq: 0 };
    while seen.is_on() {
        let found = reader.seen_after(seat.connection(), after).await?;
        let Some((last, _)) = found.last() else { break };
        after = *last;
        seat.confirm().await?;
        for (id, fingerprints) in found {
            fingerprints.into_iter().for_each(|one| seen.insert(one, id.ms));
        }
    }
    Ok(seen)
}
