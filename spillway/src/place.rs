//! Which cell a command is about: its Redis; and which of its drains.

use std::time::Duration;

use clap::Args;
use spillway_queue::{Connection, Redis};
use spillway_service::Checker;

use crate::failure::Failure;

/// No single request of ours takes long; a Redis that is silent for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// The cell's Redis, as written.
#[derive(Debug, Args)]
pub struct Place {
    /// The cell's Redis: unix:///path, redis://host:port/db or rediss://host:port/db; or its
    /// Sentinels: redis+sentinel://host:port,host:port/name
    #[arg(
        long,
        env = "REDIS_URL",
        hide_env_values = true,
        default_value = "unix:///run/spillway/redis.sock",
        global = true
    )]
    redis_url: String,

    /// Stands before the name of every key
    #[arg(long, env = "REDIS_PREFIX", default_value = "spillway:", global = true)]
    redis_prefix: String,
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
        Self { redis_url, redis_prefix }
    }

    /// The Redis, not yet connected.
    pub fn redis(&self) -> Result<Redis, Failure> {
        let mut checker = Checker::default();
        let redis = Redis::new(&self.redis_url, &self.redis_prefix);
        if let Err(problem) = &redis {
            checker.mistake("REDIS_URL", problem);
        }
        if self.redis_prefix.contains(char::is_whitespace) {
            checker.mistake("REDIS_PREFIX", "must not contain white space");
        }
        checker.finish(())?;
        redis.map_err(Failure::Usage)
    }

    /// The Redis, and a connection to it.
    pub async fn connect(&self) -> Result<(Redis, Connection), Failure> {
        let redis = self.redis()?;
        let connection = redis.connect(Some(PATIENCE)).await?;
        Ok((redis, connection))
    }
}
