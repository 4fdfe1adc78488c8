//! Gaps: collects which shops and topics were refused, how often each comes, when webhooks were accepted, and what Redis lost.
//!
//! The path of a webhook that is stored costs one look into a map. A background task ([`writer`]) brings what is collected to
//! Redis, also to a full one. What was collected while Redis is away is merged here until it is back.

pub mod acceptance;
pub mod losses;
pub mod writer;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::{HeaderMap, StatusCode};
use spillway_queue::gaps::{GapReason, NotedGap};
use spillway_queue::rhythm::SeenPair;
use spillway_webhook::shopify::Headers;
use spillway_webhook::stable_hash;

use crate::gaps::acceptance::AcceptanceLog;
use crate::gaps::losses::LossWatch;
use crate::reply::Refusal;

/// Parts with a lock of their own, so that no core waits for another.
const PARTS: u64 = 64;
/// Shops and topics of one part that are counted: 65,536 in all, some 10 MB.
const SEEN_MAX: usize = 1024;
/// Refused shops and topics of one part. Those beyond, which strangers may make up, are noted as of any shop.
const REFUSED_MAX: usize = 256;
/// Longest name of a shop or topic. A DNS name has 253 bytes at most.
const NAME_BYTES_MAX: usize = 253;
/// Key of webhooks of any shop.
const ANY: PairKey = PairKey(0);

/// Collects what may be missing. All shards share it.
pub struct GapLog {
    parts: Box<[Mutex<GapPart>]>,
    losses: Mutex<LossWatch>,
    acceptance: Mutex<AcceptanceLog>,
    /// Milliseconds of this process in which no webhook could be accepted.
    closed_ms: AtomicU64,
}

/// Name of a shop and a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairKey(u64);

/// Everything that was collected since the last time.
#[derive(Debug, Default)]
pub struct CollectedGaps {
    /// Verified webhooks of each shop and topic.
    pub seen: Vec<SeenPair>,
    /// Refusals.
    pub notes: Vec<NotedGap>,
}

/// Refusals of any shop, from the first one to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalSpan {
    /// Time of the first one, in milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// Time of the last one.
    pub to_ms: u64,
    /// Number of refusals.
    pub count: u64,
}

#[derive(Default)]
struct GapPart {
    /// With a count of 0, a pair was taken, and none came since. The next time it is left out.
    seen: HashMap<u64, CountedPair>,
    refused: HashMap<u64, NotedGap>,
}

struct CountedPair {
    pair: SeenPair,
    /// Milliseconds in which nothing could be accepted, when the last one came.
    closed_ms: u64,
}

/// Shop and topic that headers name.
struct PairNames<'a> {
    shop: &'a str,
    topic: Cow<'a, str>,
}

impl Default for GapLog {
    fn default() -> Self {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        Self {
            parts,
            losses: Mutex::default(),
            acceptance: Mutex::default(),
            closed_ms: AtomicU64::new(0),
        }
    }
}

impl GapLog {
    /// Counts a verified webhook. Returns the key of its shop and topic; `None` if it names none.
    pub fn arrived(&self, headers: &HeaderMap, now_ms: u64) -> Option<PairKey> {
        let names = PairNames::of(headers)?;
        let key = names.key();
        let closed_ms = self.closed_ms.load(Ordering::Relaxed);
        let mut part = self.part(key);
        if let Some(counted) = part.seen.get_mut(&key.0) {
            counted.add(closed_ms, now_ms);
        } else if part.seen.len() < SEEN_MAX {
            part.seen.insert(key.0, CountedPair { pair: names.seen(now_ms), closed_ms });
        }
        Some(key)
    }

    /// Notes a request with these headers that is refused for a reason on the receiver's side.
    pub fn refused(&self, headers: &HeaderMap, refusal: Refusal, now_ms: u64) {
        if !is_missing(refusal) {
            return;
        }
        let names = PairNames::of(headers);
        let key = names.as_ref().map_or(ANY, PairNames::key);
        let mut part = self.part(key);
        part.refuse(key, now_ms, || names.map(|names| names.owned()).unwrap_or_default());
    }

    /// Notes a verified webhook that is refused for a reason on the receiver's side.
    pub fn refused_verified(&self, key: Option<PairKey>, refusal: Refusal, now_ms: u64) {
        if !is_missing(refusal) {
            return;
        }
        let mut part = self.part(key.unwrap_or(ANY));
        // It has no names if it came very long ago.
        let names = key.and_then(|key| part.seen.get(&key.0));
        let names = names.map(|counted| (counted.pair.shop.clone(), counted.pair.topic.clone()));
        let key = key.filter(|_| names.is_some()).unwrap_or(ANY);
        part.refuse(key, now_ms, || names.unwrap_or_default());
    }

    /// Handles a look: `accepts` is true if a webhook would be accepted now. While none is, that nothing comes is no silence.
    pub fn on_look(&self, accepts: bool, now_ms: u64) {
        let closed_ms = self.acceptance().on_look(accepts, now_ms);
        self.closed_ms.fetch_add(closed_ms, Ordering::Relaxed);
    }

    /// Times in which webhooks are accepted.
    pub fn acceptance(&self) -> MutexGuard<'_, AcceptanceLog> {
        self.acceptance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watch over runs of Redis.
    pub fn losses(&self) -> MutexGuard<'_, LossWatch> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the counts of webhooks, the notes, or both.
    pub fn take(&self, with_seen: bool, with_notes: bool) -> CollectedGaps {
        let mut taken = CollectedGaps::default();
        let mut any: Option<NotedGap> = None;
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            if with_seen {
                part.seen.retain(|_, CountedPair { pair, .. }| {
                    let is_new = pair.count > 0;
                    if is_new {
                        taken.seen.push(pair.clone());
                        pair.count = 0;
                    }
                    is_new
                });
            }
            let refused =
                if with_notes { std::mem::take(&mut part.refused) } else { HashMap::new() };
            for note in refused.into_values() {
                if !note.shop.is_empty() {
                    taken.notes.push(note);
                } else if let Some(any) = &mut any {
                    join(any, &note);
                } else {
                    any = Some(note);
                }
            }
        }
        taken.notes.extend(any);
        taken
    }

    /// Refusals that are not taken; `None` if there are none.
    pub fn refusals(&self) -> Option<RefusalSpan> {
        let of = |part: &Mutex<GapPart>| {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            RefusalSpan::of(part.refused.values())
        };
        self.parts.iter().filter_map(of).reduce(RefusalSpan::and)
    }

    fn part(&self, key: PairKey) -> MutexGuard<'_, GapPart> {
        let index = usize::try_from(key.0 % PARTS).expect("BUG: there are few parts");
        self.parts[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GapPart {
    fn refuse(&mut self, key: PairKey, now_ms: u64, names: impl FnOnce() -> (String, String)) {
        let is_room = self.refused.len() < REFUSED_MAX || self.refused.contains_key(&key.0);
        let key = if is_room { key } else { ANY };
        let note = self.refused.entry(key.0).or_insert_with(|| {
            let (shop, topic) = if key == ANY { Default::default() } else { names() };
            let reason = GapReason::Refused;
            NotedGap { reason, shop, topic, from_ms: now_ms, to_ms: now_ms, count: 0 }
        });
        note.from_ms = note.from_ms.min(now_ms);
        note.to_ms = note.to_ms.max(now_ms);
        note.count += 1;
    }
}

impl CountedPair {
    /// Adds a webhook. Only a time in which webhooks were accepted counts as a silence.
    fn add(&mut self, closed_ms: u64, now_ms: u64) {
        let pair = &mut self.pair;
        let closed = closed_ms - std::mem::replace(&mut self.closed_ms, closed_ms).min(closed_ms);
        if pair.count == 0 {
            (pair.first_ms, pair.last_ms, pair.longest_ms) = (now_ms, now_ms, 0);
        }
        let silence = now_ms.saturating_sub(pair.last_ms).saturating_sub(closed);
        pair.longest_ms = pair.longest_ms.max(silence);
        pair.first_ms = pair.first_ms.min(now_ms);
        pair.last_ms = pair.last_ms.max(now_ms);
        pair.count += 1;
    }
}

impl RefusalSpan {
    /// Span of these notes; `None` if there are none.
    pub fn of<'a>(notes: impl Iterator<Item = &'a NotedGap>) -> Option<Self> {
        let span =
            |note: &NotedGap| Self { from_ms: note.from_ms, to_ms: note.to_ms, count: note.count };
        notes.map(span).reduce(Self::and)
    }

    /// Span of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            from_ms: self.from_ms.min(other.from_ms),
            to_ms: self.to_ms.max(other.to_ms),
            count: self.count + other.count,
        }
    }
}

impl<'a> PairNames<'a> {
    /// Names of a shop and a topic, if they may be names. No signature covers them.
    fn of(headers: &'a HeaderMap) -> Option<Self> {
        let shop = name(headers.shop()?)?;
        let topic = match headers.topic()? {
            Cow::Borrowed(topic) => Cow::Borrowed(name(topic)?),
            Cow::Owned(topic) => Cow::Owned(name(&topic)?.to_owned()),
        };
        Some(Self { shop, topic })
    }

    fn key(&self) -> PairKey {
        PairKey(stable_hash::of(&[self.shop.as_bytes(), self.topic.as_bytes()]))
    }

    fn owned(&self) -> (String, String) {
        (self.shop.to_owned(), self.topic.to_string())
    }

    fn seen(&self, now_ms: u64) -> SeenPair {
        let (shop, topic) = self.owned();
        SeenPair { shop, topic, first_ms: now_ms, last_ms: now_ms, count: 1, longest_ms: 0 }
    }
}

/// A name has neither spaces nor control characters: the two are stored with a space between them.
fn name(bytes: &[u8]) -> Option<&str> {
    let is_name = bytes.len() <= NAME_BYTES_MAX && bytes.iter().all(u8::is_ascii_graphic);
    std::str::from_utf8(bytes).ok().filter(|_| is_name)
}

/// Returns true if the receiver is the reason, so that Shopify may give a good webhook up. Other requests are refused because
/// of what they are.
fn is_missing(refusal: Refusal) -> bool {
    refusal.parts().0 == StatusCode::SERVICE_UNAVAILABLE
}

/// Extends `note` by another one of the same shop and topic.
fn join(note: &mut NotedGap, other: &NotedGap) {
    note.from_ms = note.from_ms.min(other.from_ms);
    note.to_ms = note.to_ms.max(other.to_ms);
    note.count += other.count;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(shop: &str, topic: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-shopify-shop-domain", shop.parse().expect("a value"));
        headers.insert("x-shopify-topic", topic.parse().expect("a value"));
        headers
    }

    #[test]
    fn refusals_of_a_shop_and_topic_are_one_note() {
        let log = GapLog::default();
        let [orders, products] =
            ["orders/create", "products/update"].map(|topic| headers("a.myshopify.com", topic));
        log.refused(&orders, Refusal::QueueFull, 5);
        log.refused(&orders, Refusal::Overloaded, 9);
        log.refused(&products, Refusal::QueueFull, 7);
        log.refused(&orders, Refusal::BadSignature, 90);
        let mut notes = log.take(false, true).notes;
        notes.sort_by_key(|note| note.from_ms);
        let of = |note: &NotedGap| (note.topic.clone(), note.from_ms, note.to_ms, note.count);
        let expected =
            [("orders/create".to_owned(), 5, 9, 2), ("products/update".to_owned(), 7, 7, 1)];
        assert_eq!(notes.iter().map(of).collect::<Vec<_>>(), expected);
        assert!(log.take(true, true).notes.is_empty(), "they are taken once");
    }

    #[test]
    fn a_verified_webhook_that_is_not_stored_is_noted_by_its_key() {
        let log = GapLog::default();
        let key = log.arrived(&headers("a.myshopify.com", "orders/create"), 3);
        log.refused_verified(key, Refusal::AckTimeout, 6);
        assert_eq!(log.take(true, true).notes[0].shop, "a.myshopify.com");
        log.refused_verified(key, Refusal::AckTimeout, 7);
        assert_eq!(log.take(true, true).notes[0].shop, "a.myshopify.com", "it was taken just now");
        // Its names are gone.
        log.refused_verified(key, Refusal::AckTimeout, 8);
        log.refused_verified(None, Refusal::ShopQueueFull, 9);
        let notes = log.take(true, true).notes;
        assert_eq!((notes.len(), notes[0].shop.as_str(), notes[0].count), (1, "", 2));
    }

    #[test]
    fn shops_that_strangers_make_up_end_as_any_shop() {
        let log = GapLog::default();
        for number in 0..100_000 {
            let made_up = headers(&format!("{number}.myshopify.com"), "orders/create");
            log.refused(&made_up, Refusal::QueueFull, number);
        }
        log.refused(&headers("a b", "orders/create"), Refusal::QueueFull, 1);
        log.refused(&HeaderMap::new(), Refusal::QueueFull, 1);
        let notes = log.take(false, true).notes;
        assert!(notes.len() <= 64 * 257, "{}", notes.len());
        assert_eq!(notes.iter().map(|note| note.count).sum::<u64>(), 100_002);
        assert_eq!(notes.iter().filter(|note| note.shop.is_empty()).count(), 1);
    }

    #[test]
    fn the_longest_silence_of_a_pair_is_kept() {
        let log = GapLog::default();
        let orders = headers("a.myshopify.com", "orders/create");
        for now_ms in [10, 20, 70, 60, 75] {
            log.arrived(&orders, now_ms);
        }
        let seen = log.take(true, true).seen;
        let pair = &seen[0];
        assert_eq!((pair.first_ms, pair.last_ms, pair.count, pair.longest_ms), (10, 75, 5, 50));
        assert!(log.take(true, true).seen.is_empty());
        log.arrived(&orders, 90);
        assert_eq!(log.take(true, true).seen[0].first_ms, 90);
        log.arrived(&orders, 99);
        let pair = &log.take(true, true).seen[0];
        assert_eq!((pair.first_ms, pair.count, pair.longest_ms), (99, 1, 0), "taken before");
    }

    #[test]
    fn a_time_without_a_chance_to_come_is_no_silence_and_what_was_before_is_one() {
        let log = GapLog::default();
        let orders = headers("a.myshopify.com", "orders/create");
        log.on_look(true, 5);
        log.arrived(&orders, 10);
        for (accepts, now_ms) in [(true, 400), (false, 500), (false, 510), (true, 520)] {
            log.on_look(accepts, now_ms);
        }
        log.arrived(&orders, 530);
        log.arrived(&orders, 540);
        // From 10 to 400, and from 520 to 530.
        assert_eq!(log.take(true, false).seen[0].longest_ms, 400);
    }

    #[test]
    fn refusals_of_a_long_outage_stay_one_note_until_they_are_taken() {
        let log = GapLog::default();
        let orders = headers("a.myshopify.com", "orders/create");
        assert_eq!(log.refusals(), None);
        for now_ms in 1..=5_000 {
            log.refused(&orders, Refusal::QueueUnavailable, now_ms);
            assert!(log.take(true, false).notes.is_empty());
        }
        let span = RefusalSpan { from_ms: 1, to_ms: 5_000, count: 5_000 };
        assert_eq!(log.refusals(), Some(span));
        let notes = log.take(false, true).notes;
        assert_eq!((notes.len(), notes[0].from_ms, notes[0].to_ms), (1, 1, 5_000));
    }

    #[test]
    fn no_more_pairs_are_counted_than_there_is_room_for() {
        let log = GapLog::default();
        for number in 0..200_000 {
            log.arrived(&headers(&format!("{number}.myshopify.com"), "orders/create"), number);
        }
        let seen = log.take(true, true).seen.len();
        assert!((50_000..=65_536).contains(&seen), "{seen}");
    }
}
