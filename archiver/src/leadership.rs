//! Leadership: the leader archives, the others stand by.

use std::sync::Arc;

use spillway_consumer::leader_election::{self, ElectionConfig};
use spillway_consumer::{End, LeaderHandle, Leadership};
use spillway_queue::QueueError;
use spillway_queue::consumers::ARCHIVE;
use spillway_queue::controls;
use spillway_queue::read::StreamReader;
use tokio_util::sync::CancellationToken;

use crate::access::ArchiveAccess;
use crate::checkpoint;
use crate::expire;
use crate::instance::ArchiverInstance;
use crate::session::{ArchiveSession, Beginning};

/// Reason in `/readyz` until the archive is reached.
const NOT_REACHED: &str = "archive_unavailable: the archive was not reached yet";

/// Leads whenever it can, until `shutdown`.
pub(crate) async fn run(instance: &ArchiverInstance, shutdown: &CancellationToken) {
    let config = ElectionConfig {
        redis: instance.settings.common.redis.clone(),
        consumer: instance.settings.consumer.clone(),
        start_at: instance.settings.start_at,
        readiness: instance.readiness.clone(),
        gauges: instance.metrics.queue.clone(),
    };
    leader_election::run(&config, shutdown, async |leadership| {
        lead(instance, leadership, shutdown).await
    })
    .await;
}

async fn lead(
    instance: &ArchiverInstance,
    mut leadership: Leadership,
    shutdown: &CancellationToken,
) -> Result<End, QueueError> {
    let redis = instance.settings.common.redis.clone();
    let reader = StreamReader::new(redis.clone(), ARCHIVE);
    let connection = leadership.connection();
    let progress = reader.progress(connection).await?;
    let range = reader.span(connection).await?;
    let controls = controls::read(&redis, connection, ARCHIVE).await?;
    tracing::info!(cursor = %progress.cursor, "leading the consumer");
    leadership.leader().show_trouble(Some(NOT_REACHED.into()));
    let beginning = Beginning { cursor: progress.cursor, mark: progress.mark, range, controls };
    Ok(leadership.hold(async |leader| archive(instance, leader, beginning, shutdown).await).await)
}

/// Archives until leadership or the process ends. After SIGTERM, what was read has `SHUTDOWN_TIMEOUT` to be
/// written. The rest is read again by the next leader.
async fn archive(
    instance: &ArchiverInstance,
    leader: LeaderHandle,
    beginning: Beginning,
    shutdown: &CancellationToken,
) -> End {
    let lost = leader.lost.clone();
    let access = Arc::new(ArchiveAccess::new(instance.clone(), leader));
    let has_archived = beginning.has_archived();
    let archiving = async {
        let begin = ArchiveSession::begin(access.clone(), beginning);
        match shutdown.run_until_cancelled(begin).await {
            Some(session) => session.run(shutdown).await,
            None => End::Stopped,
        }
    };
    let out_of_time = async {
        shutdown.cancelled().await;
        tokio::time::sleep(instance.settings.shutdown_timeout).await;
    };
    tokio::select! {
        end = archiving => end,
        () = lost.cancelled() => End::Lost,
        () = out_of_time => {
            tracing::warn!("out of time: what is not written is archived by the next leader");
            End::Stopped
        }
        never = expire::run(&access) => match never {},
        never = checkpoint::run(&access, has_archived) => match never {},
    }
}
