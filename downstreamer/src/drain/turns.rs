//! Starts deliveries: whose turn it is, what of it is delivered, and whether its bytes are at hand.

use std::sync::Arc;

use spillway_queue::owner::boottime;
use spillway_service::clock::wall_clock_ms;
use spillway_webhook::WebhookId;
use spillway_webhook::fingerprint::{fingerprint, key_of};
use spillway_webhook::pack::Pack;

use super::{Around, Drain, Ended, TICK};
use crate::deliver::Job;
use crate::destination::Allowed;
use crate::index::{Lead, Place, ResourceKey, State};
use crate::schedule::{ShopKey, Turn};

/// How many ready resources are looked at for one that has not failed yet: those that fail may be
/// the oldest, and so the first.
const PROBE_PICKS: usize = 512;
/// Deliveries that may wait for their settlement, beside those under way: what a crash can repeat.
const UNSETTLED_MAX: usize = 256;

impl Drain {
    /// Starts deliveries while there is room for them.
    pub(super) fn dispatch(&mut self, around: &mut Around) {
        // What was parked is older than the main stream: nothing goes before it has arrived,
        // unless there is more of it than the index holds.
        let is_loaded = self.is_parked_loaded || !self.index.has_room();
        if self.ends.is_some() || !is_loaded || !self.tenure.holds(boottime()) {
            return;
        }
        if self.standing.is_all_paused {
            return;
        }
        if self.destination.allows(self.now()) == Allowed::Nothing {
            return;
        }
        if !self.is_caught_up && !self.index.has_room() {
            self.caught_up();
        }
        let unsettled_before = self.settling.as_ref().map_or(0, |settling| settling.heads.len());
        loop {
            let in_flight = around.deliveries.len();
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
            if !self.begin(turn, around) {
                self.limiter.unused();
            }
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
        let now = self.now();
        let mut set_aside = Vec::new();
        let picked = loop {
            // Much may have come since it was put by.
            let put_by = self.next.take();
            let Some(turn) = put_by.or_else(|| self.schedule.pick(now)) else {
                break set_aside.pop();
            };
            if self.index.state(turn.resource) != Some(State::Ready) {
                continue;
            }
            let Some(position) = self.index.head_position(turn.resource) else { continue };
            let is_known = self.is_caught_up
                || (position.0 <= self.read_to && !self.index.coalesces(turn.resource));
            if !is_known {
                // The owner before may have delivered a newer event than is known by now, and what
                // was parked may lie behind a barrier that has not arrived.
                self.index.set_state(turn.resource, State::Held);
                self.unread.push(turn.resource);
                continue;
            }
            if !self.schedule.is_open(turn.shop, position) {
                // A replayed barrier came before it.
                self.index.set_state(turn.resource, State::Held);
                self.schedule.hold(turn.shop, position, turn.resource);
                continue;
            }
            let has_failed = self.destination.is_stopped() && self.trial(turn.resource).is_some();
            if !has_failed || set_aside.len() == PROBE_PICKS {
                break Some(turn);
            }
            set_aside.push(turn);
        };
        set_aside.into_iter().for_each(|turn| self.release(turn.resource));
        picked
    }

    /// Says whether a delivery began.
    fn begin(&mut self, turn: Turn, around: &mut Around) -> bool {
        let Turn { shop, resource } = turn;
        let Some((place, older)) = self.choose(resource, shop) else { return false };
        let Some((pack, record_index)) = self.at_hand(resource, place) else {
            self.starve(turn, place.pack);
            return false;
        };
        if self.is_set_aside(resource, place, (&pack, record_index)) {
            return false;
        }
        self.index.set_state(resource, State::Busy);
        self.deliver(turn, place, older, (pack, record_index), around)
    }

    /// What is delivered of a resource, and how many older events it stands for: none that lie
    /// behind a barrier, or that were accepted too long before it, and no duplicate.
    fn choose(&mut self, resource: ResourceKey, shop: ShopKey) -> Option<(Place, u32)> {
        let (head, _) = self.index.head_position(resource)?;
        let wait_max = u64::try_from(self.settings.coalesce_wait_max.as_millis()).unwrap_or(0);
        let barrier = self.schedule.barrier(shop);
        let (seen, now_ms) = (&self.seen, wall_clock_ms());
        self.index.choose_lead(resource, |position, fingerprint| {
            let is_behind = barrier.is_some_and(|barrier| position > barrier);
            if is_behind || position.0.ms.saturating_sub(head.ms) > wait_max {
                Lead::End
            } else if fingerprint.is_some_and(|fingerprint| seen.contains(fingerprint, now_ms)) {
                Lead::Skip
            } else {
                Lead::Yes
            }
        })
    }

    /// Delivers what was chosen of a resource, or finishes with it if that was delivered before.
    fn deliver(
        &mut self,
        turn: Turn,
        place: Place,
        older: u32,
        (pack, record_index): (Arc<Pack>, u32),
        around: &mut Around,
    ) -> bool {
        let Turn { shop, resource } = turn;
        let (Some(head), Some(open)) = (self.index.head(resource), self.index.pack(place.pack))
        else {
            return false;
        };
        let tried = self.parked.get(&head.pack).copied().unwrap_or_default();
        let attempts = self.trials.get(&head).map_or(tried.attempts, |trial| trial.attempts);
        let (record, origin) = (pack.record(record_index), open.origin);
        let own = self.seen.is_on().then(|| fingerprint(&record)).flatten();
        let (key, fingerprint) = (own.map_or(0, key_of), own.filter(|_| !tried.replayed));
        let now_ms = wall_clock_ms();
        let is_seen = |fingerprint| self.seen.contains(fingerprint, now_ms);
        if attempts == 0 && fingerprint.is_some_and(is_seen) {
            self.metrics.duplicates.inc();
            self.finish(resource, place, Ended::Duplicate, key, 0);
            return false;
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
            key,
            older,
            shop,
            webhook: WebhookId { cell: self.cell, entry: origin, index: place.index },
            pack,
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
        true
    }
}
