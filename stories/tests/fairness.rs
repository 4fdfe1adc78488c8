//! A flood of one shop affects only that shop: the others hardly notice, and shares are equal.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::feed::{Feed, Trickle};
use stories::ledger::{Event, Ledger};
use stories::measure::{delays, delivered_in, jain, percentile, rate};
use stories::receipt::Receipt;
use stories::report::say;
use stories::shop;
use stories::until::until;
use stories::webhook::Webhook;
use tokio::time::{sleep, sleep_until};

/// Number of the flooding shop; the others are 1 to 50.
const FLOODING: u64 = 0;
const FLOOD: u64 = 20_000;
/// An order of the flooding shop, sent after its flood.
const LAST_ORDER: Event = Event { resource: 100_000, sequence: 1 };
const OTHERS: Trickle = Trickle {
    shops: 1..51,
    topics: &["products/update", "orders/create"],
    every: Duration::from_secs(1),
    first_resource: 1_000_000,
};

/// Workers of the backend, which handles 320 webhooks per second.
const WORKERS: usize = 16;
const WORK: Duration = Duration::from_millis(50);

const WARM_UP: Duration = Duration::from_secs(2);
const CALM: Duration = Duration::from_secs(8);
const FLOODED: Duration = Duration::from_secs(12);

/// Promised limit: a flood of another shop makes deliveries at most three times slower.
const SLOWER_MAX: f64 = 3.0;
/// Memory that a flood of this size may add: decoded packs, the index, and the allocator's slack.
const GROWTH_BYTES_MAX: u64 = 64 << 20;

fn flood(webhooks: u64) -> Vec<(Event, Webhook)> {
    let events = (1..=webhooks).map(|resource| Event { resource, sequence: 1 });
    events.map(|event| (event, shop::webhook(FLOODING, "products/update", event))).collect()
}

fn of_flood(receipt: &Receipt) -> bool {
    receipt.shop() == shop::domain(FLOODING)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_one_shop_delays_no_other() {
    let cell = Cell::alone();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.employ(WORKERS);
    backend.behave(|_| Behaviour::slowly(WORK));
    let receiver = cell.receiver(&[]).await;
    let downstreamer = cell.downstreamer(&backend, &[]).await;
    let ledger = Arc::new(Ledger::default());
    let feed = Feed::to(receiver.address(), &ledger);
    let others = feed.trickle(&OTHERS);
    sleep(WARM_UP).await;
    let calm = Instant::now()..Instant::now() + CALM;
    let webhooks = flood(FLOOD);
    sleep_until(calm.end.into()).await;

    let before = downstreamer.resident_bytes();
    let flooded = Instant::now()..Instant::now() + FLOODED;
    feed.store(webhooks).await;
    let stored_in = flooded.start.elapsed();
    let order = shop::webhook(FLOODING, "orders/create", LAST_ORDER);
    feed.store_in_turn(vec![(LAST_ORDER, order)]).await;
    sleep_until(flooded.end.into()).await;
    others.stop().await;
    let grown = downstreamer.resident_bytes().saturating_sub(before);
    let accepted = ledger.stored_count() - FLOOD as usize;
    let not_flood =
        || backend.look(|all| all.iter().filter(|one| one.delivered() && !of_flood(one)).count());
    until("what the others sent is delivered", Duration::from_secs(60), async || {
        not_flood() >= accepted - 1
    })
    .await;

    let receipts = backend.receipts();
    let flowed = delivered_in(&receipts, &flooded).count();
    let of_flood = delivered_in(&receipts, &flooded).filter(|one| of_flood(one)).count();
    let per_second = rate(flowed, &flooded);
    say(&format!(
        "fairness: {FLOOD} of one shop stored in {stored_in:?}, {of_flood} of them delivered in \
         {FLOODED:?}, all in all {per_second:.0}/s; memory grew by {} KiB",
        grown >> 10
    ));
    let slower =
        OTHERS.topics.iter().map(|topic| slower(topic, &ledger, &receipts, [&calm, &flooded]));
    let slower: Vec<f64> = slower.collect();
    let order_came = receipts.iter().find(|one| one.webhook_id() == LAST_ORDER.webhook_id());
    let order_came = order_came.and_then(|one| one.answered).expect("its order is delivered");
    say(&format!("fairness: its own order after {:?}", order_came - flooded.start - stored_in));
    assert!(of_flood < FLOOD as usize / 2, "the flood ended too early: {of_flood}");
    assert!(slower.iter().all(|slower| *slower <= SLOWER_MAX), "{slower:?} times as long");
    assert!(order_came < flooded.end, "an order waits behind the products of its shop");
    let most = WORKERS as f64 / WORK.as_secs_f64();
    assert!(per_second >= 0.75 * most, "{per_second:.0}/s of {most:.0}/s: places stand empty");
    assert!(grown <= GROWTH_BYTES_MAX, "{} MiB", grown >> 20);
}

/// Ratio of the others' waiting times (p99) of a topic: second window to first window.
fn slower(
    topic: &str,
    ledger: &Ledger,
    receipts: &[Receipt],
    windows: [&Range<Instant>; 2],
) -> f64 {
    let meant = |receipt: &Receipt| !of_flood(receipt) && receipt.topic() == topic;
    let [calm, flooded] = windows.map(|window| delays(ledger, receipts, window, meant));
    let [p50, p99] = [0.5, 0.99].map(|part| [&calm, &flooded].map(|some| percentile(some, part)));
    say(&format!(
        "fairness, {topic}: {} calm, {} flooded; p50 {:?}, flooded {:?}; p99 {:?}, flooded {:?}",
        calm.len(),
        flooded.len(),
        p50[0],
        p50[1],
        p99[0],
        p99[1],
    ));
    p99[1].as_secs_f64() / p99[0].as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shops_with_a_backlog_get_equal_shares() {
    const SHOPS: u64 = 8;
    const WINDOW: Duration = Duration::from_secs(5);
    let cell = Cell::alone();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.employ(WORKERS);
    backend.behave(|_| Behaviour::slowly(Duration::from_millis(20)));
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    // The first shop has 900 waiting webhooks, the last has 7,200, and the shops are stored one
    // after another. At 800 per second, none of them runs out within the window.
    let backlog = (0..SHOPS).rev().flat_map(|shop| {
        let resources = (0..900 * (shop + 1)).map(move |number| (shop + 1) * 10_000 + number);
        resources.map(move |resource| {
            let event = Event { resource, sequence: 1 };
            (event, shop::webhook(shop, "products/update", event))
        })
    });
    Feed::to(receiver.address(), &ledger).store(backlog.collect()).await;
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    let at_work = async || backend.delivered() >= 200;
    until("it is at work", Duration::from_secs(20), at_work).await;
    let window = Instant::now()..Instant::now() + WINDOW;
    sleep_until(window.end.into()).await;

    let receipts = backend.receipts();
    let mut shares: BTreeMap<&str, usize> = BTreeMap::new();
    for receipt in delivered_in(&receipts, &window) {
        *shares.entry(receipt.shop()).or_default() += 1;
    }
    let shares: Vec<usize> = shares.into_values().collect();
    let index = jain(&shares);
    say(&format!("fairness: shares {shares:?} of {WINDOW:?}, Jain's index {index:.4}"));
    assert_eq!(shares.len(), SHOPS as usize, "a shop got nothing");
    assert!(index >= 0.95, "{index}");
}
