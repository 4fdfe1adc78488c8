//! Record of every accepted webhook, and the rules that each step must keep.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use spillway_delivery::{Dispatch, Outcome, SettledRecord};
use spillway_webhook::StreamId;
use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use crate::redis::{Letter, Redis};
use crate::webhook::{Bytes, Resource, Rules, Scheme, Webhook};

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
    /// Entries of the deduplication window, with their times.
    pub remembered: Vec<(Fingerprint, u64)>,
    /// Time before which Redis has deleted them.
    pub remembers_from_ms: u64,
    /// Length of that window in milliseconds.
    window_ms: u64,
    /// Events that were given up, with the time.
    given_up: HashMap<Fingerprint, u64>,
    /// Replays that the backend accepted, not yet settled.
    replayed: HashMap<Position, u32>,
}

impl Truth {
    pub(crate) fn new(dedup_window: Duration) -> Self {
        let window_ms = u64::try_from(dedup_window.as_millis()).expect("it is short");
        Self { window_ms, ..Self::default() }
    }

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
        if is_replay {
            *self.replayed.entry(position).or_default() += 1;
        } else {
            let newest = self.arrived.entry(fate.webhook.unit(scheme)).or_default();
            *newest = position.max(*newest);
        }
    }

    /// Notes that a webhook was lost with its chunk. If it stood for older ones, these are sent.
    pub(crate) fn lost(&mut self, position: Position) {
        self.unsettled.remove(&position);
        self.arrived.retain(|_, newest| *newest != position);
    }

    /// Forgets which webhooks are newest: the unit of order or the filter has changed, and earlier
    /// arrivals are no evidence.
    pub(crate) fn forget_arrivals(&mut self) {
        self.arrived.clear();
    }

    fn name(&self, position: Position) -> String {
        self.fates.get(&position).map_or(position.to_string(), |fate| fate.webhook.name())
    }

    /// Checks a dispatch against all unsettled webhooks.
    pub(crate) fn check_send(&self, sent: &Dispatch<Bytes>, rules: Rules) -> Result<(), Violation> {
        let Rules { scheme, keeps_fingerprints, exclusion } = rules;
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
        if exclusion.excludes(&webhook) {
            return Err(format!("{} is excluded by the filter, and sent", webhook.name()));
        }
        let unit = webhook.unit(scheme);
        // If a newer webhook is dropped, the older ones for which it stood are sent.
        let newest = self.arrived.get(&unit).filter(|newest| !self.dropping.contains(newest));
        if let Some(newest) = newest.filter(|newest| **newest > at) {
            return Err(format!("order: {} is sent after {}", webhook.name(), self.name(*newest)));
        }
        let earlier = self.unsettled.range(..at).map(|at| &self.fates[at].webhook);
        let earlier: Vec<&Webhook> = earlier.filter(|one| !exclusion.excludes(one)).collect();
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
            if keeps_fingerprints && self.was_given_up(&webhook) {
                let name = webhook.name();
                return Err(format!("{name} stands for others, a copy of one that was given up"));
            }
        }
        self.check_barriers(&webhook, &earlier, scheme)
    }

    /// True if an event of which this is a late copy was given up, at most a deduplication window
    /// before the copy was accepted.
    fn was_given_up(&self, copy: &Webhook) -> bool {
        self.given_up.get(&copy.fingerprint).is_some_and(|at| self.is_within(*at, copy))
    }

    /// True if a copy came within a deduplication window after `ended_ms`.
    pub(crate) fn is_within(&self, ended_ms: u64, copy: &Webhook) -> bool {
        copy.position.ms < ended_ms + self.window_ms
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
        check_letters(letter)?;
        self.remembers_from_ms = self.remembers_from_ms.max(letter.remembers_from_ms);
        let mut recorded = BTreeSet::new();
        for (index, record) in settlement.records.iter().enumerate() {
            let at = record.position;
            if !self.unsettled.contains(&at) {
                let known = replayed.iter().position(|one| *one == at);
                let known = known.ok_or(format!("{} is settled again", self.name(at)))?;
                replayed.swap_remove(known);
                self.replay_settled(record)?;
                continue;
            }
            if letter.exclusion.excludes(self.webhook(at)?) {
                return Err(format!("{} is excluded, and has an outcome", self.name(at)));
            }
            if now.contains(&at) || !recorded.insert(at) {
                return Err(format!("{} is settled, and not in redis", self.name(at)));
            }
            if !self.is_right(record, &settlement.records[index..], letter) {
                return Err(format!("{} is not {:?}", self.name(at), record.outcome));
            }
            self.remember(record, &settlement.records[index..], letter.scheme, wall_ms)?;
        }
        if !replayed.is_empty() && settlement.controls.dropped == 0 {
            return Err(format!("replays of {replayed:?} are settled without an outcome"));
        }
        for gone in self.unsettled.difference(&now) {
            let is_excluded = letter.exclusion.excludes(self.webhook(*gone)?);
            if !recorded.contains(gone) && !self.dropping.contains(gone) && !is_excluded {
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

    /// Notes what the core remembers of a settled webhook. `later` has this record and those after it.
    fn remember(
        &mut self,
        record: &SettledRecord,
        later: &[SettledRecord],
        scheme: Scheme,
        wall_ms: u64,
    ) -> Result<(), Violation> {
        let webhook = self.fates[&record.position].webhook;
        let is_coalesced = webhook.coalesces(scheme) > 0;
        // Webhooks for which a newer one stood end as that one does.
        let lead = later.iter().find(|one| one.outcome != Outcome::Coalesced);
        let expected = match lead.map(|lead| lead.outcome) {
            _ if self.window_ms == 0 => None,
            Some(Outcome::Delivered | Outcome::Suppressed | Outcome::Stale) => record.fingerprint,
            Some(Outcome::Dead) if is_coalesced => record.fingerprint.map(|one| !one),
            _ => None,
        };
        if record.remembered != expected {
            return Err(format!("{} is not remembered as it ended", webhook.name()));
        }
        match lead.map(|lead| lead.outcome) {
            Some(Outcome::Delivered | Outcome::Suppressed | Outcome::Stale) => {
                self.taken.insert(webhook.fingerprint);
            }
            Some(Outcome::Dead) if expected.is_some() => {
                self.given_up.insert(webhook.fingerprint, wall_ms);
            }
            _ => {}
        }
        self.remembered.extend(record.remembered.map(|one| (one, wall_ms)));
        Ok(())
    }

    /// Checks the record of a replay.
    fn replay_settled(&mut self, record: &SettledRecord) -> Result<(), Violation> {
        let is_right = match record.outcome {
            Outcome::Delivered => self.replayed.get_mut(&record.position).is_some_and(|count| {
                let has_arrived = *count > 0;
                *count = count.saturating_sub(1);
                has_arrived
            }),
            Outcome::Dead => true,
            Outcome::Duplicate
            | Outcome::Suppressed
            | Outcome::Stale
            | Outcome::Coalesced
            | Outcome::Dropped => false,
        };
        let name = self.name(record.position);
        if !is_right || record.remembered.is_some() {
            return Err(format!("a replay of {name} is not {:?}", record.outcome));
        }
        Ok(())
    }

    /// True if the outcome of a webhook is correct. `later` has this record and those after it.
    fn is_right(&self, record: &SettledRecord, later: &[SettledRecord], letter: &Letter) -> bool {
        let at = record.position;
        let fate = &self.fates[&at];
        match record.outcome {
            Outcome::Delivered => fate.arrived > 0,
            Outcome::Duplicate => self.taken.contains(&fate.webhook.fingerprint),
            Outcome::Suppressed | Outcome::Stale => fate.webhook.is_compared(letter.scheme),
            Outcome::Coalesced => {
                let lead = later.iter().find(|one| one.outcome != Outcome::Coalesced);
                lead.is_some_and(|lead| {
                    let other = &self.fates[&lead.position].webhook;
                    let is_copy = lead.outcome == Outcome::Duplicate;
                    // Without fingerprints, a copy may be the newest.
                    (!is_copy || record.fingerprint.is_none())
                        && lead.position > at
                        && other.unit(letter.scheme) == fate.webhook.unit(letter.scheme)
                })
            }
            Outcome::Dead => letter.settlement.dead.iter().any(|dead| dead.position == at),
            Outcome::Dropped => self.dropping.contains(&at),
        }
    }
}

/// Checks that each dead letter has a record that says so, and the reverse.
fn check_letters(letter: &Letter) -> Result<(), Violation> {
    let settlement = &letter.settlement;
    let mut letters: Vec<Position> = settlement.dead.iter().map(|dead| dead.position).collect();
    let dead = settlement.records.iter().filter(|record| record.outcome == Outcome::Dead);
    let mut records: Vec<Position> = dead.map(|record| record.position).collect();
    letters.sort_unstable();
    records.sort_unstable();
    if letters != records {
        return Err(format!("dead letters {letters:?}, and records of {records:?}"));
    }
    Ok(())
}
