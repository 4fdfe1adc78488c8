//! An operator's standing orders: what is paused, and what is to be dropped.
//!
//! A pause of one shop takes its turns away; any other is judged when a webhook's bytes are at hand,
//! and its resource is set aside until the pauses change. What is to be dropped leaves the index at
//! once, and is then settled like everything else; what is under way when the order comes is left to
//! its delivery, and dropped if that fails. A crash in between drops again what was not settled: the
//! order stays in Redis until it is.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use spillway_drain::Tenure;
use spillway_queue::orders::{self, Asked, Dropping, Filter, Orders, Pause};
use spillway_queue::settle::Settlement;
use spillway_queue::{QueueError, Redis};
use spillway_service::error::chain;
use spillway_webhook::pack::Pack;
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{StreamId, WebhookId};
use tokio::sync::mpsc;

use super::Drain;
use crate::index::{OpenPack, PackKey, Place, ResourceKey, Source, State};
use crate::schedule::ShopKey;
use crate::schedule::barriers::Position;
use crate::sort::shop_hash;

/// How often it is looked whether the last bump brought news.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Dropped webhooks in one settlement, and entries whose orders it clears away.
const DROPPED_MAX: usize = 2048;

/// The orders in force.
#[derive(Default)]
pub(super) struct Standing {
    /// Whether everything is paused.
    pub(super) is_all_paused: bool,
    /// Pauses of other things than a whole shop.
    filters: Vec<Filter>,
    /// Resources whose head one of these pauses.
    paused: Vec<ResourceKey>,
    dropping: Dropping,
    /// Resources that were under way when something of them was to be dropped.
    under_way: Vec<ResourceKey>,
    /// What has left the index, and is not settled.
    dropped: VecDeque<Dropped>,
    /// Entries that were passed before their order came.
    passed: Vec<StreamId>,
    /// Version of the orders in force.
    pub(super) known: u64,
    /// Orders that are carried out once `dropped` is settled.
    version: Option<u64>,
}

/// A webhook that is dropped.
struct Dropped {
    place: Place,
    /// Where it was accepted, and its shop, if the schedule counts it.
    counted: Option<(ShopKey, Position)>,
}

/// Starts reading the orders whenever there are others than those of `version`.
pub(super) fn start(
    redis: Redis,
    drain: &str,
    tenure: Tenure,
    mut version: u64,
) -> mpsc::Receiver<Orders> {
    let (sender, receiver) = mpsc::channel(1);
    let drain = drain.to_owned();
    tokio::spawn(async move {
        while !sender.is_closed() {
            tokio::time::sleep(LOOK_EVERY).await;
            if tenure.orders() == version {
                continue;
            }
            match read(&redis, &drain).await {
                Ok(orders) => {
                    version = orders.version;
                    if sender.send(orders).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "orders could not be read; trying again");
                }
            }
        }
    });
    receiver
}

async fn read(redis: &Redis, drain: &str) -> Result<Orders, QueueError> {
    let mut connection = redis.connect(Some(ANSWER_TIMEOUT)).await?;
    orders::read(redis, &mut connection, drain).await
}

impl Standing {
    /// Whether the webhook at `index` of a main entry is to be dropped.
    pub(super) fn drops(&self, entry: StreamId, index: u32) -> bool {
        self.dropping.is_named(entry, index)
    }

    /// The same of a parked entry, where it was accepted at `index` of `origin`.
    pub(super) fn drops_parked(&self, id: StreamId, origin: StreamId, index: u32) -> bool {
        self.dropping.parked.contains(&id) || self.drops(origin, index)
    }

    /// A webhook is dropped before it came to wait.
    pub(super) fn drop_at_once(&mut self, place: Place) {
        self.dropped.push_back(Dropped { place, counted: None });
    }

    /// Where webhooks of a shop were accepted that have left the index, and are not settled.
    pub(super) fn dropped_of(&self, shop: ShopKey) -> impl Iterator<Item = Position> {
        let counted = self.dropped.iter().filter_map(|dropped| dropped.counted);
        counted.filter(move |(other, _)| *other == shop).map(|(_, position)| position)
    }

    /// Whether Redis holds orders to drop something of the entry `id`. They are kept here when it is
    /// passed: what was parked meanwhile, and is under way, is still known by where it was accepted.
    pub(super) fn names(&self, id: StreamId) -> bool {
        self.dropping.main.contains_key(&id)
    }

    fn means(&self, pack: &OpenPack, index: u32) -> bool {
        match pack.source {
            Source::Main => self.drops(pack.id, index),
            Source::Parked => self.drops_parked(pack.id, pack.origin, index),
        }
    }
}

impl Drain {
    /// These orders are in force from now on.
    pub(super) fn ordered(&mut self, orders: Orders) {
        if orders.version > 0 {
            tracing::info!(
                version = orders.version,
                pauses = orders.pauses.len(),
                entries_with_drops = orders.dropping.main.len() + orders.dropping.parked.len(),
                "an operator's orders"
            );
        }
        self.pause(&orders.pauses);
        self.standing.dropping = orders.dropping;
        self.standing.version = (orders.version > 0).then_some(orders.version);
        self.standing.known = orders.version;
        if !self.standing.dropping.is_empty() {
            self.drop_what_waits();
        }
    }

    /// What is paused from now on; everything else flows.
    fn pause(&mut self, pauses: &[Pause]) {
        let filters = || pauses.iter().map(|pause| &pause.filter);
        let hash = |shop: &str| shop_hash(&self.hasher, shop.as_bytes());
        let shops: HashSet<u64> = filters().filter_map(Filter::only_shop).map(hash).collect();
        let others = |filter: &&Filter| !filter.is_empty() && filter.only_shop().is_none();
        self.standing.is_all_paused = filters().any(Filter::is_empty);
        self.standing.filters = filters().filter(others).cloned().collect();
        self.metrics.pauses.set(i64::try_from(pauses.len()).unwrap_or(i64::MAX));
        self.schedule.stop(shops);
        // It was picked before.
        if let Some(turn) = self.next.take() {
            self.release(turn.resource);
        }
        let schedule = &self.schedule;
        self.index.count_paused(|shop| schedule.is_stopped(shop));
        self.front_moved();
        for resource in std::mem::take(&mut self.standing.paused) {
            if self.index.state(resource) == Some(State::Paused) {
                self.release(resource);
            }
        }
    }

    /// Whether what has its turn is paused. If so, its resource is set aside.
    pub(super) fn is_set_aside(
        &mut self,
        resource: ResourceKey,
        place: Place,
        (pack, record_index): (&Pack, u32),
    ) -> bool {
        if self.standing.filters.is_empty() {
            return false;
        }
        let Some(origin) = self.index.pack(place.pack).map(|pack| pack.origin) else {
            return false;
        };
        let view = pack.view(record_index);
        let text =
            |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
        let (shop, topic) = (text(view.shop()), text(view.topic()));
        let delivery_id = text(view.shopify("webhook-id"));
        let is_meant = |filter: &Filter| {
            filter.matches(Asked {
                id: WebhookId { cell: self.cell, entry: origin, index: place.index },
                shop: &shop,
                topic: &topic,
                delivery_id: &delivery_id,
                resource: || Resource::of(&view, view.body).to_string(),
            })
        };
        let is_paused = self.standing.filters.iter().any(is_meant);
        if is_paused {
            self.index.pause_head(resource);
            self.standing.paused.push(resource);
        }
        is_paused
    }

    /// Takes out of the index what is to be dropped, and notes what is under way.
    fn drop_what_waits(&mut self) {
        let open: HashSet<StreamId> = self.index.open_entries().collect();
        let is_passed = |id: &StreamId| *id <= self.read_to && !open.contains(id);
        let named = self.standing.dropping.main.keys().copied();
        self.standing.passed = named.filter(is_passed).collect();
        self.standing.under_way.clear();
        let resources: Vec<_> = self.index.resources().collect();
        for (resource, _) in resources {
            self.drop_of(resource);
        }
    }

    /// Drops what was under way when that was ordered, and was not delivered.
    pub(super) fn drop_under_way(&mut self) {
        for resource in std::mem::take(&mut self.standing.under_way) {
            self.drop_of(resource);
        }
    }

    fn drop_of(&mut self, resource: ResourceKey) {
        let Some(state) = self.index.state(resource) else { return };
        let standing = &self.standing;
        let is_meant = |pack: &OpenPack, index| standing.means(pack, index);
        if matches!(state, State::Busy | State::Parking) {
            if self.index.holds(resource, is_meant) {
                self.standing.under_way.push(resource);
            }
            return;
        }
        let Some((shop, _)) = self.index.turn(resource) else { return };
        let (head, position) = (self.index.head(resource), self.index.head_position(resource));
        let taken = self.index.take_out(resource, is_meant);
        if taken.is_empty() {
            return;
        }
        for (place, position) in taken {
            self.trials.remove(&place);
            let counted = Some((shop, position));
            self.standing.dropped.push_back(Dropped { place, counted });
        }
        self.reading.forget(resource);
        // A turn that was put by names a shop that may be gone by its time.
        let was_next = self.next.is_some_and(|turn| turn.resource == resource);
        if was_next {
            self.next = None;
        }
        let has_changed = self.index.head(resource) != head;
        if let (true, State::Held, Some(position)) = (has_changed, state, position) {
            self.schedule.unhold(shop, position);
        }
        if was_next || (has_changed && state != State::Ready) {
            self.release(resource);
        }
    }

    /// Takes in what is dropped: where it was accepted.
    pub(super) fn settle_dropped(
        &mut self,
        settlement: &mut Settlement,
        touched: &mut HashSet<PackKey>,
    ) -> Vec<(ShopKey, Position)> {
        let count = self.standing.dropped.len().min(DROPPED_MAX);
        let dropped: Vec<Dropped> = self.standing.dropped.drain(..count).collect();
        let mut settled = Vec::new();
        for Dropped { place, counted } in dropped {
            settled.extend(counted);
            self.settle_one(place, settlement, touched);
        }
        settlement.dropped = count as u64;
        self.metrics.dropped.inc_by(settlement.dropped);
        let passed = &mut self.standing.passed;
        settlement.whole.extend(passed.drain(..passed.len().min(DROPPED_MAX)));
        if self.standing.dropped.is_empty() {
            settlement.orders_done = self.standing.version.take();
        }
        settled
    }
}
