//! The first step: what intake found begins to wait, is dropped by an order, or is passed over for now.

use std::sync::Arc;

use spillway_drain::End;
use spillway_queue::read::Parked;
use spillway_webhook::pack::Pack;
use spillway_webhook::{StreamId, WebhookId};

use super::{Drain, Tried};
use crate::index::{OpenPack, Place, State, Waiting};
use crate::intake::Arrived;
use crate::sort::Sorted;

impl Drain {
    /// Takes in what intake found; `Some` when the drain must begin again.
    pub(super) fn arrived(&mut self, arrived: Arrived) -> Option<End> {
        match arrived {
            Arrived::OlderData => return Some(End::Stale),
            Arrived::Pack { id, sorted, pack } => {
                self.read_to = id;
                if self.is_passed_over(id, &sorted) {
                    return None;
                }
                let bits = self.bits.remove(&id);
                let open = OpenPack::main(id, pack.count(), bits.as_ref());
                let settled: Vec<bool> =
                    (0..pack.count()).map(|index| open.is_settled(index)).collect();
                let key = self.index.add_pack(open);
                self.cache.pass(key, pack);
                for ((index, sorted), settled) in (0..).zip(sorted).zip(settled) {
                    let place = Place { pack: key, index };
                    if settled {
                        continue;
                    }
                    if self.standing.drops(id, index) {
                        self.standing.drop_at_once(place);
                    } else if self.schedule.stops(sorted.shop) && !self.index.has_ample_room() {
                        self.index.pause_one(place);
                        self.has_gaps = true;
                    } else {
                        self.waits(place, &sorted);
                    }
                }
            }
            Arrived::Parked { parked, sorted, pack } => self.parked(&parked, &sorted, pack),
            Arrived::ParkedLoaded => self.is_parked_loaded = true,
            Arrived::CaughtUp => self.caught_up(),
            Arrived::Corrupt(id) => {
                self.read_to = id;
                self.index.add_pack(OpenPack::main(id, 0, None));
                self.corrupt.push(id);
            }
            Arrived::CorruptParked(id) => {
                self.standing.parked_to = id;
                self.corrupt_parked.push(id);
            }
        }
        None
    }

    /// A parked webhook waits, or is dropped by an order.
    fn parked(&mut self, parked: &Parked, sorted: &Sorted, pack: Arc<Pack>) {
        let WebhookId { entry, index, .. } = parked.webhook;
        let open = OpenPack::parked(parked.id, entry, parked.replayed);
        let is_meant = self.standing.means(&open, index);
        let key = self.index.add_pack(open);
        self.standing.parked_to = parked.id;
        self.cache.pass(key, pack);
        let tried =
            Tried { attempts: parked.attempts, spent: parked.spent, replayed: parked.replayed };
        self.parked.insert(key, tried);
        let place = Place { pack: key, index };
        if is_meant {
            self.standing.drop_at_once(place);
        } else {
            self.waits(place, sorted);
        }
    }

    /// Whether a pack holds nothing but what is passed over. The first one of that kind is kept: it is
    /// where the cursor stays.
    fn is_passed_over(&self, id: StreamId, sorted: &[Sorted]) -> bool {
        let is_paused = |(index, sorted): (u32, &Sorted)| {
            self.schedule.stops(sorted.shop) && !self.standing.drops(id, index)
        };
        self.has_gaps
            && !self.index.has_ample_room()
            && !self.bits.contains_key(&id)
            && (0..).zip(sorted).all(is_paused)
    }

    /// What waits is known, or as much of it as can be.
    pub(super) fn caught_up(&mut self) {
        self.is_caught_up = true;
        for resource in std::mem::take(&mut self.unread) {
            if self.index.state(resource) == Some(State::Held) {
                self.release(resource);
            }
        }
    }

    /// A webhook waits from now on.
    fn waits(&mut self, place: Place, sorted: &Sorted) {
        let Sorted { resource, class, coalesces, fingerprint, .. } = *sorted;
        let origin = self.index.pack(place.pack).map(|pack| pack.origin).unwrap_or_default();
        let (index, settling, standing) = (&self.index, &self.settling, &self.standing);
        let all = |shop| {
            let mut all = index.positions(shop);
            all.extend(settling.iter().flat_map(|settling| settling.of(shop)));
            all.extend(standing.dropped_of(shop));
            all
        };
        let position = (origin, place.index);
        let shop = self.schedule.add(sorted.shop, position, sorted.is_barrier, all);
        if self.schedule.is_stopped(shop) {
            self.index.pause_one(place);
        }
        let head = self.index.head_position(resource);
        let webhook = Waiting { place, class, coalesces, fingerprint };
        if self.index.add(resource, shop, &webhook) {
            self.release(resource);
            return;
        }
        // A replay may have come before a head that waits for its retry, or for its shop.
        let state = self.index.state(resource);
        let is_next = self.index.head(resource) == Some(place);
        if is_next {
            // What was read on demand was the head before.
            self.reading.forget(resource);
        }
        if is_next && matches!(state, Some(State::Delayed | State::Held | State::Paused)) {
            if let (Some(State::Held), Some(head)) = (state, head) {
                self.schedule.unhold(shop, head);
            }
            self.release(resource);
        }
    }
}
