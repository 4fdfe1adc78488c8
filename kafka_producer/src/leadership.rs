//! Leadership: the leader produces, on a separate thread.
//!
//! A thread that hangs in librdkafka is left running. The next producer fences its producer, and
//! its leadership is over. Bounded by `THREADS_MAX`; beyond that the process ends.

use std::time::Duration;

use spillway_consumer::leader_election::{self, ElectionConfig, End, LeaderHandle, Leadership};
use spillway_queue::QueueError;
use spillway_queue::read::StreamReader;
use spillway_queue::status;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::calls::Calls;
use crate::exporter::Exporter;
use crate::instance::ProducerInstance;

/// Reason in `/readyz` until Kafka is reached.
const NOT_REACHED: &str = "kafka_unavailable: kafka was not reached yet";

/// librdkafka hangs repeatedly. A new process starts with a new one.
#[derive(Debug, thiserror::Error)]
#[error(
    "calls into librdkafka do not come back; nothing is lost, a restart goes on from the last commit"
)]
pub(crate) struct Hanging;

/// Leads whenever it can, until `shutdown`.
///
/// # Errors
/// If too many threads hang in librdkafka.
pub(crate) async fn run(
    instance: &ProducerInstance,
    shutdown: &CancellationToken,
) -> Result<(), Hanging> {
    let config = ElectionConfig {
        redis: instance.settings.common.redis.clone(),
        consumer: instance.routes.own().clone(),
        start_at: instance.settings.start_at,
        readiness: instance.readiness.clone(),
        gauges: instance.metrics.queue.clone(),
    };
    let owned = leader_election::run(&config, shutdown, async |leadership| {
        lead(instance, leadership, shutdown).await
    });
    tokio::select! {
        () = owned => Ok(()),
        () = instance.hanging.cancelled() => Err(Hanging),
    }
}

async fn lead(
    instance: &ProducerInstance,
    mut leadership: Leadership,
    shutdown: &CancellationToken,
) -> Result<End, QueueError> {
    let redis = instance.settings.common.redis.clone();
    // Before anything is read, so that a webhook that no filter matches is found from the first one on.
    instance.routes.learn(&status::read(&redis, leadership.connection()).await?.consumers);
    leadership.confirm().await?;
    let reader = StreamReader::new(redis, instance.routes.name());
    let mark = reader.mark(leadership.connection()).await?;
    tracing::info!("leading the consumer");
    leadership.leader().show_trouble(Some(NOT_REACHED.into()));
    Ok(leadership.hold(async |leader| produce(instance, leader, mark, shutdown).await).await)
}

/// Produces. After SIGTERM the thread has `SHUTDOWN_TIMEOUT`. Then it is left running, the process
/// ends, and the next leader aborts the open transaction.
async fn produce(
    instance: &ProducerInstance,
    leader: LeaderHandle,
    mark: Option<String>,
    shutdown: &CancellationToken,
) -> End {
    let calls = Calls::default();
    let exporter = Exporter::new(instance, leader.clone(), mark, calls.clone(), shutdown.clone());
    let Some(ended) = start(instance, exporter) else { return End::Stale };
    let out_of_time = async {
        shutdown.cancelled().await;
        tokio::time::sleep(instance.settings.shutdown_timeout).await;
    };
    let tell = |time: Duration| {
        let time = time.as_secs();
        let trouble = format!("kafka_unavailable: no answer from kafka for {time} s");
        leader.show_trouble(Some(trouble.into()));
    };
    tokio::select! {
        ended = ended => ended.unwrap_or_else(|_| {
            tracing::error!("BUG: the exporter panicked; beginning again");
            End::Stale
        }),
        () = out_of_time => {
            tracing::warn!("out of time: what is not committed is sent again by the next leader");
            End::Stopped
        }
        () = calls.stuck(tell) => {
            tracing::error!(
                "a call into librdkafka does not come back; leaving its producer behind and \
                 building another"
            );
            // If it returns after all, it finds that its leadership is over.
            leader.lost.cancel();
            End::Stale
        }
    }
}

/// Starts producing on a new thread, not on one of the runtime's: it blocks for as long as this
/// instance leads.
fn start(instance: &ProducerInstance, exporter: Exporter) -> Option<oneshot::Receiver<End>> {
    let Ok(permit) = instance.threads.clone().try_acquire_owned() else {
        instance.hanging.cancel();
        return None;
    };
    let (sender, ended) = oneshot::channel();
    let thread = std::thread::Builder::new().name("exporter".to_owned()).spawn(move || {
        // Nobody waits for it any more if its leadership was over.
        sender.send(exporter.run()).ok();
        drop(permit);
    });
    match thread {
        Ok(_) => Some(ended),
        Err(error) => {
            tracing::error!(%error, "no thread for the exporter");
            None
        }
    }
}
