//! The queue, for what the leader itself reads.

use std::sync::Arc;
use std::time::Duration;

use spillway_consumer::Routes;
use spillway_queue::controls::{self, OperatorControls};
use spillway_queue::read::{ConsumerProgress, StreamRange, StreamReader};
use spillway_queue::{Connection, QueueError, Redis};

/// Time limit for an answer of Redis.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The queue, for what the leader itself reads.
pub(super) struct QueueAccess {
    pub(super) redis: Redis,
    /// The consumer, its filter and those of the others.
    pub(super) routes: Arc<Routes>,
    reader: StreamReader,
    /// For the few reads that the reader does not make.
    pub(super) connection: Option<Connection>,
}

impl QueueAccess {
    /// Access without a connection so far.
    pub(super) fn of(redis: Redis, routes: Arc<Routes>) -> Self {
        let reader = StreamReader::new(redis.clone(), routes.name());
        Self { reader, redis, routes, connection: None }
    }

    pub(super) async fn read_progress(
        &mut self,
    ) -> Result<(ConsumerProgress, StreamRange, OperatorControls), QueueError> {
        let mut connection = self.connected().await?.clone();
        let progress = self.reader.progress(&mut connection).await?;
        let controls = controls::read(&self.redis, &mut connection, self.routes.name()).await?;
        Ok((progress, self.reader.span(&mut connection).await?, controls))
    }

    /// Connection for the few reads that the leader itself makes.
    pub(super) async fn connected(&mut self) -> Result<&mut Connection, QueueError> {
        if self.connection.is_none() {
            self.connection = Some(self.redis.connect(Some(ANSWER_TIMEOUT)).await?);
        }
        Ok(self.connection.as_mut().expect("BUG: just connected"))
    }

    pub(super) async fn read_controls(&mut self) -> Result<OperatorControls, QueueError> {
        let redis = self.redis.clone();
        let routes = self.routes.clone();
        controls::read(&redis, self.connected().await?, routes.name()).await
    }
}
