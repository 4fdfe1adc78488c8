//! Reads packs and chunks again, when a webhook of theirs has its turn, when the front of the main
//! stream moves, or when a lane's window is filled.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use spillway_delivery::{ChunkFound, ChunkRead, Event, PackKey, PackRead, ReadAgain};
use spillway_queue::lane::{ChunkId, StoredChunk};
use spillway_queue::read::Reader;
use spillway_queue::{Connection, QueueError, Redis};
use spillway_service::error::chain;
use spillway_webhook::pack::Pack;
use spillway_webhook::{Chunk, Position, StreamId};

use crate::content::PackBytes;
use crate::intake::decode_pack;
use crate::sort::Sorter;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Before Redis is asked again after it failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Retry states that are asked for in one command: it holds Redis for as long as it takes.
const RETRIES_AT_ONCE: usize = 1_024;
/// Compressed bytes that are decoded before other tasks have their turn: about a millisecond.
const BYTES_AT_ONCE: usize = 128 << 10;

/// Something to read.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// A pack of the main stream.
    Main(StreamId),
    /// A replay.
    Replay(StreamId),
    /// Chunks whose webhooks have their turn.
    ChunksAgain(Vec<ChunkId>),
    /// Packs at the front of the main stream.
    Front(Vec<StreamId>),
    /// Chunks of some lanes.
    Chunks(Vec<ChunkRange>),
    /// A pack of the main stream, for a lane.
    Rest(u64, StreamId),
}

/// Chunks of one lane.
#[derive(Debug, Clone, Copy)]
pub struct ChunkRange {
    /// Hash of the lane.
    pub lane: u64,
    /// Number of the first one.
    pub first: u32,
    /// Number of chunks.
    pub count: u32,
}

/// Result of a read.
pub struct Read {
    /// Events of everything that was read.
    pub events: Vec<Event<PackBytes>>,
    /// Parts that failed: to be read again, each by itself.
    pub left: Vec<Wanted>,
}

/// A chunk with its bits, or why there is none.
type Decoded = Result<(Chunk, Vec<u8>), ChunkFound<PackBytes>>;

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

    /// Reads what is wanted, if Redis answers: an event for each range of chunks, for each chunk that is
    /// read again, and for anything else.
    pub async fn read(&self, wanted: Wanted) -> Read {
        match self.try_read(&wanted).await {
            Ok(events) => Read { events, left: Vec::new() },
            Err(error) => {
                tracing::debug!(error = chain(&error), "reading a pack again failed; trying again");
                self.connection.lock().await.take();
                tokio::time::sleep(PAUSE).await;
                // It may have been too much for one answer in time.
                Read { events: Vec::new(), left: wanted.halves() }
            }
        }
    }

    async fn try_read(&self, wanted: &Wanted) -> Result<Vec<Event<PackBytes>>, QueueError> {
        let mut connection = self.connected().await?;
        match wanted {
            Wanted::Main(entry) => {
                let bytes = self.reader.main_entry(&mut connection, *entry).await?;
                Ok(vec![Event::Read(PackKey::Main(*entry), pack_again(bytes))])
            }
            Wanted::Replay(id) => {
                let bytes = self.reader.replay_entry(&mut connection, *id).await?;
                Ok(vec![Event::Read(PackKey::Replay(*id), pack_again(bytes))])
            }
            Wanted::ChunksAgain(ids) => {
                let decoded = self.decoded(&mut connection, ids).await?;
                let again = ids.iter().zip(decoded).map(|(id, decoded)| {
                    let again = decoded.ok().map(|(Chunk { positions, pack }, _)| ReadAgain {
                        content: PackBytes(Arc::new(pack)),
                        positions,
                    });
                    Event::Read(PackKey::Chunk(id.lane, id.number), again)
                });
                Ok(again.collect())
            }
            Wanted::Front(entries) => {
                let mut packs = Vec::new();
                for entry in entries {
                    let Some(pack) = self.main(&mut connection, *entry).await? else { break };
                    packs.push(pack);
                }
                Ok(vec![Event::FrontRead(packs)])
            }
            Wanted::Chunks(ranges) => self.chunks(&mut connection, ranges).await,
            Wanted::Rest(lane, entry) => {
                let pack = self.main(&mut connection, *entry).await?;
                Ok(vec![Event::RestRead { lane: *lane, entry: *entry, pack }])
            }
        }
    }

    async fn main(
        &self,
        connection: &mut Connection,
        entry: StreamId,
    ) -> Result<Option<PackRead<PackBytes>>, QueueError> {
        let bytes = self.reader.main_entry(connection, entry).await?;
        Ok(bytes.and_then(|bytes| decode_pack(&self.sorter, entry, &bytes, false).ok()))
    }

    /// Chunks with their bits, or why there is none, in one round trip.
    async fn decoded(
        &self,
        connection: &mut Connection,
        ids: &[ChunkId],
    ) -> Result<Vec<Decoded>, QueueError> {
        let stored = self.reader.chunks(connection, ids).await?;
        let (mut decoded, mut since) = (Vec::new(), 0);
        for (id, stored) in ids.iter().zip(stored) {
            since += stored.as_ref().map_or(0, |stored| stored.bytes.len());
            decoded.push(decode_chunk(*id, stored));
            if since >= BYTES_AT_ONCE {
                since = 0;
                tokio::task::yield_now().await;
            }
        }
        Ok(decoded)
    }

    /// The chunks of all ranges, in two round trips.
    async fn chunks(
        &self,
        connection: &mut Connection,
        ranges: &[ChunkRange],
    ) -> Result<Vec<Event<PackBytes>>, QueueError> {
        let ids: Vec<ChunkId> = ranges.iter().flat_map(ChunkRange::ids).collect();
        let decoded = self.decoded(connection, &ids).await?;
        let positions: Vec<Position> =
            decoded.iter().flatten().flat_map(|(chunk, _)| &chunk.positions).copied().collect();
        let mut retries = Vec::new();
        for some in positions.chunks(RETRIES_AT_ONCE) {
            retries.extend(self.reader.retries(connection, some).await?);
        }
        let mut retries = retries.into_iter();
        let mut found = ids.iter().zip(decoded).map(|(id, decoded)| match decoded {
            Ok((chunk, bits)) => {
                let retries = retries.by_ref().take(chunk.positions.len());
                ChunkFound::Read(self.chunk(id.number, chunk, bits, retries))
            }
            Err(unread) => unread,
        });
        let events = ranges.iter().map(|range| Event::ChunksRead {
            lane: range.lane,
            chunks: found.by_ref().take(range.count as usize).collect(),
        });
        Ok(events.collect())
    }

    fn chunk(
        &self,
        number: u32,
        Chunk { positions, pack }: Chunk,
        bits: Vec<u8>,
        retries: impl Iterator<Item = Option<(u32, Duration)>>,
    ) -> ChunkRead<PackBytes> {
        let retries = positions
            .iter()
            .zip(retries)
            .filter_map(|(position, found)| found.map(|(number, spent)| (*position, number, spent)))
            .collect();
        let records = (0..)
            .zip(&positions)
            .map(|(index, position)| {
                (*position, self.sorter.sort(&pack.record(index), *position, false))
            })
            .collect();
        ChunkRead { number, records, bits, retries, content: PackBytes(Arc::new(pack)) }
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

impl Wanted {
    /// The same in two parts, if it is of several chunks.
    fn halves(self) -> Vec<Self> {
        match self {
            Self::Chunks(ranges) if ranges.len() > 1 => {
                let (first, second) = ranges.split_at(ranges.len() / 2);
                vec![Self::Chunks(first.to_vec()), Self::Chunks(second.to_vec())]
            }
            Self::ChunksAgain(ids) if ids.len() > 1 => {
                let (first, second) = ids.split_at(ids.len() / 2);
                vec![Self::ChunksAgain(first.to_vec()), Self::ChunksAgain(second.to_vec())]
            }
            other => vec![other],
        }
    }
}

impl ChunkRange {
    fn ids(&self) -> impl Iterator<Item = ChunkId> + use<> {
        let lane = self.lane;
        (self.first..self.first + self.count).map(move |number| ChunkId { lane, number })
    }
}

fn pack_again(bytes: Option<Bytes>) -> Option<ReadAgain<PackBytes>> {
    let pack = bytes.and_then(|bytes| Pack::decode(&bytes).ok())?;
    Some(ReadAgain { content: PackBytes(Arc::new(pack)), positions: Vec::new() })
}

fn decode_chunk(id: ChunkId, stored: Option<StoredChunk>) -> Decoded {
    let Some(StoredChunk { bytes, bits }) = stored else { return Err(ChunkFound::Missing) };
    match Chunk::decode(&bytes) {
        Ok(chunk) => Ok((chunk, bits)),
        Err(error) => {
            tracing::error!(chunk = %id, error = chain(&error), "a chunk can't be decoded");
            Err(ChunkFound::Corrupt)
        }
    }
}
