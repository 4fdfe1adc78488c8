//! Composes final outcomes into one settlement. One settlement is under way at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use spillway_webhook::position::Position;
use spillway_webhook::{Spans, StoredRetry};

use crate::core::Core;
use crate::event::Effect;
use crate::expiry::EXPIRED;
use crate::index::{LaneKey, NodeKey};
use crate::ledger::{Draft, Dropped, Ended, Finished};
use crate::main_stream::{Advance, MainPack};
use crate::pack_key::PackKey;
use crate::resource::Step;
use crate::retry::RetryState;
use crate::settlement::{LaneRowChange, Outcome, SettledRecord};
use crate::sorted::Content;
use crate::time::About;

/// Bytes of dead letters in one settlement.
const DEAD_BYTES_MAX: u64 = 8 << 20;
/// Time between two scans for the oldest webhook in a lane.
const OLDEST_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two scans for leads of a previous leader. A scan goes through every lane.
const LEADS_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Rows of lanes in one settlement.
const ROWS_MAX: usize = 256;
/// Retry states in one settlement.
const RETRIES_MAX: usize = 4096;

impl<C: Content> Core<C> {
    /// Ends a head. It then waits for its settlement.
    pub(crate) fn finish(&mut self, finished: Finished<C>) {
        self.step(finished.resource, Step::Finished);
        self.ledger.sent.remove(&finished.resource);
        self.ledger.finished.push(finished);
    }

    /// Begins the next settlement if there is something to settle and none is under way.
    pub(crate) fn settle(&mut self) -> Option<Effect<C>> {
        if self.ledger.settling.is_some() {
            return None;
        }
        self.settle_finished();
        self.settle_dropped();
        self.tidy_leads();
        self.record_leads();
        self.advance();
        self.settle_packs();
        self.settle_rows();
        self.tidy_controls();
        if self.ledger.draft.settlement.is_empty() {
            return None;
        }
        let Draft { mut settlement, settling, .. } = std::mem::take(&mut self.ledger.draft);
        settlement.main.open = self.queue.main.settled_open;
        settlement.lanes.waiting = self.queue.lanes.waiting();
        settlement.lanes.oldest_ms = self.oldest_in_lanes();
        self.ledger.settling = Some(settling);
        Some(Effect::Settle(Box::new(settlement)))
    }

    /// Time at which the oldest webhook in a chunk was accepted, as far as is known; 0 if none
    /// waits. Updated once per second, because a scan goes through every lane.
    fn oldest_in_lanes(&mut self) -> u64 {
        if self.queue.lanes.waiting() == 0 {
            self.session.looks.oldest_ms = 0;
            return 0;
        }
        let now = self.session.now.at;
        if now >= self.session.looks.oldest_at || self.session.looks.oldest_ms == 0 {
            self.session.looks.oldest_at = now + OLDEST_LOOK_EVERY;
            let index = &self.queue.index;
            let stored = self.queue.lanes.iter().filter(|(_, lane)| lane.stored.is_some());
            let oldest = stored.filter_map(|(_, lane)| {
                let first = lane.stored.as_ref().map(|stored| stored.first);
                index.front(&lane.window).or(first)
            });
            self.session.looks.oldest_ms = oldest.map(|position| position.ms).min().unwrap_or(0);
        }
        self.session.looks.oldest_ms
    }

    /// Adds the heads that have ended, with all webhooks that they stand for.
    fn settle_finished(&mut self) {
        let most = self.config.tuning.settled_webhooks;
        let finished = std::mem::take(&mut self.ledger.finished);
        let mut left = finished.into_iter();
        for one in left.by_ref() {
            let run = self.queue.index.run(one.resource);
            self.settle_run(&one, &run);
            let Draft { settlement, settling, .. } = &mut self.ledger.draft;
            settling.heads.push(one.resource);
            settling.nodes.extend(run);
            if let Ended::Dead(letter, bytes) = one.end {
                settling.dead_bytes += bytes;
                let has_expired = letter.reason == EXPIRED;
                settling.expired += usize::from(has_expired);
                self.ledger.expired -= usize::from(has_expired);
                settlement.dead.push(*letter);
            }
            if settling.nodes.len() >= most
                || settling.dead_bytes >= DEAD_BYTES_MAX
                || settling.lanes.len() >= self.config.tuning.settled_lanes
            {
                break;
            }
        }
        self.ledger.finished = left.collect();
    }

    fn settle_run(&mut self, one: &Finished<C>, run: &[NodeKey]) {
        let outcome = match one.end {
            Ended::Delivered => Outcome::Delivered,
            Ended::Duplicate => Outcome::Duplicate,
            Ended::Dead(..) => Outcome::Dead,
        };
        let hash = self.queue.index.resource(one.resource).map_or(0, |resource| resource.hash);
        let is_replay = run.first().is_some_and(|node| self.queue.index.replay(*node).is_some());
        if !is_replay && self.queue.leads.remove(&hash).is_some() {
            self.ledger.draft.settlement.lanes.leads.deleted.push(hash);
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
            let Draft { settlement, settling, .. } = &mut self.ledger.draft;
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
            self.settle_one(Dropped { lane, position, replay });
        }
    }

    fn settle_dropped(&mut self) {
        let tuning = self.config.tuning;
        let most = tuning.settled_lanes + self.ledger.draft.settling.lanes.len();
        for _ in 0..tuning.settled_webhooks {
            if self.ledger.draft.settling.lanes.len() >= most {
                break;
            }
            let Some(one) = self.ledger.dropped.pop_front() else { break };
            if let Some(lane) = self.queue.lanes.get_mut(one.lane) {
                lane.dropping -= 1;
            }
            self.settle_one(one);
            self.ledger.draft.settlement.controls.dropped += 1;
            self.counts.dropped += 1;
        }
    }

    /// Settles a webhook as dropped that is not indexed.
    pub(crate) fn drop_webhook(&mut self, dropped: Dropped) {
        if let Some(lane) = self.queue.lanes.get_mut(dropped.lane) {
            lane.dropping += 1;
        }
        self.ledger.dropped.push_back(dropped);
    }

    /// Marks one webhook as settled in its pack, chunk or replay.
    fn settle_one(&mut self, one: Dropped) {
        let Dropped { lane, position, replay } = one;
        let Draft { settlement, settling, packs, chunks, .. } = &mut self.ledger.draft;
        settling.lanes.insert(lane);
        let mut is_new = false;
        if let Some(id) = replay {
            settlement.replays.settled.push(id);
            self.reading.cache.remove(PackKey::Replay(id));
        } else if self.queue.main.is_after_cursor(position) {
            is_new = self.queue.main.settle(position);
            packs.insert(position.entry());
        } else if let Some((number, index)) =
            self.queue.lanes.get(lane).and_then(|lane| lane.locate(position))
        {
            is_new = self.queue.lanes.settle_chunk(lane, number, index);
            chunks.insert((lane, number));
        }
        if let Some(state) = self.queue.retries.remove(position) {
            settlement.retries(state.is_in_main).deleted.push(position);
        }
        let Some(shop) = self.queue.lanes.get(lane).map(|lane| lane.shop) else { return };
        if is_new {
            self.queue.shops.settled(shop, 1);
        }
        let barriers = self.queue.shops.get(shop).and_then(|shop| shop.barriers.as_ref());
        if replay.is_none()
            && barriers.is_some_and(|barriers| barriers.positions.contains(&position))
        {
            settling.barriers.push((shop, position));
            if self.queue.stored_barriers.remove(&position) {
                settlement.lanes.barriers.deleted.push(position);
            }
        }
    }

    /// Forgets the recorded lead of a resource, also in Redis.
    pub(crate) fn forget_lead(&mut self, resource: u64) {
        self.queue.leads.remove(&resource);
        self.ledger.draft.settlement.lanes.leads.deleted.push(resource);
    }

    /// Forgets the recorded lead of a resource if no webhook is left for which it stands.
    /// Everything up to the lead must be indexed.
    pub(crate) fn tidy_lead(&mut self, resource: u64) {
        let Some(lead) = self.queue.leads.get(&resource).copied() else { return };
        let indexed = self.queue.index.by_hash(resource);
        if !indexed.is_some_and(|key| self.queue.index.has_up_to(key, lead)) {
            self.forget_lead(resource);
        }
    }

    /// Forgets recorded leads that are settled. Runs once, when everything is indexed.
    fn tidy_leads(&mut self) {
        let is_read = |lead: &Position| self.queue.main.read_to >= lead.entry();
        let now = self.session.now.at;
        if !self.queue.are_leads_old || now < self.session.looks.leads_at {
            return;
        }
        self.session.looks.leads_at = now + LEADS_LOOK_EVERY;
        if !self.queue.leads.values().all(is_read)
            || self.queue.lanes.iter().any(|(_, lane)| lane.rest.is_some())
        {
            return;
        }
        self.queue.are_leads_old = false;
        let resources: Vec<u64> = self.queue.leads.keys().copied().collect();
        resources.into_iter().for_each(|resource| self.tidy_lead(resource));
    }

    fn record_leads(&mut self) {
        let Draft { settlement, settling, .. } = &mut self.ledger.draft;
        settling.leads = std::mem::take(&mut self.ledger.new_leads);
        let leads = settling.leads.iter().map(|(_, hash, position)| (*hash, *position));
        let changes = &mut settlement.lanes.leads;
        changes.written.extend(leads);
        changes.deleted.retain(|gone| !changes.written.iter().any(|(hash, _)| hash == gone));
    }

    /// Moves the cursor over packs that are completely settled, and over packs at the front that
    /// move into lanes.
    fn advance(&mut self) {
        let mut advance = Advance::default();
        loop {
            for pack in self.queue.main.advance(&mut advance) {
                self.passed(&pack);
            }
            let Some(moved) = self.move_next(&mut advance) else { break };
            self.passed(&moved);
        }
        let main = &mut self.ledger.draft.settlement.main;
        main.cursor = advance.cursor;
        main.entries_passed = advance.entries;
        main.webhooks_passed = advance.webhooks;
    }

    fn passed(&mut self, pack: &MainPack) {
        self.reading.cache.remove(PackKey::Main(pack.entry));
        self.controls.passed(pack.entry);
        if pack.are_bits_stored {
            self.ledger.draft.settlement.main.whole.push(pack.entry);
        }
    }

    /// Writes the bits of partly settled packs and chunks, and deletes completely settled chunks.
    fn settle_packs(&mut self) {
        let Draft { settlement, packs, chunks, .. } = &mut self.ledger.draft;
        for entry in std::mem::take(packs) {
            if let Some(pack) = self.queue.main.get(entry) {
                settlement.main.bits.push((entry, pack.bits()));
                self.queue.main.bits_stored(entry);
            }
        }
        for (key, number) in std::mem::take(chunks) {
            let Some(lane) = self.queue.lanes.get_mut(key) else { continue };
            let hash = lane.hash;
            match lane.stored.as_mut().and_then(|stored| stored.chunk(number)) {
                Some(chunk) => {
                    settlement.lanes.chunk_bits.push((hash, number, chunk.bits.clone()));
                }
                None => {
                    settlement.lanes.chunks.deleted.push((hash, number));
                    self.reading.cache.remove(PackKey::Chunk(hash, number));
                }
            }
        }
    }

    /// Deletes a chunk of which nothing is left with the next settlement.
    pub(crate) fn delete_chunk(&mut self, key: LaneKey, number: u32) {
        let hash = self.queue.lanes.get(key).map_or(0, |lane| lane.hash);
        let draft = &mut self.ledger.draft;
        draft.settlement.lanes.chunks.deleted.push((hash, number));
        draft.settling.lanes.insert(key);
    }

    fn settle_rows(&mut self) {
        let count = self.ledger.changed.len().min(ROWS_MAX);
        let changed: BTreeSet<LaneKey> = self.ledger.changed.drain(..count).collect();
        let settling = self.ledger.draft.settling.lanes.iter();
        let lanes: BTreeSet<LaneKey> = changed.iter().chain(settling).copied().collect();
        for key in lanes {
            let Some(lane) = self.queue.lanes.get_mut(key) else { continue };
            if let Some(stored) = &mut lane.stored {
                stored.is_changed |= changed.contains(&key);
            }
            let is_changed = lane.stored.as_ref().is_some_and(|stored| stored.is_changed);
            let failing = if is_changed { self.failing_spans(key) } else { Spans::default() };
            let settlement = &mut self.ledger.draft.settlement;
            let Some(lane) = self.queue.lanes.get_mut(key) else { continue };
            let hash = lane.hash;
            let breaker = lane.breaker;
            let is_suspect = lane.flow.suspect.is_some();
            let front = self.queue.index.front(&lane.window);
            let Some(stored) = lane.stored.as_mut() else { continue };
            if stored.waiting == 0 {
                settlement.lanes.rows.deleted.push(hash);
                let next = stored.next;
                lane.stored = None;
                self.queue.lanes.used_up_to(next);
                continue;
            }
            if std::mem::take(&mut stored.is_changed) {
                settlement.lanes.rows.written.push(LaneRowChange {
                    lane: hash,
                    first_chunk: stored.oldest(),
                    last_chunk: stored.next - 1,
                    waiting: stored.waiting,
                    first: front.unwrap_or(stored.first),
                    last: stored.last,
                    failing,
                    is_tripped: breaker.is_open(),
                    is_suspect,
                });
            }
        }
        self.settle_retries();
        // Their retry states are read again with their chunks.
        let unread = std::mem::take(&mut self.ledger.draft.unread);
        unread.into_iter().for_each(|position| self.queue.retries.shed(position));
    }

    /// Retry state of a webhook as of now.
    pub(crate) fn stored_now(&self, lane: LaneKey, state: &RetryState) -> StoredRetry {
        let time = self.time_of(lane, About::Shop, state.since, self.active());
        state.stored(time, self.now_ms())
    }

    /// Writes the retry states that changed.
    fn settle_retries(&mut self) {
        for _ in 0..RETRIES_MAX {
            let Some((position, lane)) = self.ledger.retries.pop_first() else { break };
            let Some(state) = self.queue.retries.get(position) else { continue };
            let stored = self.stored_now(lane, state);
            let is_in_main = state.is_in_main;
            let retries = self.ledger.draft.settlement.retries(is_in_main);
            retries.written.push((position, stored));
            self.queue.retries.mark_stored(position);
        }
        let stale = self.queue.retries.take_stale(RETRIES_MAX);
        self.ledger.draft.settlement.main.retries.deleted.extend(stale);
    }
}
