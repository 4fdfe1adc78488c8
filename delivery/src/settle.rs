//! The last step: everything that is final becomes one settlement, and once that is applied its
//! resources are free. One settlement is under way at a time.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use spillway_webhook::StreamId;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use crate::core::Core;
use crate::event::Effect;
use crate::index::{LaneKey, NodeKey, ResourceKey};
use crate::main_stream::Advance;
use crate::reading::PackKey;
use crate::resource::{State, Step};
use crate::seen::Seen;
use crate::settlement::{DeadLetter, LaneRowChange, Outcome, SettledRecord, Settlement};
use crate::shop::ShopKey;
use crate::sorted::Content;

/// Dead letters in one settlement, in bytes.
const DEAD_BYTES_MAX: u64 = 8 << 20;
/// Between two looks for the oldest webhook in a lane.
const OLDEST_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Rows of lanes in one settlement.
const ROWS_MAX: usize = 1024;

/// A head that is done with.
pub(crate) struct Finished<C: Content> {
    pub resource: ResourceKey,
    pub end: Ended<C>,
    pub fingerprint: Option<Fingerprint>,
    pub attempts: u32,
}

/// How a head ended.
pub(crate) enum Ended<C: Content> {
    /// The backend has it.
    Delivered,
    /// The backend had it before.
    Duplicate,
    /// It is given up; with the letter's size in Redis.
    Dead(Box<DeadLetter<C>>, u64),
}

/// A webhook that is dropped, and not indexed any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dropped {
    pub lane: LaneKey,
    pub position: Position,
    pub replay: Option<StreamId>,
}

/// Everything that waits for a settlement.
pub(crate) struct Ledger<C: Content> {
    pub finished: Vec<Finished<C>>,
    pub dropped: VecDeque<Dropped>,
    pub corrupt: (Vec<StreamId>, Vec<StreamId>),
    /// Leads to record before they are sent.
    pub new_leads: Vec<(ResourceKey, u64, Position)>,
    pub leads_gone: Vec<u64>,
    /// Lanes whose row may have changed.
    pub changed: Vec<LaneKey>,
    /// Webhooks in lanes whose retry state changed.
    pub retries: Vec<Position>,
    pub empty_chunks: Vec<(LaneKey, u32)>,
    /// Bytes of what is being sent, for a dead letter.
    pub sent: HashMap<ResourceKey, (C, u32)>,
    pub settling: Option<Settling>,
    pub seen: Seen,
    /// Bytes of dead letters that are not settled.
    pub dying_bytes: u64,
}

/// The settlement that is being applied.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    nodes: Vec<NodeKey>,
    heads: Vec<ResourceKey>,
    seen: Vec<Fingerprint>,
    leads: Vec<(ResourceKey, u64, Position)>,
    barriers: Vec<(ShopKey, Position)>,
    dead_bytes: u64,
    /// Lanes that it changes.
    pub(crate) lanes: BTreeSet<LaneKey>,
}

/// Packs and chunks of which something is settled.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    packs: BTreeSet<StreamId>,
    chunks: BTreeSet<(LaneKey, u32)>,
}

impl<C: Content> Ledger<C> {
    pub fn new(seen: Seen) -> Self {
        Self {
            finished: Vec::new(),
            dropped: VecDeque::new(),
            corrupt: (Vec::new(), Vec::new()),
            new_leads: Vec::new(),
            leads_gone: Vec::new(),
            changed: Vec::new(),
            retries: Vec::new(),
            empty_chunks: Vec::new(),
            sent: HashMap::new(),
            settling: None,
            seen,
            dying_bytes: 0,
        }
    }

    /// Whether nothing waits for its settlement.
    pub fn is_quiet(&self) -> bool {
        self.finished.is_empty() && self.settling.is_none()
    }

    /// Heads that are done with and not settled.
    pub fn unsettled(&self) -> usize {
        self.finished.len() + self.settling.as_ref().map_or(0, |settling| settling.heads.len())
    }
}

impl<C: Content> Core<C> {
    /// A head is done with.
    pub(crate) fn finish(&mut self, finished: Finished<C>) {
        self.step(finished.resource, Step::Finished);
        self.ledger.sent.remove(&finished.resource);
        self.ledger.finished.push(finished);
    }

    /// Begins the next settlement if there is something to settle and none is being applied.
    pub(crate) fn settle(&mut self) -> Option<Effect<C>> {
        if self.ledger.settling.is_some() {
            return None;
        }
        let mut settlement = Settlement::new();
        let mut settling = Settling::default();
        let mut touched = Touched::default();
        self.settle_finished(&mut settlement, &mut settling, &mut touched);
        self.settle_dropped(&mut settlement, &mut settling, &mut touched);
        settlement.corrupt = std::mem::take(&mut self.ledger.corrupt);
        self.tidy_leads();
        self.record_leads(&mut settlement, &mut settling);
        self.advance(&mut settlement, &mut settling);
        self.settle_packs(&mut settlement, &mut settling, touched);
        self.settle_rows(&mut settlement, &mut settling);
        self.tidy_controls(&mut settlement);
        if settlement.is_empty() {
            return None;
        }
        settlement.open = self.queue.main.settled_open;
        settlement.lanes.0.waiting = self.queue.lanes.waiting();
        settlement.lanes.0.oldest_ms = self.oldest_in_lanes();
        self.ledger.settling = Some(settling);
        Some(Effect::Settle(Box::new(settlement)))
    }

    /// Time at which the oldest webhook in a chunk was accepted, as far as is known; 0: none waits.
    /// Looked for now and then only: it takes a look at every lane.
    fn oldest_in_lanes(&mut self) -> u64 {
        if self.queue.lanes.waiting() == 0 {
            self.session.oldest_ms = 0;
            return 0;
        }
        let now = self.session.now.at;
        if now >= self.session.oldest_look_at || self.session.oldest_ms == 0 {
            self.session.oldest_look_at = now + OLDEST_LOOK_EVERY;
            let index = &self.queue.index;
            let stored = self.queue.lanes.iter().filter(|(_, lane)| lane.stored.is_some());
            let oldest = stored.filter_map(|(_, lane)| {
                let first = lane.stored.as_ref().map(|stored| stored.first);
                index.front(&lane.window).or(first)
            });
            self.session.oldest_ms = oldest.map(|position| position.ms).min().unwrap_or(0);
        }
        self.session.oldest_ms
    }

    /// Takes in what is finished: heads, and everything that they speak for.
    fn settle_finished(
        &mut self,
        settlement: &mut Settlement<C>,
        settling: &mut Settling,
        touched: &mut Touched,
    ) {
        let most = self.config.tuning.settled_webhooks;
        let finished = std::mem::take(&mut self.ledger.finished);
        let mut left = finished.into_iter();
        for one in left.by_ref() {
            let run = self.queue.index.run(one.resource);
            self.settle_run(&one, &run, settlement, settling, touched);
            settling.heads.push(one.resource);
            settling.nodes.extend(run);
            if let Ended::Dead(letter, bytes) = one.end {
                settling.dead_bytes += bytes;
                settlement.dead.push(*letter);
            }
            if settling.nodes.len() >= most || settling.dead_bytes >= DEAD_BYTES_MAX {
                break;
            }
        }
        self.ledger.finished = left.collect();
    }

    fn settle_run(
        &mut self,
        one: &Finished<C>,
        run: &[NodeKey],
        settlement: &mut Settlement<C>,
        settling: &mut Settling,
        touched: &mut Touched,
    ) {
        let outcome = match one.end {
            Ended::Delivered => Outcome::Delivered,
            Ended::Duplicate => Outcome::Duplicate,
            Ended::Dead(..) => Outcome::Dead,
        };
        let hash = self.queue.index.resource(one.resource).map_or(0, |resource| resource.hash);
        let is_replay = run.first().is_some_and(|node| self.queue.index.replay(*node).is_some());
        if !is_replay && self.queue.leads.remove(&hash).is_some() {
            settlement.lanes.0.leads_gone.push(hash);
        }
        for node in run {
            let is_lead = run.last() == Some(node);
            let (position, lane) = {
                let node = self.queue.index.node(*node);
                (node.position, node.lane)
            };
            let kept = self.queue.index.fingerprint(*node);
            let replay = self.queue.index.replay(*node);
            let fingerprint = if is_lead { one.fingerprint } else { kept };
            let is_remembered =
                outcome == Outcome::Delivered && replay.is_none() && self.ledger.seen.is_on();
            settlement.records.push(SettledRecord {
                is_remembered,
                position,
                outcome: if is_lead { outcome } else { Outcome::Coalesced },
                fingerprint,
                attempts: if is_lead { one.attempts } else { 0 },
            });
            if is_remembered {
                settling.seen.extend(fingerprint);
            }
            let dropped = Dropped { lane, position, replay };
            self.settle_one(dropped, settlement, settling, touched);
        }
    }

    fn settle_dropped(
        &mut self,
        settlement: &mut Settlement<C>,
        settling: &mut Settling,
        touched: &mut Touched,
    ) {
        let count = self.ledger.dropped.len().min(self.config.tuning.settled_webhooks);
        let dropped: Vec<Dropped> = self.ledger.dropped.drain(..count).collect();
        for one in dropped {
            if let Some(lane) = self.queue.lanes.get_mut(one.lane) {
                lane.dropping -= 1;
            }
            self.settle_one(one, settlement, settling, touched);
            settlement.controls.0 += 1;
            self.counts.dropped += 1;
        }
    }

    /// A webhook that is not indexed is to be settled as dropped.
    pub(crate) fn drop_webhook(&mut self, dropped: Dropped) {
        if let Some(lane) = self.queue.lanes.get_mut(dropped.lane) {
            lane.dropping += 1;
        }
        self.ledger.dropped.push_back(dropped);
    }

    /// Marks one webhook settled, where it lies.
    fn settle_one(
        &mut self,
        one: Dropped,
        settlement: &mut Settlement<C>,
        settling: &mut Settling,
        touched: &mut Touched,
    ) {
        let Dropped { lane, position, replay } = one;
        settling.lanes.insert(lane);
        if let Some(id) = replay {
            settlement.replays_done.push(id);
            self.reading.cache.remove(PackKey::Replay(id));
        } else if self.queue.main.is_after_cursor(position) {
            self.queue.main.settle(position);
            touched.packs.insert(position.entry());
        } else if let Some((number, index)) =
            self.queue.lanes.get(lane).and_then(|lane| lane.locate(position))
        {
            self.queue.lanes.settle_chunk(lane, number, index);
            touched.chunks.insert((lane, number));
        }
        if self.queue.retries.remove(position) {
            settlement.lanes.0.retries_gone.push(position);
        }
        let Some(shop) = self.queue.lanes.get(lane).map(|lane| lane.shop) else { return };
        let barriers = self.queue.shops.get(shop).and_then(|shop| shop.barriers.as_ref());
        if replay.is_none()
            && barriers.is_some_and(|barriers| barriers.positions.contains(&position))
        {
            settling.barriers.push((shop, position));
            if self.queue.stored_barriers.remove(&position) {
                settlement.lanes.0.barriers_gone.push(position);
            }
        }
    }

    /// Forgets the recorded lead of a resource, and has Redis forget it.
    pub(crate) fn forget_lead(&mut self, resource: u64) {
        self.queue.leads.remove(&resource);
        self.ledger.leads_gone.push(resource);
    }

    /// Forgets the recorded lead of a resource if nothing is left for which it stands. Everything up
    /// to the lead must be indexed.
    pub(crate) fn tidy_lead(&mut self, resource: u64) {
        let Some(lead) = self.queue.leads.get(&resource).copied() else { return };
        let indexed = self.queue.index.by_hash(resource);
        if !indexed.is_some_and(|key| self.queue.index.has_up_to(key, lead)) {
            self.forget_lead(resource);
        }
    }

    /// Looks once, when everything is indexed, for recorded leads that are settled.
    fn tidy_leads(&mut self) {
        let is_read = |lead: &Position| self.queue.main.read_to >= lead.entry();
        if !self.queue.are_leads_old
            || !self.queue.leads.values().all(is_read)
            || self.queue.lanes.have_rest()
        {
            return;
        }
        self.queue.are_leads_old = false;
        let resources: Vec<u64> = self.queue.leads.keys().copied().collect();
        resources.into_iter().for_each(|resource| self.tidy_lead(resource));
    }

    fn record_leads(&mut self, settlement: &mut Settlement<C>, settling: &mut Settling) {
        settling.leads = std::mem::take(&mut self.ledger.new_leads);
        let leads = settling.leads.iter().map(|(_, hash, position)| (*hash, *position));
        settlement.lanes.0.leads.extend(leads);
        settlement.lanes.0.leads_gone.append(&mut self.ledger.leads_gone);
        let recorded = &settlement.lanes.0.leads;
        settlement.lanes.0.leads_gone.retain(|gone| !recorded.iter().any(|(hash, _)| hash == gone));
    }

    /// Moves the cursor over what is settled whole, and over the front that moves into lanes.
    fn advance(&mut self, settlement: &mut Settlement<C>, settling: &mut Settling) {
        let mut advance = Advance::default();
        loop {
            for pack in self.queue.main.advance(&mut advance) {
                self.passed(&pack, settlement);
            }
            let Some(moved) = self.move_next(&mut advance, settlement, settling) else { break };
            self.passed(&moved, settlement);
        }
        self.mover.moved_bytes = 0;
        settlement.cursor = advance.cursor;
        settlement.entries_passed = advance.entries;
        settlement.webhooks_passed = advance.webhooks;
    }

    fn passed(&mut self, pack: &crate::main_stream::MainPack, settlement: &mut Settlement<C>) {
        self.reading.cache.remove(PackKey::Main(pack.entry));
        self.controls.passed(pack.entry);
        if pack.are_bits_stored {
            settlement.whole.push(pack.entry);
        }
    }

    /// Bits of packs and chunks that are settled in part, and chunks that are settled whole.
    fn settle_packs(
        &mut self,
        settlement: &mut Settlement<C>,
        settling: &mut Settling,
        touched: Touched,
    ) {
        for entry in touched.packs {
            if let Some(pack) = self.queue.main.get(entry) {
                settlement.bits.push((entry, pack.bits()));
                self.queue.main.bits_stored(entry);
            }
        }
        for (key, number) in touched.chunks {
            let Some(lane) = self.queue.lanes.get_mut(key) else { continue };
            let hash = lane.hash;
            match lane.stored.as_mut().and_then(|stored| stored.chunk(number)) {
                Some(chunk) => {
                    let bits = chunk.bits.clone();
                    settlement.lanes.0.chunk_bits.push((hash, number, bits));
                }
                None => {
                    settlement.lanes.0.chunks_gone.push((hash, number));
                    self.reading.cache.remove(PackKey::Chunk(hash, number));
                }
            }
        }
        for (key, number) in std::mem::take(&mut self.ledger.empty_chunks) {
            let hash = self.queue.lanes.get(key).map_or(0, |lane| lane.hash);
            settlement.lanes.0.chunks_gone.push((hash, number));
            settling.lanes.insert(key);
        }
    }

    fn settle_rows(&mut self, settlement: &mut Settlement<C>, settling: &mut Settling) {
        let active = self.active();
        let count = self.ledger.changed.len().min(ROWS_MAX);
        let changed: BTreeSet<LaneKey> = self.ledger.changed.drain(..count).collect();
        for key in changed.iter().chain(settling.lanes.iter()) {
            let Some(lane) = self.queue.lanes.get_mut(*key) else { continue };
            let (hash, breaker) = (lane.hash, lane.breaker);
            let front = self.queue.index.front(&lane.window);
            let Some(stored) = lane.stored.as_mut() else { continue };
            if stored.waiting == 0 {
                settlement.lanes.0.rows_gone.push(hash);
                let next = stored.next;
                lane.stored = None;
                self.queue.lanes.used_up_to(next);
                continue;
            }
            stored.is_changed |= changed.contains(key);
            if std::mem::take(&mut stored.is_changed) {
                settlement.lanes.0.rows.push(LaneRowChange {
                    lane: hash,
                    first_chunk: stored.oldest(),
                    last_chunk: stored.next - 1,
                    waiting: stored.waiting,
                    first: front.unwrap_or(stored.first),
                    last: stored.last,
                    failing: breaker.failing(active),
                    is_tripped: breaker.is_open(),
                });
            }
        }
        for position in std::mem::take(&mut self.ledger.retries) {
            if let Some(retry) = self.queue.retries.get_mut(position) {
                retry.is_stored = true;
                let spent = retry.spent(active);
                settlement.lanes.0.retries.push((position, retry.attempts, spent));
            }
        }
    }

    /// The settlement was applied.
    pub(crate) fn settled(&mut self) {
        let Some(settling) = self.ledger.settling.take() else { return };
        let Settling { nodes, heads, seen, leads, barriers, dead_bytes, lanes } = settling;
        self.ledger.dying_bytes -= dead_bytes;
        self.reading.front_moved();
        seen.into_iter().for_each(|one| self.ledger.seen.insert(one, self.session.now.wall_ms));
        for node in nodes {
            let lane = self.queue.index.node(node).lane;
            if let Some(lane) = self.queue.lanes.get_mut(lane) {
                self.queue.index.remove(node, &mut lane.window);
            }
        }
        self.controls.look_again.extend(heads.iter().copied());
        self.controls.look_again.extend(leads.iter().map(|(resource, _, _)| *resource));
        for resource in heads {
            if self.queue.index.state(resource) == Some(State::Finished) {
                self.queue.index.clear_lead(resource);
                self.step(resource, Step::Settled);
                self.release(resource);
            }
        }
        for (resource, hash, position) in leads {
            self.queue.leads.insert(hash, position);
            if self.queue.index.state(resource) == Some(State::Recording) {
                self.release(resource);
            }
        }
        let mut shops: BTreeSet<ShopKey> = barriers.iter().map(|(shop, _)| *shop).collect();
        for (shop, position) in barriers {
            let shop = self.queue.shops.get_mut(shop);
            if let Some(barriers) = shop.and_then(|shop| shop.barriers.as_mut()) {
                barriers.positions.remove(&position);
            }
        }
        for lane in &lanes {
            shops.extend(self.lane_settled(*lane));
        }
        shops.into_iter().for_each(|shop| self.look_at_barriers(shop));
        lanes.into_iter().for_each(|lane| self.forget_if_empty(lane));
    }

    /// The chunk of a lane that was being written can be read. Returns the lane's shop.
    fn lane_settled(&mut self, key: LaneKey) -> Option<ShopKey> {
        let lane = self.queue.lanes.get_mut(key)?;
        let shop = lane.shop;
        let was_pending =
            lane.stored.as_mut().is_some_and(|stored| stored.pending.take().is_some());
        if lane.rest.is_some() {
            self.queue.lanes.list(key);
        }
        if was_pending {
            self.queue.shops.give_turns(shop);
        }
        Some(shop)
    }

    /// Releases what the barriers of a shop do not hold back any more.
    pub(crate) fn look_at_barriers(&mut self, shop: ShopKey) {
        let Some(barriers) = self.queue.shops.get(shop).and_then(|shop| shop.barriers.as_ref())
        else {
            return;
        };
        if barriers.is_mixed {
            self.look_at_scheme(shop);
        }
        while let Some(resource) = self.queue.next_unheld(shop) {
            self.release(resource);
        }
        if let Some(shop) = self.queue.shops.get_mut(shop)
            && shop.barriers.as_ref().is_some_and(|barriers| barriers.is_empty())
        {
            shop.barriers = None;
        }
    }

    /// A shop goes by position only while it has lanes of another key scheme.
    fn look_at_scheme(&mut self, key: ShopKey) {
        let Some(shop) = self.queue.shops.get(key) else { return };
        let mut lanes = shop.lanes.iter().filter_map(|lane| self.queue.lanes.get(*lane));
        let is_mixed =
            lanes.any(|lane| lane.stored.as_ref().is_some_and(|stored| stored.is_other_scheme));
        if let Some(barriers) =
            self.queue.shops.get_mut(key).and_then(|shop| shop.barriers.as_mut())
        {
            barriers.is_mixed = is_mixed;
        }
    }

    /// Lets go of a lane of which nothing waits, and of its shop.
    pub(crate) fn forget_if_empty(&mut self, key: LaneKey) {
        let Some(shop) = self.queue.lanes.forget(key) else { return };
        if let Some(shop) = self.queue.shops.get_mut(shop) {
            shop.lanes.retain(|lane| *lane != key);
        }
        self.queue.shops.forget(shop, self.session.now.at);
    }
}
