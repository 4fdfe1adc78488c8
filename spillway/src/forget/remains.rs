//! Bytes of somebody who is meant that are still in Redis. A webhook that is settled stays in its pack, or in its
//! chunk, until the whole of it is freed.

use std::time::{Duration, Instant};

use spillway_queue::lane::ChunkId;
use spillway_queue::read::StreamReader;
use spillway_queue::redactions::{corrupt_keys, corrupt_value};
use spillway_queue::status::ConsumerStatus;
use spillway_queue::{Connection, Redis};
use spillway_webhook::pack::Pack;
use spillway_webhook::{Chunk, StreamId};

use super::order::PurgeOrders;
use crate::failure::Failure;
use crate::out::count;

/// Bytes of packs that are read at a time.
const PAGE_BYTES: usize = 4 << 20;
/// Chunks that are read at a time: at most a megabyte each, before compression.
const CHUNKS: usize = 16;
/// Shortest pause between two looks.
const PAUSE: Duration = Duration::from_millis(250);

/// Look at what is left.
pub(super) struct RemainsLook<'a> {
    /// Redis of the cell.
    pub redis: &'a Redis,
    /// Connection to it.
    pub connection: &'a mut Connection,
    /// Registered consumers.
    pub consumers: &'a [ConsumerStatus],
    /// Orders, which say who is meant.
    pub orders: &'a PurgeOrders,
    /// Time for which it looks again.
    pub patience: Duration,
}

impl RemainsLook<'_> {
    /// Waits until nothing is left. Returns what is left after a while, as sentences.
    pub(super) async fn wait(&mut self) -> Result<Vec<String>, Failure> {
        let began = Instant::now();
        loop {
            let looked = Instant::now();
            let left = self.look().await?;
            // A look reads much of Redis, if much waits.
            let pause = PAUSE.max(2 * looked.elapsed());
            if left.is_empty() || began.elapsed() + pause > self.patience {
                return Ok(left);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn look(&mut self) -> Result<Vec<String>, Failure> {
        let mut left = Vec::new();
        let main = self.main().await?;
        if main > 0 {
            left.push(format!(
                "{} in the main stream, until each consumer has settled its pack: see `spillway consumers`",
                count(main, "webhook"),
            ));
        }
        for consumer in self.consumers {
            let reader = StreamReader::new(self.redis.clone(), &consumer.name);
            let replays = self.replays(&reader).await?;
            let lanes = match consumer.has_lanes() {
                true => self.lanes(&reader).await?,
                false => 0,
            };
            for (number, place) in [(replays, "replays"), (lanes, "lanes")] {
                if number > 0 {
                    let leader =
                        if consumer.leader.is_some() { "" } else { ", which has no leader" };
                    left.push(format!(
                        "{} in {place} of {}{leader}",
                        count(number, "webhook"),
                        consumer.name
                    ));
                }
            }
        }
        Ok(left)
    }

    async fn main(&mut self) -> Result<u64, Failure> {
        let reader = StreamReader::new(self.redis.clone(), "");
        // A redaction that was sent twice may stand after the one that is carried out.
        let mut until = None;
        let mut after = StreamId::ZERO;
        let mut found = 0;
        loop {
            let page = reader.main_after(self.connection, after, PAGE_BYTES).await?;
            let Some(newest) = page.last() else { return Ok(found) };
            after = newest.id;
            let last = match until {
                Some(last) => last,
                None => *until.insert(reader.last(self.connection).await?),
            };
            for entry in page.iter().take_while(|entry| entry.id <= last) {
                found += self.in_pack(&entry.pack, |index| (entry.id, index));
            }
            if after >= last {
                return Ok(found);
            }
        }
    }

    async fn replays(&mut self, reader: &StreamReader) -> Result<u64, Failure> {
        let mut after = StreamId::ZERO;
        let mut found = 0;
        loop {
            let page = reader.replays_after(self.connection, after, PAGE_BYTES).await?;
            let Some(newest) = page.last() else { return Ok(found) };
            after = newest.id;
            for replay in &page {
                let webhook = replay.webhook;
                found += self.in_pack(&replay.pack, |_| (webhook.entry, webhook.index));
            }
        }
    }

    async fn lanes(&mut self, reader: &StreamReader) -> Result<u64, Failure> {
        let mut rows = reader.lane_rows(self.connection).await?;
        rows.retain(|row| self.orders.may_mean(row.shop.as_bytes()));
        let ids = rows.iter().flat_map(|row| {
            (row.first_chunk..=row.last_chunk).map(|number| ChunkId { lane: row.lane, number })
        });
        let ids: Vec<ChunkId> = ids.collect();
        let mut found = 0;
        for page in ids.chunks(CHUNKS) {
            let chunks = reader.chunks(self.connection, page).await?;
            found += chunks.iter().flatten().map(|chunk| self.in_chunk(&chunk.bytes)).sum::<u64>();
        }
        Ok(found)
    }

    /// Webhooks of a pack, whose positions `position` gives by their index.
    fn in_pack(&self, bytes: &[u8], position: impl Fn(u32) -> (StreamId, u32)) -> u64 {
        let Ok(pack) = Pack::decode(bytes) else {
            return u64::from(self.orders.is_shown_by(bytes));
        };
        let is_meant = |index: &u32| {
            let (entry, place) = position(*index);
            self.orders.is_meant(entry, place, &pack.view(*index))
        };
        (0..pack.count()).filter(is_meant).map(|_| 1).sum()
    }

    fn in_chunk(&self, bytes: &[u8]) -> u64 {
        let Ok(Chunk { positions, pack }) = Chunk::decode(bytes) else {
            return u64::from(self.orders.is_shown_by(bytes));
        };
        let webhooks = (0..pack.count()).zip(&positions);
        let meant = webhooks.filter(|(index, position)| {
            self.orders.is_meant(position.entry(), position.index, &pack.view(*index))
        });
        meant.map(|_| 1).sum()
    }
}

/// Number of packs that were set aside and show somebody who is meant.
pub(super) async fn corrupt(
    redis: &Redis,
    connection: &mut Connection,
    orders: &PurgeOrders,
) -> Result<u64, Failure> {
    let mut found = 0;
    for key in corrupt_keys(redis, connection).await? {
        let value = corrupt_value(connection, &key).await?;
        found += u64::from(value.is_some_and(|value| orders.is_shown_by(&value)));
    }
    Ok(found)
}
