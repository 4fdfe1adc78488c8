//! Leadership: the leader reads the state in Redis, then delivers.

use std::sync::Arc;

use spillway_consumer::Routes;
use spillway_consumer::leader_election::{self, ElectionConfig, End, Leadership};
use spillway_delivery::{DedupWindow, LaneLoaded, Loaded};
use spillway_process::Background;
use spillway_process::Readiness;
use spillway_queue::QueueError;
use spillway_queue::consumers::StartAt;
use spillway_queue::controls::{self, OperatorControls, ScanCursor};
use spillway_queue::lane::{KeyScheme, LaneRow};
use spillway_queue::read::StreamReader;
use spillway_queue::status;
use spillway_webhook::StreamId;
use tokio_util::sync::CancellationToken;

use crate::classify::shop_hash;
use crate::deliver::DeliveryClient;
use crate::metrics::DownstreamerMetrics;
use crate::settings::{Dedup, DownstreamerSettings};
use crate::worker::{Worker, WorkerStart};

/// State that an instance keeps while leaders change.
#[derive(Clone)]
pub(crate) struct DownstreamerInstance {
    /// Settings of the process.
    pub settings: Arc<DownstreamerSettings>,
    /// Metrics of the process.
    pub metrics: Arc<DownstreamerMetrics>,
    /// The consumer, its filter and those of the others.
    pub routes: Arc<Routes>,
    /// Connections to the backend.
    pub sender: Arc<DeliveryClient>,
    /// Readiness that `/readyz` shows.
    pub readiness: Readiness,
    /// Tasks of the process. It asks the worker for answers.
    pub background: Background,
}

/// Leads whenever it can, until `shutdown`.
pub(crate) async fn run(instance: &DownstreamerInstance, shutdown: &CancellationToken) {
    let config = ElectionConfig {
        redis: instance.settings.common.redis.clone(),
        consumer: instance.routes.own().clone(),
        start_at: StartAt::Oldest,
        readiness: instance.readiness.clone(),
        gauges: instance.metrics.queue.clone(),
    };
    leader_election::run(&config, shutdown, async |leadership| {
        lead(instance, leadership, shutdown).await
    })
    .await;
}

async fn lead(
    instance: &DownstreamerInstance,
    mut leadership: Leadership,
    shutdown: &CancellationToken,
) -> Result<End, QueueError> {
    let redis = &instance.settings.common.redis;
    let loaded = shutdown.run_until_cancelled(load(instance, &mut leadership)).await;
    let Some(loaded) = loaded else {
        leadership.release().await;
        return Ok(End::Stopped);
    };
    let start = loaded?;
    tracing::info!(
        cursor = %start.loaded.cursor, lanes = start.rows.len(), "leading the consumer"
    );
    let end = leadership.hold(async |leader| {
        instance.sender.set_leader(leader.clone());
        let worker = Worker::start(
            redis,
            instance.settings.clone(),
            instance.metrics.clone(),
            instance.sender.clone(),
            leader,
            start,
        );
        worker.run(shutdown, &instance.background.watch("the consumer")).await
    });
    Ok(end.await)
}

/// Reads the state with which a leader begins. Leadership is confirmed meanwhile.
async fn load(
    instance: &DownstreamerInstance,
    leadership: &mut Leadership,
) -> Result<WorkerStart, QueueError> {
    let reader = StreamReader::new(instance.settings.common.redis.clone(), instance.routes.name());
    // Before anything is read, so that a webhook that no filter matches is found from the first one on.
    let redis = &instance.settings.common.redis;
    instance.routes.learn(&status::read(redis, leadership.connection()).await?.consumers);
    leadership.confirm().await?;
    let progress = reader.progress(leadership.connection()).await?;
    leadership.confirm().await?;
    let rows = reader.lane_rows(leadership.connection()).await?;
    leadership.confirm().await?;
    let barriers = reader.barriers(leadership.connection()).await?;
    let leads = reader.leads(leadership.connection()).await?;
    leadership.confirm().await?;
    let retries = reader.main_retries(leadership.connection()).await?;
    leadership.confirm().await?;
    let seen = seen(&reader, leadership, instance.settings.dedup).await?;
    let controls = controls(instance, leadership).await?;
    let scheme = instance.settings.key_scheme();
    let loaded = Loaded {
        cursor: progress.cursor,
        bits: progress.done,
        lanes: rows.iter().map(|row| lane(row, scheme)).collect(),
        barriers,
        leads,
        retries,
    };
    let routes = instance.routes.clone();
    Ok(WorkerStart { routes, loaded, rows, mark: progress.mark, seen, controls })
}

/// Reads an operator's controls. Leadership is confirmed meanwhile: there may be millions of webhooks to
/// drop.
async fn controls(
    instance: &DownstreamerInstance,
    leadership: &mut Leadership,
) -> Result<OperatorControls, QueueError> {
    let redis = &instance.settings.common.redis;
    let name = instance.routes.name();
    let mut read = controls::read_orders(redis, leadership.connection(), name).await?;
    let mut at = Some(ScanCursor::default());
    while let Some(cursor) = at {
        let connection = leadership.connection();
        at = controls::read_names(redis, connection, name, cursor, &mut read.dropping).await?;
        leadership.confirm().await?;
    }
    Ok(read)
}

fn lane(row: &LaneRow, scheme: KeyScheme) -> LaneLoaded {
    LaneLoaded {
        lane: row.lane,
        shop: shop_hash(row.shop.as_bytes()),
        // Before Events were known, their kinds were the names of their types.
        is_other_scheme: row.scheme != scheme || row.kind.starts_with(char::is_uppercase),
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

/// Reads what any instance delivered within the deduplication window. Leadership is confirmed
/// meanwhile: there may be millions of entries.
async fn seen(
    reader: &StreamReader,
    leadership: &mut Leadership,
    dedup: Dedup,
) -> Result<DedupWindow, QueueError> {
    let mut seen = DedupWindow::new(dedup.window, dedup.bytes);
    let mut after = StreamId { ms: seen.forgets_before_ms(leadership.leader().now_ms()), seq: 0 };
    while seen.is_on() {
        let found = reader.seen_after(leadership.connection(), after).await?;
        let Some((last, _)) = found.last() else { break };
        after = *last;
        leadership.confirm().await?;
        for (id, fingerprints) in found {
            fingerprints.into_iter().for_each(|one| seen.insert(one, id.ms));
        }
    }
    Ok(seen)
}
