//! An operator's controls: a pause of everything. An archive has an order, so nothing less can be paused, and it
//! keeps every webhook, so nothing is dropped from it.

use std::time::Duration;

use spillway_process::error::chain;
use spillway_queue::consumers::ARCHIVE;
use spillway_queue::controls::{self, OperatorControls};
use spillway_queue::{Connection, QueueError, Redis};

use crate::metrics::ArchiverMetrics;

/// Time limit for an answer of Redis.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Controls in force, and the version for which they were read.
pub(crate) struct ControlsReader {
    redis: Redis,
    connection: Option<Connection>,
    looked_at: u64,
    /// Controls in force.
    pub current: OperatorControls,
}

impl ControlsReader {
    /// Controls as they were read when the lease was taken.
    pub(crate) fn with(redis: Redis, current: OperatorControls) -> Self {
        Self { redis, connection: None, looked_at: current.version, current }
    }

    /// True while everything is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.current.pauses.iter().any(|pause| pause.filter.is_empty())
    }

    /// Shows the pauses in force.
    pub(crate) fn show(&self, metrics: &ArchiverMetrics) {
        metrics.pauses.set(i64::try_from(self.current.pauses.len()).unwrap_or(i64::MAX));
    }

    /// Reads the controls if their version is another one. Returns the version that is new. If Redis does not
    /// answer, the old ones stay in force.
    pub(crate) async fn look(&mut self, bumped: u64) -> Option<u64> {
        if bumped == self.looked_at {
            return None;
        }
        match self.read().await {
            Ok(controls) => {
                self.looked_at = bumped;
                let is_new = controls.version != self.current.version;
                self.current = controls;
                is_new.then_some(self.current.version)
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "controls could not be read; trying again");
                self.connection = None;
                None
            }
        }
    }

    async fn read(&mut self) -> Result<OperatorControls, QueueError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.redis.connect(Some(ANSWER_TIMEOUT)).await?),
        };
        controls::read(&self.redis, connection, ARCHIVE).await
    }
}
