//! Whose turn it is: fair over shops, so that one shop's three million webhooks delay nobody else's.
//!
//! Deficit round robin (Shreedhar and Varghese, 1995) over the shops that have something ready, once
//! for the priority topics and once for the rest, of which the rest has one turn in five. A turn is
//! one delivery; what it cost the backend is known afterwards, so one that took longer than most is
//! paid for with the shop's next turns, and one that took less brings another. Within a shop, in stream order. [`barriers`] hold back what must wait for the rest of its shop. Pure: time is an
//! argument.

pub mod barriers;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use slab::Slab;

use self::barriers::{Barriers, Position};
use crate::index::{Place, ResourceKey};

/// Turns of the priority topics before the rest has one.
const PRIORITY_TURNS: u32 = 4;
/// What a shop can owe, or be owed, in turns.
const DEBT_MAX: f64 = 16.0;
const CREDIT_MAX: f64 = 4.0;
/// Deliveries over which the usual duration is averaged.
const USUAL_OVER: f64 = 64.0;

/// A shop in the schedule.
pub type ShopKey = u32;

/// Which of the two rounds a webhook takes part in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `PRIORITY_TOPICS`.
    Priority,
    /// All others.
    Rest,
}

/// What one shop may take.
#[derive(Debug, Clone, Copy)]
pub struct ShopBounds {
    /// Deliveries at once.
    pub concurrency_max: u32,
    /// Between two deliveries.
    pub spacing: Duration,
}

/// All shops of which something waits. Times are durations since an arbitrary start.
#[derive(Debug)]
pub struct Schedule {
    bounds: ShopBounds,
    shops: Slab<Shop>,
    by_hash: HashMap<u64, ShopKey>,
    /// Shops that have something ready and may deliver it, in turn, for each class.
    turns: [VecDeque<ShopKey>; 2],
    priority_turns: u32,
    /// Shops to look at again, because they are paused.
    due: BinaryHeap<Reverse<(Duration, ShopKey)>>,
    /// Shops with barriers.
    barred: BTreeSet<ShopKey>,
    /// Hashes of the shops that an operator paused.
    stopped: HashSet<u64>,
    /// How long a delivery takes, in seconds.
    usual: f64,
}

#[derive(Debug)]
struct Shop {
    hash: u64,
    /// In stream order of what is to be delivered of each.
    ready: [BinaryHeap<Reverse<(Place, ResourceKey)>>; 2],
    has_turn: [bool; 2],
    /// Webhooks that are not settled.
    waiting: u32,
    in_flight: u32,
    debt: f64,
    paused_until: Duration,
    /// Its next webhook has to be read again first.
    is_starved: bool,
    /// An operator paused it.
    is_stopped: bool,
    /// The last position that was added.
    newest: Position,
    barriers: Option<Box<Barriers>>,
}

/// A resource whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Its shop.
    pub shop: ShopKey,
    /// The resource.
    pub resource: ResourceKey,
}

impl Schedule {
    /// An empty one.
    pub fn new(bounds: ShopBounds) -> Self {
        Self {
            bounds,
            shops: Slab::new(),
            by_hash: HashMap::new(),
            turns: [VecDeque::new(), VecDeque::new()],
            priority_turns: 0,
            due: BinaryHeap::new(),
            barred: BTreeSet::new(),
            stopped: HashSet::new(),
            usual: 0.0,
        }
    }

    /// A webhook of the shop `hash` waits from now on. `all` are the positions of everything of the
    /// shop that waits, without this one; it is asked only for a barrier that came out of order.
    pub fn add(
        &mut self,
        hash: u64,
        position: Position,
        is_barrier: bool,
        all: impl FnOnce(ShopKey) -> HashSet<Position>,
    ) -> ShopKey {
        let (shops, stopped) = (&mut self.shops, &self.stopped);
        let key = *self.by_hash.entry(hash).or_insert_with(|| {
            let shop = Shop::new(hash, stopped.contains(&hash));
            u32::try_from(shops.insert(shop)).expect("BUG: the index is bounded")
        });
        let shop = &mut shops[key as usize];
        let is_in_order = position >= shop.newest;
        if is_barrier {
            self.barred.insert(key);
            let barriers = shop.barriers.get_or_insert_default();
            if is_in_order {
                barriers.push(position, shop.waiting);
            } else {
                barriers.insert(position, &all(key));
            }
        } else if let Some(barriers) = &mut shop.barriers {
            barriers.add(position);
        }
        shop.newest = shop.newest.max(position);
        shop.waiting += 1;
        key
    }

    /// A webhook is settled. Hands out the resources that were held back for it.
    pub fn left(&mut self, key: ShopKey, position: Position, now: Duration) -> Vec<ResourceKey> {
        let Some(shop) = self.shops.get_mut(key as usize) else { return Vec::new() };
        shop.waiting -= 1;
        let mut released = Vec::new();
        if let Some(barriers) = &mut shop.barriers {
            released = barriers.left(position);
            if barriers.is_empty() {
                shop.barriers = None;
                self.barred.remove(&key);
            }
        }
        self.forget(key, now);
        released
    }

    /// Whether a webhook of the shop may be delivered, as far as barriers go.
    pub fn is_open(&self, key: ShopKey, position: Position) -> bool {
        self.barriers(key).is_none_or(|barriers| barriers.is_open(position))
    }

    /// Where the shop's first barrier is.
    pub fn barrier(&self, key: ShopKey) -> Option<Position> {
        self.barriers(key).and_then(Barriers::first)
    }

    /// Holds a resource back until [`Schedule::left`] hands it out.
    pub fn hold(&mut self, key: ShopKey, position: Position, resource: ResourceKey) {
        let barriers = self.shops.get_mut(key as usize).and_then(|shop| shop.barriers.as_mut());
        barriers.expect("BUG: held without a barrier").hold(position, resource);
    }

    /// The resource that was held back at `position` has another head now.
    pub fn unhold(&mut self, key: ShopKey, position: Position) {
        let barriers = self.shops.get_mut(key as usize).and_then(|shop| shop.barriers.as_mut());
        if let Some(barriers) = barriers {
            barriers.unhold(position);
        }
    }

    /// Resources that are held back in shops where nothing moves, since what they wait for waits
    /// for its retry.
    pub fn stuck(&self) -> impl Iterator<Item = ResourceKey> {
        let barred = self.barred.iter().filter_map(|key| self.shops.get(*key as usize));
        let stuck = barred
            .filter(|shop| shop.in_flight == 0 && shop.ready.iter().all(BinaryHeap::is_empty));
        stuck.filter_map(|shop| shop.barriers.as_ref()).flat_map(|barriers| barriers.held())
    }

    /// A resource may be delivered when its shop's turn comes; what is to be delivered of it lies at
    /// `place`.
    pub fn push(&mut self, key: ShopKey, class: Class, place: Place, resource: ResourceKey) {
        let Some(shop) = self.shops.get_mut(key as usize) else { return };
        shop.ready[class as usize].push(Reverse((place, resource)));
        self.give_turns(key);
    }

    /// The next resource. [`Schedule::began`] must follow if it is delivered.
    pub fn pick(&mut self, now: Duration) -> Option<Turn> {
        self.wake(now);
        let first = usize::from(self.priority_turns >= PRIORITY_TURNS);
        let (class, turn) = [first, 1 - first]
            .into_iter()
            .find_map(|class| self.pick_of(class, now).map(|turn| (class, turn)))?;
        self.priority_turns = if class == 0 { self.priority_turns + 1 } else { 0 };
        Some(turn)
    }

    /// The hash of a shop, by which it is known beyond the schedule.
    pub fn hash(&self, key: ShopKey) -> u64 {
        self.shops.get(key as usize).map_or(0, |shop| shop.hash)
    }

    /// What a shop would deliver next has to be read again first: it has no turn until it is fed.
    pub fn starve(&mut self, key: ShopKey) {
        if let Some(shop) = self.shops.get_mut(key as usize) {
            shop.is_starved = true;
        }
    }

    /// What was to be read is at hand.
    pub fn feed(&mut self, key: ShopKey) {
        if let Some(shop) = self.shops.get_mut(key as usize) {
            shop.is_starved = false;
            self.give_turns(key);
        }
    }

    /// A delivery of the shop began.
    pub fn began(&mut self, key: ShopKey, now: Duration) {
        let Some(shop) = self.shops.get_mut(key as usize) else { return };
        shop.in_flight += 1;
        if !self.bounds.spacing.is_zero() {
            shop.paused_until = shop.paused_until.max(now + self.bounds.spacing);
        }
    }

    /// It ended, after `took`.
    pub fn ended(&mut self, key: ShopKey, took: Duration) {
        let took = took.as_secs_f64();
        self.usual += (took - self.usual) / USUAL_OVER;
        let Some(shop) = self.shops.get_mut(key as usize) else { return };
        shop.in_flight -= 1;
        let cost = if self.usual > 0.0 { took / self.usual } else { 1.0 };
        shop.debt = (shop.debt + cost - 1.0).clamp(-CREDIT_MAX, DEBT_MAX);
        self.give_turns(key);
    }

    /// From now on, these shops and no others have no turns, by an operator's order.
    pub fn stop(&mut self, shops: HashSet<u64>) {
        self.stopped = shops;
        let mut resumed = Vec::new();
        for (key, shop) in &mut self.shops {
            let was_stopped = shop.is_stopped;
            shop.is_stopped = self.stopped.contains(&shop.hash);
            if was_stopped && !shop.is_stopped {
                resumed.push(u32::try_from(key).expect("BUG: the index is bounded"));
            }
        }
        resumed.into_iter().for_each(|key| self.give_turns(key));
    }

    /// Whether an operator stopped any shop.
    pub fn is_any_stopped(&self) -> bool {
        !self.stopped.is_empty()
    }

    /// Whether an operator stopped the shop of this hash.
    pub fn stops(&self, hash: u64) -> bool {
        self.stopped.contains(&hash)
    }

    /// Whether an operator stopped the shop.
    pub fn is_stopped(&self, key: ShopKey) -> bool {
        self.shops.get(key as usize).is_some_and(|shop| shop.is_stopped)
    }

    /// The backend asked that the shop be left alone.
    pub fn pause(&mut self, key: ShopKey, until: Duration) {
        if let Some(shop) = self.shops.get_mut(key as usize) {
            shop.paused_until = shop.paused_until.max(until);
        }
    }

    /// When a paused shop is to be looked at again.
    pub fn wakes_at(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    fn pick_of(&mut self, class: usize, now: Duration) -> Option<Turn> {
        while let Some(key) = self.turns[class].pop_front() {
            let shop = &mut self.shops[key as usize];
            shop.has_turn[class] = false;
            if shop.is_stopped || shop.is_starved || shop.in_flight >= self.bounds.concurrency_max {
                // It has turns again when it is resumed, or fed, or a delivery ends.
                continue;
            }
            if shop.paused_until > now {
                self.due.push(Reverse((shop.paused_until, key)));
                continue;
            }
            if shop.debt >= 1.0 && !self.turns[class].is_empty() {
                shop.debt -= 1.0;
                shop.has_turn[class] = true;
                self.turns[class].push_back(key);
                continue;
            }
            let Some(Reverse((_, resource))) = shop.ready[class].pop() else { continue };
            if !shop.ready[class].is_empty() {
                shop.has_turn[class] = true;
                if shop.debt <= -1.0 {
                    shop.debt += 1.0;
                    self.turns[class].push_front(key);
                } else {
                    self.turns[class].push_back(key);
                }
            }
            return Some(Turn { shop: key, resource });
        }
        None
    }

    /// Looks again at the shops whose pause is over.
    pub fn wake(&mut self, now: Duration) {
        while let Some(Reverse((at, key))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            self.give_turns(key);
            self.forget(key, now);
        }
    }

    fn give_turns(&mut self, key: ShopKey) {
        let Some(shop) = self.shops.get_mut(key as usize) else { return };
        let is_busy = shop.in_flight >= self.bounds.concurrency_max;
        if shop.is_stopped || shop.is_starved || is_busy {
            return;
        }
        for class in 0..self.turns.len() {
            if !shop.ready[class].is_empty() && !std::mem::replace(&mut shop.has_turn[class], true)
            {
                self.turns[class].push_back(key);
            }
        }
    }

    /// A shop of which nothing waits is let go, unless its pause is to outlast it.
    fn forget(&mut self, key: ShopKey, now: Duration) {
        let Some(shop) = self.shops.get(key as usize) else { return };
        if shop.waiting > 0 || shop.in_flight > 0 {
            return;
        }
        if shop.paused_until > now {
            self.due.push(Reverse((shop.paused_until, key)));
            return;
        }
        let shop = self.shops.remove(key as usize);
        self.by_hash.remove(&shop.hash);
        for (turns, had) in self.turns.iter_mut().zip(shop.has_turn) {
            if had {
                turns.retain(|turn| *turn != key);
            }
        }
    }

    fn barriers(&self, key: ShopKey) -> Option<&Barriers> {
        self.shops.get(key as usize)?.barriers.as_deref()
    }
}

impl Shop {
    fn new(hash: u64, is_stopped: bool) -> Self {
        Self {
            hash,
            ready: [BinaryHeap::new(), BinaryHeap::new()],
            has_turn: [false; 2],
            waiting: 0,
            in_flight: 0,
            debt: 0.0,
            paused_until: Duration::ZERO,
            is_starved: false,
            is_stopped,
            newest: Position::default(),
            barriers: None,
        }
    }
}

#[cfg(test)]
mod tests;
