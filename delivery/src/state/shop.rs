//! Turns of shops, and the barriers within a shop. Turns keep the webhooks of one shop, even three
//! million, from delaying other shops.
//!
//! The algorithm is deficit round robin (Shreedhar and Varghese, 1995) over the shops that have
//! something ready. It runs once for the priority topics and once for the rest, which has one turn
//! in five. A turn is one delivery. Its cost is known afterwards, so a shop pays with its next
//! turns for a delivery that took longer than most. Pure: time is an argument.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet, VecDeque};
use std::time::Duration;

use slab::Slab;
use spillway_webhook::position::Position;

use crate::classified::Class;
use crate::state::fairness::{ClassTurns, DeliveryTimes, TurnState, TurnsBy, UsualTime};
use crate::state::folded::ByHash;
use crate::state::index::{LaneKey, ResourceKey, key_of, usize_of};

/// An attempt that takes longer is long: it keeps its slot, whatever duration is usual.
pub(crate) const LONG: Duration = Duration::from_secs(1);
/// Time for which a shop with a long delivery leaves the last slots to others, if long deliveries hold
/// most slots.
const LONG_LATELY: Duration = Duration::from_secs(30);
/// Highest debt of a shop, in turns.
const DEBT_MAX: f64 = 16.0;
/// Highest credit of a shop, in turns.
const CREDIT_MAX: f64 = 4.0;
/// Number of deliveries over which the duration of one shop is averaged.
const TOOK_OVER: f64 = 4.0;

/// Key of a shop.
pub(crate) type ShopKey = u32;

/// Bounds of one shop.
#[derive(Debug, Clone, Copy)]
pub struct ShopBounds {
    /// Most deliveries at once.
    pub concurrency_max: u32,
    /// Time between two deliveries.
    pub spacing: Duration,
}

/// A shop of which webhooks wait.
#[derive(Debug)]
pub(crate) struct Shop {
    /// Stable hash of its domain.
    pub hash: u64,
    /// Lanes of the shop.
    pub lanes: Vec<LaneKey>,
    /// Number of deliveries under way.
    pub in_flight: u32,
    /// Time that its deliveries take.
    pub pace: DeliveryTimes,
    /// Number of unsettled webhooks that were read. Replays do not count.
    waiting: u64,
    /// Time before which the shop has no turn.
    pub paused_until: Duration,
    /// True if an operator paused the shop.
    pub is_stopped: bool,
    /// True if the shop's next webhook is being read.
    pub is_starved: bool,
    /// Barriers and the resources that they hold back.
    pub barriers: Option<Box<Barriers>>,
    turns: TurnState,
    /// Number of this shop in order of creation. It distinguishes shops that used the same key.
    born: u32,
}

/// Barriers of one shop.
#[derive(Debug, Default)]
pub(crate) struct Barriers {
    /// Positions of all barriers that are not settled, indexed or not.
    pub positions: BTreeSet<Position>,
    /// Resources that are held back, by the position of their head.
    pub held: BTreeMap<Position, ResourceKey>,
    /// True if the shop has lanes of another key scheme. Then all its webhooks go by position.
    pub is_mixed: bool,
}

/// All shops of which webhooks wait. Times are durations since the start.
#[derive(Debug)]
pub(crate) struct Shops {
    bounds: ShopBounds,
    shops: Slab<Shop>,
    by_hash: ByHash<ShopKey>,
    /// Keys of shops and their creation numbers. Those of shops that are gone are skipped.
    turns: [VecDeque<(ShopKey, u32)>; 2],
    /// Number of shops created so far.
    births: u32,
    /// Turns of the classes.
    pub classes: ClassTurns,
    /// Shops to check again when their pause ends.
    due: BinaryHeap<Reverse<(Duration, ShopKey)>>,
    /// Shops that leave the last slots to others.
    aside: Vec<ShopKey>,
    /// Shops with more resources to release of those that a barrier held back.
    pub releasing: BTreeSet<ShopKey>,
    stopped: HashSet<u64>,
    /// Duration of a usual delivery.
    pub usual: UsualTime,
    /// Sum of [`Shop::waiting`].
    waiting: u64,
}

/// Result of checking if a shop may have a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShopGate {
    /// The shop may have a turn.
    Open,
    /// An operator paused the shop.
    Stopped,
    /// The shop's next webhook is being read.
    Starved,
    /// The shop has as many deliveries under way as it may have.
    Full,
    /// The shop waits for its rate, or for a pause that the backend requested.
    PausedUntil(Duration),
}

impl Shops {
    /// Creates an empty set of shops.
    pub(crate) fn new(bounds: ShopBounds) -> Self {
        Self {
            bounds,
            shops: Slab::new(),
            by_hash: ByHash::default(),
            turns: [VecDeque::new(), VecDeque::new()],
            births: 0,
            classes: ClassTurns::default(),
            due: BinaryHeap::new(),
            aside: Vec::new(),
            releasing: BTreeSet::new(),
            stopped: HashSet::new(),
            usual: UsualTime::default(),
            waiting: 0,
        }
    }

    /// Returns the shop with this hash. Creates it if there is none.
    pub(crate) fn intern(&mut self, hash: u64) -> ShopKey {
        let shops = &mut self.shops;
        let stopped = &self.stopped;
        let births = &mut self.births;
        *self.by_hash.entry(hash).or_insert_with(|| {
            *births = births.wrapping_add(1);
            key_of(shops.insert(Shop {
                hash,
                lanes: Vec::new(),
                in_flight: 0,
                pace: DeliveryTimes::default(),
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
    pub(crate) fn by_hash(&self, hash: u64) -> Option<ShopKey> {
        self.by_hash.get(&hash).copied()
    }

    /// A shop.
    pub(crate) fn get(&self, key: ShopKey) -> Option<&Shop> {
        self.shops.get(usize_of(key))
    }

    /// A shop, to change it.
    pub(crate) fn get_mut(&mut self, key: ShopKey) -> Option<&mut Shop> {
        self.shops.get_mut(usize_of(key))
    }

    /// Number of shops of which webhooks wait.
    pub(crate) fn len(&self) -> usize {
        self.shops.len()
    }

    /// Every shop of which webhooks wait.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Shop> {
        self.shops.iter().map(|(_, shop)| shop)
    }

    /// Number of unsettled webhooks of all shops.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Adds unsettled webhooks that were read.
    pub(crate) fn arrived(&mut self, key: ShopKey, count: u64) {
        if let Some(shop) = self.shops.get_mut(usize_of(key)) {
            shop.waiting += count;
            self.waiting += count;
        }
    }

    /// Removes webhooks that are settled or lost.
    pub(crate) fn settled(&mut self, key: ShopKey, count: u64) {
        if let Some(shop) = self.shops.get_mut(usize_of(key)) {
            shop.waiting -= count;
            self.waiting -= count;
        }
    }

    /// Takes the next shop that may have a turn of this class.
    pub(crate) fn next(&mut self, class: Class, by: TurnsBy, now: Duration) -> Option<ShopKey> {
        let turns = &mut self.turns[class.index()];
        while let Some((key, born)) = turns.pop_front() {
            let shop = self.shops.get_mut(usize_of(key));
            let Some(shop) = shop.filter(|shop| shop.born == born) else { continue };
            shop.turns.has_turn[class.index()] = false;
            match gate(shop, self.bounds, now) {
                ShopGate::Open => {}
                // The shop gets turns again when it is resumed, its bytes are read, or a delivery
                // ends.
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

    /// Gives a shop that had a turn another one. It comes soon if the shop has credit.
    pub(crate) fn keep_turn(&mut self, key: ShopKey, class: Class, by: TurnsBy) {
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

    /// Gives the next turn back to a shop that was skipped.
    pub(crate) fn put_back(&mut self, key: ShopKey, class: Class) {
        let Some(shop) = self.shops.get_mut(usize_of(key)) else { return };
        if !std::mem::replace(&mut shop.turns.has_turn[class.index()], true) {
            self.turns[class.index()].push_front((key, shop.born));
        }
    }

    /// Gives a turn to a shop that may have something ready of this class.
    pub(crate) fn give_turn(&mut self, key: ShopKey, class: Class) {
        let Some(shop) = self.shops.get_mut(usize_of(key)) else { return };
        let is_closed = shop.is_stopped
            || shop.is_starved
            || shop.turns.is_set_aside
            || shop.in_flight >= self.bounds.concurrency_max;
        if !is_closed && !std::mem::replace(&mut shop.turns.has_turn[class.index()], true) {
            self.turns[class.index()].push_back((key, shop.born));
        }
    }

    /// Gives a turn of each class.
    pub(crate) fn give_turns(&mut self, key: ShopKey) {
        self.give_turn(key, Class::Priority);
        self.give_turn(key, Class::Rest);
    }

    /// Returns if a shop may have a turn at `now`, and if not, the reason.
    pub(crate) fn gate(&self, key: ShopKey, now: Duration) -> ShopGate {
        self.get(key).map_or(ShopGate::Open, |shop| gate(shop, self.bounds, now))
    }

    /// Notes that a delivery of the shop began.
    pub(crate) fn began(&mut self, key: ShopKey, now: Duration) {
        let Some(shop) = self.shops.get_mut(usize_of(key)) else { return };
        shop.in_flight += 1;
        if !self.bounds.spacing.is_zero() {
            shop.paused_until = shop.paused_until.max(now + self.bounds.spacing);
        }
    }

    /// Makes the shop leave the last slots to others, until [`Self::take_back`].
    pub(crate) fn set_aside(&mut self, key: ShopKey) {
        if let Some(shop) = self.shops.get_mut(usize_of(key)) {
            shop.turns.is_set_aside = true;
            self.aside.push(key);
        }
    }

    /// Gives turns again to the shops that were set aside.
    pub(crate) fn take_back(&mut self) {
        for key in std::mem::take(&mut self.aside) {
            if let Some(shop) = self.shops.get_mut(usize_of(key)) {
                shop.turns.is_set_aside = false;
            }
            self.give_turns(key);
        }
    }

    /// Notes that a delivery ended after `took`. Only a usual one changes the usual duration.
    pub(crate) fn ended(&mut self, key: ShopKey, took: Duration, is_usual: bool, is_long: bool) {
        let took = took.as_secs_f64();
        if is_usual {
            self.usual.record(took);
        }
        let Some(shop) = self.shops.get_mut(usize_of(key)) else { return };
        shop.in_flight -= 1;
        shop.pace.long -= u32::from(is_long);
        shop.pace.took += (took - shop.pace.took) / TOOK_OVER;
        let cost = self.usual.cost_of(took);
        // A quick failure uses a turn that others could have had.
        let cost = if is_usual { cost } else { cost.max(1.0) };
        shop.turns.debt = (shop.turns.debt + cost - 1.0).clamp(-CREDIT_MAX, DEBT_MAX);
        self.give_turns(key);
    }

    /// Pauses these shops and no others, as an operator ordered.
    pub(crate) fn stop(&mut self, shops: HashSet<u64>) {
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

    /// Notes that the next webhook of a shop was read or is no longer needed.
    pub(crate) fn feed(&mut self, key: ShopKey) {
        if let Some(shop) = self.shops.get_mut(usize_of(key)) {
            shop.is_starved = false;
            self.give_turns(key);
        }
    }

    /// Time at which the next paused shop is to be checked, or more resources are released.
    pub(crate) fn wakes_at(&self) -> Option<Duration> {
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        if self.releasing.is_empty() { due } else { Some(Duration::ZERO) }
    }

    /// Gives turns to the shops whose pause is over.
    pub(crate) fn wake(&mut self, now: Duration) {
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

    /// Removes a shop of which nothing waits, unless its pause still lasts.
    pub(crate) fn forget(&mut self, key: ShopKey, now: Duration) {
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
    /// Pauses the shop until a time that the backend requested.
    pub(crate) fn pause(&mut self, until: Duration) {
        self.paused_until = self.paused_until.max(until);
    }

    /// Notes that a delivery of the shop is long.
    pub(crate) fn mark_long(&mut self) {
        self.pace.long += 1;
    }

    /// Number of unsettled webhooks that were read, in the main stream and in lanes, indexed or
    /// not.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// True if the shop's deliveries are long: one under way is, or the last few were.
    pub(crate) fn is_long(&self) -> bool {
        self.pace.long > 0 || self.pace.took >= LONG.as_secs_f64()
    }

    /// True if a delivery of the shop took a second or more lately.
    pub(crate) fn was_long_lately(&self, now: Duration) -> bool {
        self.pace.lasted_at.is_some_and(|at| now < at + LONG_LATELY)
    }

    /// True if the shop has a turn of this class, or if a coming event will give it one.
    pub(crate) fn has_turns_to_come(&self, class: Class) -> bool {
        let is_closed = self.is_stopped || self.is_starved || self.turns.is_set_aside;
        is_closed || self.turns.is_due || self.in_flight > 0 || self.turns.has_turn[class.index()]
    }

    /// True if the shop has lanes of two key schemes.
    pub(crate) fn is_mixed(&self) -> bool {
        self.barriers.as_ref().is_some_and(|barriers| barriers.is_mixed)
    }
}

impl Barriers {
    /// True if there is no barrier, no held resource and only one key scheme.
    pub(crate) fn is_empty(&self) -> bool {
        self.positions.is_empty() && self.held.is_empty() && !self.is_mixed
    }

    /// True if no unsettled barrier is before `position`.
    pub(crate) fn is_free(&self, position: Position) -> bool {
        self.positions.first().is_none_or(|first| *first >= position)
    }
}
