//! Reads an operator's controls whenever they change.

use std::time::Duration;

use spillway_consumer::LeaderHandle;
use spillway_delivery::{Controls, Drops};
use spillway_process::error::chain;
use spillway_queue::controls::{self, Filter, OperatorControls};
use spillway_queue::{QueueError, Redis};
use tokio::sync::mpsc;

use crate::classify::shop_hash;
use crate::content::PauseFilter;

/// Time between checks of the version.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts a task that reads the controls whenever their version differs from `version`.
pub(crate) fn start(
    redis: Redis,
    consumer: &str,
    leader: LeaderHandle,
    mut version: u64,
) -> mpsc::Receiver<OperatorControls> {
    let (sender, receiver) = mpsc::channel(1);
    let consumer = consumer.to_owned();
    tokio::spawn(async move {
        // The controls that were read may be newer than the last heartbeat reported: one read is
        // enough.
        let mut looked_at = version;
        while !sender.is_closed() {
            tokio::time::sleep(LOOK_EVERY).await;
            // An older version is a change, too: Redis may have come back with older data.
            let bumped = leader.controls();
            if bumped == version {
                looked_at = version;
            }
            if bumped == looked_at {
                continue;
            }
            match read(&redis, &consumer).await {
                Ok(controls) => {
                    looked_at = bumped;
                    if controls.version != version {
                        version = controls.version;
                        if sender.send(controls).await.is_err() {
                            return;
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "controls could not be read; trying again"
                    );
                }
            }
        }
    });
    receiver
}

async fn read(redis: &Redis, consumer: &str) -> Result<OperatorControls, QueueError> {
    let mut connection = redis.connect(Some(ANSWER_TIMEOUT)).await?;
    controls::read(redis, &mut connection, consumer).await
}

/// Converts the queue's controls to those of the delivery core.
pub(crate) fn of(controls: OperatorControls, cell: u32) -> Controls<PauseFilter> {
    let filters = || controls.pauses.iter().map(|pause| &pause.filter);
    let others = |filter: &&Filter| !filter.is_empty() && filter.only_shop().is_none();
    Controls {
        version: controls.version,
        is_all_paused: filters().any(Filter::is_empty),
        shops: filters()
            .filter_map(Filter::only_shop)
            .map(|shop| shop_hash(shop.as_bytes()))
            .collect(),
        filters: filters()
            .filter(others)
            .map(|filter| PauseFilter { filter: filter.clone(), cell })
            .collect(),
        drops: Drops { main: controls.dropping.main, replays: controls.dropping.replays },
    }
}
