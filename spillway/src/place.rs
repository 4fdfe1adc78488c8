//! Which cell a command is about: its Redis; and which of its drains.

use std::time::Duration;

use clap::Args;
use spillway_queue::{Connection, Redis};
use spillway_service::Checker;
use spillway_service::redis_args::RedisArgs;

use crate::failure::Failure;

/// No single request of ours takes long; a Redis that is silent for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// The cell, as written.
#[derive(Debug, Args)]
pub struct Place {
    #[command(flatten)]
    redis: RedisArgs,
}

/// One drain of the cell, as written.
#[derive(Debug, Args)]
pub struct DrainPlace {
    /// The cell.
    #[command(flatten)]
    pub cell: Place,

    /// Which drain: each has its own view of the queue, and its own dead letters
    #[arg(long, global = true, default_value = spillway_queue::drains::HTTP)]
    pub drain: String,
}

impl Place {
    /// A place that is known already.
    pub fn new(redis_url: String, redis_prefix: String) -> Self {
        Self { redis: RedisArgs::new(redis_url, redis_prefix) }
    }

    /// The Redis, not yet connected.
    pub fn redis(&self) -> Result<Redis, Failure> {
        let mut checker = Checker::default();
        let redis = self.redis.check(&mut checker);
        Ok(checker.finish(redis)?)
    }

    /// The Redis, and a connection to it.
    pub async fn connect(&self) -> Result<(Redis, Connection), Failure> {
        let redis = self.redis()?;
        let connection = redis.connect(Some(PATIENCE)).await?;
        Ok((redis, connection))
    }
}
