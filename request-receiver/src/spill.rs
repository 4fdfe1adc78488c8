//! Overflow log on this machine's disk. It is restored to Redis in order once Redis takes packs
//! again.
//!
//! [`channel`] opens the log and is the overflow log of the store. [`writer`] writes and syncs it.
//! [`mod@restorer`] restores it, at the rate that [`pace`] sets. [`claim`] makes sure that only one
//! receiver spills for a cell. The crate `spillway-spill` holds the format of the files.
//!
//! `SPILL_MAX` bounds the disk. In memory are at most two packs for each shard and two chunks of
//! the restorer.

pub mod channel;
pub mod claim;
pub mod pace;
pub mod restorer;
pub mod writer;

use std::sync::Arc;
use std::time::Duration;

use spillway_process::Background;
use spillway_queue::Redis;
use tokio_util::sync::CancellationToken;

use crate::settings::SpillSettings;
use crate::spill::channel::SpillChannel;
use crate::spill::restorer::Restorer;
use crate::store::Store;
use crate::store::gate::Gate;
use crate::store::looks::RedisLooks;

/// Opens the log, takes the claim if Redis answers, and starts the task that restores the log.
/// Until that task has looked at Redis, everything is written to the log. Returns the store and the
/// task.
///
/// # Errors
/// If the directory can't be used, or another receiver spills for this cell.
pub async fn start(
    settings: &SpillSettings,
    ack_timeout: Duration,
    redis: &Redis,
    background: &Background,
    stop: &CancellationToken,
) -> anyhow::Result<(Store, tokio::task::JoinHandle<()>)> {
    let (channel, log_id) = SpillChannel::open(settings, background)?;
    let gate = Gate::new(true, ack_timeout);
    let looks = RedisLooks::new(gate.clone());
    let mut restorer = Restorer::new(channel.clone(), &gate, &looks, log_id, redis.clone());
    claim::take_at_start(&mut restorer).await?;
    background.spawn("probe of the overflow disk", {
        let channel = channel.clone();
        let stop = stop.clone();
        async move {
            stop.run_until_cancelled(channel.try_again()).await;
        }
    });
    let restoring = restorer.run(stop.clone());
    let restoring = background.spawn("the spill's restorer", restoring);
    let log: Arc<SpillChannel> = channel;
    Ok((Store::new(gate, looks, Some(log)), restoring))
}
