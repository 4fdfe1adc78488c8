//! Decides which archived webhook is fed next. Pure: it knows no clock, no Redis and no archive.
//!
//! Webhooks are offered in the order of the archive. A shop has at most `per_shop` replays that are not settled. While
//! it stands at that, its next webhooks are held in memory. If none of its replays is settled for 5 s, the shop is
//! stuck: its webhooks are left, from one position on, and a later pass over the archive offers them
//! again. So a shop that fails stops no other one, and each shop keeps its order.
//!
//! | pass | offers | ends |
//! |---|---|---|
//! | front | everything after `after` | with the range, or when too many shops are left |
//! | again | from the earliest position that is left, only shops that are left | with the range |
//! | between | nothing, until a shop that is left is settled | |
//!
//! Invariant: of each shop, what is before its position in `left` was fed, and nothing from there on. Of a shop without
//! one, everything up to `after` was fed. Both are written with each step, so another process can go on from them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use spillway_webhook::{Position, StreamId};

mod open;
#[cfg(test)]
mod simulation;

use self::open::OpenReplays;

/// Time for which a webhook is held while there is no room to hold more, after which its shop is left: it is slow.
const SLOW_AFTER: Duration = Duration::from_secs(30);
/// Webhooks of one step: they are appended by one script.
const STEP_MAX: usize = 64;
/// Memory of these; one webhook may go beyond.
const STEP_BYTES_MAX: usize = 4 << 20;
/// Shops whose positions change in one step. Few in the simulation, which has few shops.
const CHANGES_MAX: usize = if cfg!(test) { 2 } else { 256 };

/// Bounds of a replay.
#[derive(Debug, Clone, Copy)]
pub(super) struct FeedLimits {
    /// Replays that are not settled, without those of stuck shops.
    pub at_once: usize,
    /// Replays of one shop that are not settled.
    pub per_shop: usize,
    /// Replays that are not settled, with those of stuck shops.
    pub open: usize,
    /// Webhooks that are held in memory.
    pub held: usize,
    /// Bytes of these; one webhook may go beyond.
    pub held_bytes: usize,
    /// Shops that are left.
    pub left: usize,
}

/// Part of the work in which the feeder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FeedPass {
    /// The first pass over the range.
    Front,
    /// A later pass, for the shops that are left.
    Again,
    /// No pass.
    Between,
}

/// Answer to an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// Dealt with: fed, held, left, or not wanted. The next one may be offered.
    Taken,
    /// There is no room. Offer it again once the step is written and something is settled.
    Wait,
    /// Too many shops are left. End the pass, and offer it again later.
    EndPass,
}

/// Result of the end of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextPass {
    /// Not yet: something that is held has to be fed, or something that was fed to be settled.
    Wait,
    /// Offer everything from this position on, in the order of the archive.
    Read {
        /// First position.
        from: Position,
    },
    /// Everything was fed.
    Done,
}

/// Changes that one script writes.
#[derive(Debug)]
pub(super) struct FeedStep<T> {
    /// Position after which the first pass goes on.
    pub after: Position,
    /// Webhooks to feed, in their order: shop and payload.
    pub webhooks: Vec<(String, T)>,
    /// Shops with the position of their next webhook, if any is left.
    pub left: Vec<(String, Option<Position>)>,
}

/// State of a replay. `T` is what is fed.
#[derive(Debug)]
pub(super) struct Feeder<T> {
    limits: FeedLimits,
    pass: FeedPass,
    after: Position,
    left: HashMap<String, Position>,
    /// Shops of which this pass feeds nothing more.
    passed_over: HashSet<String>,
    is_front_done: bool,
    held: HeldWebhooks<T>,
    open: OpenReplays,
    step: OpenStep<T>,
    changed: BTreeSet<String>,
    /// Shops whose positions are removed some time: nothing is left of them up to `after`.
    served: BTreeSet<String>,
    /// Webhooks that may be fed until this is set again.
    budget: usize,
}

/// Webhooks that are fed with the next step.
#[derive(Debug)]
struct OpenStep<T> {
    webhooks: Vec<(String, T)>,
    bytes: usize,
}

/// Webhooks that wait in memory, of each shop all that were offered from its position in `left` on.
#[derive(Debug)]
struct HeldWebhooks<T> {
    shops: BTreeMap<String, VecDeque<HeldWebhook<T>>>,
    count: usize,
    bytes: usize,
}

#[derive(Debug)]
struct HeldWebhook<T> {
    position: Position,
    since: Duration,
    bytes: usize,
    payload: T,
}

/// Room for another replay of a shop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShopRoom {
    Yes,
    /// All together have none.
    Full,
    /// The shop has its share.
    Share,
    Stuck,
}

impl<T> HeldWebhooks<T> {
    fn has_room(&self, limits: &FeedLimits) -> bool {
        self.count < limits.held && self.bytes < limits.held_bytes
    }
}

impl<T> Feeder<T> {
    /// Goes on after `after`, with these shops left, and these replays open since now at the latest.
    pub(super) fn new(
        limits: FeedLimits,
        after: Position,
        left: HashMap<String, Position>,
        open: Vec<(StreamId, String)>,
        now: Duration,
    ) -> Self {
        Self {
            limits,
            pass: FeedPass::Front,
            after,
            passed_over: left.keys().cloned().collect(),
            left,
            is_front_done: false,
            held: HeldWebhooks { shops: BTreeMap::new(), count: 0, bytes: 0 },
            open: OpenReplays::new(open, now),
            step: OpenStep { webhooks: Vec::new(), bytes: 0 },
            changed: BTreeSet::new(),
            served: BTreeSet::new(),
            budget: usize::MAX,
        }
    }

    /// Pass in which the feeder is.
    pub(super) fn pass(&self) -> FeedPass {
        self.pass
    }

    /// Number of shops that are left.
    pub(super) fn shops_left(&self) -> usize {
        self.left.len()
    }

    /// Ids of all replays that are not known to be settled.
    pub(super) fn open_ids(&self) -> Vec<StreamId> {
        self.open.ids().collect()
    }

    /// Sets how many webhooks may be fed until this is set again.
    pub(super) fn set_budget(&mut self, budget: usize) {
        self.budget = budget;
    }

    /// Passes by a webhook that is not to be fed at all. Returns true if the first pass sees it, for the first time.
    pub(super) fn pass_by(&mut self, position: Position) -> bool {
        let is_first = self.pass == FeedPass::Front && position > self.after;
        if is_first {
            self.after = position;
        }
        is_first
    }

    /// Position after which the first pass goes on.
    pub(super) fn after(&self) -> Position {
        self.after
    }

    /// True if this shop is left for a later pass.
    pub(super) fn is_left(&self, shop: &[u8]) -> bool {
        std::str::from_utf8(shop).is_ok_and(|shop| self.left.contains_key(shop))
    }

    /// True if the step should be written before more is offered.
    pub(super) fn is_step_due(&self) -> bool {
        self.is_step_full() || self.changed.len() + self.served.len() >= CHANGES_MAX
    }

    /// True if nothing has to be written before the replay ends.
    pub(super) fn is_written(&self) -> bool {
        self.step.webhooks.is_empty() && self.changed.is_empty() && self.served.is_empty()
    }

    /// Number of webhooks of the step so far.
    pub(super) fn step_len(&self) -> usize {
        self.step.webhooks.len()
    }

    /// True if this pass has a use for a webhook of the shop at `position`.
    pub(super) fn wants(&self, shop: &str, position: Position) -> bool {
        match self.pass {
            FeedPass::Front => position > self.after && !self.passed_over.contains(shop),
            FeedPass::Again => {
                // What is after `after` belongs to the first pass, if that was ended early.
                let is_left = self.left.get(shop).is_some_and(|next| position >= *next);
                is_left && position <= self.after && !self.passed_over.contains(shop)
            }
            FeedPass::Between => false,
        }
    }

    /// Offers the next webhook of the pass, with the memory that it takes.
    pub(super) fn offer(
        &mut self,
        shop: &str,
        position: Position,
        bytes: usize,
        now: Duration,
        payload: impl FnOnce() -> T,
    ) -> Offer {
        let is_front = self.pass == FeedPass::Front;
        if is_front && position <= self.after {
            return Offer::Taken;
        }
        let offer = match self.wants(shop, position) {
            false => Offer::Taken,
            true => self.take(shop, position, bytes, now, payload),
        };
        if is_front && offer == Offer::Taken {
            self.after = position;
        }
        offer
    }

    fn take(
        &mut self,
        shop: &str,
        position: Position,
        bytes: usize,
        now: Duration,
        payload: impl FnOnce() -> T,
    ) -> Offer {
        let is_holding = self.held.shops.contains_key(shop);
        let room =
            if is_holding && !self.open.is_stuck(shop) { ShopRoom::Share } else { self.room(shop) };
        let is_new = !self.left.contains_key(shop);
        // Those that are served have one in Redis, too, until a step removes it.
        let positions = self.left.len() + self.served.len();
        match room {
            ShopRoom::Full => Offer::Wait,
            ShopRoom::Yes => {
                if !is_new {
                    self.set_left(shop, Some(after(position)));
                }
                self.feed(shop.to_owned(), payload(), bytes);
                Offer::Taken
            }
            ShopRoom::Share | ShopRoom::Stuck if is_new && positions >= self.limits.left => {
                Offer::EndPass
            }
            ShopRoom::Share if !self.held.has_room(&self.limits) => Offer::Wait,
            ShopRoom::Share => {
                if !is_holding {
                    self.set_left(shop, Some(position));
                }
                let payload = payload();
                let held = HeldWebhook { position, since: now, bytes, payload };
                self.held.shops.entry(shop.to_owned()).or_default().push_back(held);
                self.held.count += 1;
                self.held.bytes += bytes;
                Offer::Taken
            }
            ShopRoom::Stuck => {
                if !is_holding {
                    self.set_left(shop, Some(position));
                }
                self.pass_over(shop);
                Offer::Taken
            }
        }
    }

    /// Looks at the time, leaves shops that are stuck or too slow, and feeds what is held and has room now.
    pub(super) fn look(&mut self, now: Duration) {
        self.open.look(now);
        let is_full = self.pass == FeedPass::Front && !self.held.has_room(&self.limits);
        let is_slow = |held: &VecDeque<HeldWebhook<T>>| {
            held.front().is_some_and(|first| now.saturating_sub(first.since) > SLOW_AFTER)
        };
        let lags = |(shop, held): &(&String, &VecDeque<HeldWebhook<T>>)| {
            self.open.is_stuck(shop) || (is_full && is_slow(held))
        };
        let lagging: Vec<String> =
            self.held.shops.iter().filter(lags).map(|(shop, _)| shop.clone()).collect();
        lagging.iter().for_each(|shop| self.pass_over(shop));
        let mut turns: VecDeque<String> = self.held.shops.keys().cloned().collect();
        while let Some(shop) = turns.pop_front() {
            if self.room(&shop) == ShopRoom::Yes {
                self.feed_held(&shop);
                if self.held.shops.contains_key(&shop) {
                    turns.push_back(shop);
                }
            }
        }
    }

    /// Returns the changes since the last step. They must be written, whatever happens, before anything else.
    pub(super) fn take_step(&mut self) -> FeedStep<T> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let left = changed.map(|shop| {
            let next = self.left.get(&shop).copied();
            (shop, next)
        });
        let mut left: Vec<_> = left.collect();
        // One script removes a bounded number of them. Those that remain for a while cost a later pass nothing.
        while left.len() < CHANGES_MAX {
            let Some(shop) = self.served.pop_first() else { break };
            left.push((shop, None));
        }
        self.step.bytes = 0;
        FeedStep { after: self.after, webhooks: std::mem::take(&mut self.step.webhooks), left }
    }

    /// Notes that a step was written: its webhooks have these ids.
    pub(super) fn on_written(
        &mut self,
        ids: impl IntoIterator<Item = (String, StreamId)>,
        now: Duration,
    ) {
        ids.into_iter().for_each(|(shop, id)| self.open.on_written(shop, id, now));
    }

    /// Notes which replays are not settled, of those that [`Self::open_ids`] returned.
    pub(super) fn on_unsettled(&mut self, unsettled: &HashSet<StreamId>, now: Duration) {
        self.open.on_unsettled(unsettled, now);
    }

    /// Ends the pass. `end` is the last position of the range if the first pass offered all of it.
    pub(super) fn next_pass(&mut self, end: Option<Position>) -> NextPass {
        if !self.held.shops.is_empty() {
            return NextPass::Wait;
        }
        match self.pass {
            FeedPass::Front => {
                self.is_front_done |= end.is_some();
                self.after = end.map_or(self.after, |end| end.max(self.after));
            }
            FeedPass::Again => {
                let is_over = |shop: &&String| !self.passed_over.contains(*shop);
                let over: Vec<String> = self.left.keys().filter(is_over).cloned().collect();
                for shop in over {
                    self.left.remove(&shop);
                    // One that the step changes is removed with it.
                    if !self.changed.contains(&shop) {
                        self.served.insert(shop);
                    }
                }
            }
            FeedPass::Between => {}
        }
        self.pass = FeedPass::Between;
        self.passed_over.clear();
        let has_settled = self.left.keys().any(|shop| self.open.of(shop) == 0);
        match self.left.values().min().copied() {
            Some(from) if has_settled => {
                self.pass = FeedPass::Again;
                NextPass::Read { from }
            }
            _ if !self.is_front_done && self.left.len() < self.limits.left => {
                self.pass = FeedPass::Front;
                self.passed_over = self.left.keys().cloned().collect();
                NextPass::Read { from: after(self.after) }
            }
            None => NextPass::Done,
            Some(_) => NextPass::Wait,
        }
    }

    fn room(&self, shop: &str) -> ShopRoom {
        if self.open.is_stuck(shop) {
            return ShopRoom::Stuck;
        }
        if self.open.of(shop) >= self.limits.per_shop {
            return ShopRoom::Share;
        }
        let is_full = self.is_step_full()
            || self.budget == 0
            || self.open.moving() >= self.limits.at_once
            || self.open.count() >= self.limits.open;
        if is_full { ShopRoom::Full } else { ShopRoom::Yes }
    }

    fn is_step_full(&self) -> bool {
        self.step.webhooks.len() >= STEP_MAX || self.step.bytes >= STEP_BYTES_MAX
    }

    fn set_left(&mut self, shop: &str, next: Option<Position>) {
        match next {
            Some(next) => self.left.insert(shop.to_owned(), next),
            None => self.left.remove(shop),
        };
        self.served.remove(shop);
        self.changed.insert(shop.to_owned());
    }

    fn feed(&mut self, shop: String, payload: T, bytes: usize) {
        if self.served.remove(&shop) {
            // A position that is still in Redis would be before this webhook.
            self.changed.insert(shop.clone());
        }
        self.open.add(&shop);
        self.budget = self.budget.saturating_sub(1);
        self.step.bytes += bytes;
        self.step.webhooks.push((shop, payload));
    }

    fn feed_held(&mut self, shop: &str) {
        let Some(held) = self.held.shops.get_mut(shop) else { return };
        let Some(first) = held.pop_front() else { return };
        let next = held.front().map(|next| next.position);
        self.held.count -= 1;
        self.held.bytes -= first.bytes;
        if next.is_none() {
            self.held.shops.remove(shop);
        }
        let is_again = self.pass == FeedPass::Again;
        self.set_left(shop, next.or_else(|| is_again.then(|| after(first.position))));
        self.feed(shop.to_owned(), first.payload, first.bytes);
    }

    /// Feeds nothing more of a shop in this pass. Its position stays.
    fn pass_over(&mut self, shop: &str) {
        for held in self.held.shops.remove(shop).into_iter().flatten() {
            self.held.count -= 1;
            self.held.bytes -= held.bytes;
        }
        self.passed_over.insert(shop.to_owned());
    }
}

/// The position just after this one.
fn after(position: Position) -> Position {
    Position { index: position.index.saturating_add(1), ..position }
}
