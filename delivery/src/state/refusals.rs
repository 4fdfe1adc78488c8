//! Circuit breaker on refusals. A bad deploy may answer everything with 404. Without the breaker,
//! every webhook would become a dead letter within an hour.
//!
//! The breaker judges shops, not webhooks. It opens when most of the recently seen shops are
//! refused, however much each of them sends. Bad data of one shop does not open it. An app with one
//! shop is judged by its last outcomes. The first successful delivery closes the breaker.
//!
//! Until results of other shops arrive, a flood of one shop must not become dead letters. A shop
//! may give up [`CREDIT`] webhooks for each success of another shop. All shops together may give up
//! [`CREDIT_ALL`] for each success. Memory is bounded by [`SHOPS`]. Pure: time is an argument.

use std::time::Duration;

/// Number of shops that are judged: the most recently seen ones. More than half of them open the
/// circuit breaker. With more shops, a bad deploy of a large app would cost more webhooks.
const SHOPS: usize = 32;
/// Time after which a shop without results does not count.
const LATELY: Duration = Duration::from_secs(3600);
/// Total refusals, spread over the shops, that are not chance: with two shops, each must be refused
/// sixteen times in a row. Single bad webhooks of a few shops in a quiet hour are no bad deploy.
/// With [`SHOPS`] shops, one refusal each is enough, because of more shops than that none may be
/// seen twice.
const REFUSALS_CERTAIN: usize = SHOPS;
/// Number of outcomes by which an app with one shop is judged.
const OUTCOMES: u32 = 100;
/// Webhooks that a shop may give up until a delivery of another shop succeeds.
const CREDIT: u32 = 32;
/// Webhooks that all shops may give up until any delivery succeeds.
const CREDIT_ALL: u32 = 128;
const _: () = assert!(CREDIT <= CREDIT_ALL, "the bound for all shops is the larger one");

const _: () = assert!(OUTCOMES <= u128::BITS && CREDIT <= CREDIT_ALL);

/// Stops delivery while most shops are refused, and limits the give-ups before that is known.
#[derive(Debug, Default)]
pub struct RefusalBreaker {
    /// Most recently seen shops, the latest at the end.
    shops: Vec<Shop>,
    outcomes: Outcomes,
    /// Number of webhooks given up since the last success.
    given_up: u32,
    is_open: bool,
}

/// A shop that was seen lately.
#[derive(Debug, Clone, Copy)]
struct Shop {
    key: u64,
    seen_at: Duration,
    /// Number of refusals since the last success of the shop.
    refusals: usize,
    /// Number of webhooks given up since the last success of another shop.
    given_up: u32,
}

/// The last outcomes of all shops.
#[derive(Debug, Default)]
struct Outcomes {
    /// One bit per outcome, set for a refusal. The latest is the lowest bit.
    refused: u128,
    count: u32,
}

impl Outcomes {
    fn add(&mut self, is_refused: bool) {
        let kept = u128::MAX >> (u128::BITS - OUTCOMES);
        self.refused = ((self.refused << 1) | u128::from(is_refused)) & kept;
        self.count = (self.count + 1).min(OUTCOMES);
    }

    fn is_most_refused(&self) -> bool {
        self.count == OUTCOMES && self.refused.count_ones() > OUTCOMES / 2
    }
}

impl RefusalBreaker {
    /// True if only probes may be sent and nothing may be given up.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// True if a refused webhook of `shop` may become a dead letter. Otherwise it stays in retry.
    pub fn may_give_up(&self, shop: u64) -> bool {
        let given_up =
            self.shops.iter().find(|one| one.key == shop).map_or(0, |known| known.given_up);
        !self.is_open && given_up < CREDIT && self.given_up < CREDIT_ALL
    }

    /// Counts a refused webhook of `shop` that became a dead letter.
    pub fn mark_given_up(&mut self, shop: u64) {
        self.given_up += 1;
        if let Some(known) = self.shops.iter_mut().find(|one| one.key == shop) {
            known.given_up += 1;
        }
    }

    /// Notes that the backend accepted a webhook of `shop`. Closes the circuit breaker.
    pub fn on_success(&mut self, shop: u64, now: Duration) {
        if std::mem::take(&mut self.is_open) {
            self.outcomes = Outcomes::default();
            self.shops.iter_mut().for_each(|known| known.refusals = 0);
        }
        self.outcomes.add(false);
        self.given_up = 0;
        self.touch(shop, now).refusals = 0;
        let is_alone = self.shops.len() == 1;
        for known in &mut self.shops {
            if is_alone || known.key != shop {
                known.given_up = 0;
            }
        }
    }

    /// Notes that the backend refused a webhook of `shop`. Returns true if that opens the circuit
    /// breaker.
    pub fn on_refusal(&mut self, shop: u64, now: Duration) -> bool {
        self.outcomes.add(true);
        let known = self.touch(shop, now);
        known.refusals = known.refusals.saturating_add(1);
        let was_open = self.is_open;
        self.is_open |= self.is_most_refused();
        self.is_open && !was_open
    }

    fn is_most_refused(&self) -> bool {
        let heard = self.shops.len();
        if heard == 1 {
            return self.outcomes.is_most_refused();
        }
        let least = REFUSALS_CERTAIN.div_ceil(heard);
        let refused = self.shops.iter().filter(|known| known.refusals >= least).count();
        2 * refused > heard
    }

    /// Returns the shop, which becomes the latest. Forgets shops that were not seen lately, and the
    /// oldest one if there are too many.
    fn touch(&mut self, shop: u64, now: Duration) -> &mut Shop {
        let is_recent = |known: &Shop| now.saturating_sub(known.seen_at) < LATELY;
        let known = self.shops.iter().find(|known| known.key == shop).copied();
        self.shops.retain(|known| known.key != shop && is_recent(known));
        if self.shops.len() == SHOPS {
            self.shops.remove(0);
        }
        let unknown = Shop { key: shop, seen_at: now, refusals: 0, given_up: 0 };
        self.shops.push(Shop { seen_at: now, ..known.unwrap_or(unknown) });
        self.shops.last_mut().expect("BUG: a shop was added")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const FLOOD: u64 = 1_000;
    const HOUR_S: u64 = 3_600;

    /// Refuses a webhook and gives it up if that is allowed. Returns the number of dead letters.
    fn refuse(breaker: &mut RefusalBreaker, shop: u64, now: Duration) -> usize {
        breaker.on_refusal(shop, now);
        let may = breaker.may_give_up(shop);
        if may {
            breaker.mark_given_up(shop);
        }
        usize::from(may)
    }

    /// Refusals a second of the flood, and one a second of ten other shops together, for an hour
    /// after `healthy` seconds; probes only while the circuit breaker is open.
    fn dead_letters_of_a_bad_deploy(per_second: u32, healthy: u64) -> usize {
        let mut breaker = RefusalBreaker::default();
        let mut dead = 0;
        for second in 0..healthy + HOUR_S {
            let now = Duration::from_secs(second);
            let is_bad = second >= healthy;
            let burst = if breaker.is_open() { 1 } else { per_second };
            for number in 0..burst {
                let now = now + SECOND / per_second * number;
                match is_bad {
                    true => dead += refuse(&mut breaker, FLOOD, now),
                    false => breaker.on_success(FLOOD, now),
                }
            }
            match is_bad {
                true => dead += refuse(&mut breaker, second % 10, now),
                false => breaker.on_success(second % 10, now),
            }
            assert!(
                second < healthy + 60 || breaker.is_open(),
                "it is still closed after a minute"
            );
        }
        dead
    }

    #[test]
    fn a_bad_deploy_amid_one_shops_flood_costs_few_dead_letters() {
        for per_second in [300, 5_000] {
            for healthy in [0, 60] {
                let dead = dead_letters_of_a_bad_deploy(per_second, healthy);
                assert!(dead <= 200, "{dead} at {per_second}/s after {healthy} s");
            }
        }
    }

    #[test]
    fn a_bad_deploy_amid_ten_floods_and_rare_others_costs_few_dead_letters() {
        let mut breaker = RefusalBreaker::default();
        (0..SHOPS as u64).for_each(|shop| breaker.on_success(shop, SECOND));
        let refused = (0..100_000).map(|number| refuse(&mut breaker, number % 10, 2 * SECOND));
        let dead: usize = refused.sum();
        assert!(dead <= 200, "{dead}");
    }

    #[test]
    fn a_bad_deploy_of_a_thousand_shops_opens_it_with_the_first_half_of_those_judged() {
        let mut breaker = RefusalBreaker::default();
        (0..1_000).for_each(|shop| breaker.on_success(shop, SECOND));
        let opened = (0..1_000).position(|shop| breaker.on_refusal(shop, SECOND));
        assert_eq!(opened, Some(SHOPS / 2));
    }

    #[test]
    fn bad_data_of_one_shop_among_healthy_ones_is_given_up_at_the_pace_of_their_successes() {
        let mut breaker = RefusalBreaker::default();
        let mut left = 10_000;
        let mut successes = 0;
        while left > 0 {
            let now = SECOND * successes;
            breaker.on_success(u64::from(successes % 10), now);
            let given_up: usize = (0..300).map(|_| refuse(&mut breaker, FLOOD, now)).sum();
            assert_eq!(given_up, usize::try_from(CREDIT).unwrap());
            left -= given_up.min(left);
            successes += 1;
            assert!(!breaker.is_open());
        }
        assert_eq!(successes, 10_000_u32.div_ceil(CREDIT));
    }

    #[test]
    fn bad_data_of_one_shop_does_not_open_it_where_one_other_succeeds_every_half_minute() {
        let mut breaker = RefusalBreaker::default();
        for second in 0..HOUR_S {
            if second % 30 == 0 {
                breaker.on_success(1, Duration::from_secs(second));
            }
            for _ in 0..300 {
                assert!(!breaker.on_refusal(FLOOD, Duration::from_secs(second)));
            }
        }
    }

    #[test]
    fn a_shop_that_was_healthy_within_the_hour_counts_though_it_is_silent() {
        let mut breaker = RefusalBreaker::default();
        breaker.on_success(2, SECOND);
        let late = |second: u64| Duration::from_secs(second + 1);
        for second in 0..HOUR_S {
            assert!(!(0..300).any(|_| breaker.on_refusal(1, late(second))), "{second}");
        }
        assert!(breaker.on_refusal(1, late(HOUR_S)));
    }

    #[test]
    fn a_few_refusals_of_the_only_other_shop_may_be_chance() {
        let mut breaker = RefusalBreaker::default();
        breaker.on_success(2, SECOND);
        assert!(!(0..300).any(|_| breaker.on_refusal(1, SECOND)));
        let opened = (0..100).position(|_| breaker.on_refusal(2, SECOND));
        assert_eq!(opened, Some(REFUSALS_CERTAIN / 2 - 1));
    }

    #[test]
    fn one_bad_webhook_of_each_of_a_few_shops_does_not_open_it() {
        let mut breaker = RefusalBreaker::default();
        assert!(!(0..6).any(|shop| breaker.on_refusal(shop, SECOND)));
    }

    #[test]
    fn an_app_with_one_shop_has_a_circuit_breaker_too() {
        let mut breaker = RefusalBreaker::default();
        let mut dead = 0;
        for number in 0..500 {
            let is_opened = !breaker.is_open() && breaker.on_refusal(1, SECOND);
            assert_eq!(is_opened, number == 99, "{number}");
            if breaker.may_give_up(1) {
                breaker.mark_given_up(1);
                dead += 1;
            }
        }
        assert_eq!(dead, CREDIT);
        breaker.on_success(1, SECOND);
        assert!(!breaker.is_open() && breaker.may_give_up(1));
        assert!(!(0..98).any(|_| breaker.on_refusal(1, SECOND)));
    }

    #[test]
    fn an_app_with_one_shop_gives_its_bad_data_up_at_the_pace_of_its_successes() {
        let mut breaker = RefusalBreaker::default();
        for _ in 0..1_000 {
            breaker.on_success(1, SECOND);
            assert_eq!(refuse(&mut breaker, 1, SECOND), 1);
        }
    }

    #[test]
    fn it_closes_with_the_first_success_and_the_shops_are_judged_anew() {
        let mut breaker = RefusalBreaker::default();
        assert!((0..90).any(|number| breaker.on_refusal(number % 9, SECOND)));
        assert!(!breaker.may_give_up(1));
        breaker.on_success(1, SECOND);
        assert!(!breaker.is_open());
        assert!(!breaker.on_refusal(2, SECOND));
        assert!(breaker.may_give_up(2));
    }
}
