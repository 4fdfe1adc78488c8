//! An operator's controls: a pause of everything. An archive has an order, so nothing less can be paused, and it
//! keeps every webhook, so nothing is dropped from it.

use std::pin::Pin;
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
    reading: Option<Pin<Box<dyn Future<Output = ReadControls>>>>,
    /// Controls in force.
    pub current: OperatorControls,
}

/// Controls that were read, or the reason why not.
pub(crate) struct ReadControls {
    /// Version for which they were read.
    bumped: u64,
    read: Result<Box<(Connection, OperatorControls)>, QueueError>,
}

impl ControlsReader {
    /// Controls as they were read when the lease was taken.
    pub(crate) fn with(redis: Redis, current: OperatorControls) -> Self {
        Self { redis, connection: None, looked_at: current.version, reading: None, current }
    }

    /// True while everything is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.current.pauses.iter().any(|pause| pause.filter.is_empty())
    }

    /// Shows the pauses in force.
    pub(crate) fn show(&self, metrics: &ArchiverMetrics) {
        metrics.pauses.show(&self.current.pauses);
    }

    /// Begins to read the controls if their version is another one. While Redis does not answer, the old ones stay in
    /// force.
    pub(crate) fn look(&mut self, bumped: u64) {
        if bumped == self.looked_at || self.reading.is_some() {
            return;
        }
        let redis = self.redis.clone();
        let connection = self.connection.take();
        self.reading = Some(Box::pin(async move {
            let read = read(&redis, connection).await;
            ReadControls { bumped, read }
        }));
    }

    /// Waits for the controls that are being read; for ever, if there are none. Pass the result to
    /// [`on_read`](Self::on_read).
    pub(crate) async fn read(&mut self) -> ReadControls {
        match &mut self.reading {
            Some(reading) => reading.await,
            None => std::future::pending().await,
        }
    }

    /// Takes over the controls that were read. Returns the version that is new.
    pub(crate) fn on_read(&mut self, read: ReadControls) -> Option<u64> {
        self.reading = None;
        match read.read {
            Ok(read_on) => {
                let (connection, controls) = *read_on;
                self.connection = Some(connection);
                self.looked_at = read.bumped;
                let is_new = controls.version != self.current.version;
                self.current = controls;
                is_new.then_some(self.current.version)
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "controls could not be read; trying again");
                None
            }
        }
    }
}

/// Reads the controls on this connection, or on a new one.
async fn read(
    redis: &Redis,
    connection: Option<Connection>,
) -> Result<Box<(Connection, OperatorControls)>, QueueError> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => redis.connect(Some(ANSWER_TIMEOUT)).await?,
    };
    let controls = controls::read(redis, &mut connection, ARCHIVE).await?;
    Ok(Box::new((connection, controls)))
}
