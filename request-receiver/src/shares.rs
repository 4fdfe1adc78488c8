//! Shops that take too much of the queue.
//!
//! Their webhooks are answered 503 until less of theirs waits. So one failing or paused shop can't
//! fill Redis for all.
//!
//! The leader of a consumer publishes which shops take much of what waits
//! ([`spillway_queue::shares`]). The watch over Redis reads it with each look. If nothing was
//! published lately, nothing is delivered. Then the queue fills for all shops alike, and no shop is
//! refused for its share.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use http::HeaderMap;
use prometheus::IntGauge;
use spillway_process::error::chain;
use spillway_queue::QueueError;
use spillway_queue::shares::{FRESH_FOR, large_shops};
use spillway_queue::status::CellStatus;
use spillway_webhook::shopify::{Headers, is_barrier, is_compliance, is_topic_match};
use spillway_webhook::stable_hash;
use tokio::time::Instant;

use crate::reply::Refusal;
use crate::settings::ShopLimit;

/// Percentage of its limit below which a shop that was over is accepted again. At the limit itself
/// the shop would be refused and accepted in turn.
const UNDER_PERCENT: u64 = 90;

/// Shops over their limit, as every connection sees them.
#[derive(Debug)]
pub struct ShopShares {
    is_any_over: AtomicBool,
    over: ArcSwap<HashMap<u64, ShareLevel>>,
    priority_topics: Vec<String>,
}

/// Limit that a shop is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShareLevel {
    /// The one of `SHOP_MAX_QUEUED`. Priority topics are stored.
    Over,
    /// The one of priority topics, halfway from there to all of the memory. Otherwise they alone could
    /// fill it.
    FarOver,
}

/// Finds out which shops are over their limit.
pub struct Judge {
    limit: ShopLimit,
    /// Shops that are over their limit, by hash, with their names.
    over: BTreeMap<u64, (ShareLevel, String)>,
    shown: Arc<ShopShares>,
    gauge: IntGauge,
    judged_at: Instant,
    /// True if published shares could not be read the last time.
    is_unreadable: bool,
}

impl Default for ShopShares {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl ShopShares {
    /// No shop is over its limit. These topics have a higher one.
    pub fn new(priority_topics: Vec<String>) -> Self {
        Self { is_any_over: AtomicBool::new(false), over: ArcSwap::default(), priority_topics }
    }

    /// Checks if a verified webhook with these headers may be stored. Webhooks without a shop count
    /// as those of one shop, as they do for the consumer.
    ///
    /// # Errors
    /// [`Refusal::ShopQueueFull`] if the shop is over its limit.
    pub fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        if !self.is_any_over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let shop = stable_hash::of(&[headers.shop().unwrap_or_default()]);
        let over = self.over.load();
        let Some(level) = over.get(&shop) else { return Ok(()) };
        let topic = headers.topic().unwrap_or_default();
        let is_priority = self.priority_topics.iter().any(|one| is_topic_match(one, &topic));
        let is_stored = is_compliance(&topic)
            || is_barrier(&topic)
            || (*level == ShareLevel::Over && is_priority);
        if is_stored { Ok(()) } else { Err(Refusal::ShopQueueFull) }
    }

    pub(crate) fn show(&self, over: HashMap<u64, ShareLevel>) {
        let is_any_over = !over.is_empty();
        self.over.store(Arc::new(over));
        self.is_any_over.store(is_any_over, Ordering::Relaxed);
    }
}

impl Judge {
    /// Judge that publishes its findings in `shown` and `gauge`.
    pub fn new(limit: ShopLimit, shown: Arc<ShopShares>, gauge: IntGauge) -> Self {
        Self {
            limit,
            over: BTreeMap::new(),
            shown,
            gauge,
            judged_at: Instant::now(),
            is_unreadable: false,
        }
    }

    /// Judges all shops by the status that Redis returned.
    pub fn look(&mut self, status: &CellStatus) {
        self.judged_at = Instant::now();
        let mut over = BTreeMap::new();
        let mut error = None;
        for consumer in &status.consumers {
            match large_shops(status, consumer) {
                Ok(shops) => {
                    let limit_bytes = status.queue.limit_bytes;
                    let shops = shops.into_iter();
                    for shop in shops {
                        let hash = shop.share.hash;
                        let Some(level) = self.level(hash, shop.bytes, limit_bytes) else {
                            continue;
                        };
                        let (most, _) = over.entry(hash).or_insert((level, shop.share.shop));
                        *most = level.max(*most);
                    }
                }
                Err(unreadable) => error = Some(unreadable),
            }
        }
        self.report(error.as_ref());
        self.found(over);
    }

    /// Handles a failed look. All shops are under their limit once the last status is older than
    /// [`FRESH_FOR`].
    pub fn look_failed(&mut self) {
        if self.judged_at.elapsed() > FRESH_FOR {
            self.found(BTreeMap::new());
        }
    }

    /// Limit that a shop is over, or was over and is not far enough below yet. Without `maxmemory` there
    /// is none.
    fn level(&self, shop: u64, bytes: u64, limit_bytes: u64) -> Option<ShareLevel> {
        let percent = self.limit.queued_percent;
        if limit_bytes == 0 || percent >= 100 {
            return None;
        }
        let before = self.over.get(&shop).map(|(level, _)| *level);
        // Twice the percentage, so that half of one is exact.
        let is_over = |twice_percent: u64, level: ShareLevel| {
            let part = twice_percent * if before >= Some(level) { UNDER_PERCENT } else { 100 };
            u128::from(bytes) * 200 * 100 >= u128::from(limit_bytes) * u128::from(part)
        };
        if is_over(percent + 100, ShareLevel::FarOver) {
            return Some(ShareLevel::FarOver);
        }
        is_over(2 * percent, ShareLevel::Over).then_some(ShareLevel::Over)
    }

    /// Logs an error unless the last look had one, too. Returns true if it was logged.
    fn report(&mut self, error: Option<&QueueError>) -> bool {
        let was_unreadable = std::mem::replace(&mut self.is_unreadable, error.is_some());
        match error {
            Some(error) if !was_unreadable => {
                tracing::warn!(error = chain(error), "shares of shops could not be read");
                true
            }
            _ => false,
        }
    }

    fn found(&mut self, over: BTreeMap<u64, (ShareLevel, String)>) {
        for (hash, (level, shop)) in &over {
            let before = self.over.get(hash).map(|(level, _)| *level);
            let hash = format!("{hash:016x}");
            match level {
                ShareLevel::FarOver if before != Some(*level) => tracing::warn!(
                    shop,
                    hash,
                    "a shop is far over SHOP_MAX_QUEUED: its PRIORITY_TOPICS are refused, too"
                ),
                ShareLevel::Over if before.is_none() => tracing::warn!(
                    shop,
                    hash,
                    "a shop is over SHOP_MAX_QUEUED: its webhooks are refused"
                ),
                _ => {}
            }
        }
        for (hash, (_, shop)) in self.over.iter().filter(|(hash, _)| !over.contains_key(hash)) {
            let hash = format!("{hash:016x}");
            tracing::info!(shop, hash, "a shop is below SHOP_MAX_QUEUED again");
        }
        if over != self.over {
            self.shown.show(over.iter().map(|(hash, (level, _))| (*hash, *level)).collect());
        }
        self.gauge.set(i64::try_from(over.len()).unwrap_or(i64::MAX));
        self.over = over;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use spillway_queue::status::{ConsumerStatus, LeaderNotes, QueueStatus};

    use super::*;

    const MIB: u64 = 1 << 20;
    const NOW_MS: u64 = 1_000_000_000;
    const SHOP: &str = "a.myshopify.com";

    fn judge(queued_percent: u64) -> Judge {
        let priority_topics = vec!["orders/*".to_owned()];
        let shown = Arc::new(ShopShares::new(priority_topics.clone()));
        let gauge = IntGauge::new("shops", "shops").expect("a valid name");
        Judge::new(ShopLimit { queued_percent, priority_topics }, shown, gauge)
    }

    fn hash() -> u64 {
        stable_hash::of(&[SHOP.as_bytes()])
    }

    /// A queue of 1,000 webhooks in 1,000 MiB, of which `of_shop` belong to the shop.
    fn status(used_mib: u64, of_shop: u64) -> CellStatus {
        let json = format!(
            r#"{{"waiting":1000,"shops":[{{"hash":"{:016x}","shop":"{SHOP}","waiting":{of_shop}}}]}}"#,
            hash()
        );
        let queue = QueueStatus {
            webhooks: 1000,
            bytes: used_mib * MIB,
            limit_bytes: 1000 * MIB,
            ..QueueStatus::default()
        };
        let notes = LeaderNotes { shares: format!("{NOW_MS} {json}"), ..LeaderNotes::default() };
        let consumer = ConsumerStatus { notes, ..ConsumerStatus::default() };
        CellStatus { queue, consumers: vec![consumer], now_ms: NOW_MS }
    }

    fn headers(shop: &str, topic: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-shopify-shop-domain", shop.parse().expect("a header value"));
        headers.insert("x-shopify-topic", topic.parse().expect("a header value"));
        headers
    }

    fn is_refused(judge: &Judge, shop: &str, topic: &str) -> bool {
        judge.shown.admit(&headers(shop, topic)) == Err(Refusal::ShopQueueFull)
    }

    fn is_over(judge: &Judge) -> bool {
        let is_over = judge.over.contains_key(&hash());
        assert_eq!(is_refused(judge, SHOP, "products/update"), is_over);
        assert_eq!(judge.gauge.get(), i64::from(is_over));
        is_over
    }

    #[test]
    fn a_shop_is_over_at_its_part_of_the_memory_and_under_below_nine_tenths_of_it() {
        let mut judge = judge(50);
        for (used_mib, of_shop, expected) in [
            (600, 800, false), // 48 %
            (624, 800, false),
            (625, 800, true), // 50 %
            (600, 800, true),
            (563, 800, true), // 45 %
            (562, 800, false),
            (600, 800, false),
            (1000, 500, true),
            (1000, 449, false),
            (1000, 499, false),
        ] {
            judge.look(&status(used_mib, of_shop));
            assert_eq!(is_over(&judge), expected, "{used_mib} MiB, {of_shop}");
        }
    }

    #[test]
    fn only_the_shop_itself_is_refused_and_what_must_not_wait_is_stored() {
        let mut judge = judge(50);
        judge.look(&status(700, 900));
        assert!(is_over(&judge));
        assert!(!is_refused(&judge, "b.myshopify.com", "products/update"));
        assert!(is_refused(&judge, SHOP, "products/update"));
        assert!(is_refused(&judge, SHOP, "customers/update"));
        for topic in [
            "customers/redact",
            "customers/data_request",
            "shop/redact",
            "app/uninstalled",
            "orders/create",
        ] {
            assert!(!is_refused(&judge, SHOP, topic), "{topic}");
        }
    }

    #[test]
    fn a_shop_far_over_its_limit_has_its_priority_topics_refused_too() {
        let mut judge = judge(50);
        for (used_mib, of_shop, expected) in [
            (999, 750, false), // 74.9 %
            (1000, 750, true), // 75 %
            (999, 750, true),
            (900, 750, true), // 67.5 %
            (899, 750, false),
            (999, 750, false),
            (1000, 1000, true),
            (460, 1000, false), // still over its limit
            (1000, 1000, true),
        ] {
            judge.look(&status(used_mib, of_shop));
            assert!(is_over(&judge));
            assert_eq!(is_refused(&judge, SHOP, "orders/create"), expected, "{used_mib}");
            assert!(!is_refused(&judge, "b.myshopify.com", "orders/create"));
            for topic in ["customers/redact", "shop/redact", "app/uninstalled"] {
                assert!(!is_refused(&judge, SHOP, topic), "{topic}");
            }
        }
    }

    #[test]
    fn the_consumer_for_which_most_of_a_shop_waits_decides() {
        for shares in [[900, 600], [600, 900]] {
            let mut judge = judge(50);
            let mut both = status(900, 900);
            both.consumers = shares.map(|of_shop| status(900, of_shop).consumers.remove(0)).into();
            judge.look(&both);
            assert!(is_over(&judge));
            assert!(is_refused(&judge, SHOP, "orders/create"), "{shares:?}");
        }
    }

    #[test]
    fn without_a_bound_or_maxmemory_nothing_is_refused() {
        let full = status(1000, 1000);
        let mut unbounded = judge(100);
        unbounded.look(&full);
        assert!(!is_over(&unbounded));
        let mut judge = judge(50);
        let queue = QueueStatus { limit_bytes: 0, ..full.queue.clone() };
        judge.look(&CellStatus { queue, ..full.clone() });
        assert!(!is_over(&judge));
        judge.look(&full);
        assert!(is_over(&judge));
    }

    #[test]
    fn what_else_fills_redis_is_not_the_shops() {
        let mut judge = judge(50);
        // Dead letters.
        let mut dead = status(900, 1000);
        dead.consumers[0].dead.bytes = 500 * MIB;
        judge.look(&dead);
        assert!(!is_over(&judge));
        // Another consumer has a large backlog.
        let mut lag = status(900, 1000);
        lag.queue.webhooks = 100_000;
        judge.look(&lag);
        assert!(!is_over(&judge));
        // Webhooks that were moved into lanes count, too.
        let mut moved = status(900, 1000);
        moved.consumers[0].parked = 1000;
        judge.look(&moved);
        assert!(!is_over(&judge));
        // Few webhooks do not count as much memory.
        let mut few = status(900, 400);
        let shares = &mut few.consumers[0].notes.shares;
        *shares = shares.replace(":1000,", ":400,");
        few.queue.webhooks = 400;
        judge.look(&few);
        assert!(!is_over(&judge));
    }

    #[test]
    fn old_shares_are_ignored() {
        let mut judge = judge(50);
        let full = status(900, 900);
        for (now_ms, expected) in [
            (NOW_MS + 60_000, true),
            (NOW_MS + 60_001, false),
            (NOW_MS, true),
            (NOW_MS - 60_001, false),
        ] {
            judge.look(&CellStatus { now_ms, ..full.clone() });
            assert_eq!(is_over(&judge), expected, "{now_ms}");
        }
    }

    #[test]
    fn shares_that_cannot_be_read_are_ignored_and_reported_once() {
        let mut judge = judge(50);
        let full = status(900, 900);
        judge.look(&full);
        assert!(is_over(&judge) && !judge.is_unreadable);
        let mut bad = full.clone();
        bad.consumers[0].notes.shares = format!("{NOW_MS} {{");
        let error = large_shops(&bad, &bad.consumers[0]).expect_err("it is no JSON");
        judge.look(&bad);
        assert!(!is_over(&judge) && judge.is_unreadable);
        assert!(!judge.report(Some(&error)), "it was reported before");
        judge.look(&full);
        assert!(is_over(&judge) && !judge.is_unreadable);
        assert!(judge.report(Some(&error)), "it is news again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_is_forgotten_while_redis_does_not_answer() {
        let mut judge = judge(50);
        judge.look(&status(900, 900));
        tokio::time::advance(FRESH_FOR).await;
        judge.look_failed();
        assert!(is_over(&judge));
        tokio::time::advance(Duration::from_millis(1)).await;
        judge.look_failed();
        assert!(!is_over(&judge));
    }
}
