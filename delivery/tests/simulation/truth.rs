//! Record of every accepted webhook, and the rules that each step must keep.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use spillway_delivery::{Dispatch, Outcome, SettledRecord};
use spillway_webhook::StreamId;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use crate::redis::{Letter, Redis};
use crate::webhook::{Bytes, Resource, Scheme, Webhook};

/// Description of a broken rule.
pub(crate) type Violation = String;

/// State of an accepted webhook.
#[derive(Debug, Clone)]
pub(crate) struct Fate {
    pub webhook: Webhook,
    pub appended_at: Duration,
    /// Number of times that the backend accepted the webhook.
    pub arrived: u32,
}

/// All accepted webhooks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Truth {
    pub fates: BTreeMap<Position, Fate>,
    pub unsettled: BTreeSet<Position>,
    /// Webhooks that an operator dropped.
    pub dropping: BTreeSet<Position>,
    /// Newest webhook of each unit of order that the backend accepted.
    arrived: HashMap<Resource, Position>,
    taken: HashSet<Fingerprint>,
    /// Delivered webhooks for the deduplication window, with the time.
    pub delivered: Vec<(Fingerprint, u64)>,
}

impl Truth {
    pub(crate) fn accepted(&mut self, webhook: Webhook, now: Duration) {
        let fate = Fate { webhook, appended_at: now, arrived: 0 };
        self.fates.insert(webhook.position, fate);
        self.unsettled.insert(webhook.position);
    }

    pub(crate) fn webhook(&self, position: Position) -> Result<&Webhook, Violation> {
        let fate = self.fates.get(&position).ok_or(format!("{position} was never accepted"))?;
        Ok(&fate.webhook)
    }

    /// Notes that the backend accepted a webhook.
    pub(crate) fn arrive(&mut self, position: Position, is_replay: bool, scheme: Scheme) {
        let Some(fate) = self.fates.get_mut(&position) else { return };
        fate.arrived += 1;
        self.taken.insert(fate.webhook.fingerprint);
        if !is_replay {
            let newest = self.arrived.entry(fate.webhook.unit(scheme)).or_default();
            *newest = position.max(*newest);
        }
    }

    /// Notes that a webhook was lost with its chunk. If it stood for older ones, these are sent.
    pub(crate) fn lost(&mut self, position: Position) {
        self.unsettled.remove(&position);
        self.arrived.retain(|_, newest| *newest != position);
    }

    /// Changes the unit of order. Earlier arrivals are then no evidence.
    pub(crate) fn scheme_changed(&mut self) {
        self.arrived.clear();
    }

    fn name(&self, position: Position) -> String {
        self.fates.get(&position).map_or(position.to_string(), |fate| fate.webhook.name())
    }

    /// Checks a dispatch against all unsettled webhooks.
    pub(crate) fn check_send(
        &self,
        sent: &Dispatch<Bytes>,
        scheme: Scheme,
        keeps_fingerprints: bool,
    ) -> Result<(), Violation> {
        let webhook = *self.webhook(sent.position)?;
        let held = sent.content.0.get(sent.record_index as usize);
        if held != Some(&webhook) {
            return Err(format!("bytes of {held:?} are sent for {}", webhook.name()));
        }
        let at = webhook.position;
        if sent.is_replay {
            if sent.older > 0 {
                return Err(format!("a replay of {at} stands for {} others", sent.older));
            }
            let is_settled = !self.unsettled.contains(&at);
            return is_settled.then_some(()).ok_or(format!("a replay of {at} is not settled"));
        }
        if !self.unsettled.contains(&at) {
            return Err(format!("{} is sent after it was settled", webhook.name()));
        }
        if self.dropping.contains(&at) {
            return Err(format!("{} is to be dropped, and sent", webhook.name()));
        }
        let unit = webhook.unit(scheme);
        // If a newer webhook is dropped, the older ones for which it stood are sent.
        let newest = self.arrived.get(&unit).filter(|newest| !self.dropping.contains(newest));
        if let Some(newest) = newest.filter(|newest| **newest > at) {
            return Err(format!("order: {} is sent after {}", webhook.name(), self.name(*newest)));
        }
        let earlier: Vec<&Webhook> =
            self.unsettled.range(..at).map(|at| &self.fates[at].webhook).collect();
        let run: Vec<&&Webhook> = earlier.iter().filter(|one| one.unit(scheme) == unit).collect();
        let dropped = run.iter().filter(|one| self.dropping.contains(&one.position)).count();
        let older = sent.older as usize;
        if !(run.len() - dropped..=run.len()).contains(&older) {
            let run: Vec<String> = run.iter().map(|one| one.name()).collect();
            return Err(format!("order: {} is sent for {older} before {run:?}", webhook.name()));
        }
        if older > 0 {
            let kinds = run.iter().map(|one| one.coalesces(scheme));
            let is_odd = |kind: u8| kind == 0 || kind != webhook.coalesces(scheme);
            if kinds.into_iter().any(is_odd) {
                return Err(format!("{} stands for another kind", webhook.name()));
            }
            let is_copied = |one: &&&&Webhook| {
                one.fingerprint == webhook.fingerprint && !self.dropping.contains(&one.position)
            };
            if keeps_fingerprints && let Some(one) = run.iter().find(is_copied) {
                return Err(format!(
                    "{} stands for others, a copy of {}",
                    webhook.name(),
                    one.name()
                ));
            }
        }
        self.check_barriers(&webhook, &earlier, scheme)
    }

    fn check_barriers(
        &self,
        webhook: &Webhook,
        earlier: &[&Webhook],
        scheme: Scheme,
    ) -> Result<(), Violation> {
        let others = earlier.iter().filter(|one| {
            one.shop == webhook.shop
                && one.unit(scheme) != webhook.unit(scheme)
                && !self.dropping.contains(&one.position)
        });
        for one in others {
            if one.is_barrier() {
                return Err(format!("barrier: {} overtakes {}", webhook.name(), one.name()));
            }
            if webhook.is_barrier() {
                return Err(format!("barrier: {} is sent before {}", webhook.name(), one.name()));
            }
        }
        Ok(())
    }

    /// Checks a settlement that was just applied. `replays` has the position of each replay before
    /// it.
    pub(crate) fn check_applied(
        &mut self,
        letter: &Letter,
        redis: &Redis,
        replays: &BTreeMap<StreamId, Webhook>,
        wall_ms: u64,
    ) -> Result<(), Violation> {
        redis.check()?;
        let settlement = &letter.settlement;
        let now = redis.unsettled()?;
        if let Some(invented) = now.difference(&self.unsettled).next() {
            return Err(format!("{} is unsettled again", self.name(*invented)));
        }
        let mut replayed: Vec<Position> = settlement
            .replays
            .settled
            .iter()
            .filter_map(|id| replays.get(id))
            .map(|webhook| webhook.position)
            .collect();
        let mut recorded = BTreeSet::new();
        for (index, record) in settlement.records.iter().enumerate() {
            let at = record.position;
            if !self.unsettled.contains(&at) {
                let known = replayed.iter().position(|one| *one == at);
                let known = known.ok_or(format!("{} is settled again", self.name(at)))?;
                replayed.swap_remove(known);
                continue;
            }
            if now.contains(&at) || !recorded.insert(at) {
                return Err(format!("{} is settled, and not in redis", self.name(at)));
            }
            if !self.is_right(record, &settlement.records[index..], letter) {
                return Err(format!("{} is not {:?}", self.name(at), record.outcome));
            }
            let fate = &self.fates[&at];
            // Webhooks for which a newer one stood count as delivered with it.
            let run = settlement.records[index..].iter();
            let mut run = run.skip_while(|one| one.outcome == Outcome::Coalesced);
            if run.next().is_some_and(|lead| lead.outcome == Outcome::Delivered) {
                self.taken.insert(fate.webhook.fingerprint);
                self.delivered.extend(record.fingerprint.map(|one| (one, wall_ms)));
            }
        }
        for gone in self.unsettled.difference(&now) {
            if !recorded.contains(gone) && !self.dropping.contains(gone) {
                return Err(format!("{} is lost", self.name(*gone)));
            }
        }
        let waiting: u64 = redis.rows.values().map(|row| row.change.waiting).sum();
        if settlement.lanes.waiting != waiting {
            return Err(format!("{} are said to be in lanes", settlement.lanes.waiting));
        }
        self.unsettled = now;
        Ok(())
    }

    /// True if the outcome of a webhook is correct. `later` has this record and those after it.
    fn is_right(&self, record: &SettledRecord, later: &[SettledRecord], letter: &Letter) -> bool {
        let at = record.position;
        let fate = &self.fates[&at];
        match record.outcome {
            Outcome::Delivered => fate.arrived > 0,
            Outcome::Duplicate => self.taken.contains(&fate.webhook.fingerprint),
            Outcome::Coalesced => later.iter().any(|later| {
                let other = &self.fates[&later.position].webhook;
                later.outcome != Outcome::Coalesced
                    && later.position > at
                    && other.unit(letter.scheme) == fate.webhook.unit(letter.scheme)
            }),
            Outcome::Dead => letter.settlement.dead.iter().any(|dead| dead.position == at),
            Outcome::Dropped => self.dropping.contains(&at),
        }
    }
}
