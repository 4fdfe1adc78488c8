//! Starts deliveries: whose turn it is, what of it is delivered, and whether its bytes are at hand.

use std::sync::Arc;

use spillway_queue::owner::boottime;
use spillway_webhook::WebhookId;
use spillway_webhook::fingerprint::fingerprint;
use spillway_webhook::pack::Pack;

use super::{Around, Drain, End, Ended, TICK};
use crate::deliver::Job;
use crate::destination::Allowed;
use crate::fetch::Fetched;
use crate::index::{Lead, PackKey, Place, ResourceKey, State};
use crate::schedule::{Class, ShopKey, Turn};

/// How many ready resources are looked at for one that has not failed yet.
const PROBE_PICKS: usize = 8;
/// Deliveries that may wait for their settlement, beside those under way: what a crash can repeat.
const UNSETTLED_MAX: usize = 256;
/// Turns ahead of which a pack is read: more than are delivered while it is read.
const AHEAD_TURNS: usize = 256;
/// Packs that are read ahead at a time.
const AHEAD_MAX: usize = 4;

impl Drain {
    /// Starts deliveries while there is room for them.
    pub(super) fn dispatch(&mut self, around: &mut Around) {
        // What was parked is older than the main stream: nothing goes before it has arrived,
        // unless there is more of it than the index holds.
        let is_loaded = self.is_parked_loaded || !self.index.has_room();
        if self.is_stopping || !is_loaded || !self.tenure.holds(boottime()) {
            return;
        }
        let unsettled_before = self.settling.as_ref().map_or(0, |settling| settling.heads.len());
        loop {
            let in_flight = around.deliveries.len() + self.awaiting_count;
            let unsettled = unsettled_before + self.finished.len();
            let repeats_max = self.settings.bounds.concurrency_max + UNSETTLED_MAX;
            if around.deliveries.len() + unsettled >= repeats_max {
                return;
            }
            let Some(turn) = self.next_turn() else { return };
            if !self.may_begin(in_flight) {
                self.next = Some(turn);
                return;
            }
            self.begin(turn, around);
        }
    }

    fn may_begin(&mut self, in_flight: usize) -> bool {
        let now = self.now();
        match self.destination.allows(now) {
            Allowed::Nothing => false,
            Allowed::Probe => in_flight == 0 && self.limiter.admit(in_flight, now),
            Allowed::All => self.limiter.admit(in_flight, now),
        }
    }

    /// The next turn. While the backend counts as down, of a resource that has not failed yet:
    /// behind a row of failing ones, a healthy backend would look dead for long.
    fn next_turn(&mut self) -> Option<Turn> {
        if let Some(turn) = self.next.take() {
            return Some(turn);
        }
        let now = self.now();
        let mut picks = 0;
        loop {
            let turn = self.schedule.pick(now)?;
            let Some(position) = self.index.head_position(turn.resource) else { continue };
            if !self.schedule.is_open(turn.shop, position) {
                // A replayed barrier came before it.
                self.index.set_state(turn.resource, State::Held);
                self.schedule.hold(turn.shop, position, turn.resource);
                continue;
            }
            picks += 1;
            let has_failed = self.destination.is_stopped() && self.trial(turn.resource).is_some();
            if has_failed && picks < PROBE_PICKS {
                self.release(turn.resource);
                continue;
            }
            return Some(turn);
        }
    }

    fn begin(&mut self, turn: Turn, around: &mut Around) {
        let Turn { shop, resource } = turn;
        let Some((place, _)) = self.choose(resource, shop) else { return };
        self.index.set_state(resource, State::Busy);
        self.read_ahead(turn, around);
        if let Some(pack) = self.cache.get(place.pack) {
            self.deliver(resource, &pack, around);
            return;
        }
        self.awaiting_count += 1;
        self.fetch(place.pack, around).push(resource);
    }

    /// What is delivered of a resource, and how many older events it stands for: none that lie
    /// behind a barrier, or that were accepted too long before it, and no duplicate.
    fn choose(&mut self, resource: ResourceKey, shop: ShopKey) -> Option<(Place, u32)> {
        let (head, _) = self.index.head_position(resource)?;
        let wait_max = u64::try_from(self.settings.coalesce_wait_max.as_millis()).unwrap_or(0);
        let barrier = self.schedule.barrier(shop);
        let seen = &self.seen;
        self.index.choose_lead(resource, |position, fingerprint| {
            let is_behind = barrier.is_some_and(|barrier| position > barrier);
            if is_behind || position.0.ms.saturating_sub(head.ms) > wait_max {
                Lead::End
            } else if fingerprint.is_some_and(|fingerprint| seen.contains(fingerprint)) {
                Lead::Skip
            } else {
                Lead::Yes
            }
        })
    }

    /// Has the pack read that will be needed soon, so that a flood never waits for its bytes.
    fn read_ahead(&mut self, turn: Turn, around: &mut Around) {
        let turns = AHEAD_TURNS / self.schedule.shops_in_turn().max(1);
        let class = self.index.turn(turn.resource).map_or(Class::Rest, |(_, class)| class);
        let place = self
            .schedule
            .ahead(turn.shop, class, turns)
            .and_then(|resource| self.index.lead(resource));
        if let Some(place) = place
            && self.awaiting.len() < AHEAD_MAX
            && !self.cache.holds(place.pack)
        {
            self.fetch(place.pack, around);
        }
    }

    /// Has a pack read again, unless it is being read; hands out who waits for it.
    pub(super) fn fetch(&mut self, key: PackKey, around: &mut Around) -> &mut Vec<ResourceKey> {
        let (index, fetcher) = (&self.index, &self.fetcher);
        self.awaiting.entry(key).or_insert_with(|| {
            if let Some(open) = index.pack(key) {
                let (fetcher, source, id) = (fetcher.clone(), open.source, open.id);
                around.fetched.spawn(async move { fetcher.fetch(key, source, id).await });
            }
            Vec::new()
        })
    }

    pub(super) fn fetched(&mut self, fetched: Fetched, around: &mut Around) -> Option<End> {
        let waiting = self.awaiting.remove(&fetched.key).unwrap_or_default();
        self.awaiting_count -= waiting.len();
        let Some(pack) = fetched.pack else {
            // It may have been read ahead, and be settled by now.
            let is_needed = self.index.pack(fetched.key).is_some_and(|open| open.left > 0);
            if waiting.is_empty() && !is_needed {
                return None;
            }
            tracing::error!("a pack that waits is not in redis any more: its data was lost");
            return Some(End::Stale);
        };
        if self.index.pack(fetched.key).is_some() {
            self.cache.put(fetched.key, pack.clone());
        }
        if self.is_stopping {
            return None;
        }
        for resource in waiting {
            self.deliver(resource, &pack, around);
        }
        None
    }

    /// Delivers what was chosen of a resource, or finishes with it if that was delivered before.
    fn deliver(&mut self, resource: ResourceKey, pack: &Arc<Pack>, around: &mut Around) {
        let Some((shop, _)) = self.index.turn(resource) else { return };
        let (Some(head), Some((place, older))) =
            (self.index.head(resource), self.choose(resource, shop))
        else {
            return;
        };
        let Some(open) = self.index.pack(place.pack) else { return };
        let tried = self.parked.get(&place.pack).copied().unwrap_or_default();
        let attempts = self.trials.get(&head).map_or(tried.attempts, |trial| trial.attempts);
        let (record_index, origin) = (open.record_index(place.index), open.origin);
        let record = pack.record(record_index);
        let fingerprint =
            self.seen.is_on().then(|| fingerprint(&record)).flatten().filter(|_| !tried.replayed);
        if attempts == 0 && fingerprint.is_some_and(|fingerprint| self.seen.contains(fingerprint)) {
            self.metrics.duplicates.inc();
            self.finish(resource, place, Ended::Duplicate);
            return;
        }
        let now = self.now();
        self.schedule.began(shop, now);
        let job = Job {
            resource,
            head,
            place,
            record_index,
            record,
            fingerprint,
            older,
            shop,
            webhook: WebhookId { cell: self.cell, entry: origin, index: place.index },
            pack: pack.clone(),
            attempt: attempts + 1,
            replayed: tried.replayed,
            began: now,
            began_active: self.destination.active(now),
            in_flight: around.deliveries.len() + 1,
        };
        let (sender, tenure) = (self.sender.clone(), self.tenure.clone());
        around.deliveries.spawn(async move {
            // The process may have been stopped, or Redis away, since this was decided. If the
            // drain was lost meanwhile, this task is dropped with it.
            while !tenure.holds(boottime()) {
                tokio::time::sleep(TICK).await;
            }
            sender.deliver(job).await
        });
    }
}
