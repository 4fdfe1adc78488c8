//! Keeps a failing resource from pinning the queue: once its pack is old enough, its webhook and
//! the later ones behind it move to the parked stream, within a settlement. So do those that a failing
//! webhook holds back behind a barrier of its shop.
//!
//! Never while the backend as a whole is down: then every resource fails, and moving them all would
//! copy the queue for nothing.

use std::collections::HashSet;
use std::time::Duration;

use spillway_queue::settle::{Park, Settlement};
use spillway_service::clock::wall_clock_ms;
use spillway_webhook::WebhookId;
use spillway_webhook::pack::Packer;
use tokio::time::Instant;

use super::{Around, Drain, Tried};
use crate::index::{NodeKey, OpenPack, PackKey, Place, ResourceKey, Source, State};

/// How often failing resources are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The same while there is more to park than one settlement takes.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// What one settlement parks at most: bounds the time its script holds Redis.
const PARK_MAX: usize = 256;
const PARK_BYTES_MAX: usize = 4 << 20;
/// Packs read again for parking, in one look.
const FETCH_MAX: usize = 8;

impl Drain {
    /// Adds what is to be parked to the settlement; says for which resources, and under which keys.
    pub(super) fn park(
        &mut self,
        settlement: &mut Settlement,
        touched: &mut HashSet<PackKey>,
        around: &mut Around,
    ) -> (Vec<ResourceKey>, Vec<PackKey>) {
        let (mut parking, mut parked) = (Vec::new(), Vec::new());
        if Instant::now() < self.parks_due || self.destination.is_stopped() {
            return (parking, parked);
        }
        let mut packer = Packer::new();
        let (mut bytes, mut fetches, mut is_cut_short) = (0, 0, false);
        for resource in self.delayed() {
            let before = parked.len();
            for (node, place) in self.old_in_main(resource, PARK_MAX - parked.len()) {
                let Some(pack) = self.cache.get(place.pack) else {
                    is_cut_short = true;
                    if fetches < FETCH_MAX {
                        fetches += 1;
                        self.fetch(place.pack, around);
                    }
                    break;
                };
                let pack = packer.single_out(&pack, place.index);
                bytes += pack.len();
                parked.push(self.move_aside(resource, node, place, pack, settlement));
                touched.insert(place.pack);
                if bytes > PARK_BYTES_MAX {
                    break;
                }
            }
            if parked.len() > before {
                self.index.set_state(resource, State::Parking);
                parking.push(resource);
            }
            if parked.len() >= PARK_MAX || bytes > PARK_BYTES_MAX {
                is_cut_short = true;
                break;
            }
        }
        // With more to do, it goes on soon: packs that are not at hand are read meanwhile.
        let pause = if is_cut_short { LOOK_AGAIN } else { LOOK_EVERY };
        self.parks_due = Instant::now() + pause;
        (parking, parked)
    }

    /// Resources whose head waits for a retry, or for one that does.
    fn delayed(&self) -> Vec<ResourceKey> {
        let stuck = self.schedule.stuck().take(PARK_MAX);
        let held = stuck.filter(|resource| self.index.state(*resource) == Some(State::Held));
        self.trials
            .iter()
            .filter(|(place, trial)| {
                self.index.state(trial.resource) == Some(State::Delayed)
                    && self.index.head(trial.resource) == Some(**place)
            })
            .map(|(_, trial)| trial.resource)
            .chain(held)
            .collect()
    }

    /// Parking `resource` is done: it waits for its retry again.
    pub(super) fn parked_now(&mut self, resource: ResourceKey) {
        if self.index.state(resource) == Some(State::Parking) {
            self.release(resource);
        }
    }

    /// The webhooks of a failing resource that lie in main packs old enough, oldest first.
    fn old_in_main(&self, resource: ResourceKey, count: usize) -> Vec<(NodeKey, Place)> {
        let park_after_ms = u64::try_from(self.settings.park_after.as_millis()).unwrap_or(u64::MAX);
        let old_ms = wall_clock_ms().saturating_sub(park_after_ms);
        self.index
            .in_main(resource)
            .filter_map(|(node, place)| Some((node, place, self.index.pack(place.pack)?)))
            .filter(|(_, _, pack)| pack.source == Source::Main)
            .take_while(|(_, _, pack)| pack.id.ms <= old_ms)
            .map(|(node, place, _)| (node, place))
            .take(count)
            .collect()
    }

    fn move_aside(
        &mut self,
        resource: ResourceKey,
        node: NodeKey,
        place: Place,
        pack: Vec<u8>,
        settlement: &mut Settlement,
    ) -> PackKey {
        let origin = self.index.pack(place.pack).map(|pack| pack.origin).unwrap_or_default();
        let trial = self.trials.remove(&place);
        let tried = trial.map_or_else(Tried::default, |trial| Tried {
            attempts: trial.attempts,
            spent: self.spent(&trial),
            replayed: false,
        });
        settlement.park.push(Park {
            pack,
            webhook: WebhookId { cell: self.cell, entry: origin, index: place.index },
            attempts: tried.attempts,
            spent: tried.spent,
            replayed: false,
        });
        // Its id comes with the settlement's answer; until then the resource is not touched.
        let key = self.index.add_pack(OpenPack::parked(origin, origin, false));
        let moved = self.index.moved(resource, node, key);
        self.trials.extend(trial.map(|trial| (moved, trial)));
        self.index.mark_settled(place);
        self.parked.insert(key, tried);
        key
    }
}
