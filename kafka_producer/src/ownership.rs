//! What an owner of the drain does: produce, on a thread of its own.
//!
//! A thread that librdkafka does not let go of is left behind: its producer is fenced by the next,
//! and its tenure is over. Bounded by `THREADS_MAX`, past which the process ends.

use std::sync::Arc;
use std::time::Duration;

use spillway_drain::ownership::{self, End, Place, Seat, Tenure};
use spillway_queue::QueueError;
use spillway_queue::drains::KAFKA;
use spillway_queue::read::Reader;
use spillway_service::Readiness;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use crate::calls::Calls;
use crate::drain::Drain;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// What `/readyz` says until Kafka is reached.
const NOT_REACHED: &str = "kafka_unavailable: kafka was not reached yet";

/// So many drains may be there at a time: one that works, and others that hang in librdkafka. Each
/// holds a producer with its own threads.
const THREADS_MAX: usize = 4;

/// librdkafka hangs, again and again. A new process begins with a new one.
#[derive(Debug, thiserror::Error)]
#[error(
    "calls into librdkafka do not come back; nothing is lost, a restart goes on from the last commit"
)]
pub struct Hanging;

/// Everything an instance keeps while owners change.
pub struct Instance {
    /// Its settings.
    pub settings: Arc<Settings>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// What `/readyz` says.
    pub readiness: Readiness,
    /// A permit for each thread of a drain, also for one that was left behind.
    threads: Arc<Semaphore>,
    /// Cancelled when there is no permit left.
    hanging: CancellationToken,
}

impl Instance {
    /// One that owns nothing yet.
    pub fn new(settings: Arc<Settings>, metrics: Arc<Metrics>, readiness: Readiness) -> Self {
        let threads = Arc::new(Semaphore::new(THREADS_MAX));
        Self { settings, metrics, readiness, threads, hanging: CancellationToken::new() }
    }
}

/// Owns the drain whenever it can, until `shutdown`.
///
/// # Errors
/// When too many threads hang in librdkafka.
pub async fn run(instance: &Instance, shutdown: &CancellationToken) -> Result<(), Hanging> {
    let place = Place {
        redis: instance.settings.common.redis.clone(),
        drain: KAFKA,
        start_at: instance.settings.start_at,
        readiness: instance.readiness.clone(),
        gauges: instance.metrics.queue.clone(),
    };
    let owned = ownership::run(&place, shutdown, async |seat| own(instance, seat, shutdown).await);
    tokio::select! {
        () = owned => Ok(()),
        () = instance.hanging.cancelled() => Err(Hanging),
    }
}

async fn own(
    instance: &Instance,
    mut seat: Seat,
    shutdown: &CancellationToken,
) -> Result<End, QueueError> {
    let reader = Reader::new(instance.settings.common.redis.clone(), KAFKA);
    let mark = reader.mark(seat.connection()).await?;
    tracing::info!("owning the drain");
    seat.tenure().show_trouble(Some(NOT_REACHED.into()));
    Ok(seat.hold(async |tenure| produce(instance, tenure, mark, shutdown).await).await)
}

/// Runs the drain. After SIGTERM it has its time, then it is left behind: the process ends, and
/// whoever owns the drain next aborts what was open.
async fn produce(
    instance: &Instance,
    tenure: Tenure,
    mark: Option<String>,
    shutdown: &CancellationToken,
) -> End {
    let calls = Calls::default();
    let drain = Drain::new(instance, tenure.clone(), mark, calls.clone(), shutdown.clone());
    let Some(ended) = start(instance, drain) else { return End::Stale };
    let out_of_time = async {
        shutdown.cancelled().await;
        tokio::time::sleep(instance.settings.shutdown_timeout).await;
    };
    let tell = |time: Duration| {
        let time = time.as_secs();
        let trouble = format!("kafka_unavailable: no answer from kafka for {time} s");
        tenure.show_trouble(Some(trouble.into()));
    };
    tokio::select! {
        ended = ended => ended.unwrap_or_else(|_| {
            tracing::error!("BUG: the drain panicked; beginning again");
            End::Stale
        }),
        () = out_of_time => {
            tracing::warn!("out of time: what is not committed is sent again by the next owner");
            End::Stopped
        }
        () = calls.stuck(tell) => {
            tracing::error!(
                "a call into librdkafka does not come back; leaving its producer behind and \
                 building another"
            );
            // Should it come back after all, it finds that its time is over.
            tenure.lost.cancel();
            End::Stale
        }
    }
}

/// Starts the drain on a thread of its own, not one of the runtime's: it blocks for as long as the
/// drain is owned.
fn start(instance: &Instance, drain: Drain) -> Option<oneshot::Receiver<End>> {
    let Ok(permit) = instance.threads.clone().try_acquire_owned() else {
        instance.hanging.cancel();
        return None;
    };
    let (sender, ended) = oneshot::channel();
    let thread = std::thread::Builder::new().name("drain".to_owned()).spawn(move || {
        // Nobody waits for it any more if its time was over.
        sender.send(drain.run()).ok();
        drop(permit);
    });
    match thread {
        Ok(_) => Some(ended),
        Err(error) => {
            tracing::error!(%error, "no thread for the drain");
            None
        }
    }
}
