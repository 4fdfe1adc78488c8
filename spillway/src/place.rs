//! The cell of a command (its Redis), and one of its consumers.

use std::time::Duration;

use clap::Args;
use spillway_process::Checker;
use spillway_process::redis_args::RedisArgs;
use spillway_queue::{Connection, Redis};

use crate::failure::Failure;

/// Response timeout of Redis. No request of this command takes that long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Redis of the cell, as given on the command line.
#[derive(Debug, Args)]
pub(crate) struct CellArgs {
    #[command(flatten)]
    redis: RedisArgs,
}

/// One consumer of the cell, as given on the command line.
#[derive(Debug, Args)]
pub(crate) struct ConsumerArgs {
    /// The cell.
    #[command(flatten)]
    pub cell: CellArgs,

    /// Name of the consumer; each has its own view of the queue and its own dead letters
    #[arg(long, global = true, default_value = spillway_queue::consumers::HTTP)]
    pub consumer: String,
}

impl CellArgs {
    /// Creates a value from known settings.
    pub(crate) fn new(redis_url: String, redis_prefix: String) -> Self {
        Self { redis: RedisArgs::new(redis_url, redis_prefix) }
    }

    /// Returns the Redis handle, not yet connected.
    pub(crate) fn redis(&self) -> Result<Redis, Failure> {
        let mut checker = Checker::default();
        let redis = self.redis.check(&mut checker);
        Ok(checker.finish(redis)?)
    }

    /// Returns the Redis handle and a connection.
    pub(crate) async fn connect(&self) -> Result<(Redis, Connection), Failure> {
        let redis = self.redis()?;
        let connection = redis.connect(Some(PATIENCE)).await?;
        Ok((redis, connection))
    }
}
