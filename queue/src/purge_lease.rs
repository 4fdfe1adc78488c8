//! Lease of the one purge that may work on a cell, and how far that purge has come.
//!
//! Two purges at once would replace the same objects of the archive. A purge is no leader: it may take hours, and the
//! next one can wait. So its lease ends by itself, in [`LEASE`], if the process dies. The holder renews it.

use std::time::Duration;

use rand::RngExt;
use redis::{Script, cmd};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;

/// Time after which a lease ends that nobody renews.
pub const LEASE: Duration = Duration::from_secs(60);
/// Time for which the progress of a purge is kept.
const PROGRESS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Lease of a purge.
#[derive(Debug, Clone)]
pub struct PurgeLease {
    redis: Redis,
    token: String,
}

impl PurgeLease {
    /// Takes the lease; `None` while another purge has it.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn take(
        redis: &Redis,
        connection: &mut Connection,
    ) -> Result<Option<Self>, QueueError> {
        let token = format!("{:016x}", rand::rng().random::<u64>());
        let lease = Self { redis: redis.clone(), token };
        Ok(lease.call(connection, "take", "", LEASE).await?.then_some(lease))
    }

    /// Renews the lease. Returns false if it was lost: another purge may be at work.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn renew(&self, connection: &mut Connection) -> Result<bool, QueueError> {
        self.call(connection, "renew", "", LEASE).await
    }

    /// Gives the lease back.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn release(&self, connection: &mut Connection) -> Result<(), QueueError> {
        self.call(connection, "release", "", LEASE).await.map(|_| ())
    }

    /// Keeps how far the purge has come, so that one that is cut off need not begin again. Returns false if the lease
    /// was lost.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn keep(
        &self,
        connection: &mut Connection,
        progress: &str,
    ) -> Result<bool, QueueError> {
        self.call(connection, "keep", progress, PROGRESS_KEPT).await
    }

    async fn call(
        &self,
        connection: &mut Connection,
        verb: &str,
        progress: &str,
        kept: Duration,
    ) -> Result<bool, QueueError> {
        let script = Script::new(include_str!("lua/purge_lease.lua"));
        let keys = &self.redis.keys;
        let mut call = script.key(keys.purge());
        call.key(keys.purge_progress());
        call.arg(verb).arg(&self.token).arg(kept.as_secs()).arg(progress);
        let granted: u8 = call.invoke_async(connection).await?;
        Ok(granted == 1)
    }
}

/// Reads how far a purge came, as [`PurgeLease::keep`] wrote it.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn progress(
    redis: &Redis,
    connection: &mut Connection,
) -> Result<Option<String>, QueueError> {
    Ok(cmd("GET").arg(redis.keys.purge_progress()).query_async(connection).await?)
}
