//! Redis for a long command: while it is away or full, the command waits.

use std::time::Duration;

use spillway_queue::{Connection, QueueError, Redis};

use crate::failure::Failure;

/// Response timeout of Redis. No request of this command takes that long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two tries.
const RETRY_EVERY: Duration = Duration::from_millis(200);

/// A connection to Redis that is made again when it breaks.
pub(super) struct RedisLink {
    redis: Redis,
    connection: Option<Connection>,
    is_away: bool,
}

impl RedisLink {
    /// Connects with the first request.
    pub(super) fn new(redis: Redis) -> Self {
        Self { redis, connection: None, is_away: false }
    }

    /// Redis of the cell.
    pub(super) fn redis(&self) -> &Redis {
        &self.redis
    }

    /// Asks until there is an answer. A request whose answer was lost is sent again.
    pub(super) async fn patiently<T>(
        &mut self,
        mut ask: impl AsyncFnMut(&mut Connection) -> Result<T, QueueError>,
    ) -> Result<T, Failure> {
        loop {
            let (error, is_passing) = match self.connected().await {
                Ok(mut connection) => match ask(&mut connection).await {
                    Ok(answer) => {
                        self.connection = Some(connection);
                        self.tell_back();
                        return Ok(answer);
                    }
                    Err(error) => {
                        let is_passing = error.is_passing();
                        (error, is_passing)
                    }
                },
                // During a failover, Sentinels name none, or one that is no master yet.
                Err(error) => {
                    let is_passing = matches!(error, QueueError::Unexpected(_));
                    let is_passing = is_passing || error.is_passing();
                    (error, is_passing)
                }
            };
            if !is_passing {
                return Err(error.into());
            }
            self.tell_away(&error);
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    async fn connected(&mut self) -> Result<Connection, QueueError> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => self.redis.connect(Some(PATIENCE)).await,
        }
    }

    fn tell_away(&mut self, error: &QueueError) {
        if !self.is_away {
            eprintln!("spillway: {error}: waiting until it takes more");
        }
        self.is_away = true;
    }

    fn tell_back(&mut self) {
        if self.is_away {
            eprintln!("spillway: redis answers again");
        }
        self.is_away = false;
    }
}
