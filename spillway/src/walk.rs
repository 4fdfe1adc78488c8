//! Goes over what waits for a drain, and takes none of it.
//!
//! Packs are fetched a page at a time and decoded on every core; what a look makes of each comes back
//! in their order. What waits is what Redis says when the walk begins: what is settled
//! meanwhile is met all the same, what comes in behind is not. Bounded: a few packs are in memory at
//! a time, however many there are.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use spillway_queue::lane::{ChunkId, LaneRow, StoredChunk};
use spillway_queue::orders::{self, Asked, Dropping, Filter, is_set};
use spillway_queue::read::{Entry, Progress, Reader, Replay};
use spillway_queue::{Connection, QueueError, Redis, drains, status};
use spillway_webhook::pack::{Pack, View};
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{Chunk, Position, StreamId, WebhookId};
use tokio::task::JoinHandle;

use crate::failure::Failure;
use crate::place::Place;

/// Bytes read at a time.
const PAGE_BYTES: usize = 4 << 20;
/// Chunks of lanes in the first page, of up to a megabyte each before they are compressed.
const CHUNKS_AT_FIRST: usize = 16;
/// Chunks in one page, however small: bounds how long one command holds Redis.
const CHUNKS_MAX: usize = 512;

/// What waits for one drain.
pub struct Waiting {
    reader: Reader,
    connection: Connection,
    /// Where the queue is.
    pub redis: Redis,
    facts: Arc<Facts>,
    /// The pack that came last.
    pub last: StreamId,
    /// Packs there are, those included that wait for other drains only.
    pub packs: u64,
    /// Webhooks that wait, those outside the main stream included, as the drain counts them.
    pub count: u64,
}

/// What tells a webhook that waits from one that does not.
#[derive(Default)]
struct Facts {
    cell: u32,
    progress: Progress,
    dropping: Dropping,
}

/// A webhook that waits.
pub struct Met<'a> {
    /// Which one it is.
    pub id: WebhookId,
    /// Its bytes.
    pub view: View<'a>,
    /// Set where it waits outside the main stream.
    pub aside: Option<Aside>,
}

/// A webhook outside the main stream: in a lane of its shop and kind, or to be replayed.
#[derive(Debug, Clone, Copy)]
pub struct Aside {
    /// Attempts made.
    pub attempts: u32,
    /// Its entry among the replays, if it is one.
    pub replay: Option<StreamId>,
}

/// A chunk of a lane, not yet decoded.
pub struct LaneChunk {
    stored: StoredChunk,
    /// Attempts made of each webhook.
    attempts: Vec<u32>,
}

/// What of a pack waits.
pub struct Look<'a> {
    facts: &'a Facts,
    pack: &'a Pack,
    from: From<'a>,
}

#[derive(Clone, Copy)]
enum From<'a> {
    Main(StreamId),
    Replay(&'a Replay),
    Lane(&'a LaneChunk, &'a [Position]),
}

/// One or several packs, not yet decoded.
pub enum Fetched {
    /// Of the main stream.
    Main(Vec<Entry>),
    /// Of the replays.
    Replays(Vec<Replay>),
    /// Of lanes.
    Chunks(Vec<LaneChunk>),
}

/// Decodes on every core, and looks; what was found comes in the order begun.
pub struct Looks<T, L> {
    facts: Arc<Facts>,
    look: Arc<L>,
    /// As many packs, or pages of them, are worth having under way.
    pub cores: usize,
    begun: VecDeque<JoinHandle<Vec<T>>>,
}

impl Waiting {
    /// What waits for `drain` now.
    pub async fn for_drain(place: &Place, drain: &str) -> Result<Self, Failure> {
        let (redis, mut connection) = place.connect().await?;
        let reader = Reader::new(redis.clone(), drain);
        let status = status::read(&redis, &mut connection).await?;
        let known = status.drains.iter().find(|known| known.name == drain);
        let known = known.ok_or_else(|| unknown(drain, &status))?;
        let progress = match reader.progress(&mut connection).await {
            Err(QueueError::Unregistered) => return Err(unknown(drain, &status)),
            progress => progress?,
        };
        let dropping = orders::read(&redis, &mut connection, drain).await?.dropping;
        let cell = drains::cell(&redis, &mut connection).await?.unwrap_or_default();
        let last = reader.last(&mut connection).await?;
        let (packs, count) = (status.queue.packs, known.waiting);
        let facts = Arc::new(Facts { cell, progress, dropping });
        Ok(Self { reader, connection, redis, facts, last, packs, count })
    }

    /// The connection by which it was read.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// The random id of the cell.
    pub fn cell(&self) -> u32 {
        self.facts.cell
    }

    /// Up to where the drain has settled everything.
    pub fn cursor(&self) -> StreamId {
        self.facts.progress.cursor
    }

    /// The first pack behind the cursor, if there is one.
    pub async fn first(&mut self) -> Result<Option<StreamId>, Failure> {
        let page =
            self.reader.main_after(&mut self.connection, self.facts.progress.cursor, 1).await?;
        Ok(page.first().map(|entry| entry.id).filter(|id| *id <= self.last))
    }

    /// Hands what `look` makes of the webhooks outside the main stream to `each`: replays, then those of
    /// `lanes`, until that breaks.
    pub async fn aside<T: Send + 'static>(
        &mut self,
        lanes: &[LaneRow],
        look: impl Fn(&Look<'_>) -> T + Send + Sync + 'static,
        mut each: impl FnMut(T) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let (mut looks, mut after) = (self.looks(look), StreamId::ZERO);
        loop {
            let (reader, connection) = (&self.reader, &mut self.connection);
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
        let (mut left, mut at_once) = (ids.as_slice(), CHUNKS_AT_FIRST);
        while !left.is_empty() {
            let (page, rest) = left.split_at(at_once.min(left.len()));
            left = rest;
            let chunks = self.chunks(page).await?;
            // Many small ones in a page, or the round trips would take most of the time.
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

    /// Lanes that may hold webhooks that `filter` means, outside the main stream.
    pub async fn lanes(&mut self, filter: &Filter) -> Result<Vec<LaneRow>, Failure> {
        let mut rows = self.reader.lane_rows(&mut self.connection).await?;
        rows.retain(|row| may_hold(row, filter));
        Ok(rows)
    }

    /// Chunks that are still there, with the attempts of their webhooks.
    async fn chunks(&mut self, ids: &[ChunkId]) -> Result<Vec<LaneChunk>, Failure> {
        let stored = self.reader.chunks(&mut self.connection, ids).await?;
        let stored: Vec<_> = stored.into_iter().flatten().collect();
        let positions =
            stored.iter().map(|stored| Chunk::decode_positions(&stored.bytes).unwrap_or_default());
        let positions: Vec<Vec<Position>> = positions.collect();
        let retries = self.reader.retries(&mut self.connection, &positions.concat()).await?;
        let mut attempts = retries.into_iter().map(|known| known.map_or(0, |known| known.attempts));
        let chunks = stored.into_iter().zip(positions).map(|(stored, positions)| LaneChunk {
            stored,
            attempts: attempts.by_ref().take(positions.len()).collect(),
        });
        Ok(chunks.collect())
    }

    /// The same of the main stream.
    pub async fn main<T: Send + 'static>(
        &mut self,
        look: impl Fn(&Look<'_>) -> T + Send + Sync + 'static,
        mut each: impl FnMut(T) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let (mut looks, mut after) = (self.looks(look), self.cursor());
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

    /// The same of one pack of the main stream, if it is still there.
    pub async fn pack<T: Send + 'static>(
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

    /// The first packs of each span of the main stream: from, up to, how many. In one round trip.
    pub async fn fronts(
        &mut self,
        spans: &[(StreamId, StreamId, usize)],
    ) -> Result<Vec<Vec<Entry>>, Failure> {
        Ok(self.reader.main_fronts(&mut self.connection, spans).await?)
    }

    /// Looks at what is fetched for it.
    pub fn looks<T: Send + 'static, L>(&self, look: L) -> Looks<T, L>
    where
        L: Fn(&Look<'_>) -> T + Send + Sync + 'static,
    {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let (facts, look) = (self.facts.clone(), Arc::new(look));
        Looks { facts, look, cores, begun: VecDeque::new() }
    }
}

impl<T: Send + 'static, L: Fn(&Look<'_>) -> T + Send + Sync + 'static> Looks<T, L> {
    /// Begins to look at what was fetched.
    pub fn begin(&mut self, fetched: Fetched) {
        let (facts, look) = (self.facts.clone(), self.look.clone());
        self.begun.push_back(tokio::task::spawn_blocking(move || {
            // A pack that can't be read is the drain's to report.
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

    /// Tells what was found, as long as more than `ahead` are under way, until `each` breaks.
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

    /// What was found in what was begun first, unless no more than `ahead` are under way.
    pub async fn next(&mut self, ahead: usize) -> Result<Option<Vec<T>>, Failure> {
        if self.begun.len() <= ahead {
            return Ok(None);
        }
        let Some(first) = self.begun.pop_front() else { return Ok(None) };
        let looked = first.await;
        looked.map(Some).map_err(|_| Failure::Failed("BUG: decoding panicked".to_owned()))
    }
}

impl Facts {
    fn is_settled(&self, entry: StreamId, index: u32) -> bool {
        // Another drain may still hold what this one is past.
        entry <= self.progress.cursor
            || self.progress.done.get(&entry).is_some_and(|bits| is_set(bits, index))
            || self.dropping.is_named(entry, index)
    }
}

impl<'a> Look<'a> {
    /// The webhooks of the pack that wait, in their order.
    pub fn webhooks(&self) -> impl Iterator<Item = Met<'a>> {
        let Self { facts, pack, from } = *self;
        (0..pack.count()).filter_map(move |place| {
            let (entry, index, aside, waits) = match from {
                From::Main(entry) => (entry, place, None, !facts.is_settled(entry, place)),
                From::Replay(replay) => {
                    let waits = !facts.dropping.replays.contains(&replay.id);
                    let aside = Aside { attempts: 0, replay: Some(replay.id) };
                    (replay.webhook.entry, replay.webhook.index, Some(aside), waits)
                }
                From::Lane(chunk, positions) => {
                    let at = usize::try_from(place).ok()?;
                    let position = positions.get(at)?;
                    let (entry, index) = (position.entry(), position.index);
                    let is_settled =
                        is_set(&chunk.stored.bits, place) || facts.dropping.is_named(entry, index);
                    let attempts = chunk.attempts.get(at).copied().unwrap_or(0);
                    (entry, index, Some(Aside { attempts, replay: None }), !is_settled)
                }
            };
            let id = WebhookId { cell: facts.cell, entry, index };
            waits.then(|| Met { id, view: pack.view(place), aside })
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
    /// Its shop's domain.
    pub fn shop(&self) -> String {
        text(self.view.shop())
    }

    /// Its topic.
    pub fn topic(&self) -> String {
        text(self.view.topic())
    }

    /// What Shopify calls it.
    pub fn delivery_id(&self) -> String {
        text(self.view.shopify("webhook-id"))
    }

    /// What it is about, such as `product/12`.
    pub fn resource(&self) -> String {
        Resource::of(&self.view, self.view.body).to_string()
    }

    /// Whether it is meant.
    pub fn is_meant(&self, filter: &Filter) -> bool {
        filter.matches(Asked {
            id: self.id,
            shop: &self.shop(),
            topic: &self.topic(),
            delivery_id: &self.delivery_id(),
            resource: || self.resource(),
        })
    }
}

/// Whether a lane may hold what a filter means. A Spillway-Id tells the position, Shopify's id nothing.
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

/// There is no such drain; these are the ones there are.
pub fn unknown(drain: &str, status: &status::Status) -> Failure {
    let known: Vec<_> = status.drains.iter().map(|known| known.name.as_str()).collect();
    Failure::Failed(match known.is_empty() {
        true => format!("no drain is named {drain}; none is registered: start a downstreamer"),
        false => format!("no drain is named {drain}; there is {}", known.join(", ")),
    })
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
