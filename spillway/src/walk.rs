//! Walks over the waiting webhooks of a consumer without changing them.
//!
//! Packs are fetched a page at a time and decoded on all cores. The results come back in the order of the packs.
//! Redis determines what waits when the walk begins: webhooks settled during the walk are still visited, packs
//! appended later are not. Memory is bounded: only a few packs are held at a time.

pub(crate) mod cursor;
pub(crate) mod page;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use spillway_queue::controls::{self, Dropping, Filter, WebhookFacts, is_set};
use spillway_queue::lane::{ChunkId, LaneRow, StoredChunk};
use spillway_queue::read::{ConsumerProgress, Entry, Replay, StreamReader};
use spillway_queue::{Connection, QueueError, Redis, consumers, status};
use spillway_webhook::pack::{Pack, View};
use spillway_webhook::received::APP_HEADER;
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{Chunk, Position, StreamId, WebhookId};
use tokio::task::JoinHandle;

use crate::failure::Failure;
use crate::place::{CellArgs, is_first, unknown};
use cursor::WaitCursor;

/// Bytes read at a time.
const PAGE_BYTES: usize = 4 << 20;
/// Chunks of lanes in the first page. Each has up to a megabyte before compression.
const CHUNKS_AT_FIRST: usize = 16;
/// Maximum number of chunks in one page. It bounds how long one command blocks Redis.
const CHUNKS_MAX: usize = 512;

/// The waiting webhooks of one consumer.
pub(crate) struct Waiting {
    reader: StreamReader,
    connection: Connection,
    /// Redis of the cell.
    pub redis: Redis,
    /// Name of the consumer.
    pub consumer: String,
    facts: Arc<WaitFacts>,
    /// Id of the newest pack.
    pub last: StreamId,
    /// Number of packs in the main stream, including those that wait only for other consumers.
    pub packs: u64,
    /// Number of waiting webhooks as the consumer counts them, including those outside the main
    /// stream.
    pub count: u64,
    /// False before the first consumer of the cell is registered.
    pub is_registered: bool,
}

/// State that decides if a webhook waits.
#[derive(Default)]
struct WaitFacts {
    cell: u32,
    progress: ConsumerProgress,
    dropping: Dropping,
}

/// A waiting webhook.
pub(crate) struct Met<'a> {
    /// Spillway-Id.
    pub id: WebhookId,
    /// The stored bytes.
    pub view: View<'a>,
    /// Set if it waits outside the main stream.
    pub aside: Option<Aside>,
    /// Position after it in a list that is read in pages.
    pub cursor: WaitCursor,
}

/// State of a webhook outside the main stream: in the lane of its shop and kind, or to be replayed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Aside {
    /// Attempts made.
    pub attempts: u32,
    /// Id of its entry among the replays, if it is one.
    pub replay: Option<StreamId>,
}

/// A chunk of a lane, not yet decoded.
pub(crate) struct LaneChunk {
    id: ChunkId,
    stored: StoredChunk,
    /// Attempts made for each webhook.
    attempts: Vec<u32>,
}

/// A pack and the state to find its waiting webhooks.
pub(crate) struct Look<'a> {
    facts: &'a WaitFacts,
    pack: &'a Pack,
    from: From<'a>,
}

#[derive(Clone, Copy)]
enum From<'a> {
    Main(StreamId),
    Replay(&'a Replay),
    Lane(&'a LaneChunk, &'a [Position]),
}

/// One or more packs, not yet decoded.
pub(crate) enum Fetched {
    /// Packs of the main stream.
    Main(Vec<Entry>),
    /// Packs of the replays.
    Replays(Vec<Replay>),
    /// Chunks of lanes.
    Chunks(Vec<LaneChunk>),
}

/// Decodes and inspects packs on all cores. Results come in the order in which the work was begun.
pub(crate) struct PackInspector<T, L> {
    facts: Arc<WaitFacts>,
    look: Arc<L>,
    /// Number of packs, or pages of packs, that should be under way.
    pub cores: usize,
    begun: VecDeque<JoinHandle<Vec<T>>>,
}

impl Waiting {
    /// Reads what waits for `consumer` now.
    pub(crate) async fn for_consumer(place: &CellArgs, consumer: &str) -> Result<Self, Failure> {
        let (redis, mut connection) = place.connect().await?;
        let reader = StreamReader::new(redis.clone(), consumer);
        let status = status::read(&redis, &mut connection).await?;
        let known = status.consumers.iter().find(|known| known.name == consumer);
        if known.is_none() && !is_first(consumer, &status) {
            return Err(unknown(consumer, &status));
        }
        let progress = match reader.progress(&mut connection).await {
            // It will begin at the oldest entry.
            Err(QueueError::Unregistered) if known.is_none() => ConsumerProgress::default(),
            Err(QueueError::Unregistered) => return Err(unknown(consumer, &status)),
            progress => progress?,
        };
        let dropping = controls::read(&redis, &mut connection, consumer).await?.dropping;
        let cell = consumers::cell(&redis, &mut connection).await?.unwrap_or_default();
        let packs = status.queue.packs;
        // The stream exists from the first pack or consumer on.
        let last = match known.is_none() && packs == 0 {
            true => StreamId::ZERO,
            false => reader.last(&mut connection).await?,
        };
        let count = known.map_or(status.queue.webhooks, |known| known.waiting);
        let is_registered = known.is_some();
        let facts = Arc::new(WaitFacts { cell, progress, dropping });
        let consumer = consumer.to_owned();
        Ok(Self { reader, connection, redis, consumer, facts, last, packs, count, is_registered })
    }

    /// The connection to Redis.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Random id of the cell.
    pub(crate) fn cell(&self) -> u32 {
        self.facts.cell
    }

    /// The cursor: the consumer has settled everything up to it.
    pub(crate) fn cursor(&self) -> StreamId {
        self.facts.progress.cursor
    }

    /// Id of the first pack after the cursor, if there is one.
    pub(crate) async fn first(&mut self) -> Result<Option<StreamId>, Failure> {
        let page =
            self.reader.main_after(&mut self.connection, self.facts.progress.cursor, 1).await?;
        Ok(page.first().map(|entry| entry.id).filter(|id| *id <= self.last))
    }

    /// Calls `look` on the packs outside the main stream, and `each` on its results: replays, then
    /// `lanes`, until `each` breaks.
    pub(crate) async fn aside<T: Send + 'static>(
        &mut self,
        lanes: &[LaneRow],
        look: impl Fn(&Look<'_>) -> T + Send + Sync + 'static,
        mut each: impl FnMut(T) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let mut looks = self.looks(look);
        let mut after = StreamId::ZERO;
        loop {
            let reader = &self.reader;
            let connection = &mut self.connection;
            let page = reader.replays_after(connection, after, PAGE_BYTES).await?;
            let Some(last) = page.last() else { break };
            after = last.id;
            looks.begin(Fetched::Replays(page));
            if looks.tell(0, &mut each).await?.is_break() {
                return Ok(());
            }
        }
        let ids = lanes.iter().flat_map(|row| {
            (row.first_chunk..=row.last_chunk).map(|number| ChunkId { lane: row.lane, number })
        });
        let ids: Vec<ChunkId> = ids.collect();
        let mut left = ids.as_slice();
        let mut at_once = CHUNKS_AT_FIRST;
        while !left.is_empty() {
            let (page, rest) = left.split_at(at_once.min(left.len()));
            left = rest;
            let chunks = self.chunks(page).await?;
            // A page holds many small chunks: the round trips would take most of the time.
            let bytes: usize = chunks.iter().map(|chunk| chunk.stored.bytes.len()).sum();
            let fitting = page.len() * PAGE_BYTES / bytes.max(1);
            at_once = fitting.clamp(1, CHUNKS_MAX.min(2 * page.len()));
            looks.begin(Fetched::Chunks(chunks));
            if looks.tell(looks.cores, &mut each).await?.is_break() {
                return Ok(());
            }
        }
        looks.tell(0, &mut each).await.map(|_| ())
    }

    /// Lanes that may hold matching webhooks outside the main stream.
    pub(crate) async fn lanes(&mut self, filter: &Filter) -> Result<Vec<LaneRow>, Failure> {
        let mut rows = self.reader.lane_rows(&mut self.connection).await?;
        rows.retain(|row| may_hold(row, filter));
        Ok(rows)
    }

    /// Chunks that still exist, with the attempts of their webhooks.
    async fn chunks(&mut self, ids: &[ChunkId]) -> Result<Vec<LaneChunk>, Failure> {
        let stored = self.reader.chunks(&mut self.connection, ids).await?;
        let stored = ids.iter().zip(stored);
        let stored: Vec<_> = stored.filter_map(|(id, found)| Some((*id, found?))).collect();
        let positions = stored
            .iter()
            .map(|(_, stored)| Chunk::decode_positions(&stored.bytes).unwrap_or_default());
        let positions: Vec<Vec<Position>> = positions.collect();
        let retries = self.reader.retries(&mut self.connection, &positions.concat()).await?;
        let mut attempts = retries.into_iter().map(|known| known.map_or(0, |known| known.attempts));
        let chunks = stored.into_iter().zip(positions).map(|((id, stored), positions)| LaneChunk {
            id,
            stored,
            attempts: attempts.by_ref().take(positions.len()).collect(),
        });
        Ok(chunks.collect())
    }

    /// Does the same for the main stream.
    pub(crate) async fn main<T: Send + 'static>(
        &mut self,
        look: impl Fn(&Look<'_>) -> T + Send + Sync + 'static,
        mut each: impl FnMut(T) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let mut looks = self.looks(look);
        let mut after = self.cursor();
        loop {
            let mut page = self.reader.main_after(&mut self.connection, after, PAGE_BYTES).await?;
            page.retain(|entry| entry.id <= self.last);
            let ahead = if page.is_empty() { 0 } else { looks.cores };
            if let Some(last) = page.last() {
                after = last.id;
                looks.begin(Fetched::Main(page));
            }
            if looks.tell(ahead, &mut each).await?.is_break() || ahead == 0 {
                return Ok(());
            }
        }
    }

    /// Does the same for one pack of the main stream, if it still exists.
    pub(crate) async fn pack<T: Send + 'static>(
        &mut self,
        id: StreamId,
        look: impl Fn(&Look<'_>) -> T + Send + Sync + 'static,
        mut each: impl FnMut(T) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let mut looks = self.looks(look);
        for entries in self.fronts(&[(id, id, 1)]).await? {
            looks.begin(Fetched::Main(entries));
        }
        looks.tell(0, &mut each).await.map(|_| ())
    }

    /// Reads the first packs of each span (first id, last id, number) in one round trip.
    pub(crate) async fn fronts(
        &mut self,
        spans: &[(StreamId, StreamId, usize)],
    ) -> Result<Vec<Vec<Entry>>, Failure> {
        Ok(self.reader.main_fronts(&mut self.connection, spans).await?)
    }

    /// Prepares to call `look` on fetched packs.
    pub(crate) fn looks<T: Send + 'static, L>(&self, look: L) -> PackInspector<T, L>
    where
        L: Fn(&Look<'_>) -> T + Send + Sync + 'static,
    {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let facts = self.facts.clone();
        let look = Arc::new(look);
        PackInspector { facts, look, cores, begun: VecDeque::new() }
    }
}

impl<T: Send + 'static, L: Fn(&Look<'_>) -> T + Send + Sync + 'static> PackInspector<T, L> {
    /// Starts to inspect what was fetched.
    pub(crate) fn begin(&mut self, fetched: Fetched) {
        let facts = self.facts.clone();
        let look = self.look.clone();
        self.begun.push_back(tokio::task::spawn_blocking(move || {
            // The consumer reports a pack that cannot be decoded.
            let one = |bytes: &[u8], from| {
                let pack = Pack::decode(bytes).ok()?;
                Some(look(&Look { facts: &facts, pack: &pack, from }))
            };
            match &fetched {
                Fetched::Main(entries) => entries
                    .iter()
                    .filter_map(|entry| one(&entry.pack, From::Main(entry.id)))
                    .collect(),
                Fetched::Replays(page) => page
                    .iter()
                    .filter_map(|replay| one(&replay.pack, From::Replay(replay)))
                    .collect(),
                Fetched::Chunks(page) => page
                    .iter()
                    .filter_map(|found| {
                        let Chunk { positions, pack } = Chunk::decode(&found.stored.bytes).ok()?;
                        let from = From::Lane(found, &positions);
                        Some(look(&Look { facts: &facts, pack: &pack, from }))
                    })
                    .collect(),
            }
        }));
    }

    /// Passes results to `each` while more than `ahead` pages are under way, until `each` breaks.
    async fn tell(
        &mut self,
        ahead: usize,
        each: &mut impl FnMut(T) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Failure> {
        while let Some(looked) = self.next(ahead).await? {
            if looked.into_iter().try_for_each(&mut *each).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns the results of the oldest page, unless at most `ahead` pages are under way.
    pub(crate) async fn next(&mut self, ahead: usize) -> Result<Option<Vec<T>>, Failure> {
        if self.begun.len() <= ahead {
            return Ok(None);
        }
        let Some(first) = self.begun.pop_front() else { return Ok(None) };
        let looked = first.await;
        looked.map(Some).map_err(|_| Failure::Failed("BUG: decoding panicked".to_owned()))
    }
}

impl WaitFacts {
    fn is_settled(&self, entry: StreamId, index: u32) -> bool {
        // A pack up to the cursor may still exist because another consumer needs it.
        entry <= self.progress.cursor
            || self.progress.done.get(&entry).is_some_and(|bits| is_set(bits, index))
            || self.dropping.is_named(entry, index)
    }
}

impl<'a> Look<'a> {
    /// The waiting webhooks of the pack, in their order.
    pub(crate) fn webhooks(&self) -> impl Iterator<Item = Met<'a>> {
        let Self { facts, pack, from } = *self;
        (0..pack.count()).filter_map(move |place| {
            let (entry, index, aside, waits, cursor) = match from {
                From::Main(entry) => {
                    let waits = !facts.is_settled(entry, place);
                    (entry, place, None, waits, WaitCursor::Main(entry, place))
                }
                From::Replay(replay) => {
                    let waits = !facts.dropping.replays.contains(&replay.id);
                    let aside = Aside { attempts: 0, replay: Some(replay.id) };
                    let WebhookId { entry, index, .. } = replay.webhook;
                    (entry, index, Some(aside), waits, WaitCursor::Replay(replay.id))
                }
                From::Lane(chunk, positions) => {
                    let at = usize::try_from(place).ok()?;
                    let position = positions.get(at)?;
                    let entry = position.entry();
                    let index = position.index;
                    let is_settled =
                        is_set(&chunk.stored.bits, place) || facts.dropping.is_named(entry, index);
                    let attempts = chunk.attempts.get(at).copied().unwrap_or(0);
                    let cursor = WaitCursor::Lane(chunk.id, place + 1);
                    (entry, index, Some(Aside { attempts, replay: None }), !is_settled, cursor)
                }
            };
            let id = WebhookId { cell: facts.cell, entry, index };
            waits.then(|| Met { id, view: pack.view(place), aside, cursor })
        })
    }
}

impl std::fmt::Display for Aside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.replay.is_some() { "replay" } else { "lane" };
        write!(f, "{place}, {} attempts", self.attempts)
    }
}

impl Met<'_> {
    /// Domain of the shop.
    pub(crate) fn shop(&self) -> String {
        text(self.view.shop())
    }

    /// Topic.
    pub(crate) fn topic(&self) -> String {
        text(self.view.topic().as_deref())
    }

    /// App, where a receiver serves several; else empty.
    pub(crate) fn app(&self) -> String {
        text(self.view.value(APP_HEADER.as_str()))
    }

    /// Shopify's webhook id.
    pub(crate) fn webhook_id(&self) -> String {
        text(self.view.shopify("webhook-id"))
    }

    /// Resource, such as `product/12`.
    pub(crate) fn resource(&self) -> String {
        Resource::of(&self.view, self.view.body).to_string()
    }

    /// True if it matches the filter.
    pub(crate) fn is_meant(&self, filter: &Filter) -> bool {
        filter.matches(WebhookFacts {
            id: self.id,
            shop: &self.shop(),
            topic: &self.topic(),
            app: &self.app(),
            webhook_id: &self.webhook_id(),
            resource: || self.resource(),
        })
    }
}

/// True if a lane may hold a match. A Spillway-Id gives the position; Shopify's id does not.
fn may_hold(row: &LaneRow, filter: &Filter) -> bool {
    let id = filter.webhook_id.as_ref().and_then(|id| id.parse::<WebhookId>().ok());
    let position = id.map(|id| Position::new(id.entry, id.index));
    filter.shop.as_ref().is_none_or(|shop| *shop == row.shop)
        && position.is_none_or(|position| (row.first..=row.last).contains(&position))
}

/// A header as text.
fn text(value: Option<&[u8]>) -> String {
    String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use spillway_queue::lane::KeyScheme;

    use super::*;

    #[test]
    fn a_lane_is_looked_into_unless_nothing_of_it_can_be_meant() {
        let at = |ms, index| Position::new(StreamId { ms, seq: 0 }, index);
        let row = LaneRow {
            lane: 7,
            shop: "a.myshopify.com".to_owned(),
            kind: "product".to_owned(),
            scheme: KeyScheme::Kind,
            first_chunk: 1,
            last_chunk: 2,
            waiting: 3,
            first: at(5, 2),
            last: at(9, 1),
            failing: spillway_webhook::Spans::default(),
            tripped: false,
            suspect: false,
        };
        let of_shop = |shop: &str| Filter { shop: Some(shop.to_owned()), ..Filter::default() };
        assert!(may_hold(&row, &Filter::default()));
        assert!(may_hold(&row, &of_shop("a.myshopify.com")));
        assert!(!may_hold(&row, &of_shop("b.myshopify.com")));
        let of_id = |id: String| Filter { webhook_id: Some(id), ..Filter::default() };
        assert!(may_hold(&row, &of_id("b54557e4-bdd9-4b37-8a5f-bf7d70bcd043".to_owned())));
        for (ms, index, is_meant) in
            [(5, 1, false), (5, 2, true), (7, 0, true), (9, 1, true), (9, 2, false)]
        {
            let entry = StreamId { ms, seq: 0 };
            let id = WebhookId { cell: 1, entry, index }.to_string();
            assert_eq!(may_hold(&row, &of_id(id)), is_meant, "{ms} {index}");
        }
    }
}
