//! Each rule of the cache by itself.

use std::collections::HashSet;

use zeroize::Zeroizing;

use super::*;
use crate::secrets::copies::{SHOPS_MAX, SecretCopies};

const SHOP: &str = "one.myshopify.com";
const TTL: Duration = Duration::from_secs(60);
const STALE_MAX: Duration = Duration::from_secs(600);

pub(super) fn rules() -> CacheRules {
    CacheRules {
        ttl: TTL,
        stale_max: STALE_MAX,
        lookups_a_second: 10.0,
        shops_max: 1000,
        together: s(0.125),
        is_early: true,
    }
}

pub(super) fn s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

pub(super) fn name(shop: usize) -> String {
    format!("{shop}.myshopify.com")
}

pub(super) fn secrets(version: u64) -> Secrets {
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

/// Secrets that a request is checked with, and by which it is good.
fn used(asked: &Asked) -> Option<&Known> {
    match &asked.advice {
        Advice::Use(known) => {
            known.secrets.note_use();
            Some(known)
        }
        _ => None,
    }
}

#[test]
fn the_time_of_a_request_for_several_shops_counts_once() {
    let estimate = |shops| {
        let mut cache = SecretCache::new(rules());
        for (began, ended) in [(0.0, 0.1), (100.0, 100.3)] {
            (0..shops).for_each(|shop| drop(cache.ask(&name(shop), s(began))));
            (0..shops).for_each(|shop| cache.looked_up(&name(shop), Looked::Unknown, s(ended)));
            cache.due(s(ended) + UNKNOWN_TTL);
        }
        cache.delay.most()
    };
    assert_eq!(estimate(1), estimate(64));
}

#[test]
fn a_shop_whose_last_lookup_failed_is_known_for_it() {
    let mut cache = with_shop(rules());
    assert!(!cache.has_failed(SHOP) && !cache.has_failed("two.myshopify.com"));
    for (at, looked, has_failed) in [(10.0, Looked::Failed, true), (20.0, found(2), false)] {
        cache.ask_again(SHOP, s(0.0), s(at), s(at));
        cache.looked_up(SHOP, looked, s(at + 0.1));
        assert_eq!(cache.has_failed(SHOP), has_failed);
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
    assert!(due <= latest && due >= latest - TTL / SPREAD - rules().together(), "{due:?}");
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
fn a_shop_that_is_only_named_is_not_in_use() {
    let mut cache = with_shop(rules());
    let named = cache.ask(SHOP, s(30.0));
    assert!(matches!(named.advice, Advice::Use(_)));
    let due = cache.next_due().expect("it is scheduled");
    assert!(cache.due(due).is_empty(), "anyone can name it");
    let named = cache.ask(SHOP, due + s(0.05));
    assert!(matches!(named.advice, Advice::Use(_)) && named.begins.is_none());
    assert_eq!(cache.next_due(), Some(s(0.1) + TTL + STALE_MAX));
}

/// Two shops in use without a stale time, whose lookups end as `looked` says until the time given.
fn two_in_use_until(until: Duration, looked: fn() -> Looked) -> SecretCache {
    let mut cache = with_shop(CacheRules { stale_max: Duration::ZERO, ..rules() });
    cache.ask("two.myshopify.com", s(0.0));
    cache.looked_up("two.myshopify.com", found(1), s(0.1));
    for shop in [SHOP, "two.myshopify.com"] {
        assert!(used(&cache.ask(shop, s(30.0))).is_some());
    }
    while let Some(due) = cache.next_due().filter(|due| *due < until) {
        for shop in cache.due(due) {
            cache.looked_up(&shop, looked(), due + s(0.001));
        }
    }
    cache
}

#[test]
fn a_shop_in_use_is_not_forgotten_because_its_lookups_fail() {
    let mut cache = two_in_use_until(s(3600.0), || Looked::Failed);
    let asked = cache.ask(SHOP, s(3600.0));
    assert!(matches!(asked.advice, Advice::Unavailable), "nothing serves: {asked:?}");
    // Both are tried again, also after the source has answered for one of them.
    let mut begun = HashSet::new();
    while begun.len() < 2 {
        let due = cache.next_due().expect("they are tried again");
        for shop in cache.due(due) {
            cache.looked_up(&shop, found(2), due + s(0.1));
            assert!(used(&cache.ask(&shop, due + s(0.2))).is_some());
            begun.insert(shop);
        }
    }
}

#[test]
fn a_shop_that_fails_for_long_or_alone_is_forgotten_in_the_end() {
    let ends = s(0.1) + TTL;
    let end = ends + OUTAGE_MAX;
    assert_eq!(two_in_use_until(end - RETRY_AFTER_MAX, || Looked::Failed).len(), 2);
    assert!(two_in_use_until(end + RETRY_AFTER_MAX * 2, || Looked::Failed).is_empty());
    assert!(two_in_use_until(ends + RETRY_AFTER_MAX * 2, || Looked::Garbled).is_empty());
}

#[test]
fn what_is_used_only_shortly_before_its_end_is_looked_up_before_it_too() {
    let mut cache = with_shop(rules());
    let due = cache.next_due().expect("it is scheduled");
    assert!(cache.due(due).is_empty(), "nobody has asked");
    let asked = cache.ask(SHOP, due + s(0.05));
    assert!(used(&asked).is_some_and(|known| known.is_due), "it waits for nothing");
    assert_eq!(cache.refresh(SHOP, due + s(0.05)), Some(LookupCause::Age));
    assert_eq!(cache.refresh(SHOP, due + s(0.06)), None, "one lookup at a time");
    cache.looked_up(SHOP, Looked::Failed, due + s(0.1));
    assert_eq!(cache.refresh(SHOP, due + s(0.11)), None, "not before the pause is over");
    // A wrong signature that began the lookup needs no other one.
    let mut cache = with_shop(rules());
    let arrived = due + s(0.05);
    let known = cache.ask_known(SHOP, arrived).expect("it is known");
    assert!(cache.ask_again(SHOP, known.asked, arrived, arrived).begins.is_some());
    cache.looked_up(SHOP, found(1), arrived + s(0.1));
    let again = cache.ask_again(SHOP, known.asked, arrived, arrived + s(0.1));
    let newer = used(&again).expect("it was looked up since").asked;
    let again = cache.ask_again(SHOP, newer, arrived, arrived + s(0.1));
    assert!(matches!(again.advice, Advice::Unknown) && again.begins.is_none());
    // One that is not early looks up what is too old only.
    let mut cache = with_shop(CacheRules { is_early: false, ..rules() });
    assert_eq!(cache.refresh(SHOP, s(60.0)), None);
}

#[test]
fn shops_that_were_looked_up_together_are_not_looked_up_again_together() {
    // With a source that is fast, and with one that takes too long for half of the time.
    let cases = [(1.0, 0.1), (2.0, 0.1), (60.0, 0.1), (1.0, 1.9), (60.0, 1.9)];
    let cases = cases.into_iter().flat_map(|(ttl, took)| [(ttl, took, 0.125), (ttl, took, 0.005)]);
    for (ttl, took, together) in cases {
        let ttl = s(ttl);
        let rules = CacheRules { ttl, together: s(together), ..rules() };
        let together = rules.together.min(ttl / 32);
        let dues: BTreeSet<_> = (0..200)
            .map(|shop| {
                let mut cache = SecretCache::new(rules);
                cache.ask(&name(shop), s(0.0));
                cache.looked_up(&name(shop), found(1), s(took));
                cache.next_due().expect("it is scheduled")
            })
            .collect();
        let lead = s(took * 3.0).min(ttl / 2 - ttl / SPREAD - together);
        let latest = s(took) + ttl - lead;
        let (first, last) = (*dues.first().expect("some"), *dues.last().expect("some"));
        assert!(last <= latest && first + ttl / SPREAD + together >= latest, "{dues:?}");
        assert!(last - first + together > ttl / SPREAD * 9 / 10, "{dues:?}");
        assert!(first >= s(took) + ttl / 2, "{dues:?}");
        assert!(dues.iter().all(|due| due.as_nanos() % together.as_nanos() == 0), "{dues:?}");
    }
}

#[test]
fn lookups_of_many_shops_share_their_wake_ups() {
    let rules = CacheRules { lookups_a_second: 1000.0, ..rules() };
    let mut cache = SecretCache::new(rules);
    let mut dues = BTreeSet::new();
    for number in 0..1000_usize {
        let at = s(number as f64 / 1000.0);
        cache.ask(&name(number), at);
        cache.looked_up(&name(number), found(1), at + s(0.1));
    }
    while let Some(due) = cache.next_due().filter(|due| *due < s(62.0)) {
        dues.insert(due);
        cache.due(due);
    }
    assert_eq!(cache.len(), 1000);
    // Over the second and the spread, one wake-up for each time that is kept.
    let over = s(1.0) + TTL / SPREAD;
    let most = over.as_millis() / rules.together.as_millis() + 1;
    let wake_ups = dues.len() as u128;
    assert!((most - 2..=most).contains(&wake_ups), "{wake_ups} wake-ups, {most} expected");
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
    assert!(used(&cache.ask(SHOP, s(62.7))).is_some());
    assert!(cache.refresh(SHOP, s(62.7)).is_some());
    cache.looked_up(SHOP, Looked::Failed, s(63.0));
    assert!(cache.refresh(SHOP, s(63.9)).is_none(), "the pause doubles");
    assert!(cache.refresh(SHOP, s(64.1)).is_some());
    cache.looked_up(SHOP, Looked::Failed, s(64.2));
    let end = s(0.1) + TTL + STALE_MAX;
    // Long after the last failure, nobody knows whether the source still fails.
    let asked = cache.ask(SHOP, end - s(10.0));
    assert!(asked.begins.is_some() && matches!(asked.advice, Advice::Wait(_)));
    cache.looked_up(SHOP, Looked::Failed, end - s(8.0));
    assert!(used(&cache.ask(SHOP, end - s(0.01))).is_some());
    assert!(cache.refresh(SHOP, end - s(0.01)).is_some());
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
    assert!(used(&cache.ask(SHOP, s(61.0))).is_some_and(|known| known.is_stale));
    assert!(cache.refresh(SHOP, s(61.0)).is_some());
    cache.looked_up(SHOP, found(2), s(61.1));
    assert!(used(&cache.ask(SHOP, s(61.2))).is_some_and(|known| !known.is_stale));
}

#[test]
fn an_answer_that_is_garbled_for_a_shop_lets_no_old_secret_of_another_serve() {
    let mut cache = with_shop(CacheRules { is_early: false, ..rules() });
    cache.ask("two.myshopify.com", s(0.0));
    cache.looked_up("two.myshopify.com", found(1), s(0.0));
    assert!(cache.ask("two.myshopify.com", s(61.0)).begins.is_some());
    cache.looked_up("two.myshopify.com", Looked::Garbled, s(61.1));
    let asked = cache.ask("two.myshopify.com", s(61.2));
    assert!(used(&asked).is_some_and(|known| known.is_stale), "its own serve: {asked:?}");
    let asked = cache.ask(SHOP, s(61.2));
    assert!(matches!(asked.advice, Advice::Wait(_)), "{asked:?}");
}

#[test]
fn a_failure_of_long_ago_lets_no_old_secret_serve() {
    let mut cache = with_shop(rules());
    // Not used, so it is not looked up early.
    assert_eq!(cache.due(s(60.0)).len(), 0);
    assert!(matches!(cache.ask(SHOP, s(61.0)).advice, Advice::Wait(_)));
    cache.looked_up(SHOP, Looked::Failed, s(63.0));
    assert!(used(&cache.ask(SHOP, s(63.2))).is_some_and(|known| known.is_stale));
    let mut cache = with_shop(rules());
    cache.due(s(60.0));
    cache.ask(SHOP, s(61.0));
    cache.looked_up(SHOP, Looked::Failed, s(63.0));
    assert_eq!(cache.due(s(63.5)).len(), 0);
    let asked = cache.ask(SHOP, s(500.0));
    assert!(matches!(asked.advice, Advice::Wait(_)) && asked.begins.is_some(), "{asked:?}");
}

#[test]
fn a_lookup_that_has_no_turn_is_no_failure_of_the_source() {
    let mut cache = with_shop(CacheRules { is_early: false, ..rules() });
    cache.ask("two.myshopify.com", s(0.0));
    cache.looked_up("two.myshopify.com", Looked::NotAsked, s(2.0));
    assert!(matches!(cache.ask("two.myshopify.com", s(2.4)).advice, Advice::Unavailable));
    assert!(cache.ask("two.myshopify.com", s(2.6)).begins.is_some(), "it is asked soon after");
    // A wrong signature in the name of a shop with secrets.
    assert!(cache.ask_again(SHOP, s(0.0), s(50.0), s(50.0)).begins.is_some());
    cache.looked_up(SHOP, Looked::NotAsked, s(59.9));
    assert!(matches!(cache.ask_again(SHOP, s(0.0), s(59.9), s(59.9)).advice, Advice::Unavailable));
    assert_eq!(cache.next_due(), Some(s(0.1) + TTL), "it is due as before");
    assert!(used(&cache.ask(SHOP, s(60.0))).is_some_and(|known| !known.is_stale));
    let asked = cache.ask(SHOP, s(60.2));
    assert!(asked.begins == Some(LookupCause::Age), "it is not refused: {asked:?}");
    assert!(matches!(asked.advice, Advice::Wait(_)), "it is not served stale: {asked:?}");
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
    let advice: Vec<_> =
        (0..200).map(|shop| cache.ask_again(&name(shop), s(0.0), s(1.0), s(1.0)).advice).collect();
    let waiting = advice.iter().filter(|one| matches!(one, Advice::Wait(_))).count();
    let refused = advice.iter().filter(|one| matches!(one, Advice::Unavailable)).count();
    assert_eq!((waiting, refused), (100, 100));
}

#[test]
fn copies_are_bounded_and_swept() {
    let mut cache = with_shop(rules());
    let known = cache.ask_known(SHOP, s(0.2)).expect("it was named");
    let copies = SecretCopies::default();
    for shop in 0..SHOPS_MAX + 10 {
        copies.keep(&name(shop), &known);
        copies.keep(&name(shop), &known);
        assert_eq!(copies.len(), SHOPS_MAX.min(shop + 1));
    }
    copies.sweep(s(5.0));
    assert_eq!(copies.len(), SHOPS_MAX, "they serve");
    let asked = cache.ask_again(SHOP, known.asked, s(6.0), s(6.0));
    assert!(asked.begins.is_some());
    cache.looked_up(SHOP, Looked::Unknown, s(6.1));
    copies.sweep(s(9.9));
    assert_eq!(copies.len(), SHOPS_MAX, "swept just before");
    copies.sweep(s(10.0));
    assert_eq!((copies.len(), Arc::strong_count(&known.secrets)), (0, 1), "nobody else has them");
}
