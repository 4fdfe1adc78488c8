//! Brings the bytes of what waits to hand: what will be needed next, ahead of its turn, and what has
//! its turn out of stream order, on demand.
//!
//! The index holds millions, the cache some dozens of packs. In stream order each pack is read once.
//! Fairness goes out of stream order: a shop with little may be far ahead of one with much, and each
//! of its webhooks then costs the reading of a whole pack. Such reads have a budget: where deliveries
//! are so fast that reading would slow them, what is at hand goes first; where the backend is slow,
//! the budget is never felt. A webhook that was read on demand is kept by itself until its turn.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use spillway_webhook::pack::{Pack, RAW_BYTES_TARGET};
use tokio::time::Instant;

use super::{Around, Drain, End};
use crate::fetch::Fetched;
use crate::index::{OpenPack, PackKey, Place, ResourceKey};
use crate::schedule::{Class, ShopKey, Turn};

/// Packs at the front of the stream that are kept at hand: half of the cache.
const FRONT_MAX: usize = 256;
const FRONT_BYTES: usize = super::CACHE_BYTES / 2;
/// Packs that are looked at for them.
const FRONT_LOOKED_AT: usize = 512;
/// A pack of which nothing was settled while so many others were, and little is left, is not kept at
/// hand: what is left waits for a retry.
const STUCK_AFTER: u64 = 8192;
const STUCK_PART: u32 = 16;
/// Reads under way at once, and how many of them ahead of their turn.
const READS_MAX: usize = 4;
const FRONT_READS_MAX: usize = 3;
/// Reads on demand per second, of a pack of usual size: with a millisecond each, a third of a core.
const READS_PER_SECOND: f64 = 300.0;
const USUAL_BYTES: f64 = RAW_BYTES_TARGET as f64;
/// What a read costs beside its bytes.
const LEAST_COST: f64 = 0.1;
/// And one more for so many deliveries.
const DELIVERIES_PER_READ: f64 = 48.0;
/// Webhooks read on demand that wait for their turn, in bytes.
const PLUCKED_BYTES: usize = 16 << 20;
/// Reads that may be saved up.
const BUDGET_MAX: f64 = 16.0;

/// What is being read, and who waits for it.
#[derive(Debug)]
pub(super) struct Reading {
    under_way: HashSet<PackKey>,
    /// Packs to read on demand, in the order asked for.
    wanted: VecDeque<PackKey>,
    waiting: HashMap<PackKey, Vec<(ShopKey, ResourceKey)>>,
    /// Webhooks that were read on demand, and which they are.
    plucked: HashMap<ResourceKey, (Place, Arc<Pack>)>,
    plucked_bytes: usize,
    budget: f64,
    earned_at: Instant,
    /// Whether the front of the stream may have moved since it was looked at.
    is_front_new: bool,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            under_way: HashSet::new(),
            wanted: VecDeque::new(),
            waiting: HashMap::new(),
            plucked: HashMap::new(),
            plucked_bytes: 0,
            budget: BUDGET_MAX,
            earned_at: Instant::now(),
            is_front_new: true,
        }
    }
}

impl Reading {
    /// The resource has another head.
    pub(super) fn forget(&mut self, resource: ResourceKey) -> Option<(Place, Arc<Pack>)> {
        let plucked = self.plucked.remove(&resource)?;
        self.plucked_bytes -= plucked.1.raw_bytes();
        Some(plucked)
    }

    /// When there is budget for another read that is wanted.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        let is_wanted = !self.wanted.is_empty() && self.under_way.len() < READS_MAX;
        let missing =
            Duration::from_secs_f64((LEAST_COST - self.budget).max(0.0) / READS_PER_SECOND);
        is_wanted.then(|| self.earned_at + missing)
    }
}

impl Drain {
    /// The bytes of what has its turn, if they are here: a pack, and the place in it.
    pub(super) fn at_hand(
        &mut self,
        resource: ResourceKey,
        place: Place,
    ) -> Option<(Arc<Pack>, u32)> {
        // Since it was read, another one may have become what is delivered of the resource.
        let plucked = self.reading.forget(resource).filter(|(own, _)| *own == place);
        let found = if let Some((_, plucked)) = plucked {
            (plucked, 0)
        } else {
            let pack = self.cache.get(place.pack)?;
            (pack, self.index.pack(place.pack)?.record_index(place.index))
        };
        self.reading.budget += 1.0 / DELIVERIES_PER_READ;
        Some(found)
    }

    /// A turn waits for its pack.
    pub(super) fn starve(&mut self, turn: Turn, pack: PackKey) {
        let class = self.index.turn(turn.resource).map_or(Class::Rest, |(_, class)| class);
        self.push_ready(turn.shop, class, turn.resource);
        self.schedule.starve(turn.shop);
        let waiting = self.reading.waiting.entry(pack).or_default();
        if waiting.is_empty() && !self.reading.under_way.contains(&pack) {
            self.reading.wanted.push_back(pack);
        }
        waiting.push((turn.shop, turn.resource));
    }

    /// The cursor moved, or a pack was settled in part.
    pub(super) fn front_moved(&mut self) {
        self.reading.is_front_new = true;
    }

    /// Starts the reads that are due.
    pub(super) fn read(&mut self, around: &mut Around) {
        if self.ends.is_some() {
            return;
        }
        if self.reading.is_front_new && self.reading.under_way.len() < FRONT_READS_MAX {
            self.read_front(around);
        }
        let now = Instant::now();
        let since = now.duration_since(std::mem::replace(&mut self.reading.earned_at, now));
        self.reading.budget += since.as_secs_f64() * READS_PER_SECOND;
        self.reading.budget = self.reading.budget.min(BUDGET_MAX);
        // What was read on demand goes out before more of it is read, as long as anything goes out.
        let has_room = self.reading.plucked_bytes < PLUCKED_BYTES || around.deliveries.is_empty();
        while has_room
            && self.reading.budget >= LEAST_COST
            && self.reading.under_way.len() < READS_MAX
        {
            let Some(wanted) = self.reading.wanted.pop_front() else { break };
            if self.index.pack(wanted).is_none() {
                // What was left of it was dropped by order: who waited for it has turns again.
                let waiting = self.reading.waiting.remove(&wanted).unwrap_or_default();
                waiting.into_iter().for_each(|(shop, _)| self.schedule.feed(shop));
            } else if self.reading.waiting.contains_key(&wanted) && self.fetch(wanted, around) {
                self.reading.budget -= LEAST_COST;
            }
        }
    }

    /// Has a pack read again, unless it is being read, or gone.
    pub(super) fn fetch(&mut self, key: PackKey, around: &mut Around) -> bool {
        let Some(open) = self.index.pack(key) else { return false };
        if !self.reading.under_way.insert(key) {
            return false;
        }
        let (fetcher, source, id) = (self.fetcher.clone(), open.source, open.id);
        around.fetched.spawn(async move { fetcher.fetch(key, source, id).await });
        true
    }

    pub(super) fn fetched(&mut self, fetched: Fetched) -> Option<End> {
        let Fetched { key, pack } = fetched;
        self.reading.under_way.remove(&key);
        let waiting = self.reading.waiting.remove(&key).unwrap_or_default();
        let Some(pack) = pack else {
            // It may have been read ahead, or dropped by order, and be settled by now.
            let is_needed = self.index.pack(key).is_some_and(|open| open.left > 0);
            if !is_needed {
                waiting.into_iter().for_each(|(shop, _)| self.schedule.feed(shop));
                return None;
            }
            tracing::error!("a pack that waits is not in redis any more: its data was lost");
            return Some(End::Stale);
        };
        let is_front = waiting.is_empty();
        if !is_front {
            self.reading.budget -= pack.raw_bytes() as f64 / USUAL_BYTES;
        }
        for (shop, resource) in waiting {
            if let Some(place) = self.index.lead(resource).filter(|place| place.pack == key)
                && let Some(open) = self.index.pack(key)
            {
                let plucked = pack.pluck(open.record_index(place.index));
                self.reading.forget(resource);
                self.reading.plucked_bytes += plucked.raw_bytes();
                self.reading.plucked.insert(resource, (place, Arc::new(plucked)));
            }
            self.schedule.feed(shop);
        }
        match self.index.pack(key) {
            // Where one large pack took another's room, nothing more is read ahead for now.
            Some(_) if is_front => self.reading.is_front_new = !self.cache.need(key, pack),
            Some(_) => self.cache.pass(key, pack),
            None => {}
        }
        None
    }

    /// Keeps the front of the stream at hand.
    fn read_front(&mut self, around: &mut Around) {
        self.reading.is_front_new = false;
        let (mut bytes, mut missing) = (0, Vec::new());
        let settled = self.index.settled();
        let is_needed = |pack: &OpenPack| {
            let is_stuck = settled - pack.moved_at > STUCK_AFTER;
            pack.wanted() > if is_stuck { pack.count / STUCK_PART } else { 0 }
        };
        let front = self.index.front().take(FRONT_LOOKED_AT).filter(|(_, pack)| is_needed(pack));
        for (key, _) in front.take(FRONT_MAX) {
            match self.cache.holds(key) {
                Some(held) => bytes += held,
                None if !self.reading.under_way.contains(&key) => missing.push(key),
                None => {}
            }
            if bytes >= FRONT_BYTES
                || missing.len() + self.reading.under_way.len() >= FRONT_READS_MAX
            {
                break;
            }
        }
        for key in missing {
            self.fetch(key, around);
        }
    }
}
