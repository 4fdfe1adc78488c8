//! Reads an operator's controls whenever they changed.

use std::time::Duration;

use spillway_delivery::{Controls, Drops};
use spillway_drain::Tenure;
use spillway_queue::orders::{self, Filter, Orders};
use spillway_queue::{QueueError, Redis};
use spillway_service::error::chain;
use tokio::sync::mpsc;

use crate::content::Pause;
use crate::sort::shop_hash;

/// How often the version of the last bump is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts reading the controls whenever there are others than those of `version`.
pub fn start(
    redis: Redis,
    consumer: &str,
    tenure: Tenure,
    mut version: u64,
) -> mpsc::Receiver<Orders> {
    let (sender, receiver) = mpsc::channel(1);
    let consumer = consumer.to_owned();
    tokio::spawn(async move {
        // Those that were read may be newer than the last bump knows: once is enough.
        let mut looked_at = version;
        while !sender.is_closed() {
            tokio::time::sleep(LOOK_EVERY).await;
            // An older one is news as well: Redis may have come back with older data.
            let bumped = tenure.orders();
            if bumped == version {
                looked_at = version;
            }
            if bumped == looked_at {
                continue;
            }
            match read(&redis, &consumer).await {
                Ok(orders) => {
                    looked_at = bumped;
                    if orders.version != version {
                        version = orders.version;
                        if sender.send(orders).await.is_err() {
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

async fn read(redis: &Redis, consumer: &str) -> Result<Orders, QueueError> {
    let mut connection = redis.connect(Some(ANSWER_TIMEOUT)).await?;
    orders::read(redis, &mut connection, consumer).await
}

/// The core's controls for what Redis holds.
pub fn of(orders: Orders, cell: u32) -> Controls<Pause> {
    let filters = || orders.pauses.iter().map(|pause| &pause.filter);
    let others = |filter: &&Filter| !filter.is_empty() && filter.only_shop().is_none();
    Controls {
        version: orders.version,
        is_all_paused: filters().any(Filter::is_empty),
        shops: filters()
            .filter_map(Filter::only_shop)
            .map(|shop| shop_hash(shop.as_bytes()))
            .collect(),
        filters: filters()
            .filter(others)
            .map(|filter| Pause { filter: filter.clone(), cell })
            .collect(),
        drops: Drops { main: orders.dropping.main, replays: orders.dropping.replays },
    }
}
