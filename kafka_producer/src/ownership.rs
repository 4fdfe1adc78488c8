//! What an owner of the drain does: produce, on a thread of its own.

use std::sync::Arc;

use spillway_drain::ownership::{self, End, Place, Seat, Tenure};
use spillway_queue::QueueError;
use spillway_queue::drains::KAFKA;
use spillway_service::Readiness;
use tokio_util::sync::CancellationToken;

use crate::drain::Drain;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// What `/readyz` says until Kafka is reached.
const NOT_REACHED: &str = "kafka_unavailable: kafka was not reached yet";

/// Everything an instance keeps while owners change.
#[derive(Clone)]
pub struct Instance {
    /// Its settings.
    pub settings: Arc<Settings>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// What `/readyz` says.
    pub readiness: Readiness,
}

/// Owns the drain whenever it can, until `shutdown`.
pub async fn run(instance: &Instance, shutdown: &CancellationToken) {
    let place = Place {
        redis: instance.settings.common.redis.clone(),
        drain: KAFKA,
        start_at: instance.settings.start_at,
        readiness: instance.readiness.clone(),
        gauges: instance.metrics.queue.clone(),
    };
    ownership::run(&place, shutdown, async |seat| own(instance, seat, shutdown).await).await;
}

async fn own(
    instance: &Instance,
    seat: Seat,
    shutdown: &CancellationToken,
) -> Result<End, QueueError> {
    tracing::info!("owning the drain");
    seat.tenure().show_trouble(Some(NOT_REACHED.into()));
    Ok(seat.hold(async |tenure| produce(instance, tenure, shutdown).await).await)
}

/// Runs the drain. After SIGTERM it has its time, then it is left behind: the process ends, and
/// whoever owns the drain next aborts what was open.
async fn produce(instance: &Instance, tenure: Tenure, shutdown: &CancellationToken) -> End {
    let Instance { settings, metrics, .. } = instance;
    let drain = Drain::new(settings.clone(), metrics.clone(), tenure, shutdown.clone());
    // Not one of the runtime's own threads: it blocks for as long as the drain is owned.
    let (sender, ended) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("drain".to_owned()).spawn(move || {
        // Nobody waits for it any more if its time was over.
        sender.send(drain.run()).ok();
    });
    if let Err(error) = thread {
        tracing::error!(%error, "no thread for the drain");
        return End::Stale;
    }
    let out_of_time = async {
        shutdown.cancelled().await;
        tokio::time::sleep(settings.shutdown_timeout).await;
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
    }
}
