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

use super::{Drain, End};
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
    /// Up to here, what is parked is known.
    pub(super) parked_to: StreamId,
    /// Whether names may be left in Redis of what is settled.
    is_untidy: bool,
    /// Names to clear away: of entries that are passed, of parked ones that are gone.
    passed: Vec<StreamId>,
    gone: Vec<StreamId>,
    /// The retry clock when the pauses came in force.
    paused_since: Duration,
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
        // Those that were read may be newer than the last bump knows: once is enough.
        let mut looked_at = version;
        while !sender.is_closed() {
            tokio::time::sleep(LOOK_EVERY).await;
            // An older one is news as well: Redis may have come back with older data.
            let bumped = tenure.orders();
            if bumped == version {
                looked_at = version;
            }
            if bumped == looked_at {
                continue;
            }
            match read(&redis, &drain).await {
                Ok(orders) => {
                    looked_at = bumped;
                    if orders.version != version {
                        version = orders.version;
                        if sender.send(orders).await.is_err() {
                            return;
                        }
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

    /// Whether the webhook accepted at `index` of this pack is to be dropped.
    pub(super) fn means(&self, pack: &OpenPack, index: u32) -> bool {
        match pack.source {
            Source::Main => self.drops(pack.id, index),
            // A replayed one is another matter than what was ordered of it before.
            Source::Parked => {
                self.dropping.parked.contains(&pack.id)
                    || (!pack.is_replayed && self.drops(pack.origin, index))
            }
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
        if self.has_gaps {
            // What was passed over may be wanted now, or be dropped.
            self.begin_again();
            return;
        }
        self.pause(&orders.pauses);
        self.standing.dropping = orders.dropping;
        self.standing.version = (orders.version > 0).then_some(orders.version);
        self.standing.known = orders.version;
        if !self.standing.dropping.is_empty() {
            self.drop_what_waits();
        }
    }

    /// Reads everything anew, with the orders that are in force then.
    fn begin_again(&mut self) {
        if self.ends.is_none() {
            tracing::info!("reading the queue anew, for an operator's orders");
            self.end_soon(End::Stale);
        }
    }

    /// What is paused from now on; everything else flows.
    fn pause(&mut self, pauses: &[Pause]) {
        self.forgive_pause();
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
        if self.schedule.is_any_stopped() && !self.index.has_ample_room() {
            // What is paused would leave no room for the rest.
            self.begin_again();
        }
        self.front_moved();
        for resource in std::mem::take(&mut self.standing.paused) {
            if self.index.state(resource) == Some(State::Paused) {
                self.release(resource);
            }
        }
    }

    /// Time in which a webhook was paused is not spent on its retries.
    fn forgive_pause(&mut self) {
        let now = self.destination.active(self.now());
        let since = std::mem::replace(&mut self.standing.paused_since, now);
        for trial in self.trials.values_mut() {
            let is_stopped = |(shop, _)| self.schedule.is_stopped(shop);
            let was_paused = self.standing.is_all_paused
                || self.index.state(trial.resource) == Some(State::Paused)
                || self.index.turn(trial.resource).is_some_and(is_stopped);
            if was_paused {
                trial.since += now.saturating_sub(since.max(trial.since));
            }
        }
    }

    /// Whether nothing more can be read for what is paused.
    pub(super) fn is_full_of_paused(&self) -> bool {
        let is_paused = !self.standing.paused.is_empty() || self.schedule.is_any_stopped();
        is_paused && !self.index.has_room()
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
        self.standing.is_untidy = true;
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
        if self.standing.dropped.is_empty() {
            settlement.orders_done = self.standing.version.take();
        }
        self.tidy(settlement);
        settled
    }

    /// Clears away names of what is settled. Not while something named by its entry may still be parked
    /// from there: after a crash nobody else would know that it is to be dropped.
    fn tidy(&mut self, settlement: &mut Settlement) {
        let standing = &mut self.standing;
        if standing.dropping.is_empty() {
            settlement.orders_known = standing.known;
            return;
        }
        let is_open = !standing.dropped.is_empty() || !standing.under_way.is_empty();
        if is_open || !self.is_parked_loaded {
            // Entries may be passed meanwhile.
            standing.is_untidy = true;
            return;
        }
        settlement.orders_known = standing.known;
        if std::mem::take(&mut standing.is_untidy) {
            let open: HashSet<StreamId> = self.index.open_entries().collect();
            let is_passed = |id: &StreamId| *id <= self.read_to && !open.contains(id);
            let named = standing.dropping.main.keys().copied();
            standing.passed = named.filter(is_passed).collect();
            let parked: HashSet<StreamId> = self.index.parked_entries().collect();
            let is_gone = |id: &StreamId| *id <= standing.parked_to && !parked.contains(id);
            let named = standing.dropping.parked.iter().copied();
            standing.gone = named.filter(is_gone).collect();
        }
        let (passed, gone) = (&mut standing.passed, &mut standing.gone);
        settlement.whole.extend(passed.drain(..passed.len().min(DROPPED_MAX)));
        settlement.unparked.extend(gone.drain(..gone.len().min(DROPPED_MAX)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_is_meant_by_an_order_of_its_own_only() {
        let id = |ms| StreamId { ms, seq: 0 };
        let mut standing = Standing::default();
        standing.dropping.name(id(1), 5);
        let main = OpenPack::main(id(1), 9, None);
        let (parked, replayed) =
            (OpenPack::parked(id(70), id(1), false), OpenPack::parked(id(71), id(1), true));
        let means = |standing: &Standing, index| {
            [&main, &parked, &replayed].map(|pack| standing.means(pack, index))
        };
        assert_eq!(means(&standing, 4), [false, false, false]);
        assert_eq!(means(&standing, 5), [true, true, false]);
        standing.dropping.parked.insert(id(71));
        assert_eq!(means(&standing, 5), [true, true, true]);
    }
}
