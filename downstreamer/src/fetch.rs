//! Reads a pack again when a webhook of it has its turn.

use std::sync::Arc;
use std::time::Duration;

use spillway_queue::read::Reader;
use spillway_queue::{Connection, QueueError, Redis};
use spillway_service::error::chain;
use spillway_webhook::StreamId;
use spillway_webhook::pack::Pack;

use crate::index::{PackKey, Source};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// A pack that was read again; `None` if it is not there any more, or not as it was.
#[derive(Debug)]
pub struct Fetched {
    /// Its key in the index.
    pub key: PackKey,
    /// Its webhooks.
    pub pack: Option<Arc<Pack>>,
}

/// Reads packs again, over one connection that all readers share.
pub struct Fetcher {
    redis: Redis,
    reader: Reader,
    connection: tokio::sync::Mutex<Option<Connection>>,
}

impl Fetcher {
    /// Reads for `drain`.
    pub fn new(redis: Redis, drain: &str) -> Self {
        let reader = Reader::new(redis.clone(), drain);
        Self { redis, reader, connection: tokio::sync::Mutex::new(None) }
    }

    /// Reads the pack `id`, trying until Redis answers.
    pub async fn fetch(&self, key: PackKey, source: Source, id: StreamId) -> Fetched {
        loop {
            match self.read(source, id).await {
                Ok(None) => return Fetched { key, pack: None },
                Ok(Some(bytes)) => {
                    let pack = Pack::decode(&bytes).ok().map(Arc::new);
                    return Fetched { key, pack };
                }
                Err(error) => {
                    tracing::debug!(
                        error = chain(&error),
                        "reading a pack again failed; trying again"
                    );
                    self.connection.lock().await.take();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn read(&self, source: Source, id: StreamId) -> Result<Option<bytes::Bytes>, QueueError> {
        let mut connection = self.connected().await?;
        match source {
            Source::Main => self.reader.main_entry(&mut connection, id).await,
            Source::Parked => self.reader.parked_entry(&mut connection, id).await,
        }
    }

    /// A handle on the shared connection: requests on it are pipelined.
    async fn connected(&self) -> Result<Connection, QueueError> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = connection.as_ref() {
            return Ok(connection.clone());
        }
        let connected = self.redis.connect(Some(ANSWER_TIMEOUT)).await?;
        Ok(connection.insert(connected).clone())
    }
}
