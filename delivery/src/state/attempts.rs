//! Attempts under way, and the slow ones among them.

use std::time::Duration;

use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use crate::state::folded::ByHash;
use crate::state::index::{LaneKey, ResourceKey};
use crate::state::last_delivered::SentUpdate;
use crate::state::proven::Proven;
use crate::state::shop::{LONG, ShopKey};
use crate::state::suspects::Suspects;

/// An attempt is slow after this many times the usual duration.
const SLOW_TIMES: u32 = 8;
/// Shortest duration of a slow attempt.
const SLOW_LEAST: Duration = Duration::from_millis(100);
/// Time after which a slow attempt that holds the slot of others may be cut off. A healthy webhook
/// does not wait a second for its slot.
const CUT_AFTER: Duration = Duration::from_millis(500);
/// The same with a single slot, where a slow attempt cannot be compared with others.
const CUT_AFTER_SINGLE: Duration = Duration::from_secs(2);
const _: () =
    assert!(SLOW_LEAST.as_millis() < CUT_AFTER.as_millis(), "only slow attempts are cut off");
const _: () =
    assert!(CUT_AFTER.as_millis() < CUT_AFTER_SINGLE.as_millis(), "a single lane gets more time");
/// In addition, half the time since the first attempt was cut off without a quick success in
/// between. If everything is slow, each attempt gets more and more time.
const CUT_SINCE_PART: u32 = 2;
/// Time between two such cuts: at least this, and 1/`CUT_EVERY_PART` of the time since the first
/// cut. If most lanes hang, dozens are tried within half a minute, which finds a healthy one.
const CUT_EVERY: Duration = Duration::from_millis(500);
const CUT_EVERY_PART: u32 = 16;
/// Time that slow attempts get when a leader ends, because everything waits for the next leader.
const END_AFTER: Duration = Duration::from_secs(1);
/// Slow and suspect lanes may hold 1/`SLOW_PART` of the slots.
const SLOW_PART: usize = 4;
/// Attempts in 1/`CUT_PART` of the slots are cut off at once if quick ones have overtaken them.
const CUT_PART: usize = 8;
/// Time without a delivery of another lane after which slow and suspect lanes may hold all slots.
const ALONE_AFTER: Duration = Duration::from_secs(10);

/// Id of an attempt. The same leader never uses it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId(pub u64);

/// An attempt under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// Resource whose head the attempt settles.
    pub resource: ResourceKey,
    /// Lane of the webhook.
    pub lane: LaneKey,
    /// Shop of the webhook.
    pub shop: ShopKey,
    /// Position of the webhook that is sent.
    pub position: Position,
    /// Number of the attempt, from 1.
    pub number: u32,
    /// Time at which the attempt began.
    pub began: Duration,
    /// Active time at which the attempt began.
    pub began_active: Duration,
    /// Attempts under way at that time, including this one.
    pub in_flight: usize,
    /// Older events and the fingerprint that the delivery also settles.
    pub sent: Sent,
    /// True if the attempt belongs to a suspect lane.
    pub is_suspect: bool,
    /// True if the attempt takes much longer than usual.
    pub is_slow: bool,
    /// Set once the attempt is slow or takes longer than [`LONG`].
    pub is_long: bool,
}

/// Part of a delivery in addition to the webhook that is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    /// Fingerprint to find duplicates.
    pub fingerprint: Option<Fingerprint>,
    /// Number of older events that the webhook stands for.
    pub older: u32,
    /// State that is sent, if it is compared.
    pub update: Option<SentUpdate>,
    /// True if it may show the state of any resource.
    pub hides_states: bool,
}

/// Times of the first and the last of several cuts.
#[derive(Debug, Clone, Copy)]
struct Cuts {
    first: Duration,
    last: Duration,
}

/// All attempts under way.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    running: ByHash<Attempt>,
    next: u64,
    /// Number of slow and suspect attempts.
    slow_or_suspect: usize,
    /// Number of attempts of suspect lanes.
    probes: usize,
    /// Number of slow and long attempts.
    long: usize,
    /// Cuts since the last successful delivery that was not slow. Overtaken attempts do not count.
    cuts: Option<Cuts>,
    /// Latest start of a successful delivery that was not slow.
    quick_began: Option<Duration>,
    /// Lanes that wait for the slots of suspect lanes.
    pub suspects: Suspects,
    /// Shops that get more turns while slow attempts hold most slots.
    pub proven: Proven,
    /// The last two lanes with a successful delivery, and its time.
    succeeded: [Option<(LaneKey, Duration)>; 2],
    /// Time at which a turn last waited for a slot, or for settlements.
    waited_at: Duration,
}

impl Attempts {
    /// Notes that a turn waits.
    pub(crate) fn note_waiting_turn(&mut self, now: Duration) {
        self.waited_at = now;
    }

    /// True if no turn has waited since then.
    pub(crate) fn were_slots_free_since(&self, since: Duration) -> bool {
        self.waited_at < since
    }

    /// Number of attempts that may show the state of any resource.
    pub(crate) fn hiding(&self) -> usize {
        self.running.values().filter(|attempt| attempt.sent.hides_states).count()
    }

    /// Number of attempts under way.
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// Begins an attempt.
    pub(crate) fn begin(&mut self, attempt: Attempt) -> AttemptId {
        self.next += 1;
        self.slow_or_suspect += usize::from(attempt.is_suspect);
        self.probes += usize::from(attempt.is_suspect);
        self.suspects.has_gone = attempt.is_suspect;
        self.running.insert(self.next, attempt);
        AttemptId(self.next)
    }

    /// Ends an attempt.
    pub(crate) fn end(&mut self, id: AttemptId) -> Option<Attempt> {
        let attempt = self.running.remove(&id.0)?;
        self.slow_or_suspect -= usize::from(attempt.is_suspect || attempt.is_slow);
        self.probes -= usize::from(attempt.is_suspect);
        self.long -= usize::from(attempt.is_long);
        Some(attempt)
    }

    /// Marks the attempts that are slow by now, after `most` at the latest. Returns those newly
    /// marked.
    pub(crate) fn mark_slow(
        &mut self,
        now: Duration,
        usual: Duration,
        most: Duration,
    ) -> Vec<Attempt> {
        let after = (usual * SLOW_TIMES).max(SLOW_LEAST).min(most);
        let mut slow = Vec::new();
        for attempt in self.running.values_mut() {
            if !attempt.is_slow && now.saturating_sub(attempt.began) > after {
                self.slow_or_suspect += usize::from(!attempt.is_suspect);
                attempt.is_slow = true;
                slow.push(*attempt);
            }
        }
        slow
    }

    /// Marks the attempts that are slow or long by now. Returns the shops of those newly marked, and
    /// the shops with an attempt that takes [`LONG`] or more.
    pub(crate) fn mark_long(&mut self, now: Duration) -> (Vec<ShopKey>, Vec<ShopKey>) {
        let mut shops = Vec::new();
        let mut lasting = Vec::new();
        for attempt in self.running.values_mut() {
            let has_lasted = now.saturating_sub(attempt.began) >= LONG;
            if has_lasted {
                lasting.push(attempt.shop);
            }
            let is_long = attempt.is_slow || has_lasted;
            if is_long && !attempt.is_long {
                attempt.is_long = true;
                self.long += 1;
                shops.push(attempt.shop);
            }
        }
        (shops, lasting)
    }

    /// Number of attempts that are slow or long.
    pub(crate) fn long(&self) -> usize {
        self.long
    }

    /// Number of attempts that are neither slow nor of a suspect lane.
    pub(crate) fn usual(&self) -> usize {
        self.running.len() - self.slow_or_suspect
    }

    /// Notes that an attempt is cut off for others that wait for any slot.
    pub(crate) fn mark_cut(&mut self, id: AttemptId, now: Duration) {
        let attempt = self.running.get(&id.0);
        if attempt.is_some_and(|attempt| !self.is_overtaken(attempt)) {
            let first = self.cuts.map_or(now, |cuts| cuts.first);
            self.cuts = Some(Cuts { first, last: now });
        }
    }

    /// True if a delivery that began later succeeded and was not slow. It began so much later that
    /// the same stall cannot have delayed both.
    fn is_overtaken(&self, attempt: &Attempt) -> bool {
        self.quick_began.is_some_and(|began| began > attempt.began + SLOW_LEAST)
    }

    /// Notes a successful delivery.
    pub(crate) fn succeeded(&mut self, attempt: &Attempt, now: Duration) {
        let lane = attempt.lane;
        if !attempt.is_slow {
            self.cuts = None;
            self.quick_began = self.quick_began.max(Some(attempt.began));
        }
        if self.succeeded[0].is_none_or(|(last, _)| last != lane) {
            self.succeeded[1] = self.succeeded[0];
        }
        self.succeeded[0] = Some((lane, now));
    }

    /// True if another lane than `lane` had a success at or after `since`.
    pub(crate) fn has_other_succeeded(&self, lane: LaneKey, since: Duration) -> bool {
        self.succeeded.iter().flatten().any(|(other, at)| *other != lane && *at >= since)
    }

    /// True if slow and suspect lanes hold more than half of the slots.
    pub(crate) fn is_crowded(&self, limit: usize) -> bool {
        limit > 0 && self.slow_or_suspect > 1 && 2 * self.slow_or_suspect > limit
    }

    /// Slots that suspect lanes may still take: the part of their share that slow lanes leave, and
    /// at least one.
    pub(crate) fn free_for_suspects(&self, limit: usize) -> usize {
        let of_part = (limit / SLOW_PART).max(1).saturating_sub(self.slow_or_suspect);
        let own = usize::from(self.running.len() < limit && self.probes == 0);
        of_part.max(own)
    }

    /// Slow attempts of suspect lanes, longest first.
    pub(crate) fn slow_probes(&self) -> Vec<(AttemptId, Attempt)> {
        let mut probes = self.slow();
        probes.retain(|(_, attempt)| attempt.is_suspect);
        probes
    }

    /// True if an attempt may end soon: it is not slow and began after `since`.
    pub(crate) fn has_quick(&self, since: Duration) -> bool {
        self.running.values().any(|attempt| !attempt.is_slow && attempt.began > since)
    }

    /// Slow attempts, longest first.
    pub(crate) fn slow(&self) -> Vec<(AttemptId, Attempt)> {
        let slow = self.running.iter().filter(|(_, attempt)| attempt.is_slow);
        let mut slow: Vec<_> = slow.map(|(id, attempt)| (AttemptId(*id), *attempt)).collect();
        slow.sort_unstable_by_key(|(id, attempt)| (attempt.began, *id));
        slow
    }

    /// True if any lane had a success lately.
    pub(crate) fn has_succeeded_lately(&self, now: Duration) -> bool {
        let since = now.saturating_sub(ALONE_AFTER);
        self.succeeded[0].is_some_and(|(_, at)| at >= since)
    }

    /// True if no other lane had a success lately.
    pub(crate) fn is_alone(&self, lane: LaneKey, now: Duration) -> bool {
        !self.has_other_succeeded(lane, now.saturating_sub(ALONE_AFTER))
    }

    /// Slow attempts to cut off when a leader ends, because the next leader cannot begin before
    /// they end.
    pub(crate) fn all_to_cut(&self, now: Duration) -> Vec<AttemptId> {
        let is_long =
            |attempt: &Attempt| attempt.is_slow && now.saturating_sub(attempt.began) >= END_AFTER;
        let long = self.running.iter().filter(|(_, attempt)| is_long(attempt));
        let mut ids: Vec<AttemptId> = long.map(|(id, _)| AttemptId(*id)).collect();
        ids.sort_unstable();
        ids
    }

    /// Slow attempts to cut off so that others get their slots, if slow and suspect attempts hold
    /// more than their share. Only attempts for which `may_cut` holds are cut: the longest ones
    /// that quick ones have overtaken, or otherwise the single longest one.
    pub(crate) fn to_cut(
        &self,
        limit: usize,
        now: Duration,
        may_cut: impl Fn(&Attempt) -> bool,
    ) -> Vec<AttemptId> {
        // The share of a single slot is zero.
        let (part, least) = if limit == 1 {
            (0, CUT_AFTER_SINGLE)
        } else {
            ((limit / SLOW_PART).max(1), CUT_AFTER)
        };
        let too_many = self.slow_or_suspect.saturating_sub(part);
        if too_many == 0 {
            return Vec::new();
        }
        let most = (limit / CUT_PART).clamp(1, too_many);
        let is_long = |attempt: &Attempt, after: Duration| {
            attempt.is_slow && now.saturating_sub(attempt.began) >= after && may_cut(attempt)
        };
        let running = self.running.iter().filter(|(_, attempt)| is_long(attempt, least));
        let mut long: Vec<(Duration, u64, bool)> =
            running.map(|(id, attempt)| (attempt.began, *id, self.is_overtaken(attempt))).collect();
        long.sort_unstable();
        let overtaken = long.iter().filter(|(_, _, is_overtaken)| *is_overtaken).take(most);
        let ids: Vec<AttemptId> = overtaken.map(|(_, id, _)| AttemptId(*id)).collect();
        if !ids.is_empty() {
            return ids;
        }
        let after = self.cut_after(least, now);
        let longest = long
            .first()
            .filter(|(began, _, _)| after.is_some_and(|after| now.saturating_sub(*began) >= after));
        longest.map(|(_, id, _)| AttemptId(*id)).into_iter().collect()
    }

    /// Time after which an attempt that was not overtaken may be cut off; `None` shortly after the
    /// last cut.
    fn cut_after(&self, least: Duration, now: Duration) -> Option<Duration> {
        let Some(cuts) = self.cuts else { return Some(least) };
        let since = now.saturating_sub(cuts.first);
        let is_due = now.saturating_sub(cuts.last) >= CUT_EVERY.max(since / CUT_EVERY_PART);
        is_due.then(|| least + since / CUT_SINCE_PART)
    }
}
