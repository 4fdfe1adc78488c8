//! Duplicates: what was certainly sent twice is delivered once, and nothing else is dropped.

use std::sync::Arc;
use std::time::Duration;

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::client::{Connection, post};
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(60);
/// Number of other webhooks of the connection between an original and its copy.
const COPY_AFTER: usize = 20;

/// Number of webhooks. One in ten is sent twice.
fn webhooks() -> u64 {
    size(10_000, 100_000)
}

/// These products, and an exact copy of every tenth of them some time later.
fn with_copies(resources: std::ops::Range<u64>, connections: u64) -> Vec<(Event, Webhook)> {
    let mut items = Vec::new();
    let mut due: Vec<(usize, Event, Webhook)> = Vec::new();
    let after = COPY_AFTER * connections as usize;
    for (place, resource) in resources.enumerate() {
        let event = Event { resource, sequence: 1 };
        let webhook = shop::webhook(resource % 50, "products/update", event);
        if resource % 10 == 0 {
            due.push((place + after, event, webhook.clone()));
        }
        items.push((event, webhook));
        while due.first().is_some_and(|(at, ..)| *at <= place) {
            let (_, event, copy) = due.remove(0);
            items.push((event, copy));
        }
    }
    items.extend(due.into_iter().map(|(_, event, copy)| (event, copy)));
    items
}

async fn expect_duplicates(downstreamer: &Service, count: u64) {
    let what = format!("{count} duplicates are counted");
    until(&what, SOON, async || {
        downstreamer.metric("spillway_duplicates_total").await == Some(count as f64)
    })
    .await;
}

async fn empty(redis: &RedisServer) {
    let is_empty = async || redis.stream_len("{spillway}:in").await == 0;
    until("everything is settled", SOON, is_empty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenth_sent_twice_is_delivered_once_also_after_a_crash() {
    let count = webhooks();
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    let feed = Feed::to(receiver.address(), &ledger);
    // The first half waits together with its copies. In the second half, most originals are
    // delivered and settled before their copies come.
    feed.store(with_copies(1..count / 2 + 1, feed.connections)).await;
    let mut downstreamer = cell.downstreamer(&backend, &[]).await;
    feed.store(with_copies(count / 2 + 1..count + 1, feed.connections)).await;
    ledger.delivered_to(&backend, SOON).await;
    expect_duplicates(&downstreamer, count / 10).await;
    empty(&redis).await;
    say(&format!("duplicates: {count} and {} copies, {} deliveries", count / 10, backend.count()));
    assert_eq!(backend.count() as u64, count, "requests, of which each webhook has one");

    downstreamer.kill9();
    downstreamer.restart();
    let copies = (10..=count).step_by(10).map(|resource| {
        let event = Event { resource, sequence: 1 };
        (event, shop::webhook(resource % 50, "products/update", event))
    });
    feed.store(copies.collect()).await;
    // A new webhook after them.
    let new = Event { resource: count + 1, sequence: 1 };
    feed.store_in_turn(vec![(new, shop::webhook(1, "products/update", new))]).await;
    ledger.delivered_to(&backend, SOON).await;
    expect_duplicates(&downstreamer, count / 10).await;
    empty(&redis).await;
    say(&format!("duplicates: {} more after a crash, {} deliveries", count / 10, backend.count()));
    assert_eq!(backend.count() as u64, count + 1, "a crash makes it forget");
}

/// Two webhooks, and if the second is a duplicate.
struct Pair {
    what: &'static str,
    first: Webhook,
    second: Webhook,
    is_duplicate: bool,
}

fn pair(
    what: &'static str,
    is_duplicate: bool,
    first: impl Fn(Webhook) -> Webhook,
    second: impl Fn(Webhook) -> Webhook,
) -> Pair {
    let first = first(Webhook::any().header("X-Pair", what));
    let second = second(first.clone());
    Pair { what, first, second, is_duplicate }
}

/// All differences that distinguish two webhooks, and some that do not.
fn pairs() -> Vec<Pair> {
    let same = |webhook: Webhook| webhook;
    let by_event = |webhook: Webhook| {
        let id = format!("{:032x}", rand::random::<u128>());
        webhook.without("X-Shopify-Webhook-Id").header("X-Shopify-Event-Id", id)
    };
    let with_event = |webhook: Webhook| webhook.header("X-Shopify-Event-Id", "one-merchant-action");
    vec![
        pair("equal", true, same, same),
        pair("sent later", true, same, |w| {
            w.with("X-Shopify-Triggered-At", stories::webhook::now())
        }),
        pair("another body", false, with_event, |w| w.body("{\"id\":1,\"title\":\"other\"}")),
        pair("another topic", false, same, |w| w.topic("products/create")),
        pair("another shop", false, same, |w| w.with("X-Shopify-Shop-Domain", shop::domain(7))),
        pair("another path", false, same, |w| w.to("/webhooks/other")),
        pair("another query", false, same, |w| w.to("/webhooks?other")),
        pair("another name", false, same, |w| w.header("X-Shopify-Name", "second-subscription")),
        pair("another webhook id", false, with_event, |w| {
            w.with("X-Shopify-Webhook-Id", "another-webhook-id")
        }),
        pair("equal by event id", true, by_event, same),
        pair("another event id", false, by_event, |w| {
            w.with("X-Shopify-Event-Id", "another-event-id")
        }),
        pair("no id at all", false, |w| w.without("X-Shopify-Webhook-Id"), same),
    ]
}

/// Stores the first webhook of each pair, then the second of each. Waits until the expected number
/// is delivered.
async fn deliver(pairs: &[Pair], settings: &[(&str, &str)], expected: usize) -> (Backend, f64) {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let downstreamer = cell.downstreamer(&backend, settings).await;
    for pair in pairs {
        post(receiver.address(), &pair.first).await.expect_stored();
    }
    for pair in pairs {
        post(receiver.address(), &pair.second).await.expect_stored();
    }
    let arrived = async || backend.count() >= expected;
    until(&format!("{expected} are delivered"), Duration::from_secs(20), arrived).await;
    empty(&redis).await;
    let dropped = downstreamer.metric("spillway_duplicates_total").await.unwrap_or(0.0);
    (backend, dropped)
}

fn arrived(backend: &Backend, what: &str) -> usize {
    let of_pair = |receipts: &[stories::receipt::Receipt]| {
        receipts.iter().filter(|receipt| receipt.header("X-Pair") == what).count()
    };
    backend.look(of_pair)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_is_one_in_shop_topic_path_name_id_and_body() {
    let pairs = pairs();
    let duplicates = pairs.iter().filter(|pair| pair.is_duplicate).count();
    let expected = 2 * pairs.len() - duplicates;
    let (backend, dropped) = deliver(&pairs, &[], expected).await;
    for pair in &pairs {
        let wanted = if pair.is_duplicate { 1 } else { 2 };
        assert_eq!(arrived(&backend, pair.what), wanted, "{}", pair.what);
    }
    assert_eq!(dropped, duplicates as f64);
    say(&format!("duplicates: {duplicates} of {} pairs were one webhook", pairs.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_window_both_are_delivered() {
    let pairs = pairs();
    let (backend, dropped) = deliver(&pairs, &[("DEDUP_WINDOW", "0")], 2 * pairs.len()).await;
    for pair in &pairs {
        assert_eq!(arrived(&backend, pair.what), 2, "{}", pair.what);
    }
    assert_eq!(dropped, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_one_that_is_retried_waits_with_it_and_is_dropped_then() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|receipt| Behaviour::status(if receipt.attempt() <= 4 { 500 } else { 200 }));
    let receiver = cell.receiver(&[]).await;
    let downstreamer = cell.downstreamer(&backend, &[]).await;
    let webhook = Webhook::any();
    let mut connection = Connection::to(receiver.address()).await;
    connection.post(&webhook).await.expect_stored();
    until("it was tried", SOON, async || backend.count() >= 1).await;
    connection.post(&webhook).await.expect_stored();
    until("it is delivered", SOON, async || backend.delivered() == 1).await;
    empty(&redis).await;
    expect_duplicates(&downstreamer, 1).await;
    assert_eq!(backend.count(), 5, "four failures and a success");
}
