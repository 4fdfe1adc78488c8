//! Goes over what waits for a drain, and takes none of it.
//!
//! Packs are fetched a few at a time and decoded on every core; what a look makes of each comes back
//! in the order asked for. What waits is what Redis says when the walk begins: what is settled
//! meanwhile is met all the same, what comes in behind is not. Bounded: a few packs are in memory at
//! a time, however many there are.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use spillway_queue::orders::{self, Asked, Dropping, Filter, is_set};
use spillway_queue::read::{Entry, Parked, Progress, Reader};
use spillway_queue::{Connection, QueueError, Redis, drains, status};
use spillway_webhook::pack::{Pack, View};
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{StreamId, WebhookId};
use tokio::task::JoinHandle;

use crate::failure::Failure;
use crate::place::Place;

/// Packs asked for in one round trip: with a megabyte each, as much as is worth waiting for.
const FETCHED_TOGETHER: usize = 8;
/// Bytes of parked webhooks read at a time.
const PARKED_BYTES: usize = 4 << 20;

/// What waits for one drain.
pub struct Waiting {
    reader: Reader,
    connection: Connection,
    /// Where the queue is.
    pub redis: Redis,
    facts: Arc<Facts>,
    /// Packs behind the cursor, oldest first.
    pub packs: Vec<StreamId>,
    /// Webhooks that wait, parked ones included, as the drain counts them.
    pub count: u64,
    /// Packs that could not be read.
    pub corrupt: u64,
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
    /// Where it is parked, if it is.
    pub parked: Option<&'a Parked>,
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
    Parked(&'a Parked),
}

/// One or several packs, not yet decoded.
enum Fetched {
    Main(Vec<Entry>),
    Parked(Vec<Parked>),
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
        let mut packs: Vec<StreamId> = Vec::new();
        loop {
            let after = packs.last().copied().unwrap_or(progress.cursor);
            let more = reader.ids_after(&mut connection, after, last).await?;
            if more.is_empty() {
                break;
            }
            packs.extend(more);
        }
        let count = known.waiting;
        let facts = Arc::new(Facts { cell, progress, dropping });
        Ok(Self { reader, connection, redis, facts, packs, count, corrupt: 0 })
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

    /// Hands what `look` makes of the parked webhooks to `each`, oldest first, until that breaks.
    pub async fn parked<T: Send + 'static>(
        &mut self,
        look: impl Fn(&Look<'_>) -> T + Send + Sync + 'static,
        mut each: impl FnMut(T) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let mut after = StreamId::ZERO;
        let look = Arc::new(look);
        loop {
            let (reader, connection) = (&self.reader, &mut self.connection);
            let page = reader.parked_after(connection, after, PARKED_BYTES).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.id;
            let looked = self.decode(Fetched::Parked(page), &look);
            if self.hear(looked, &mut each).await?.is_break() {
                return Ok(());
            }
        }
    }

    /// The same of these packs, in the order given.
    pub async fn main<T: Send + 'static>(
        &mut self,
        packs: &[StreamId],
        look: impl Fn(&Look<'_>) -> T + Send + Sync + 'static,
        mut each: impl FnMut(T) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let look = Arc::new(look);
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let mut decoding = VecDeque::new();
        for ids in packs.chunks(FETCHED_TOGETHER) {
            let entries = self.reader.main_entries(&mut self.connection, ids).await?;
            decoding.push_back(self.decode(Fetched::Main(entries), &look));
            while decoding.len() > cores {
                let Some(first) = decoding.pop_front() else { break };
                if self.hear(first, &mut each).await?.is_break() {
                    return Ok(());
                }
            }
        }
        for looked in decoding {
            if self.hear(looked, &mut each).await?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn decode<T: Send + 'static>(
        &self,
        fetched: Fetched,
        look: &Arc<impl Fn(&Look<'_>) -> T + Send + Sync + 'static>,
    ) -> JoinHandle<Vec<Option<T>>> {
        let (facts, look) = (self.facts.clone(), look.clone());
        tokio::task::spawn_blocking(move || {
            let one = |bytes: &[u8], from| {
                let pack = Pack::decode(bytes).ok()?;
                Some(look(&Look { facts: &facts, pack: &pack, from }))
            };
            match &fetched {
                Fetched::Main(entries) => {
                    entries.iter().map(|entry| one(&entry.pack, From::Main(entry.id))).collect()
                }
                Fetched::Parked(page) => {
                    page.iter().map(|parked| one(&parked.pack, From::Parked(parked))).collect()
                }
            }
        })
    }

    async fn hear<T>(
        &mut self,
        looked: JoinHandle<Vec<Option<T>>>,
        each: &mut impl FnMut(T) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Failure> {
        let looked = looked.await;
        let looked = looked.map_err(|_| Failure::Failed("BUG: decoding panicked".to_owned()))?;
        for one in looked {
            let Some(one) = one else {
                self.corrupt += 1;
                continue;
            };
            if each(one).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Facts {
    fn is_settled(&self, entry: StreamId, index: u32) -> bool {
        self.progress.done.get(&entry).is_some_and(|bits| is_set(bits, index))
            || self.dropping.is_named(entry, index)
    }
}

impl<'a> Look<'a> {
    /// The webhooks of the pack that wait, in their order.
    pub fn webhooks(&self) -> impl Iterator<Item = Met<'a>> {
        let Self { facts, pack, from } = *self;
        (0..pack.count()).filter_map(move |place| {
            let (entry, index, parked) = match from {
                From::Main(entry) => (entry, place, None),
                From::Parked(parked) => (parked.webhook.entry, parked.webhook.index, Some(parked)),
            };
            let waits = match parked {
                None => !facts.is_settled(entry, index),
                Some(parked) => !facts.dropping.parked.contains(&parked.id),
            };
            let id = WebhookId { cell: facts.cell, entry, index };
            waits.then(|| Met { id, view: pack.view(place), parked })
        })
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
