//! The cache in seeded schedules: rotations, a source that fails, guesses, and strangers.

use super::tests::{name, rules, s, secrets};
use super::*;
use crate::secrets::copies::SecretCopies;
use crate::store::simulation::Random;

/// The source and those who send, in one schedule.
struct World {
    cache: SecretCache,
    copies: SecretCopies,
    random: Random,
    now: Duration,
    /// For each shop: version of its secret, since when, and the version before.
    shops: Vec<(u64, Duration)>,
    lookups: Vec<(usize, u64, Duration)>,
    waiting: Vec<Sent>,
    is_down: bool,
    failed_at: Option<Duration>,
    /// For each shop, the last answer that could not be understood.
    garbled_at: [Option<Duration>; SHOPS],
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
/// Shorter than a failure shows.
const SHORT_STALE: Duration = Duration::from_secs(20);
const LOOKUP_MAX: Duration = Duration::from_secs(2);
/// Longest step of the clock.
const STEP_MS: usize = 700;
/// Longest time of a lookup in a schedule, which ends with a step.
const ENDS_WITHIN: Duration = Duration::from_millis(2_000 + STEP_MS as u64);

fn of(shop: usize, version: u64) -> Secrets {
    secrets(shop as u64 * 1_000_000 + version)
}

impl World {
    fn new(seed: u64) -> Self {
        let is_early = seed.is_multiple_of(4);
        // In half of the schedules, old secrets are kept for longer than a failure shows.
        let stale_max = if seed.is_multiple_of(2) { SHORT_STALE } else { s(400.0) };
        let rules = CacheRules { ttl: s(5.0), stale_max, is_early: !is_early, ..rules() };
        Self {
            cache: SecretCache::new(rules),
            copies: SecretCopies::default(),
            random: Random(seed),
            now: s(100.0),
            shops: vec![(1, Duration::ZERO); SHOPS],
            lookups: Vec::new(),
            waiting: Vec::new(),
            is_down: false,
            failed_at: None,
            garbled_at: [None; SHOPS],
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
            Some(_) if self.random.chance(50) => {
                self.garbled_at[shop] = Some(self.now);
                Looked::Garbled
            }
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
        let shop =
            if is_stranger { SHOPS + self.random.below(3000) } else { self.random.below(SHOPS) };
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
                    if known.secrets.get().fingerprints() == signed_with.fingerprints() {
                        known.secrets.note_use();
                        if self.cache.refresh(&shop, self.now).is_some() {
                            assert!(known.is_due);
                            self.begin(sent.shop);
                        }
                        self.copies.keep(&shop, &known);
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
            let failed = self.failed_at.max(self.garbled_at[sent.shop]);
            let failed = failed.expect("neither the source nor its answer for the shop failed");
            let CacheRules { ttl, stale_max, .. } = self.cache.rules;
            let shows_for = match stale_max {
                SHORT_STALE => s(30.0) + ENDS_WITHIN * 2,
                _ => RETRY_AFTER_MAX + FAILURE_SHOWS_FOR,
            };
            assert!(self.now - failed <= shows_for, "it was well for long");
            assert!(self.now - known.asked <= ttl + stale_max + ENDS_WITHIN);
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
        self.copies.sweep(self.now);
        for shop in (0..SHOPS).map(name) {
            let Some(copy) = self.copies.serving(&shop, self.now) else { continue };
            let known = self.cache.ask_known(&shop, self.now).expect("its copy serves");
            assert!(Arc::ptr_eq(&copy, &known.secrets) && !known.is_due && !known.is_stale);
            assert!(copy.is_used(), "the source is not asked again");
        }
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
