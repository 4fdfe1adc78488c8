//! Reads packs and chunks again, when a webhook of theirs has its turn, when the front of the main
//! stream moves, or when a lane's window is filled.

use std::sync::Arc;
use std::time::Duration;

use spillway_delivery::{ChunkFound, ChunkRead, Event, PackKey, PackRead, ReadAgain};
use spillway_queue::lane::{ChunkId, StoredChunk};
use spillway_queue::read::Reader;
use spillway_queue::{Connection, QueueError, Redis};
use spillway_service::error::chain;
use spillway_webhook::pack::Pack;
use spillway_webhook::{Chunk, StreamId};

use crate::content::PackBytes;
use crate::intake::decode_pack;
use crate::sort::Sorter;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Before Redis is asked again after it failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Something to read.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// A pack or chunk.
    Pack(PackKey),
    /// Packs at the front of the main stream.
    Front(Vec<StreamId>),
    /// Chunks of a lane, by the hash of the lane, the first number and how many.
    Chunks(u64, u32, u32),
    /// A pack of the main stream, for a lane.
    Rest(u64, StreamId),
}

/// Reads over one connection that all readers share.
pub struct Rereader {
    redis: Redis,
    reader: Reader,
    sorter: Sorter,
    connection: tokio::sync::Mutex<Option<Connection>>,
}

impl Rereader {
    /// Reads for `consumer`.
    pub fn new(redis: Redis, consumer: &str, sorter: Sorter) -> Self {
        let reader = Reader::new(redis.clone(), consumer);
        Self { redis, reader, sorter, connection: tokio::sync::Mutex::new(None) }
    }

    /// Reads what is wanted, trying until Redis answers.
    pub async fn read(&self, wanted: Wanted) -> Event<PackBytes> {
        loop {
            match self.try_read(&wanted).await {
                Ok(event) => return event,
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

    async fn try_read(&self, wanted: &Wanted) -> Result<Event<PackBytes>, QueueError> {
        let mut connection = self.connected().await?;
        match wanted {
            Wanted::Pack(key) => {
                let content = self.pack(&mut connection, *key).await?;
                Ok(Event::Read(*key, content))
            }
            Wanted::Front(entries) => {
                let mut packs = Vec::new();
                for entry in entries {
                    let Some(pack) = self.main(&mut connection, *entry).await? else { break };
                    packs.push(pack);
                }
                Ok(Event::FrontRead(packs))
            }
            Wanted::Chunks(lane, first, count) => {
                let ids = (*first..first + count).map(|number| ChunkId { lane: *lane, number });
                let ids: Vec<ChunkId> = ids.collect();
                let stored = self.reader.chunks(&mut connection, &ids).await?;
                let mut chunks = Vec::new();
                for (id, stored) in ids.iter().zip(stored) {
                    chunks.push(self.chunk(&mut connection, id.number, stored).await?);
                }
                Ok(Event::ChunksRead { lane: *lane, chunks })
            }
            Wanted::Rest(lane, entry) => {
                let pack = self.main(&mut connection, *entry).await?;
                Ok(Event::RestRead { lane: *lane, entry: *entry, pack })
            }
        }
    }

    async fn pack(
        &self,
        connection: &mut Connection,
        key: PackKey,
    ) -> Result<Option<ReadAgain<PackBytes>>, QueueError> {
        let mut positions = Vec::new();
        let pack = match key {
            PackKey::Main(entry) => {
                let bytes = self.reader.main_entry(connection, entry).await?;
                bytes.and_then(|bytes| Pack::decode(&bytes).ok())
            }
            PackKey::Replay(id) => {
                let bytes = self.reader.replay_entry(connection, id).await?;
                bytes.and_then(|bytes| Pack::decode(&bytes).ok())
            }
            PackKey::Chunk(lane, number) => {
                let found = self.reader.chunks(connection, &[ChunkId { lane, number }]).await?;
                let stored = found.into_iter().next().flatten();
                let chunk = stored.and_then(|stored| Chunk::decode(&stored.bytes).ok());
                chunk.map(|chunk| {
                    positions = chunk.positions;
                    chunk.pack
                })
            }
        };
        Ok(pack.map(|pack| ReadAgain { content: PackBytes(Arc::new(pack)), positions }))
    }

    async fn main(
        &self,
        connection: &mut Connection,
        entry: StreamId,
    ) -> Result<Option<PackRead<PackBytes>>, QueueError> {
        let bytes = self.reader.main_entry(connection, entry).await?;
        Ok(bytes.and_then(|bytes| decode_pack(&self.sorter, entry, &bytes, false).ok()))
    }

    async fn chunk(
        &self,
        connection: &mut Connection,
        number: u32,
        stored: Option<StoredChunk>,
    ) -> Result<ChunkFound<PackBytes>, QueueError> {
        let Some(StoredChunk { bytes, bits }) = stored else { return Ok(ChunkFound::Missing) };
        let Chunk { positions, pack } = match Chunk::decode(&bytes) {
            Ok(chunk) => chunk,
            Err(error) => {
                tracing::error!(number, error = chain(&error), "a chunk can't be decoded");
                return Ok(ChunkFound::Corrupt);
            }
        };
        let found = self.reader.retries(connection, &positions).await?;
        let retries = positions.iter().zip(found);
        let retries =
            retries.filter_map(|(position, found)| Some((*position, found?))).collect::<Vec<_>>();
        let records = (0..)
            .zip(&positions)
            .map(|(index, position)| {
                (*position, self.sorter.sort(&pack.record(index), *position, false))
            })
            .collect();
        Ok(ChunkFound::Read(ChunkRead {
            number,
            records,
            bits,
            retries: retries
                .into_iter()
                .map(|(position, (attempts, spent))| (position, attempts, spent))
                .collect(),
            content: PackBytes(Arc::new(pack)),
        }))
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
