//! Overflow log on this machine's disk, which is restored to Redis in order once it takes packs again.
//!
//! [`channel`] opens it and is the overflow log of the store, [`writer`] syncs what is written, [`mod@feeder`]
//! restores it, [`pace`] how fast, [`claim`] sees to it that one receiver spills for a cell. The files are
//! `spillway-spill`'s.
//!
//! Bounded by `SPILL_MAX` on disk, and by one pack for each shard and two chunks of the feeder in memory.

pub mod channel;
pub mod claim;
pub mod feeder;
pub mod pace;
pub mod writer;

use std::sync::Arc;
use std::time::Duration;

use spillway_queue::Redis;
use spillway_service::Background;
use tokio_util::sync::CancellationToken;

use crate::settings::SpillSettings;
use crate::spill::channel::SpillChannel;
use crate::spill::feeder::Feeder;
use crate::store::Store;
use crate::store::gate::Gate;
use crate::store::looks::Looks;

/// Opens the log, settles the claim if Redis can be asked, and starts what restores the log. Until it has looked at
/// Redis, everything is written to the log. Returns the store, and the task that restores.
///
/// # Errors
/// When the directory is not one to use, or another receiver spills for this cell.
pub async fn start(
    settings: &SpillSettings,
    ack_timeout: Duration,
    redis: &Redis,
    background: &Background,
    stop: &CancellationToken,
) -> anyhow::Result<(Store, tokio::task::JoinHandle<()>)> {
    let (channel, log_id) = SpillChannel::open(settings, background)?;
    let gate = Gate::new(true, ack_timeout);
    let looks = Looks::new(gate.clone());
    let mut feeder = Feeder::new(channel.clone(), &gate, &looks, log_id, redis.clone());
    claim::settle(&mut feeder).await?;
    background.spawn("trying the disk of the spill again", {
        let (channel, stop) = (channel.clone(), stop.clone());
        async move {
            stop.run_until_cancelled(channel.try_again()).await;
        }
    });
    let feeding = feeder.run(stop.clone());
    let feeding = background.spawn("the spill's feeder", feeding);
    let log: Arc<SpillChannel> = channel;
    Ok((Store::new(gate, looks, Some(log)), feeding))
}
