//! Turns of shops, so that one shop's three million webhooks delay nobody else's, and the barriers
//! within a shop.
//!
//! Deficit round robin (Shreedhar and Varghese, 1995) over the shops that have something ready,
//! once for the priority topics and once for the rest, of which the rest has one turn in five. A
//! turn is one delivery; its cost is known afterwards, so one that took longer than most is paid for
//! with the shop's next turns. Pure: time is an argument.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet, VecDeque};
use std::time::Duration;

use slab::Slab;
use spillway_webhook::position::Position;

use crate::attempts::LONG;
use crate::by_hash::ByHash;
use crate::fairness::{Pace, TurnState, TurnsBy};
use crate::index::{LaneKey, ResourceKey, key_of, usize_of};
use crate::sorted::Class;

/// Turns of the priority topics before the rest has one.
const PRIORITY_TURNS: u32 = 4;
/// Most that a shop can owe, in turns.
const DEBT_MAX: f64 = 16.0;
/// Most that a shop can be owed.
const CREDIT_MAX: f64 = 4.0;
/// Deliveries over which the usual duration is averaged.
const USUAL_OVER: f64 = 64.0;
/// The same of one shop.
const TOOK_OVER: f64 = 4.0;
/// A delivery counts as so many usual ones at most: a few of one slow shop do not change what is usual.
const USUAL_TIMES: f64 = 4.0;

/// Key of a shop.
pub type ShopKey = u32;

/// Bounds of one shop.
#[derive(Debug, Clone, Copy)]
pub struct ShopBounds {
    /// Deliveries at once.
    pub concurrency_max: u32,
    /// Time between two deliveries.
    pub spacing: Duration,
}

/// A shop of which something waits.
#[derive(Debug)]
pub struct Shop {
    /// Stable hash of its domain.
    pub hash: u64,
    /// Its lanes.
    pub lanes: Vec<LaneKey>,
    /// Deliveries under way.
    pub in_flight: u32,
    pace: Pace,
    /// Unsettled webhooks that were read, replays aside.
    waiting: u64,
    /// No turn before.
    pub paused_until: Duration,
    /// Whether an operator paused it.
    pub is_stopped: bool,
    /// Whether its next webhook is being read.
    pub is_starved: bool,
    /// Barriers, and what they hold back.
    pub barriers: Option<Box<Barriers>>,
    turns: TurnState,
    /// Tells it from one that had its key before.
    born: u32,
}

/// Barriers of one shop.
#[derive(Debug, Default)]
pub struct Barriers {
    /// Positions of all barriers that are not settled, indexed or not.
    pub positions: BTreeSet<Position>,
    /// Resources that are held back, by the position of their head.
    pub held: BTreeMap<Position, ResourceKey>,
    /// Whether the shop has lanes of another key scheme: then everything goes by position.
    pub is_mixed: bool,
}

/// All shops of which something waits. Times are durations since the start.
#[derive(Debug)]
pub struct Shops {
    bounds: ShopBounds,
    shops: Slab<Shop>,
    by_hash: ByHash<ShopKey>,
    /// Keys of shops and when they were born; those of shops that are gone are passed over.
    turns: [VecDeque<(ShopKey, u32)>; 2],
    /// Goes up with each new shop.
    births: u32,
    priority_turns: u32,
    /// Shops to look at again when their pause ends.
    due: BinaryHeap<Reverse<(Duration, ShopKey)>>,
    /// Shops that leave the last slots to others.
    aside: Vec<ShopKey>,
    stopped: HashSet<u64>,
    /// Duration of a usual delivery, in seconds.
    usual: f64,
    /// Sum of [`Shop::waiting`].
    waiting: u64,
}

/// Whether a shop may have a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShopGate {
    /// It may.
    Open,
    /// An operator paused it.
    Stopped,
    /// Its next webhook is being read.
    Starved,
    /// It has as much under way as it may.
    Full,
    /// It waits for its rate, or was asked to.
    PausedUntil(Duration),
}

impl Shops {
    /// No shops.
    pub fn new(bounds: ShopBounds) -> Self {
        Self {
            bounds,
            shops: Slab::new(),
            by_hash: ByHash::default(),
            turns: [VecDeque::new(), VecDeque::new()],
            births: 0,
            priority_turns: 0,
            due: BinaryHeap::new(),
            aside: Vec::new(),
            stopped: HashSet::new(),
            usual: 0.0,
            waiting: 0,
        }
    }

    /// The shop with this hash, made if there is none.
    pub fn intern(&mut self, hash: u64) -> ShopKey {
        let (shops, stopped, births) = (&mut self.shops, &self.stopped, &mut self.births);
        *self.by_hash.entry(hash).or_insert_with(|| {
            *births = births.wrapping_add(1);
            key_of(shops.insert(Shop {
                hash,
                lanes: Vec::new(),
                in_flight: 0,
                pace: Pace::default(),
                waiting: 0,
                paused_until: Duration::ZERO,
                is_stopped: stopped.contains(&hash),
                is_starved: false,
                barriers: None,
                turns: TurnState::default(),
                born: *births,
            }))
        })
    }

    /// The shop with this hash.
    pub fn by_hash(&self, hash: u64) -> Option<ShopKey> {
        self.by_hash.get(&hash).copied()
    }

    /// A shop.
    pub fn get(&self, key: ShopKey) -> Option<&Shop> {
        self.shops.get(usize_of(key))
    }

    /// A shop, to change it.
    pub fn get_mut(&mut self, key: ShopKey) -> Option<&mut Shop> {
        self.shops.get_mut(usize_of(key))
    }

    /// Barriers of every shop that has some.
    pub fn barriers(&self) -> impl Iterator<Item = &Barriers> {
        self.shops.iter().filter_map(|(_, shop)| shop.barriers.as_deref())
    }

    /// Shops of which something waits.
    pub fn len(&self) -> usize {
        self.shops.len()
    }

    /// Every shop of which something waits.
    pub fn iter(&self) -> impl Iterator<Item = &Shop> {
        self.shops.iter().map(|(_, shop)| shop)
    }

    /// Unsettled webhooks of all shops.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Webhooks of a shop were read that are not settled.
    pub fn arrived(&mut self, key: ShopKey, count: u64) {
        if let Some(shop) = self.shops.get_mut(usize_of(key)) {
            shop.waiting += count;
            self.waiting += count;
        }
    }

    /// Webhooks of a shop are settled, or lost.
    pub fn settled(&mut self, key: ShopKey, count: u64) {
        if let Some(shop) = self.shops.get_mut(usize_of(key)) {
            shop.waiting -= count;
            self.waiting -= count;
        }
    }

    /// Duration of a usual delivery; zero before the first.
    pub fn usual(&self) -> Duration {
        Duration::from_secs_f64(self.usual)
    }

    /// Class whose turn comes first.
    pub fn first_class(&self, by: TurnsBy) -> [Class; 2] {
        let most = if by == TurnsBy::Time { PRIORITY_TURNS } else { 1 };
        if self.priority_turns >= most {
            [Class::Rest, Class::Priority]
        } else {
            [Class::Priority, Class::Rest]
        }
    }

    /// A turn of this class was used.
    pub fn used(&mut self, class: Class) {
        self.priority_turns = match class {
            Class::Priority => self.priority_turns + 1,
            Class::Rest => 0,
        };
    }

    /// The next shop that may have a turn of this class.
    pub fn next(&mut self, class: Class, by: TurnsBy, now: Duration) -> Option<ShopKey> {
        let turns = &mut self.turns[class.index()];
        while let Some((key, born)) = turns.pop_front() {
            let shop = self.shops.get_mut(usize_of(key));
            let Some(shop) = shop.filter(|shop| shop.born == born) else { continue };
            shop.turns.has_turn[class.index()] = false;
            match gate(shop, self.bounds, now) {
                ShopGate::Open => {}
                // It has turns again when it is resumed, or read, or a delivery ends.
                ShopGate::Stopped | ShopGate::Starved | ShopGate::Full => continue,
                ShopGate::PausedUntil(until) => {
                    if !std::mem::replace(&mut shop.turns.is_due, true) {
                        self.due.push(Reverse((until, key)));
                    }
                    continue;
                }
            }
            if by == TurnsBy::Time && shop.turns.debt >= 1.0 && !turns.is_empty() {
                shop.turns.debt -= 1.0;
                shop.turns.has_turn[class.index()] = true;
                turns.push_back((key, born));
                continue;
            }
            return Some(key);
        }
        None
    }

    /// A shop that had a turn has another one later; soon, if it is owed some.
    pub fn keep_turn(&mut self, key: ShopKey, class: Class, by: TurnsBy) {
        let Some(shop) = self.shops.get_mut(usize_of(key)) else { return };
        if std::mem::replace(&mut shop.turns.has_turn[class.index()], true) {
            return;
        }
        if by == TurnsBy::Time && shop.turns.debt <= -1.0 {
            shop.turns.debt += 1.0;
            self.turns[class.index()].push_front((key, shop.born));
        } else {
            self.turns[class.index()].push_back((key, shop.born));
        }
    }

    /// A shop whose turn was passed over has the next one.
    pub fn put_back(&mut self, key: ShopKey, class: Class) {
        let Some(shop) = self.shops.get_mut(usize_of(key)) else { return };
        if !std::mem::replace(&mut shop.turns.has_turn[class.index()], true) {
            self.turns[class.index()].push_front((key, shop.born));
        }
    }

    /// A shop may have something ready of this class.
    pub fn give_turn(&mut self, key: ShopKey, class: Class) {
        let Some(shop) = self.shops.get_mut(usize_of(key)) else { return };
        let is_closed = shop.is_stopped
            || shop.is_starved
            || shop.turns.is_set_aside
            || shop.in_flight >= self.bounds.concurrency_max;
        if !is_closed && !std::mem::replace(&mut shop.turns.has_turn[class.index()], true) {
            self.turns[class.index()].push_back((key, shop.born));
        }
    }

    /// The same of both classes.
    pub fn give_turns(&mut self, key: ShopKey) {
        self.give_turn(key, Class::Priority);
        self.give_turn(key, Class::Rest);
    }

    /// Whether a shop may have a turn at `now`.
    pub fn gate(&self, key: ShopKey, now: Duration) -> ShopGate {
        self.get(key).map_or(ShopGate::Open, |shop| gate(shop, self.bounds, now))
    }

    /// A delivery of the shop began.
    pub fn began(&mut self, key: ShopKey, now: Duration) {
        let Some(shop) = self.shops.get_mut(usize_of(key)) else { return };
        shop.in_flight += 1;
        if !self.bounds.spacing.is_zero() {
            shop.paused_until = shop.paused_until.max(now + self.bounds.spacing);
        }
    }

    /// A delivery of the shop takes long.
    pub fn has_long(&mut self, key: ShopKey) {
        if let Some(shop) = self.shops.get_mut(usize_of(key)) {
            shop.pace.long += 1;
        }
    }

    /// The shop leaves the last slots to others, until [`Self::take_back`].
    pub fn set_aside(&mut self, key: ShopKey) {
        if let Some(shop) = self.shops.get_mut(usize_of(key)) {
            shop.turns.is_set_aside = true;
            self.aside.push(key);
        }
    }

    /// Shops that were set aside have turns again.
    pub fn take_back(&mut self) {
        for key in std::mem::take(&mut self.aside) {
            if let Some(shop) = self.shops.get_mut(usize_of(key)) {
                shop.turns.is_set_aside = false;
            }
            self.give_turns(key);
        }
    }

    /// It ended, after `took`. An attempt of a slow lane does not change the usual duration.
    pub fn ended(&mut self, key: ShopKey, took: Duration, is_usual: bool, is_long: bool) {
        let took = took.as_secs_f64();
        if is_usual && self.usual == 0.0 {
            self.usual = took;
        } else if is_usual {
            self.usual += (took.min(USUAL_TIMES * self.usual) - self.usual) / USUAL_OVER;
        }
        let Some(shop) = self.shops.get_mut(usize_of(key)) else { return };
        shop.in_flight -= 1;
        shop.pace.long -= u32::from(is_long);
        shop.pace.took += (took - shop.pace.took) / TOOK_OVER;
        let cost = if self.usual > 0.0 { took / self.usual } else { 1.0 };
        // A quick failure is a turn that others could have had.
        let cost = if is_usual { cost } else { cost.max(1.0) };
        shop.turns.debt = (shop.turns.debt + cost - 1.0).clamp(-CREDIT_MAX, DEBT_MAX);
        self.give_turns(key);
    }

    /// Pauses these shops and no others, by an operator's order.
    pub fn stop(&mut self, shops: HashSet<u64>) {
        self.stopped = shops;
        let mut resumed = Vec::new();
        for (key, shop) in &mut self.shops {
            let was_stopped = shop.is_stopped;
            shop.is_stopped = self.stopped.contains(&shop.hash);
            if was_stopped && !shop.is_stopped {
                resumed.push(key_of(key));
            }
        }
        resumed.into_iter().for_each(|key| self.give_turns(key));
    }

    /// Leaves a shop alone until then, as the backend asked.
    pub fn pause(&mut self, key: ShopKey, until: Duration) {
        if let Some(shop) = self.shops.get_mut(usize_of(key)) {
            shop.paused_until = shop.paused_until.max(until);
        }
    }

    /// The next webhook of a shop is being read.
    pub fn starve(&mut self, key: ShopKey) {
        if let Some(shop) = self.shops.get_mut(usize_of(key)) {
            shop.is_starved = true;
        }
    }

    /// That webhook is at hand, or is not needed any more.
    pub fn feed(&mut self, key: ShopKey) {
        if let Some(shop) = self.shops.get_mut(usize_of(key)) {
            shop.is_starved = false;
            self.give_turns(key);
        }
    }

    /// When a paused shop is to be looked at again.
    pub fn wakes_at(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Gives turns to the shops whose pause is over.
    pub fn wake(&mut self, now: Duration) {
        while let Some(Reverse((at, key))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            if let Some(shop) = self.get_mut(key) {
                shop.turns.is_due = false;
            }
            self.give_turns(key);
            self.forget(key, now);
        }
    }

    /// Lets go of a shop of which nothing waits, unless its pause is to outlast it.
    pub fn forget(&mut self, key: ShopKey, now: Duration) {
        let Some(shop) = self.get(key) else { return };
        let has_barriers = shop.barriers.as_ref().is_some_and(|all| !all.positions.is_empty());
        if !shop.lanes.is_empty() || shop.in_flight > 0 || has_barriers {
            return;
        }
        let until = shop.paused_until;
        if until > now {
            if let Some(shop) = self.get_mut(key)
                && !std::mem::replace(&mut shop.turns.is_due, true)
            {
                self.due.push(Reverse((until, key)));
            }
            return;
        }
        let shop = self.shops.remove(usize_of(key));
        debug_assert_eq!(shop.waiting, 0, "BUG: a shop without lanes has webhooks that wait");
        self.waiting -= shop.waiting;
        self.by_hash.remove(&shop.hash);
    }
}

fn gate(shop: &Shop, bounds: ShopBounds, now: Duration) -> ShopGate {
    if shop.is_stopped {
        ShopGate::Stopped
    } else if shop.is_starved {
        ShopGate::Starved
    } else if shop.turns.is_set_aside || shop.in_flight >= bounds.concurrency_max {
        ShopGate::Full
    } else if shop.paused_until > now {
        ShopGate::PausedUntil(shop.paused_until)
    } else {
        ShopGate::Open
    }
}

impl Shop {
    /// Unsettled webhooks that were read, in the main stream and in lanes, indexed or not.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// True if it keeps its slots for long: a delivery under way does, or the last few did.
    pub fn is_long(&self) -> bool {
        self.pace.long > 0 || self.pace.took >= LONG.as_secs_f64()
    }

    /// True if it has a turn of this class, or an event that must come gives it one.
    pub fn has_turns_to_come(&self, class: Class) -> bool {
        let is_closed = self.is_stopped || self.is_starved || self.turns.is_set_aside;
        is_closed || self.turns.is_due || self.in_flight > 0 || self.turns.has_turn[class.index()]
    }

    /// Whether the shop has lanes of two key schemes.
    pub fn is_mixed(&self) -> bool {
        self.barriers.as_ref().is_some_and(|barriers| barriers.is_mixed)
    }
}

impl Barriers {
    /// Whether no barrier and nothing else is left here.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty() && self.held.is_empty() && !self.is_mixed
    }

    /// Whether no unsettled barrier is before `position`.
    pub fn is_free(&self, position: Position) -> bool {
        self.positions.first().is_none_or(|first| *first >= position)
    }
}
