//! Cache of the secrets that the source has named, by shop. It decides what is looked up and when.
//!
//! It has no clock and no socket: times are given to it, as durations since a common start, and it
//! says which shops to look up. Rules:
//! - At most one lookup of a shop is under way. Requests that need its outcome wait for that one.
//! - An answer is valid for `ttl`. What was used in that time is looked up again shortly before its
//!   end, so that no request waits for it.
//! - While the source fails, older secrets serve for `stale_max` more.
//! - A stranger can name any shop, so lookups of shops that the source has not named, and those
//!   after a wrong signature, are bounded in rate.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use spillway_webhook::{Secrets, stable_hash};
use tokio_util::sync::CancellationToken;

/// Time for which a shop without secrets is remembered, if `ttl` is not shorter.
const UNKNOWN_TTL: Duration = Duration::from_secs(30);
/// Least time between two lookups of a shop because of a wrong signature.
const RECHECK_EVERY: Duration = Duration::from_secs(1);
/// Pause after a failed lookup of a shop. It doubles with each further failure.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Longest pause after failed lookups.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// Part of `ttl` over which the lookups of shops that were looked up together spread.
const SPREAD: u32 = 16;
/// Bounded lookups that may begin at once, as a multiple of those in a second.
const BURST_SECONDS: f64 = 10.0;

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
    /// Look up again before the end of `ttl`. Without it, requests wait at each end.
    pub is_early: bool,
}

/// What the source answered.
#[derive(Debug)]
pub enum Looked {
    /// Secrets of the shop.
    Found(Secrets),
    /// The shop has none.
    Unknown,
    /// There was no answer, or not one that can be understood.
    Failed,
}

/// What a request is to do.
#[derive(Debug)]
pub enum Advice {
    /// Check with these secrets.
    Use(Known),
    /// Refuse: the shop has no secrets.
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
    pub secrets: Arc<Secrets>,
    /// Time at which the source was asked for them.
    pub asked: Duration,
    /// They are older than `ttl`, and the source fails.
    pub is_stale: bool,
}

/// An advice, and whether the shop is to be looked up.
#[derive(Debug)]
pub struct Asked {
    /// What the request is to do.
    pub advice: Advice,
    /// The lookup of the shop begins now, and for this reason.
    pub begins: Option<LookupCause>,
}

/// Reason for a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupCause {
    /// The source has named secrets for the shop before, and they are too old.
    Age,
    /// Any request, which may be a stranger's: for a shop that the source has not named, or with a
    /// wrong signature.
    Stranger,
}

/// The cache.
#[derive(Debug)]
pub struct SecretCache {
    rules: CacheRules,
    shops: HashMap<Arc<str>, Entry>,
    /// Times at which a shop is looked up again or forgotten. Each entry without a lookup has one.
    due: BTreeSet<(Duration, Arc<str>)>,
    /// The last lookup of a shop with secrets failed, and none has succeeded since.
    is_source_down: bool,
    delay: SourceDelay,
    first_lookups: LookupBudget,
    rechecks: LookupBudget,
}

#[derive(Debug, Default)]
struct Entry {
    held: Option<Held>,
    /// Cancelled at the end of the lookup that is under way.
    lookup: Option<Lookup>,
    failures: u32,
    /// No lookup begins before, except for the next of `due`.
    retry_at: Duration,
    rechecked_at: Option<Duration>,
    due: Option<Duration>,
}

#[derive(Debug)]
struct Held {
    /// `None`: the shop has no secrets.
    secrets: Option<Arc<Secrets>>,
    asked: Duration,
    answered: Duration,
    is_used: bool,
}

#[derive(Debug)]
struct Lookup {
    began: Duration,
    over: CancellationToken,
}

/// Time that the source takes: its mean and its mean deviation, as TCP estimates round trips.
/// Source: RFC 6298, section 2.
#[derive(Debug, Default)]
struct SourceDelay(Option<(Duration, Duration)>);

/// Token bucket.
#[derive(Debug)]
struct LookupBudget {
    tokens: f64,
    counted_at: Duration,
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
            is_source_down: false,
            delay: SourceDelay::default(),
            first_lookups: LookupBudget::full(rules.lookups_a_second),
            rechecks: LookupBudget::full(rules.lookups_a_second),
        }
    }

    /// Shops that are remembered.
    pub fn len(&self) -> usize {
        self.shops.len()
    }

    /// Returns true if no shop is remembered.
    pub fn is_empty(&self) -> bool {
        self.shops.is_empty()
    }

    /// Asks for the secrets of a shop, for a request that arrived.
    pub fn ask(&mut self, shop: &str, now: Duration) -> Asked {
        let Some(entry) = self.shops.get_mut(shop) else {
            return self.ask_first(shop, now);
        };
        let mut begins = None;
        if let Some(held) = &mut entry.held {
            let age = now.saturating_sub(held.answered);
            let is_valid = age < self.rules.ttl_of(held);
            let serves = self.rules.ttl + self.rules.stale_max;
            let is_stale = !is_valid && age < serves && (self.is_source_down || entry.failures > 0);
            if is_valid || (is_stale && held.secrets.is_some()) {
                held.is_used = true;
                let advice = held.advice(is_stale);
                if is_stale && entry.lookup.is_none() && now >= entry.retry_at {
                    self.begin(shop, now);
                    begins = Some(LookupCause::Age);
                }
                return Asked { advice, begins };
            }
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
        self.shops.insert(shop.into(), Entry::default());
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
            return Asked::only(held.advice(false));
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
            Looked::Found(secrets) => Some(Arc::new(secrets)),
            Looked::Unknown => None,
            Looked::Failed => {
                // Those of other shops fail for what a stranger names.
                self.is_source_down |=
                    entry.held.as_ref().is_some_and(|held| held.secrets.is_some());
                let pause = RETRY_AFTER.saturating_mul(1 << entry.failures.min(10));
                entry.failures += 1;
                entry.retry_at = now + pause.min(RETRY_AFTER_MAX);
                let due = entry.retry_at;
                self.schedule(&name, due);
                lookup.over.cancel();
                return;
            }
        };
        self.is_source_down = false;
        self.delay.observe(now.saturating_sub(lookup.began));
        entry.failures = 0;
        let is_found = secrets.is_some();
        let held = Held { secrets, asked: lookup.began, answered: now, is_used: false };
        let ends = now + self.rules.ttl_of(&held);
        entry.held = Some(held);
        let due = if is_found && self.rules.is_early { ends - self.lead(&name, now) } else { ends };
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
            let is_used = is_known && held.is_used;
            let stale_max = if is_known { self.rules.stale_max } else { Duration::ZERO };
            let forget_at = held.answered + self.rules.ttl_of(held) + stale_max;
            if now >= forget_at {
                self.shops.remove(&shop);
            } else if is_used && self.rules.is_early {
                self.begin(&shop, now);
                begun.push(shop);
            } else {
                self.schedule(&shop, forget_at);
            }
        }
        begun
    }

    /// Time before the end of `ttl` at which a lookup begins: what the source takes, and a part by
    /// which shops that were looked up together differ.
    fn lead(&self, shop: &str, now: Duration) -> Duration {
        let spread = self.rules.ttl / SPREAD;
        let hash = stable_hash::of(&[shop.as_bytes(), &now.as_nanos().to_le_bytes()]);
        let share = (hash % 1024) as u32;
        (self.delay.most() + spread * share / 1024).min(self.rules.ttl / 2)
    }

    fn begin(&mut self, shop: &str, now: Duration) -> CancellationToken {
        let over = CancellationToken::new();
        let entry = self.shops.get_mut(shop).expect("BUG: a lookup without an entry");
        entry.lookup = Some(Lookup { began: now, over: over.clone() });
        if let Some(due) = entry.due.take() {
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
    fn ttl_of(&self, held: &Held) -> Duration {
        if held.secrets.is_some() { self.ttl } else { self.ttl.min(UNKNOWN_TTL) }
    }
}

impl Held {
    fn advice(&self, is_stale: bool) -> Advice {
        match &self.secrets {
            Some(secrets) => {
                let (secrets, asked) = (secrets.clone(), self.asked);
                Advice::Use(Known { secrets, asked, is_stale })
            }
            None => Advice::Unknown,
        }
    }
}

impl SourceDelay {
    fn observe(&mut self, took: Duration) {
        self.0 = Some(match self.0 {
            None => (took, took / 2),
            Some((mean, deviation)) => {
                ((mean * 7 + took) / 8, (deviation * 3 + mean.abs_diff(took)) / 4)
            }
        });
    }

    /// Time within which nearly all answers come.
    fn most(&self) -> Duration {
        self.0.map_or(Duration::ZERO, |(mean, deviation)| mean + deviation * 4)
    }
}

impl LookupBudget {
    fn full(a_second: f64) -> Self {
        Self { tokens: a_second * BURST_SECONDS, counted_at: Duration::ZERO }
    }

    fn take(&mut self, a_second: f64, now: Duration) -> bool {
        let since = now.saturating_sub(self.counted_at).as_secs_f64();
        self.counted_at = self.counted_at.max(now);
        self.tokens = (self.tokens + since * a_second).min(a_second * BURST_SECONDS);
        let has_one = self.tokens >= 1.0;
        if has_one {
            self.tokens -= 1.0;
        }
        has_one
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
    use crate::store::simulation::Random;

    const SHOP: &str = "one.myshopify.com";
    const TTL: Duration = Duration::from_secs(60);
    const STALE_MAX: Duration = Duration::from_secs(600);

    fn rules() -> CacheRules {
        CacheRules {
            ttl: TTL,
            stale_max: STALE_MAX,
            lookups_a_second: 10.0,
            shops_max: 1000,
            is_early: true,
        }
    }

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn secrets(version: u64) -> Secrets {
        Secrets::new(&[Zeroizing::new(format!("secret {version}"))])
    }

    fn found(version: u64) -> Looked {
        Looked::Found(secrets(version))
    }

    /// The first lookup of a shop, which takes 100 ms.
    fn with_shop(rules: CacheRules) -> SecretCache {
        let mut cache = SecretCache::new(rules);
        let asked = cache.ask(SHOP, s(0.0));
        assert!(asked.begins.is_some() && matches!(asked.advice, Advice::Wait(_)));
        cache.looked_up(SHOP, found(1), s(0.1));
        cache
    }

    fn used(asked: &Asked) -> Option<&Known> {
        match &asked.advice {
            Advice::Use(known) => Some(known),
            _ => None,
        }
    }

    #[test]
    fn requests_of_a_shop_wait_for_one_lookup() {
        let mut cache = SecretCache::new(rules());
        let asked = [0.0, 0.01, 0.02].map(|at| cache.ask(SHOP, s(at)));
        assert_eq!([true, false, false], [0, 1, 2].map(|at: usize| asked[at].begins.is_some()));
        cache.looked_up(SHOP, found(1), s(0.1));
        for one in asked {
            let Advice::Wait(over) = one.advice else { panic!("it does not wait") };
            assert!(over.is_cancelled());
        }
        assert!(used(&cache.ask(SHOP, s(0.1))).is_some());
    }

    #[test]
    fn what_is_used_is_looked_up_again_before_its_end_and_the_rest_is_forgotten() {
        let mut cache = with_shop(rules());
        assert!(used(&cache.ask(SHOP, s(30.0))).is_some());
        let due = cache.next_due().expect("it is used");
        let latest = s(60.1) - s(0.1 + 0.2);
        assert!(due <= latest && due >= latest - TTL / SPREAD, "{due:?}");
        assert!(cache.due(due - s(0.001)).is_empty());
        assert_eq!(cache.due(due), [Arc::from(SHOP)]);
        // The old ones serve until then.
        assert!(used(&cache.ask(SHOP, s(60.0))).is_some());
        cache.looked_up(SHOP, found(2), s(60.05));
        // Nobody asks any more.
        let due = cache.next_due().expect("it is scheduled");
        assert!(cache.due(due).is_empty());
        let forget_at = s(60.05) + TTL + STALE_MAX;
        assert_eq!(cache.next_due(), Some(forget_at));
        assert!(cache.due(forget_at).is_empty());
        assert!(cache.is_empty() && cache.next_due().is_none());
    }

    #[test]
    fn shops_that_were_looked_up_together_are_not_looked_up_again_together() {
        let latest = s(60.1) - s(0.1 + 0.2);
        let shops = (0..200).map(name);
        let dues: Vec<_> = shops
            .map(|shop| {
                let mut cache = SecretCache::new(rules());
                cache.ask(&shop, s(0.0));
                cache.looked_up(&shop, found(1), s(0.1));
                cache.next_due().expect("it is scheduled")
            })
            .collect();
        let (first, last) = (*dues.iter().min().expect("some"), *dues.iter().max().expect("some"));
        assert!(first >= latest - TTL / SPREAD && last <= latest, "{first:?} {last:?}");
        assert!(last - first > TTL / SPREAD * 9 / 10, "{first:?} {last:?}");
    }

    #[test]
    fn after_its_end_a_request_waits_and_without_a_source_older_secrets_serve() {
        let mut cache = with_shop(CacheRules { is_early: false, ..rules() });
        let asked = cache.ask(SHOP, s(60.1));
        assert!(asked.begins.is_some() && matches!(asked.advice, Advice::Wait(_)));
        cache.looked_up(SHOP, Looked::Failed, s(62.1));
        let asked = cache.ask(SHOP, s(62.2));
        assert!(used(&asked).is_some_and(|known| known.is_stale) && asked.begins.is_none());
        // It is tried again, and nobody waits.
        let asked = cache.ask(SHOP, s(62.7));
        assert!(used(&asked).is_some() && asked.begins.is_some());
        cache.looked_up(SHOP, Looked::Failed, s(63.0));
        assert!(cache.ask(SHOP, s(63.9)).begins.is_none(), "the pause doubles");
        assert!(cache.ask(SHOP, s(64.1)).begins.is_some());
        cache.looked_up(SHOP, Looked::Failed, s(64.2));
        let end = s(0.1) + TTL + STALE_MAX;
        assert!(used(&cache.ask(SHOP, end - s(0.01))).is_some());
        cache.looked_up(SHOP, Looked::Failed, end);
        assert!(matches!(cache.ask(SHOP, end).advice, Advice::Unavailable));
    }

    #[test]
    fn while_the_source_is_down_no_request_waits_for_another_shop_s_lookup() {
        let mut cache = with_shop(CacheRules { is_early: false, ..rules() });
        cache.ask("two.myshopify.com", s(0.0));
        cache.looked_up("two.myshopify.com", found(1), s(0.0));
        // What fails for a shop that a stranger names tells nothing of the others.
        cache.ask("three.myshopify.com", s(60.0));
        cache.looked_up("three.myshopify.com", Looked::Failed, s(60.0));
        let asked = cache.ask("two.myshopify.com", s(60.0));
        assert_eq!(asked.begins, Some(LookupCause::Age));
        assert!(matches!(asked.advice, Advice::Wait(_)));
        cache.looked_up("two.myshopify.com", Looked::Failed, s(61.0));
        let asked = cache.ask(SHOP, s(61.0));
        assert!(used(&asked).is_some_and(|known| known.is_stale) && asked.begins.is_some());
        cache.looked_up(SHOP, found(2), s(61.1));
        assert!(used(&cache.ask(SHOP, s(61.2))).is_some_and(|known| !known.is_stale));
    }

    #[test]
    fn a_shop_without_secrets_is_remembered_for_a_while() {
        let mut cache = SecretCache::new(rules());
        cache.ask(SHOP, s(0.0));
        cache.looked_up(SHOP, Looked::Unknown, s(0.1));
        for at in [0.2, 30.0] {
            let asked = cache.ask(SHOP, s(at));
            assert!(matches!(asked.advice, Advice::Unknown) && asked.begins.is_none());
        }
        assert!(cache.ask(SHOP, s(30.2)).begins.is_some());
        // That it can't be asked for is no answer.
        cache.looked_up(SHOP, Looked::Failed, s(30.3));
        assert!(matches!(cache.ask(SHOP, s(30.4)).advice, Advice::Unavailable));
    }

    #[test]
    fn strangers_are_bounded_and_leave_known_shops_alone() {
        let mut cache = with_shop(CacheRules { shops_max: 500, ..rules() });
        let mut lookups = 0;
        for number in 0..100_000 {
            let now = s(1.0 + f64::from(number) / 10_000.0);
            let shop = format!("{number}.myshopify.com");
            let asked = cache.ask(&shop, now);
            if asked.begins.is_some() {
                lookups += 1;
                cache.looked_up(&shop, Looked::Unknown, now);
            } else {
                assert!(matches!(asked.advice, Advice::Unavailable));
            }
            assert!(used(&cache.ask(SHOP, now)).is_some());
        }
        // A burst of 100, and 10 in each of 10 seconds.
        assert!((195..=205).contains(&lookups), "{lookups}");
        let mut cache = with_shop(CacheRules { shops_max: 2, ..rules() });
        cache.ask("two.myshopify.com", s(1.0));
        assert!(matches!(cache.ask("three.myshopify.com", s(1.0)).advice, Advice::Unavailable));
    }

    #[test]
    fn a_wrong_signature_asks_for_newer_secrets_within_bounds() {
        let mut cache = with_shop(rules());
        let tried = s(0.0);
        let asked = cache.ask_again(SHOP, tried, s(5.0), s(5.0));
        assert!(asked.begins.is_some() && matches!(asked.advice, Advice::Wait(_)));
        cache.looked_up(SHOP, found(2), s(5.1));
        let newer = cache.ask_again(SHOP, tried, s(5.0), s(5.1));
        let newer = used(&newer).expect("there are newer ones").asked;
        assert_eq!(newer, s(5.0));
        // They were asked for after it arrived.
        let asked = cache.ask_again(SHOP, newer, s(5.0), s(5.2));
        assert!(matches!(asked.advice, Advice::Unknown));
        let asked = cache.ask_again(SHOP, newer, s(5.0), s(7.0));
        assert!(matches!(asked.advice, Advice::Unknown) && asked.begins.is_none());
        // Once a second at most.
        let asked = cache.ask_again(SHOP, newer, s(5.9), s(5.9));
        assert!(matches!(asked.advice, Advice::Unavailable) && asked.begins.is_none());
        assert!(cache.ask_again(SHOP, newer, s(6.0), s(6.0)).begins.is_some());
        cache.looked_up(SHOP, Looked::Failed, s(6.1));
        // Newer ones may exist, so it is not known to be forged.
        for at in [6.1, 6.65] {
            let asked = cache.ask_again(SHOP, newer, s(6.0), s(at));
            assert!(matches!(asked.advice, Advice::Unavailable) && asked.begins.is_none(), "{at}");
        }
        let gone = cache.ask_again("two.myshopify.com", newer, s(6.0), s(6.1));
        assert!(matches!(gone.advice, Advice::Unavailable));
        // Forged ones for many shops use up what may be looked up.
        let mut cache = SecretCache::new(CacheRules { lookups_a_second: 1000.0, ..rules() });
        for shop in (0..200).map(name) {
            cache.ask(&shop, s(0.0));
            cache.looked_up(&shop, found(1), s(0.0));
        }
        cache.rules.lookups_a_second = 10.0;
        let advice: Vec<_> = (0..200)
            .map(|shop| cache.ask_again(&name(shop), s(0.0), s(1.0), s(1.0)).advice)
            .collect();
        let waiting = advice.iter().filter(|one| matches!(one, Advice::Wait(_))).count();
        let refused = advice.iter().filter(|one| matches!(one, Advice::Unavailable)).count();
        assert_eq!((waiting, refused), (100, 100));
    }

    /// The source and those who send, in one schedule.
    struct World {
        cache: SecretCache,
        random: Random,
        now: Duration,
        /// For each shop: version of its secret, since when, and the version before.
        shops: Vec<(u64, Duration)>,
        lookups: Vec<(usize, u64, Duration)>,
        waiting: Vec<Sent>,
        is_down: bool,
        failed_at: Option<Duration>,
        firsts: Vec<Duration>,
        refused: u64,
    }

    struct Sent {
        shop: usize,
        version: u64,
        arrived: Duration,
        tried: Option<Duration>,
        over: Option<CancellationToken>,
    }

    const SHOPS: usize = 4;
    const LOOKUP_MAX: Duration = Duration::from_secs(2);
    /// Longest step of the clock.
    const STEP_MS: usize = 700;
    /// Longest time of a lookup in a schedule, which ends with a step.
    const ENDS_WITHIN: Duration = Duration::from_millis(2_000 + STEP_MS as u64);

    fn name(shop: usize) -> String {
        format!("{shop}.myshopify.com")
    }

    fn of(shop: usize, version: u64) -> Secrets {
        secrets(shop as u64 * 1_000_000 + version)
    }

    impl World {
        fn new(seed: u64) -> Self {
            let is_early = seed.is_multiple_of(4);
            let rules =
                CacheRules { ttl: s(5.0), stale_max: s(20.0), is_early: !is_early, ..rules() };
            Self {
                cache: SecretCache::new(rules),
                random: Random(seed),
                now: s(100.0),
                shops: vec![(1, Duration::ZERO); SHOPS],
                lookups: Vec::new(),
                waiting: Vec::new(),
                is_down: false,
                failed_at: None,
                firsts: Vec::new(),
                refused: 0,
            }
        }

        fn step(&mut self) {
            // No two steps at the same time, as with a real clock.
            self.now += Duration::from_micros(1);
            match self.random.below(12) {
                0..=2 => self.now += s(self.random.below(STEP_MS) as f64 / 1000.0),
                3..=6 => self.send(),
                7..=8 => self.end_lookup(),
                9 => {
                    for shop in self.cache.due(self.now) {
                        let shop = shop.split('.').next().and_then(|part| part.parse().ok());
                        self.begin(shop.expect("a number"));
                    }
                }
                10 if self.random.chance(60) => self.is_down = !self.is_down,
                11 if self.random.chance(100) => {
                    let shop = self.random.below(SHOPS);
                    self.shops[shop] = (self.shops[shop].0 + 1, self.now);
                }
                _ => {}
            }
            while self.lookups.iter().any(|(_, _, began)| self.now > *began + LOOKUP_MAX) {
                self.end_lookup();
            }
        }

        fn begin(&mut self, shop: usize) {
            assert!(self.lookups.iter().all(|(other, ..)| *other != shop), "two lookups of one");
            // The source reads at the beginning, or at the end.
            let version = if self.random.chance(500) {
                self.shops.get(shop).map_or(0, |(version, _)| *version)
            } else {
                u64::MAX
            };
            self.lookups.push((shop, version, self.now));
        }

        fn end_lookup(&mut self) {
            if self.lookups.is_empty() {
                return;
            }
            // An old one first, so that none takes longer than its limit.
            let (shop, version, _) = self.lookups.remove(0);
            let looked = match self.shops.get(shop) {
                _ if self.is_down => {
                    self.failed_at = Some(self.now);
                    Looked::Failed
                }
                None => Looked::Unknown,
                Some((newest, _)) => Looked::Found(of(shop, version.min(*newest))),
            };
            self.cache.looked_up(&name(shop), looked, self.now);
            let (over, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
                .into_iter()
                .partition(|sent| sent.over.as_ref().is_some_and(CancellationToken::is_cancelled));
            self.waiting = waiting;
            over.into_iter().for_each(|sent| self.go_on(sent));
        }

        fn send(&mut self) {
            let is_stranger = self.random.chance(300);
            let shop = if is_stranger {
                SHOPS + self.random.below(3000)
            } else {
                self.random.below(SHOPS)
            };
            let newest = self.shops.get(shop).map_or(0, |(version, _)| *version);
            let version = if self.random.chance(100) { 999_999 } else { newest };
            self.go_on(Sent { shop, version, arrived: self.now, tried: None, over: None });
        }

        fn go_on(&mut self, mut sent: Sent) {
            let shop = name(sent.shop);
            loop {
                let asked = match sent.tried {
                    None => self.cache.ask(&shop, self.now),
                    Some(tried) => self.cache.ask_again(&shop, tried, sent.arrived, self.now),
                };
                if asked.begins.is_some() {
                    if sent.tried.is_none() && sent.shop >= SHOPS {
                        self.firsts.push(self.now);
                    }
                    self.begin(sent.shop);
                }
                match asked.advice {
                    Advice::Use(known) => {
                        let signed_with = of(sent.shop, sent.version);
                        if known.secrets.fingerprints() == signed_with.fingerprints() {
                            return self.accepted(&sent, &known);
                        }
                        assert!(sent.tried.is_none_or(|tried| tried < known.asked), "for ever");
                        sent.tried = Some(known.asked);
                    }
                    Advice::Unknown => return self.refused_for_good(&sent),
                    Advice::Wait(over) => {
                        assert!(self.lookups.iter().any(|(other, ..)| *other == sent.shop));
                        assert!(!over.is_cancelled(), "it would wait for nothing");
                        sent.over = Some(over);
                        self.waiting.push(sent);
                        return;
                    }
                    Advice::Unavailable => {
                        self.refused += 1;
                        return;
                    }
                }
            }
        }

        fn accepted(&self, sent: &Sent, known: &Known) {
            assert_ne!(sent.version, 999_999, "a guess was accepted");
            let (newest, since) = self.shops[sent.shop];
            let age = if sent.version == newest { Duration::ZERO } else { self.now - since };
            if known.is_stale {
                let failed = self.failed_at.expect("the source never failed");
                assert!(self.now - failed <= s(30.0) + ENDS_WITHIN * 2, "it was well for long");
                assert!(self.now - known.asked <= s(25.0) + ENDS_WITHIN);
            } else {
                assert!(age <= s(5.0) + ENDS_WITHIN, "a secret served {age:?} after its end");
            }
        }

        fn refused_for_good(&self, sent: &Sent) {
            let Some((newest, _)) = self.shops.get(sent.shop) else { return };
            assert_ne!(sent.version, *newest, "a right signature was refused at {:?}", self.now);
        }

        fn check(&self) {
            assert!(self.cache.len() <= self.cache.rules.shops_max);
            let recent = self.firsts.iter().rev().take_while(|at| self.now - **at <= s(10.0));
            assert!(recent.count() <= 201, "strangers made too many lookups");
            for (at, shop) in &self.cache.due {
                assert_eq!(self.cache.shops[shop].due, Some(*at));
            }
            for entry in self.cache.shops.values() {
                assert_ne!(entry.lookup.is_some(), entry.due.is_some(), "{entry:?}");
            }
        }

        /// Nobody sends any more.
        fn end(&mut self) {
            self.is_down = false;
            for _ in 0..100_000 {
                if self.cache.is_empty() {
                    break;
                }
                for shop in self.cache.due(self.now) {
                    let shop = shop.split('.').next().and_then(|part| part.parse().ok());
                    self.begin(shop.expect("a number"));
                }
                while !self.lookups.is_empty() {
                    self.end_lookup();
                }
                self.now += s(0.5);
                self.check();
            }
            assert!(self.cache.is_empty(), "{} shops are remembered for ever", self.cache.len());
            assert!(self.waiting.is_empty() && self.cache.due.is_empty());
        }
    }

    #[test]
    fn seeded_schedules() {
        for seed in 0..400 {
            let mut world = World::new(seed);
            for _ in 0..2000 {
                world.step();
                world.check();
            }
            world.end();
        }
    }
}
