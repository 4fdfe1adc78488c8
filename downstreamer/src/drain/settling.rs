//! The last step: what is finished becomes one settlement, and once that is applied its resources
//! are free.

use std::collections::HashSet;

use spillway_drain::End;
use spillway_drain::settle::Settled;
use spillway_queue::history::{Outcome, Past};
use spillway_queue::settle::{DEAD_BYTES_MAX, Dead, Settlement};
use spillway_service::clock::wall_clock_ms;
use spillway_service::error::chain;
use spillway_webhook::fingerprint::{Fingerprint, key_of};
use spillway_webhook::pack::Packer;
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;

use super::{Around, Drain, Ended, Finished, end_of};
use crate::deliver::Job;
use crate::index::{NodeKey, PackKey, Place, ResourceKey, Source, State};
use crate::judge;
use crate::schedule::ShopKey;
use crate::schedule::barriers::Position;

/// Webhooks in one settlement: bounds the time its script holds Redis.
const FINISHED_MAX: usize = 2048;

/// A settlement that is being applied.
pub(super) struct Settling {
    /// Resources whose head it settles.
    pub(super) heads: Vec<ResourceKey>,
    /// Everything that those speak for.
    settled: Vec<(ShopKey, Position)>,
    /// What was delivered.
    seen: Vec<Fingerprint>,
    /// What its dead letters will take in Redis.
    dead_bytes: u64,
    /// Resources some of whose webhooks it parks.
    parking: Vec<ResourceKey>,
    /// The packs these get, in the settlement's order.
    parked: Vec<PackKey>,
}

impl Settling {
    /// Where that of a shop was accepted.
    pub(super) fn of(&self, shop: ShopKey) -> impl Iterator<Item = Position> {
        self.settled.iter().filter(move |(other, _)| *other == shop).map(|(_, position)| *position)
    }
}

impl Drain {
    /// Begins the next settlement if there is something to settle and none is being applied.
    pub(super) fn settle(&mut self, around: &mut Around) {
        if self.settling.is_some() {
            return;
        }
        let mut settlement = Settlement::default();
        let mut touched = HashSet::new();
        let (heads, mut settled) = self.settle_finished(&mut settlement, &mut touched);
        settled.extend(self.settle_dropped(&mut settlement, &mut touched));
        let (parking, parked) = self.park(&mut settlement, &mut touched, around);
        settlement.corrupt = std::mem::take(&mut self.corrupt);
        settlement.corrupt_parked = std::mem::take(&mut self.corrupt_parked);
        self.settle_tries(&mut settlement);
        self.advance(&mut settlement, touched);
        if settlement.is_empty() {
            return;
        }
        settlement.open = self.index.settled_open();
        settlement.seen_from_ms = self.seen.forgets_before_ms(wall_clock_ms());
        let seen = settlement.seen.clone();
        let dead_bytes = settlement.dead.iter().map(Dead::size_bytes).sum();
        self.settling = Some(Settling { heads, settled, seen, dead_bytes, parking, parked });
        // The channel holds one order, and none is under way.
        if around.orders.try_send(settlement).is_err() {
            tracing::error!("BUG: a settlement found another before it");
        }
    }

    /// The settlement was applied, or never will be.
    pub(super) fn settled(&mut self, settled: Settled) -> Option<End> {
        let ids = match settled {
            Ok(ids) => ids,
            Err(error) => {
                tracing::warn!(error = chain(&error), "settling ended");
                return Some(end_of(&error));
            }
        };
        let settling = self.settling.take()?;
        self.tenure.settled_dead(settling.dead_bytes);
        self.front_moved();
        let now_ms = wall_clock_ms();
        settling.seen.into_iter().for_each(|one| self.seen.insert(one, now_ms));
        for resource in settling.heads {
            if self.index.pop(resource) {
                self.release(resource);
            }
        }
        let now = self.now();
        for (shop, position) in settling.settled {
            for resource in self.schedule.left(shop, position, now) {
                if self.index.state(resource) == Some(State::Held) {
                    self.release(resource);
                }
            }
        }
        if ids.len() != settling.parked.len() {
            tracing::error!("BUG: redis parked another number of webhooks than it was told");
            return Some(End::Stale);
        }
        for (key, id) in settling.parked.into_iter().zip(ids) {
            self.index.parked_as(key, id);
        }
        for resource in settling.parking {
            self.parked_now(resource);
        }
        None
    }

    /// Takes in what is finished: which heads, and where everything was accepted that they speak
    /// for.
    fn settle_finished(
        &mut self,
        settlement: &mut Settlement,
        touched: &mut HashSet<PackKey>,
    ) -> (Vec<ResourceKey>, Vec<(ShopKey, Position)>) {
        let index = &self.index;
        let sizes = self.finished.iter().map(|one| {
            (index.led(one.resource).count(), one.end.dead_letter().map_or(0, Dead::size_bytes))
        });
        let count = fitting(sizes);
        let finished: Vec<Finished> = self.finished.drain(..count).collect();
        let (mut heads, mut settled) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for Finished { resource, end, key, attempts } in finished {
            let (Some((shop, _)), Some(head)) =
                (self.index.turn(resource), self.index.head(resource))
            else {
                continue;
            };
            heads.push(resource);
            self.trials.remove(&head);
            let lead = self.index.lead(resource);
            let led: Vec<(NodeKey, Place)> = self.index.led(resource).collect();
            for (node, place) in led {
                let position = self.index.position(node);
                settled.push((shop, position));
                if self.seen.is_on() {
                    let fingerprint = self.index.fingerprint(node);
                    let (outcome, key) = match lead == Some(place) {
                        true => (end.outcome(), key),
                        false => (Outcome::Coalesced, fingerprint.map_or(0, key_of)),
                    };
                    let attempts = if lead == Some(place) { attempts } else { 0 };
                    past(key, position, outcome, attempts).write(&mut settlement.history);
                }
                if self.seen.is_on() && matches!(end, Ended::Delivered(_)) {
                    settlement.seen.extend(self.index.fingerprint(node));
                }
                self.settle_one(place, settlement, touched);
            }
            match end {
                Ended::Delivered(fingerprint) if !self.settings.keeps_fingerprints() => {
                    settlement.seen.extend(fingerprint);
                }
                Ended::Delivered(_) | Ended::Duplicate => {}
                Ended::Dead(dead) => settlement.dead.push(*dead),
            }
        }
        (heads, settled)
    }

    pub(super) fn settle_one(
        &mut self,
        place: Place,
        settlement: &mut Settlement,
        touched: &mut HashSet<PackKey>,
    ) {
        let key = place.pack;
        match self.index.pack(key).map(|pack| (pack.source, pack.id)) {
            Some((Source::Parked, id)) => {
                settlement.unparked.push(id);
                self.parked.remove(&key);
                self.tries.remove(&key);
                self.cache.remove(key);
            }
            Some((Source::Main, _)) => {
                touched.insert(key);
            }
            None => {}
        }
        self.index.mark_settled(place);
    }

    fn settle_tries(&mut self, settlement: &mut Settlement) {
        for (key, (attempts, spent)) in self.tries.drain() {
            if let Some(pack) = self.index.pack(key) {
                settlement.tries.push((pack.id, attempts, spent));
            }
        }
    }

    /// Moves the cursor over what is settled whole; of the rest, the bits are kept.
    fn advance(&mut self, settlement: &mut Settlement, mut touched: HashSet<PackKey>) {
        let (advance, passed) = self.index.advance();
        settlement.cursor = advance.cursor;
        settlement.entries_passed = advance.entries;
        settlement.webhooks_passed = advance.webhooks;
        for (key, pack) in passed {
            touched.remove(&key);
            self.cache.remove(key);
            if pack.bits_stored || self.standing.names(pack.id) {
                settlement.whole.push(pack.id);
            }
        }
        for key in touched {
            if let Some(pack) = self.index.pack(key) {
                settlement.bits.push((pack.id, pack.bits.clone()));
            }
            self.index.bits_stored(key);
        }
    }
}

/// How many of those that are finished go into one settlement: each a number of webhooks, and bytes
/// of a dead letter. One at least, if there is one.
fn fitting(finished: impl Iterator<Item = (usize, u64)>) -> usize {
    let mut webhooks = 0;
    let mut dead_bytes = 0;
    let fits = |(is_first, (more_webhooks, more_bytes)): &(bool, (usize, u64))| {
        webhooks += more_webhooks;
        dead_bytes += more_bytes;
        *is_first || (webhooks <= FINISHED_MAX && dead_bytes <= DEAD_BYTES_MAX)
    };
    std::iter::once(true).chain(std::iter::repeat(false)).zip(finished).take_while(fits).count()
}

impl Ended {
    fn dead_letter(&self) -> Option<&Dead> {
        match self {
            Self::Dead(dead) => Some(dead),
            Self::Delivered(_) | Self::Duplicate => None,
        }
    }

    fn outcome(&self) -> Outcome {
        match self {
            Self::Delivered(_) => Outcome::Delivered,
            Self::Duplicate => Outcome::Duplicate,
            Self::Dead(_) => Outcome::Dead,
        }
    }
}

fn past(key: u64, (entry, index): Position, outcome: Outcome, attempts: u32) -> Past {
    Past { key, entry, index, outcome, attempts: u8::try_from(attempts).unwrap_or(u8::MAX) }
}

/// A webhook that is given up, with what an operator will want to know.
pub(super) fn dead_letter(
    job: &Job,
    outcome: &judge::Outcome,
    answer: Vec<u8>,
    reason: &'static str,
) -> Dead {
    let record = &job.record;
    let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into();
    Dead {
        pack: Packer::new().single_out(&job.pack, job.record_index),
        webhook: job.webhook,
        labels: [
            text(record.shop()),
            text(record.topic()),
            Resource::of(record, &record.body).to_string(),
            text(record.shopify("webhook-id")),
        ],
        reason,
        status: match outcome {
            judge::Outcome::Answered { status, .. } => *status,
            judge::Outcome::TimedOut
            | judge::Outcome::Unconnected
            | judge::Outcome::Broken
            | judge::Outcome::Unsendable => 0,
        },
        attempts: job.attempt,
        answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settlement_is_bounded_in_webhooks_and_in_bytes_of_dead_letters_and_one_always_goes() {
        let huge = DEAD_BYTES_MAX + 1;
        let half = DEAD_BYTES_MAX / 2;
        for (finished, expected) in [
            (vec![], 0),
            (vec![(1, 0); 3000], FINISHED_MAX),
            (vec![(FINISHED_MAX + 1, 0), (1, 0)], 1),
            (vec![(1, huge), (1, 0)], 1),
            (vec![(1, 0), (1, huge), (1, 0)], 1),
            (vec![(1, half), (1, 0), (1, half), (1, 1)], 3),
        ] {
            assert_eq!(fitting(finished.into_iter()), expected);
        }
    }
}
