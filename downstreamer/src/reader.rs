//! Reads packs and chunks that the core asks for: when one of their webhooks has its turn, when the front of the
//! main stream moves, or when a lane's window is filled.

mod request;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use spillway_delivery::{
    ChunkFound, ChunkRead, Classified, Content, Event, PackKey, PackRead, ReadAgain,
};
use spillway_process::error::chain;
use spillway_queue::lane::{ChunkId, StoredChunk};
use spillway_queue::read::StreamReader;
use spillway_queue::{Connection, QueueError, Redis};
use spillway_webhook::pack::{Pack, View};
use spillway_webhook::{Chunk, Position, StoredRetry, StreamId};
use tokio::time::Instant;

use crate::classify::Classifier;
use crate::content::PackBytes;
use crate::intake::decode_pack;

use request::FRONT_AT_ONCE;
pub(crate) use request::{ChunkRange, ReadRequest};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before Redis is asked again after a failure.
const PAUSE: Duration = Duration::from_millis(100);
/// Time after which a failing read is logged, and time between two such lines.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// Compressed bytes that are decoded before other tasks have their turn: about a millisecond.
const BYTES_AT_ONCE: usize = 128 << 10;
/// Approximate raw bytes of the front that one read returns.
const FRONT_BYTES: usize = 512 << 10;

/// Result of a read.
pub(crate) struct Read {
    /// Events of everything that was read.
    pub events: Vec<Event<PackBytes>>,
    /// Parts that failed. Each is to be read again separately.
    pub left: Vec<ReadRequest>,
}

/// Chunk with its bits, or the reason for which there is none.
type Decoded = Result<(Chunk, Vec<u8>), ChunkFound<PackBytes>>;

/// Retry state of a webhook, if it was tried.
type StoredRetryState = Option<StoredRetry>;

/// Reader with one connection that all reads share.
pub(crate) struct PackReader {
    redis: Redis,
    reader: StreamReader,
    classifier: Classifier,
    shared: tokio::sync::Mutex<ReaderConnection>,
    /// Number of tries to connect.
    tries: AtomicU64,
    /// Time at which a failing read was last logged.
    logged_at: Mutex<Option<Instant>>,
}

/// Shared connection, and its number.
#[derive(Default)]
struct ReaderConnection {
    connection: Option<Connection>,
    number: u64,
}

/// A read that failed.
enum Failed {
    /// There is no connection.
    Connection(QueueError),
    /// There is no connection, as another read has just found.
    Elsewhere,
    /// No answer, or an error.
    Answer {
        error: QueueError,
        /// Number of the connection.
        on: u64,
    },
}

impl PackReader {
    /// Reader for `consumer`.
    pub(crate) fn new(redis: Redis, consumer: &str, classifier: Classifier) -> Self {
        let reader = StreamReader::new(redis.clone(), consumer);
        let (shared, tries, logged_at) = Default::default();
        Self { redis, reader, classifier, shared, tries, logged_at }
    }

    /// Reads what is wanted, once Redis answers. Returns an event for each range of chunks, for
    /// each chunk that is read again, and for anything else. If Redis was reachable and did not
    /// answer, the read may have been too much. Then parts of it are left.
    pub(crate) async fn read(&self, mut request: ReadRequest) -> Read {
        let began = Instant::now();
        loop {
            let failed = match self.try_read(&request).await {
                Ok(events) => return Read { events, left: Vec::new() },
                Err(failed) => failed,
            };
            self.log_failure(&failed, began);
            self.end_connection(&failed).await;
            tokio::time::sleep(PAUSE).await;
            if failed.may_be_too_much() {
                let mut parts = request.halves();
                if parts.len() > 1 {
                    return Read { events: Vec::new(), left: parts };
                }
                request = parts.remove(0);
            }
        }
    }

    async fn try_read(&self, request: &ReadRequest) -> Result<Vec<Event<PackBytes>>, Failed> {
        let (mut connection, number) = self.connected().await?;
        let read = self.read_by(&mut connection, request).await;
        read.map_err(|error| Failed::Answer { error, on: number })
    }

    /// Logs a read that has failed for some time. All reads share the interval of these lines.
    fn log_failure(&self, failed: &Failed, began: Instant) {
        let (Failed::Connection(error) | Failed::Answer { error, .. }) = failed else { return };
        let error = chain(error);
        tracing::debug!(error, "reading what waits failed; trying again");
        let mut logged_at = self.logged_at.lock().unwrap_or_else(PoisonError::into_inner);
        if began.elapsed() >= LOG_EVERY && logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *logged_at = Some(Instant::now());
            let seconds = began.elapsed().as_secs();
            tracing::warn!(error, seconds, "what waits can't be read from redis; trying again");
        }
    }

    async fn read_by(
        &self,
        connection: &mut Connection,
        request: &ReadRequest,
    ) -> Result<Vec<Event<PackBytes>>, QueueError> {
        match request {
            ReadRequest::Main(entry) => {
                let bytes = self.reader.main_entry(connection, *entry).await?;
                Ok(vec![Event::Read(PackKey::Main(*entry), pack_again(bytes))])
            }
            ReadRequest::Replay(id) => {
                let bytes = self.reader.replay_entry(connection, *id).await?;
                Ok(vec![Event::Read(PackKey::Replay(*id), pack_again(bytes))])
            }
            ReadRequest::ChunksAgain(ids) => {
                let decoded = self.decoded(connection, ids).await?;
                Ok(ids.iter().zip(decoded).map(|(id, decoded)| chunk_again(*id, decoded)).collect())
            }
            ReadRequest::Front(entries) => {
                Ok(vec![Event::FrontRead(self.front(connection, entries).await?)])
            }
            ReadRequest::Chunks(ranges) => self.chunks(connection, ranges).await,
            ReadRequest::Rest(lane, entry) => {
                let pack = self.main(connection, *entry).await?;
                Ok(vec![Event::RestRead { lane: *lane, entry: *entry, pack }])
            }
        }
    }

    /// Packs from the first of `entries` up to one that is missing, or until they suffice for one
    /// settlement.
    async fn front(
        &self,
        connection: &mut Connection,
        entries: &[StreamId],
    ) -> Result<Vec<PackRead<PackBytes>>, QueueError> {
        let mut packs = Vec::new();
        let mut bytes = 0;
        for part in entries.chunks(FRONT_AT_ONCE) {
            for found in self.reader.main_entries(connection, part).await? {
                let pack = found.and_then(|entry| {
                    decode_pack(&self.classifier, entry.id, &entry.pack, false).ok()
                });
                let Some(pack) = pack else { return Ok(packs) };
                bytes += pack.content.raw_bytes();
                packs.push(pack);
                if bytes >= FRONT_BYTES {
                    return Ok(packs);
                }
            }
            tokio::task::yield_now().await;
        }
        Ok(packs)
    }

    async fn main(
        &self,
        connection: &mut Connection,
        entry: StreamId,
    ) -> Result<Option<PackRead<PackBytes>>, QueueError> {
        let bytes = self.reader.main_entry(connection, entry).await?;
        Ok(bytes.and_then(|bytes| decode_pack(&self.classifier, entry, &bytes, false).ok()))
    }

    /// Chunks with their bits, or the reasons for which there are none, in one round trip.
    async fn decoded(
        &self,
        connection: &mut Connection,
        ids: &[ChunkId],
    ) -> Result<Vec<Decoded>, QueueError> {
        let stored = self.reader.chunks(connection, ids).await?;
        let mut decoded = Vec::new();
        let mut since = 0;
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
        let retries = self.reader.retries(connection, &positions).await?;
        let classify =
            |webhook: &View<'_>, position| self.classifier.classify(webhook, position, false);
        Ok(chunks_read(ranges, decoded, retries, classify))
    }

    /// Handle of the shared connection, on which requests are pipelined. If there is none, the
    /// first of those that wait connects.
    async fn connected(&self) -> Result<(Connection, u64), Failed> {
        let tries = self.tries.load(Ordering::Relaxed);
        let mut shared = self.shared.lock().await;
        if shared.connection.is_none() {
            if self.tries.load(Ordering::Relaxed) != tries {
                return Err(Failed::Elsewhere);
            }
            let connected = self.redis.connect(Some(ANSWER_TIMEOUT)).await;
            self.tries.fetch_add(1, Ordering::Relaxed);
            let connection = Some(connected.map_err(Failed::Connection)?);
            *shared = ReaderConnection { connection, number: shared.number + 1 };
        }
        let connection = shared.connection.clone().expect("BUG: it was just made");
        Ok((connection, shared.number))
    }

    /// Ends the shared connection if it is the one that failed. Keeps it if Redis is still loading:
    /// another connection would not help.
    async fn end_connection(&self, failed: &Failed) {
        let Failed::Answer { error, on } = failed else { return };
        let mut shared = self.shared.lock().await;
        if *on == shared.number && !matches!(error, QueueError::Loading) {
            shared.connection = None;
        }
    }
}

impl Failed {
    /// Returns true if a smaller read may succeed: Redis was reachable, and did not answer.
    fn may_be_too_much(&self) -> bool {
        matches!(self, Self::Answer { error: QueueError::Unreachable(_), .. })
    }
}

/// Makes an event for each range, from its chunks and the retry state of each of their webhooks.
/// All are in the order of the ranges.
fn chunks_read(
    ranges: &[ChunkRange],
    decoded: Vec<Decoded>,
    retries: Vec<StoredRetryState>,
    classify: impl Fn(&View<'_>, Position) -> Classified,
) -> Vec<Event<PackBytes>> {
    let mut retries = retries.into_iter();
    let ids = ranges.iter().flat_map(ChunkRange::ids);
    let mut found = ids.zip(decoded).map(|(id, decoded)| match decoded {
        Ok((chunk, bits)) => {
            let retries = retries.by_ref().take(chunk.positions.len()).collect();
            ChunkFound::Read(chunk_read(id.number, chunk, bits, retries, &classify))
        }
        Err(unread) => unread,
    });
    let events = ranges.iter().map(|range| Event::ChunksRead {
        lane: range.lane,
        chunks: found.by_ref().take(range.count as usize).collect(),
    });
    events.collect()
}

fn chunk_read(
    number: u32,
    Chunk { positions, pack }: Chunk,
    bits: Vec<u8>,
    retries: Vec<StoredRetryState>,
    classify: impl Fn(&View<'_>, Position) -> Classified,
) -> ChunkRead<PackBytes> {
    let states = positions.iter().zip(retries);
    let retries =
        states.filter_map(|(position, state)| state.map(|state| (*position, state))).collect();
    let records = (0..)
        .zip(&positions)
        .map(|(index, position)| (*position, classify(&pack.view(index), *position)))
        .collect();
    ChunkRead { number, records, bits, retries, content: PackBytes(Arc::new(pack)) }
}

fn chunk_again(id: ChunkId, decoded: Decoded) -> Event<PackBytes> {
    let again = decoded.ok().map(|(Chunk { positions, pack }, _)| ReadAgain {
        content: PackBytes(Arc::new(pack)),
        positions,
    });
    Event::Read(PackKey::Chunk(id.lane, id.number), again)
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

#[cfg(test)]
mod tests {
    use spillway_delivery::{Class, StateRole};
    use spillway_webhook::Webhook;
    use spillway_webhook::pack::{Packer, Records};

    use super::*;

    fn at(ms: u64) -> Position {
        Position { ms, seq: 0, index: 0 }
    }

    /// Chunk whose webhooks were accepted at `times`. Each has its time also as its position and
    /// body.
    fn chunk_of(times: &[u64]) -> Decoded {
        let mut records = Records::default();
        for ms in times {
            records.push(&Webhook {
                received_at_ms: *ms,
                target: "/".parse().expect("a path"),
                headers: http::HeaderMap::new(),
                body: ms.to_string().into(),
            });
        }
        let pack = Pack::decode(Packer::new().pack(&records)).expect("what was packed decodes");
        let bits = times.iter().map(|ms| *ms as u8).collect();
        Ok((Chunk { positions: times.iter().map(|ms| at(*ms)).collect(), pack }, bits))
    }

    /// Classifies a webhook with its time as the resource.
    fn by_time(webhook: &View<'_>, position: Position) -> Classified {
        assert_eq!(webhook.received_at_ms, position.ms);
        Classified {
            resource: position.ms,
            lane: 0,
            shop: 0,
            class: Class::Rest,
            is_barrier: false,
            coalesces: 0,
            role: StateRole::None,
            fingerprint: None,
            expires_at_ms: None,
            is_excluded: false,
        }
    }

    fn times(read: &ChunkRead<PackBytes>) -> Vec<u64> {
        read.records
            .iter()
            .map(|(at, classified)| {
                assert_eq!(at.ms, classified.resource);
                at.ms
            })
            .collect()
    }

    #[test]
    fn each_range_gets_its_chunks_and_each_webhook_its_retry_state() {
        let range = |lane, first, count| ChunkRange { lane, first, count };
        let ranges = [range(7, 4, 3), range(8, 1, 1), range(9, 2, 2)];
        let decoded = vec![
            chunk_of(&[1, 2]),
            Err(ChunkFound::Missing),
            chunk_of(&[3]),
            Err(ChunkFound::Corrupt),
            chunk_of(&[4, 5, 6]),
            chunk_of(&[7]),
        ];
        let spent = Duration::from_millis;
        let retry = |ms: u32| {
            let spent = spent(u64::from(ms));
            StoredRetry { attempts: ms, spent, ..StoredRetry::default() }
        };
        let tried = |ms: u32| (ms.is_multiple_of(2) || ms == 7).then(|| retry(ms));
        let events = chunks_read(&ranges, decoded, (1..=7).map(tried).collect(), by_time);
        let mut found = Vec::new();
        for event in events {
            let Event::ChunksRead { lane, chunks } = event else { panic!("{event:?}") };
            for chunk in chunks {
                found.push(match chunk {
                    ChunkFound::Read(read) => {
                        let bits: Vec<u8> = times(&read).iter().map(|ms| *ms as u8).collect();
                        assert_eq!(read.bits, bits);
                        let held = read.content.0.count() as usize;
                        assert_eq!(held, bits.len());
                        for (position, retry) in &read.retries {
                            assert_eq!(position.ms, u64::from(retry.attempts));
                            assert_eq!(retry.spent, spent(position.ms));
                        }
                        let retried = read.retries.iter().map(|(at, _)| at.ms).collect();
                        (lane, Some(read.number), times(&read), retried)
                    }
                    ChunkFound::Missing => (lane, None, vec![], vec![]),
                    ChunkFound::Corrupt => (lane, None, vec![0], vec![]),
                });
            }
        }
        let expected = [
            (7, Some(4), vec![1, 2], vec![2]),
            (7, None, vec![], vec![]),
            (7, Some(6), vec![3], vec![]),
            (8, None, vec![0], vec![]),
            (9, Some(2), vec![4, 5, 6], vec![4, 6]),
            (9, Some(3), vec![7], vec![7]),
        ];
        assert_eq!(found, expected);
    }
}
