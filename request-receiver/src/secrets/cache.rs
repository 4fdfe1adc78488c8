//! Cache of the secrets that the source has named, by shop. It decides what is looked up and when.
//!
//! It has no clock and no socket: times are given to it, as durations since a common start, and it
//! says which shops to look up. Rules:
//! - At most one lookup of a shop is under way. Requests that need its outcome wait for that one.
//! - An answer is valid for `ttl`. Secrets that verify a webhook in that time are looked up again shortly
//!   before its end. For others, the first webhook that they verify after that begins it. So none of them
//!   waits, and a request that only names a shop keeps nothing fresh: anyone can send it.
//! - While the source fails, older secrets serve for `stale_max` more.
//! - A stranger can name any shop, so lookups of shops that the source has not named, and those
//!   after a wrong signature, are bounded in rate.

mod budget;
mod delay;
mod held;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use spillway_webhook::{Secrets, stable_hash};
use tokio_util::sync::CancellationToken;

use self::budget::LookupBudget;
use self::delay::SourceDelay;
pub use self::held::HeldSecrets;

/// Time for which a shop without secrets is remembered, if `ttl` is not shorter.
const UNKNOWN_TTL: Duration = Duration::from_secs(30);
/// Least time between two lookups of a shop because of a wrong signature.
const RECHECK_EVERY: Duration = Duration::from_secs(1);
/// Pause after a failed lookup of a shop. It doubles with each further failure.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Time beyond its end for which a shop in use is remembered while its lookups fail. If it was forgotten
/// then, its next webhook would be taken for a stranger's.
const OUTAGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Longest pause after failed lookups.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// Time for which a failed lookup shows that the source fails, or that it fails for the shop from when
/// it may be looked up again. Without another, nobody knows.
const FAILURE_SHOWS_FOR: Duration = Duration::from_secs(60);
/// Part of `ttl` over which the lookups of shops that were looked up together spread.
const SPREAD: u32 = 16;
/// Part of `ttl` that is the most for [`CacheRules::together`].
const TOGETHER_MAX: u32 = 32;
const _: () = assert!(TOGETHER_MAX >= 2 * SPREAD, "shops that were looked up together spread");

/// Rules of a cache.
#[derive(Debug, Clone, Copy)]
pub struct CacheRules {
    /// Time for which an answer is valid.
    pub ttl: Duration,
    /// Time after it for which secrets serve while the source fails.
    pub stale_max: Duration,
    /// Bounded lookups in a second.
    pub lookups_a_second: f64,
    /// Most shops that are remembered.
    pub shops_max: usize,
    /// Early lookups begin at multiples of this, and of a 32nd of `ttl` at most, so that those of many
    /// shops share a wake-up of the thread, and of the source.
    pub together: Duration,
    /// Look up again before the end of `ttl`. Without it, requests wait at each end.
    pub is_early: bool,
}

/// Answer of the source.
#[derive(Debug)]
pub enum Looked {
    /// Secrets of the shop.
    Found(Secrets),
    /// The shop has none.
    Unknown,
    /// There was no answer that can be used, for any of the shops asked for.
    Failed,
    /// The answer for this shop can't be understood. The source may be well for others.
    Garbled,
    /// The source was not asked, because too many lookups of strangers' shops wait.
    NotAsked,
}

/// Instruction for a request.
#[derive(Debug)]
pub enum Advice {
    /// Check with these secrets.
    Use(Known),
    /// Refuse: the shop has no secrets, or none that are newer than those tried.
    Unknown,
    /// Wait until this is cancelled, and ask again.
    Wait(CancellationToken),
    /// Refuse for now: the secrets can't be looked up.
    Unavailable,
}

/// Secrets of a shop, as the source named them.
#[derive(Debug, Clone)]
pub struct Known {
    /// The secrets.
    pub secrets: Arc<HeldSecrets>,
    /// Time at which the source was asked for them.
    pub asked: Duration,
    /// They are older than `ttl`, and the source fails.
    pub is_stale: bool,
    /// Once they have verified a webhook, [`SecretCache::refresh`] may begin a lookup.
    pub is_due: bool,
    /// Time up to which they serve unless they are replaced: that of their early lookup. `None` after it,
    /// and in answer to [`SecretCache::ask_again`].
    pub serves_until: Option<Duration>,
}

/// An advice, and whether the shop is to be looked up.
#[derive(Debug)]
pub struct Asked {
    /// Instruction for the request.
    pub advice: Advice,
    /// The lookup of the shop begins now, and for this reason.
    pub begins: Option<LookupCause>,
}

/// Reason for a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupCause {
    /// The shop's secrets are known, and too old or soon too old.
    Age,
    /// Any request, which may be a stranger's: for a shop that the source has not named, or with a
    /// wrong signature.
    Stranger,
}

/// The cache.
#[derive(Debug)]
pub struct SecretCache {
    rules: CacheRules,
    shops: HashMap<Arc<str>, CachedShop>,
    /// Times at which a shop is looked up again or forgotten. Each entry without a lookup has one.
    due: BTreeSet<(Duration, Arc<str>)>,
    /// Time at which a lookup of a shop with secrets failed last. Any answer that can be used clears
    /// it.
    source_failed: Option<Duration>,
    delay: SourceDelay,
    first_lookups: LookupBudget,
    rechecks: LookupBudget,
}

#[derive(Debug, Default)]
struct CachedShop {
    held: Option<Held>,
    /// Cancelled at the end of the lookup that is under way.
    lookup: Option<Lookup>,
    failures: u32,
    /// The last answer could not be understood. The shop may be gone.
    is_garbled: bool,
    /// No lookup begins before, except for the next of `due`.
    retry_at: Duration,
    rechecked_at: Option<Duration>,
    due: Option<Duration>,
}

#[derive(Debug)]
struct Held {
    /// `None`: the shop has no secrets.
    secrets: Option<Arc<HeldSecrets>>,
    asked: Duration,
    answered: Duration,
    /// Requests that arrive from now on begin a lookup, if none is under way.
    early_from: Option<Duration>,
}

#[derive(Debug)]
struct Lookup {
    began: Duration,
    /// Time of `due` for the shop before it began.
    due: Option<Duration>,
    over: CancellationToken,
}

impl Asked {
    fn only(advice: Advice) -> Self {
        Self { advice, begins: None }
    }
}

impl SecretCache {
    /// Starts empty.
    pub fn new(rules: CacheRules) -> Self {
        Self {
            rules,
            shops: HashMap::new(),
            due: BTreeSet::new(),
            source_failed: None,
            delay: SourceDelay::default(),
            first_lookups: LookupBudget::full(rules.lookups_a_second),
            rechecks: LookupBudget::full(rules.lookups_a_second),
        }
    }

    /// Shops that are remembered.
    pub fn len(&self) -> usize {
        self.shops.len()
    }

    /// Returns true if the last lookup of a shop failed.
    pub fn has_failed(&self, shop: &str) -> bool {
        self.shops.get(shop).is_some_and(|entry| entry.failures > 0)
    }

    /// Returns true if no shop is remembered.
    pub fn is_empty(&self) -> bool {
        self.shops.is_empty()
    }

    /// Secrets of a shop that may be used.
    pub fn ask_known(&self, shop: &str, now: Duration) -> Option<Known> {
        let is_source_down = self.source_failed.is_some_and(|at| now < at + FAILURE_SHOWS_FOR);
        let entry = self.shops.get(shop)?;
        let held = entry.held.as_ref()?;
        let secrets = held.secrets.clone()?;
        let is_failing = entry.failures > 0 && now < entry.retry_at + FAILURE_SHOWS_FOR;
        let age = now.saturating_sub(held.answered);
        let is_stale = age >= self.rules.ttl;
        let serves = self.rules.ttl + self.rules.stale_max;
        let may_be_stale = age < serves && (is_source_down || is_failing);
        if is_stale && !may_be_stale {
            return None;
        }
        let early_from = held.early_from.unwrap_or(held.answered + self.rules.ttl);
        let is_early = now >= early_from;
        let is_due = (is_stale || is_early) && entry.lookup.is_none() && now >= entry.retry_at;
        let serves_until = (!is_stale && !is_early).then_some(early_from);
        Some(Known { secrets, asked: held.asked, is_stale, is_due, serves_until })
    }

    /// Begins a lookup of a shop whose secrets have just verified a webhook, if one is due.
    pub fn refresh(&mut self, shop: &str, now: Duration) -> Option<LookupCause> {
        self.ask_known(shop, now).filter(|known| known.is_due)?;
        self.begin(shop, now);
        Some(LookupCause::Age)
    }

    /// Asks for the secrets of a shop, for a request that arrived.
    pub fn ask(&mut self, shop: &str, now: Duration) -> Asked {
        if let Some(known) = self.ask_known(shop, now) {
            return Asked::only(Advice::Use(known));
        }
        let Some(entry) = self.shops.get_mut(shop) else {
            return self.ask_first(shop, now);
        };
        if let Some(held) = entry.held.as_ref().filter(|held| held.secrets.is_none())
            && now.saturating_sub(held.answered) < self.rules.ttl_of(held)
        {
            return Asked::only(Advice::Unknown);
        }
        if let Some(lookup) = &entry.lookup {
            return Asked::only(Advice::Wait(lookup.over.clone()));
        }
        let is_known = entry.held.as_ref().is_some_and(|held| held.secrets.is_some());
        if now < entry.retry_at
            || !(is_known || self.first_lookups.take(self.rules.lookups_a_second, now))
        {
            return Asked::only(Advice::Unavailable);
        }
        let cause = if is_known { LookupCause::Age } else { LookupCause::Stranger };
        Asked { advice: Advice::Wait(self.begin(shop, now)), begins: Some(cause) }
    }

    fn ask_first(&mut self, shop: &str, now: Duration) -> Asked {
        if self.shops.len() >= self.rules.shops_max
            || !self.first_lookups.take(self.rules.lookups_a_second, now)
        {
            return Asked::only(Advice::Unavailable);
        }
        self.shops.insert(shop.into(), CachedShop::default());
        let begins = Some(LookupCause::Stranger);
        Asked { advice: Advice::Wait(self.begin(shop, now)), begins }
    }

    /// Asks again, for a request that arrived at `arrived`, and whose signature was not made by the
    /// secrets that the source was asked for at `tried`: they may have been rotated since.
    /// [`Advice::Unknown`] if there are no newer ones, and [`Advice::Unavailable`] if that can't be
    /// found out.
    pub fn ask_again(
        &mut self,
        shop: &str,
        tried: Duration,
        arrived: Duration,
        now: Duration,
    ) -> Asked {
        let Some(entry) = self.shops.get_mut(shop) else {
            return Asked::only(Advice::Unavailable);
        };
        if let Some(held) = entry.held.as_ref().filter(|held| held.asked > tried) {
            return Asked::only(held.advice());
        }
        if tried >= arrived {
            return Asked::only(Advice::Unknown);
        }
        if let Some(lookup) = &entry.lookup {
            return Asked::only(Advice::Wait(lookup.over.clone()));
        }
        if now < entry.retry_at {
            return Asked::only(Advice::Unavailable);
        }
        let is_soon = entry.rechecked_at.is_some_and(|at| now < at + RECHECK_EVERY);
        if is_soon || !self.rechecks.take(self.rules.lookups_a_second, now) {
            return Asked::only(Advice::Unavailable);
        }
        entry.rechecked_at = Some(now);
        let begins = Some(LookupCause::Stranger);
        Asked { advice: Advice::Wait(self.begin(shop, now)), begins }
    }

    /// Notes the end of a lookup.
    pub fn looked_up(&mut self, shop: &str, looked: Looked, now: Duration) {
        let Some(name) = self.shops.get_key_value(shop).map(|(name, _)| name.clone()) else {
            return;
        };
        let entry = self.shops.get_mut(shop).expect("BUG: it was there");
        let Some(lookup) = entry.lookup.take() else { return };
        let secrets = match looked {
            Looked::Found(secrets) => Some(Arc::new(HeldSecrets::new(secrets))),
            Looked::Unknown => None,
            Looked::NotAsked => {
                // What is known is looked up when it was to be, whatever a stranger's request began.
                let is_known = entry.held.as_ref().is_some_and(|held| held.secrets.is_some());
                let due = match lookup.due {
                    Some(due) if is_known => due,
                    _ => now + RETRY_AFTER,
                };
                entry.retry_at = if is_known { entry.retry_at } else { due };
                entry.rechecked_at = Some(now);
                self.schedule(&name, due);
                lookup.over.cancel();
                return;
            }
            Looked::Failed | Looked::Garbled => {
                // Without secrets, the shop may be a name that a stranger made up, and the reason.
                let is_known = entry.held.as_ref().is_some_and(|held| held.secrets.is_some());
                if is_known && matches!(looked, Looked::Failed) {
                    self.source_failed = Some(now);
                }
                let pause = RETRY_AFTER.saturating_mul(1 << entry.failures.min(10));
                entry.failures += 1;
                entry.is_garbled = matches!(looked, Looked::Garbled);
                entry.retry_at = now + pause.min(RETRY_AFTER_MAX);
                let due = entry.retry_at;
                self.schedule(&name, due);
                lookup.over.cancel();
                return;
            }
        };
        self.source_failed = None;
        self.delay.observe(lookup.began, now);
        let mut held = Held { secrets, asked: lookup.began, answered: now, early_from: None };
        let ends = now + self.rules.ttl_of(&held);
        if held.secrets.is_some() && self.rules.is_early {
            let early_from = self.rules.multiple_before(ends - self.lead(&name, now));
            held.early_from = Some(early_from);
        }
        let due = held.early_from.unwrap_or(ends);
        let entry = self.shops.get_mut(shop).expect("BUG: it was there");
        entry.failures = 0;
        entry.hold(held);
        self.schedule(&name, due);
        lookup.over.cancel();
    }

    /// Time of the next call of [`Self::due`].
    pub fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Forgets what is over. Returns the shops whose lookup begins now.
    pub fn due(&mut self, now: Duration) -> Vec<Arc<str>> {
        let mut begun = Vec::new();
        while self.next_due().is_some_and(|at| at <= now) {
            let Some((_, shop)) = self.due.pop_first() else { break };
            let Some(entry) = self.shops.get_mut(&shop) else { continue };
            entry.due = None;
            let Some(held) = &entry.held else {
                self.shops.remove(&shop);
                continue;
            };
            let is_known = held.secrets.is_some();
            let is_used = held.secrets.as_ref().is_some_and(|secrets| secrets.is_used());
            let is_kept_fresh = is_used && self.rules.is_early;
            let stale_max = if is_known { self.rules.stale_max } else { Duration::ZERO };
            let mut forget_at = held.answered + self.rules.ttl_of(held) + stale_max;
            if is_kept_fresh && entry.failures > 0 && !entry.is_garbled {
                forget_at += OUTAGE_MAX;
            }
            if now >= forget_at {
                self.shops.remove(&shop);
            } else if is_kept_fresh {
                self.begin(&shop, now);
                begun.push(shop);
            } else {
                self.schedule(&shop, forget_at);
            }
        }
        begun
    }

    /// Time before the end of `ttl` at which a lookup begins: what the source takes, and a part by
    /// which shops that were looked up together differ. None begins in the first half of `ttl`.
    fn lead(&self, shop: &str, now: Duration) -> Duration {
        let spread = self.rules.ttl / SPREAD;
        let hash = stable_hash::of(&[shop.as_bytes(), &now.as_nanos().to_le_bytes()]);
        let share = (hash % 1024) as u32;
        let most = self.rules.ttl / 2 - spread - self.rules.together();
        self.delay.most().min(most) + spread * share / 1024
    }

    fn begin(&mut self, shop: &str, now: Duration) -> CancellationToken {
        let over = CancellationToken::new();
        let entry = self.shops.get_mut(shop).expect("BUG: a lookup without an entry");
        let due = entry.due.take();
        entry.lookup = Some(Lookup { began: now, due, over: over.clone() });
        if let Some(due) = due {
            self.due.remove(&(due, shop.into()));
        }
        over
    }

    fn schedule(&mut self, shop: &Arc<str>, at: Duration) {
        if let Some(entry) = self.shops.get_mut(shop)
            && let Some(before) = entry.due.replace(at)
        {
            self.due.remove(&(before, shop.clone()));
        }
        self.due.insert((at, shop.clone()));
    }
}

impl CacheRules {
    /// Last time up to `at` at which early lookups begin.
    fn multiple_before(&self, at: Duration) -> Duration {
        let past = at.as_nanos() % self.together().as_nanos();
        at - Duration::from_nanos(u64::try_from(past).unwrap_or_default())
    }

    fn together(&self) -> Duration {
        self.together.min(self.ttl / TOGETHER_MAX)
    }

    fn ttl_of(&self, held: &Held) -> Duration {
        if held.secrets.is_some() { self.ttl } else { self.ttl.min(UNKNOWN_TTL) }
    }
}

impl CachedShop {
    fn hold(&mut self, held: Held) {
        if let Some(Held { secrets: Some(old), .. }) = self.held.replace(held) {
            old.note_replaced();
        }
    }
}

impl Held {
    /// Advice to those who wait for an answer that has just come.
    fn advice(&self) -> Advice {
        match &self.secrets {
            Some(secrets) => Advice::Use(Known {
                secrets: secrets.clone(),
                asked: self.asked,
                is_stale: false,
                is_due: false,
                serves_until: None,
            }),
            None => Advice::Unknown,
        }
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
