//! The cell of a command (its Redis), and one of its consumers.

use std::time::Duration;

use clap::Args;
use spillway_process::Checker;
use spillway_process::redis_args::RedisArgs;
use spillway_queue::consumers::HTTP;
use spillway_queue::status::CellStatus;
use spillway_queue::{Connection, QueueError, Redis};

use crate::failure::Failure;
use crate::socket::denial;

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
    #[arg(short, long, global = true, default_value = HTTP)]
    pub consumer: String,
}

/// True if no consumer was ever started, and `consumer` is the downstreamer's. Everything in the
/// main stream waits for it then: it will begin at the oldest entry.
pub(crate) fn is_first(consumer: &str, status: &CellStatus) -> bool {
    status.consumers.is_empty() && consumer == HTTP
}

/// Failure for an unknown consumer. It lists the known consumers.
pub(crate) fn unknown(consumer: &str, status: &CellStatus) -> Failure {
    let known: Vec<_> = status.consumers.iter().map(|known| known.name.as_str()).collect();
    Failure::Failed(match known.is_empty() {
        true => format!(
            "no consumer is named {consumer}, because none is registered: start a downstreamer, or \
             register it ahead with `spillway consumers add {consumer}`"
        ),
        false => format!("no consumer is named {consumer}; there is {}", known.join(", ")),
    })
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
        match redis.connect(Some(PATIENCE)).await {
            Ok(connection) => Ok((redis, connection)),
            Err(error) => Err(self.unconnected(error)),
        }
    }

    /// Failure of a connection. It says so if this user may not open the socket.
    pub(crate) fn unconnected(&self, error: QueueError) -> Failure {
        match (error, denial(&self.redis.redis_url)) {
            (QueueError::Unreachable(_), Some(message)) => Failure::Denied(message),
            (error, _) => error.into(),
        }
    }
}
