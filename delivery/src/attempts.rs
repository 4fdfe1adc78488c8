//! Attempts under way, and which of them are slow.

use std::time::Duration;

use spillway_webhook::fingerprint::Fingerprint;
use spillway_webhook::position::Position;

use crate::by_hash::ByHash;
use crate::index::{LaneKey, ResourceKey};
use crate::proven::Proven;
use crate::shop::ShopKey;
use crate::suspects::Suspects;

/// An attempt that took longer than so many usual ones is slow.
const SLOW_TIMES: u32 = 8;
/// None is slow before.
const SLOW_LEAST: Duration = Duration::from_millis(100);
/// An attempt that takes longer keeps its slot for long, whatever is usual.
pub const LONG: Duration = Duration::from_secs(1);
/// A slow attempt that takes the place of others may be cut off after so long: a healthy webhook
/// does not wait a second for its slot.
const CUT_AFTER: Duration = Duration::from_millis(500);
/// The same with a single slot: what else is slow can't be told from it.
const CUT_AFTER_SINGLE: Duration = Duration::from_secs(2);
/// And after half the time since the first one was cut off without a quick success in between: where
/// everything is slow, everything gets its time.
const CUT_SINCE_PART: u32 = 2;
/// Between two such cuts, and this part of that time: where most of what has its turn hangs, dozens are
/// tried within half a minute, and one that is well is among them.
const CUT_EVERY: Duration = Duration::from_millis(500);
const CUT_EVERY_PART: u32 = 16;
/// When a leader ends, slow attempts are waited for so long: everything waits for the next one.
const END_AFTER: Duration = Duration::from_secs(1);
/// Part of the slots that slow and suspect lanes may hold.
const ODD_PART: usize = 4;
/// Part of the slots whose attempts are cut off at once, where quick ones have overtaken them.
const CUT_PART: usize = 8;
/// Without a delivery of another lane for so long, they may hold all.
const ALONE_AFTER: Duration = Duration::from_secs(10);

/// Id of an attempt, never used again by the same leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId(pub u64);

/// An attempt under way.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// Resource whose head it settles.
    pub resource: ResourceKey,
    /// Its lane.
    pub lane: LaneKey,
    /// Its shop.
    pub shop: ShopKey,
    /// Webhook that is sent.
    pub position: Position,
    /// Number of the attempt.
    pub number: u32,
    /// When it began.
    pub began: Duration,
    /// Active time then.
    pub began_active: Duration,
    /// Attempts under way then, this one included.
    pub in_flight: usize,
    /// Older events and the identity that its delivery settles, too.
    pub sent: Sent,
    /// Whether it is of a suspect lane.
    pub is_suspect: bool,
    /// Whether it takes much longer than usual.
    pub is_slow: bool,
    /// Set once it is slow or takes longer than [`LONG`].
    pub is_long: bool,
}

/// Part of a delivery beside the webhook that is sent.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// Identity for duplicates.
    pub fingerprint: Option<Fingerprint>,
    /// Older events that it stands for.
    pub older: u32,
}

/// When the first of several attempts was cut off, and the last.
#[derive(Debug, Clone, Copy)]
struct Cuts {
    first: Duration,
    last: Duration,
}

/// All attempts under way.
#[derive(Debug, Default)]
pub struct Attempts {
    running: ByHash<Attempt>,
    next: u64,
    /// Slow and suspect ones.
    odd: usize,
    /// Of suspect lanes.
    probes: usize,
    /// Slow and long ones.
    long: usize,
    /// The attempts cut off since a delivery succeeded that was not slow, overtaken ones aside.
    cuts: Option<Cuts>,
    /// Latest beginning of a delivery that succeeded and was not slow.
    quick_began: Option<Duration>,
    /// Lanes that wait for the slots of slow and suspect ones.
    pub suspects: Suspects,
    /// Shops that have more turns while slow attempts hold most slots.
    pub proven: Proven,
    /// The last two lanes of which a delivery succeeded, and when.
    succeeded: [Option<(LaneKey, Duration)>; 2],
}

impl Attempts {
    /// Attempts under way.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// Begins an attempt.
    pub fn begin(&mut self, attempt: Attempt) -> AttemptId {
        self.next += 1;
        self.odd += usize::from(attempt.is_suspect);
        self.probes += usize::from(attempt.is_suspect);
        self.suspects.has_gone = attempt.is_suspect;
        self.running.insert(self.next, attempt);
        AttemptId(self.next)
    }

    /// Ends an attempt.
    pub fn end(&mut self, id: AttemptId) -> Option<Attempt> {
        let attempt = self.running.remove(&id.0)?;
        self.odd -= usize::from(attempt.is_suspect || attempt.is_slow);
        self.probes -= usize::from(attempt.is_suspect);
        self.long -= usize::from(attempt.is_long);
        Some(attempt)
    }

    /// Marks the attempts that are slow by now, after `most` at the latest. Returns them.
    pub fn mark_slow(&mut self, now: Duration, usual: Duration, most: Duration) -> Vec<Attempt> {
        let after = (usual * SLOW_TIMES).max(SLOW_LEAST).min(most);
        let mut slow = Vec::new();
        for attempt in self.running.values_mut() {
            if !attempt.is_slow && now.saturating_sub(attempt.began) > after {
                self.odd += usize::from(!attempt.is_suspect);
                attempt.is_slow = true;
                slow.push(*attempt);
            }
        }
        slow
    }

    /// Marks the attempts that are slow or long by now. Returns their shops.
    pub fn mark_long(&mut self, now: Duration) -> Vec<ShopKey> {
        let mut shops = Vec::new();
        for attempt in self.running.values_mut() {
            let is_long = attempt.is_slow || now.saturating_sub(attempt.began) >= LONG;
            if is_long && !attempt.is_long {
                attempt.is_long = true;
                self.long += 1;
                shops.push(attempt.shop);
            }
        }
        shops
    }

    /// Attempts that are slow or long.
    pub fn long(&self) -> usize {
        self.long
    }

    /// Attempts that are neither slow nor of a suspect lane.
    pub fn usual(&self) -> usize {
        self.running.len() - self.odd
    }

    /// An attempt is cut off for others that wait for any slot.
    pub fn is_cut(&mut self, id: AttemptId, now: Duration) {
        let attempt = self.running.get(&id.0);
        if attempt.is_some_and(|attempt| !self.is_overtaken(attempt)) {
            let first = self.cuts.map_or(now, |cuts| cuts.first);
            self.cuts = Some(Cuts { first, last: now });
        }
    }

    /// True if a delivery that began later succeeded, and was not slow: so much later that the same
    /// stall can't have caught both.
    fn is_overtaken(&self, attempt: &Attempt) -> bool {
        self.quick_began.is_some_and(|began| began > attempt.began + SLOW_LEAST)
    }

    /// A delivery succeeded.
    pub fn succeeded(&mut self, attempt: &Attempt, now: Duration) {
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

    /// Whether another lane than `lane` had a success after `since`.
    pub fn has_other_succeeded(&self, lane: LaneKey, since: Duration) -> bool {
        self.succeeded.iter().flatten().any(|(other, at)| *other != lane && *at >= since)
    }

    /// True if slow and suspect lanes hold more than half of the slots.
    pub fn is_crowded(&self, limit: usize) -> bool {
        limit > 0 && self.odd > 1 && 2 * self.odd > limit
    }

    /// Slots that suspect lanes may still take: what slow ones leave of their part, and one at least.
    pub fn free_for_suspects(&self, limit: usize) -> usize {
        let of_part = (limit / ODD_PART).max(1).saturating_sub(self.odd);
        let own = usize::from(self.running.len() < limit && self.probes == 0);
        of_part.max(own)
    }

    /// Slow attempts of suspect lanes, the longest first.
    pub fn slow_probes(&self) -> Vec<(AttemptId, Attempt)> {
        let mut probes = self.slow();
        probes.retain(|(_, attempt)| attempt.is_suspect);
        probes
    }

    /// True if an attempt may still end soon: it is not slow, and began after `since`.
    pub fn has_quick(&self, since: Duration) -> bool {
        self.running.values().any(|attempt| !attempt.is_slow && attempt.began > since)
    }

    /// Slow attempts, the longest first.
    pub fn slow(&self) -> Vec<(AttemptId, Attempt)> {
        let slow = self.running.iter().filter(|(_, attempt)| attempt.is_slow);
        let mut slow: Vec<_> = slow.map(|(id, attempt)| (AttemptId(*id), *attempt)).collect();
        slow.sort_unstable_by_key(|(id, attempt)| (attempt.began, *id));
        slow
    }

    /// True if any lane had a success lately.
    pub fn has_succeeded_lately(&self, now: Duration) -> bool {
        let since = now.saturating_sub(ALONE_AFTER);
        self.succeeded[0].is_some_and(|(_, at)| at >= since)
    }

    /// Whether no other lane had a success lately.
    pub fn is_alone(&self, lane: LaneKey, now: Duration) -> bool {
        !self.has_other_succeeded(lane, now.saturating_sub(ALONE_AFTER))
    }

    /// Slow attempts to cut off when a leader ends: the next one can't begin before them.
    pub fn all_to_cut(&self, now: Duration) -> Vec<AttemptId> {
        let is_long =
            |attempt: &Attempt| attempt.is_slow && now.saturating_sub(attempt.began) >= END_AFTER;
        let long = self.running.iter().filter(|(_, attempt)| is_long(attempt));
        let mut ids: Vec<AttemptId> = long.map(|(id, _)| AttemptId(*id)).collect();
        ids.sort_unstable();
        ids
    }

    /// Slow attempts to cut off so that others get their slots, when slow ones hold more than their
    /// part, of lanes for which `may_cut` holds: the longest ones that quick ones have overtaken,
    /// or else the longest one.
    pub fn to_cut(
        &self,
        limit: usize,
        now: Duration,
        may_cut: impl Fn(&Attempt) -> bool,
    ) -> Vec<AttemptId> {
        // Of a single slot, the part is none.
        let (part, least) =
            if limit == 1 { (0, CUT_AFTER_SINGLE) } else { ((limit / ODD_PART).max(1), CUT_AFTER) };
        let too_many = self.odd.saturating_sub(part);
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

    /// Time after which one that was not overtaken may be cut off; `None` so soon after the last.
    fn cut_after(&self, least: Duration, now: Duration) -> Option<Duration> {
        let Some(cuts) = self.cuts else { return Some(least) };
        let since = now.saturating_sub(cuts.first);
        let is_due = now.saturating_sub(cuts.last) >= CUT_EVERY.max(since / CUT_EVERY_PART);
        is_due.then(|| least + since / CUT_SINCE_PART)
    }
}
