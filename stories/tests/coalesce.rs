//! Coalescing: if the backend is slow, the newest state of a resource replaces the older ones.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::feed::Feed;
use stories::latest::check_latest;
use stories::ledger::{Event, Ledger};
use stories::receipt::Receipt;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(60);

const PRODUCTS: u64 = 200;
const UPDATES: u64 = 100;
/// Products up to this number are deleted amid their updates, and created again.
const DELETED: u64 = 20;
const DELETE_AT: u64 = 50;
/// Orders, whose numbers follow those of the products. Each changes three times.
const ORDERS: std::ops::RangeInclusive<u64> = 1001..=1020;
const CHANGES: u64 = 3;

/// All updates of all products, round by round, with a few deletes and orders among them.
fn updates() -> Vec<(Event, Webhook)> {
    let mut items = Vec::new();
    for sequence in 1..=UPDATES {
        for resource in 1..=PRODUCTS {
            let event = Event { resource, sequence };
            let is_delete = resource <= DELETED && sequence == DELETE_AT;
            let topic = if is_delete { "products/delete" } else { "products/update" };
            items.push((event, shop::webhook(resource % 10, topic, event)));
        }
        for resource in ORDERS.filter(|_| sequence <= CHANGES) {
            let event = Event { resource, sequence };
            items.push((event, shop::webhook(resource % 10, "orders/updated", event)));
        }
    }
    items
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_flood_of_updates_each_products_last_state_is_delivered() {
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.employ(8);
    backend.behave(|_| Behaviour::slowly(Duration::from_millis(50)));
    let receiver = cell.receiver(&[]).await;
    let topics = [("COALESCE_TOPICS", "products/update")];
    let downstreamer = cell.downstreamer(&backend, &topics).await;
    let ledger = Arc::new(Ledger::default());
    let webhooks = updates();
    let began = Instant::now();
    Feed::to(receiver.address(), &ledger).store(webhooks).await;
    let stored_in = began.elapsed();
    let is_empty = async || redis.stream_len("{spillway}:in").await == 0;
    until("everything is settled", SOON, is_empty).await;

    let receipts = backend.receipts();
    let found = check_latest(&ledger, &receipts, |_| true);
    found.print("coalesce");
    say(&format!("coalesce: stored in {stored_in:?}, empty after {:?}", began.elapsed()));
    found.expect_sound(0);
    assert_eq!(found.stood_for, found.stored, "a delivery says how many it stands for");
    assert!(found.delivered < found.stored / 4, "hardly anything was coalesced");
    let counted = downstreamer.metric("spillway_coalesced_total").await;
    assert_eq!(counted, Some((found.stored - found.delivered) as f64));
    expect_deletes_apart(&receipts);
    let orders = receipts.iter().filter(|receipt| receipt.topic() == "orders/updated");
    assert_eq!(orders.count() as u64, 20 * CHANGES, "another topic was coalesced");
}

/// Checks deletes: the states before and after a delete both arrive, and the delete is not
/// coalesced.
fn expect_deletes_apart(receipts: &[Receipt]) {
    let arrived: HashMap<Event, usize> = receipts
        .iter()
        .filter_map(|receipt| Some((Event::of(receipt.webhook_id())?, receipt.coalesced())))
        .collect();
    for resource in 1..=DELETED {
        let coalesced = |sequence| arrived.get(&Event { resource, sequence }).copied();
        assert_eq!(coalesced(DELETE_AT), Some(0), "the delete of {resource}");
        assert!(
            coalesced(DELETE_AT - 1).is_some(),
            "the last state of {resource} before its delete"
        );
        let after = (DELETE_AT + 1..=UPDATES).filter_map(coalesced);
        let stands_for: usize = after.map(|older| older + 1).sum();
        assert_eq!(stands_for as u64, UPDATES - DELETE_AT, "{resource}, made anew");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_levels_of_one_shop_are_coalesced_one_by_one_and_delivered_side_by_side() {
    const ITEMS: u64 = 10_000;
    const ROUNDS: u64 = 2;
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::slowly(Duration::from_millis(20)));
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    let rounds = (1..=ROUNDS)
        .flat_map(|sequence| (1..=ITEMS).map(move |resource| Event { resource, sequence }));
    Feed::to(receiver.address(), &ledger).store(rounds.map(stock_level).collect()).await;
    let topics = [("COALESCE_TOPICS", "inventory_levels/update")];
    let began = Instant::now();
    let downstreamer = cell.downstreamer(&backend, &topics).await;
    let last =
        async || backend.has_delivered(&Event { resource: ITEMS, sequence: ROUNDS }.webhook_id());
    until("the last level is delivered", SOON, last).await;
    until("no delivery is under way", SOON, async || {
        downstreamer.metric("spillway_queue_webhooks").await == Some(0.0)
    })
    .await;

    let receipts = backend.receipts();
    let found = check_latest(&ledger, &receipts, |_| true);
    found.print("coalesce, stock levels");
    say(&format!(
        "coalesce, stock levels: {:?}, {} at once",
        began.elapsed(),
        backend.in_flight_max()
    ));
    found.expect_sound(0);
    assert_eq!(found.stood_for, found.stored);
    let items: HashSet<u64> = receipts
        .iter()
        .filter_map(|receipt| Event::of(receipt.webhook_id()))
        .map(|event| event.resource)
        .collect();
    assert_eq!(items.len() as u64, ITEMS, "not one for each item");
    // Deliveries begin while the second round is still being read.
    assert!(found.delivered as u64 <= ITEMS + ITEMS / 2, "hardly any was coalesced");
    assert!(backend.in_flight_max() >= 32, "{} at once", backend.in_flight_max());
}

/// An inventory level as Shopify sends it: only the body contains the resource.
fn stock_level(event: Event) -> (Event, Webhook) {
    let Event { resource, sequence } = event;
    let (item, location) = (resource / 2 + 1, resource % 2 + 1);
    let body = format!(
        "{{\"inventory_item_id\":{item},\"location_id\":{location},\"available\":{sequence}}}"
    );
    (event, shop::webhook(1, "inventory_levels/update", event).body(body))
}

/// A cell that coalesces, for a few states of one product.
struct Product {
    redis: RedisServer,
    backend: Backend,
    feed: Feed,
    _receiver: Service,
    cell: Cell,
}

impl Product {
    async fn new() -> Self {
        let cell = Cell::shared();
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        let receiver = cell.receiver(&[]).await;
        let feed = Feed::to(receiver.address(), &Arc::new(Ledger::default()));
        Self { redis, backend, feed, _receiver: receiver, cell }
    }

    /// Stores these states of the product one by one.
    async fn states(&self, sequences: &[u64]) {
        let events = sequences.iter().map(|sequence| Event { resource: 1, sequence: *sequence });
        let states = events.map(|event| (event, shop::webhook(1, "products/update", event)));
        self.feed.store_in_turn(states.collect()).await;
    }

    async fn start(&self) -> Service {
        let topics = [("COALESCE_TOPICS", "products/update")];
        self.cell.downstreamer(&self.backend, &topics).await
    }

    /// States that the backend was sent, once everything is settled.
    async fn arrived(&self) -> Vec<u64> {
        let is_empty = async || self.redis.stream_len("{spillway}:in").await == 0;
        until("everything is settled", SOON, is_empty).await;
        self.backend.look(|all| all.iter().map(|one| one.event().sequence).collect())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_copy_of_an_old_state_is_never_taken_for_the_newest() {
    let product = Product::new().await;
    // The other states wait while the first delivery is under way.
    product.backend.behave(|_| Behaviour::slowly(Duration::from_secs(1)));
    let _downstreamer = product.start().await;
    product.states(&[1]).await;
    until("the first is under way", SOON, async || product.backend.count() == 1).await;
    // Shopify sends the second again, because it received no answer.
    product.states(&[2, 3, 2]).await;
    let arrived = product.arrived().await;
    say(&format!("coalesce: of 1, 2, 3 and 2 again came {arrived:?}"));
    assert_eq!(arrived.last(), Some(&3), "{arrived:?}");
    assert!(arrived.is_sorted(), "{arrived:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_copy_of_a_state_that_another_stood_for_is_dropped() {
    let product = Product::new().await;
    product.states(&[1, 2, 3]).await;
    let mut downstreamer = product.start().await;
    let arrived = product.arrived().await;
    assert_eq!(arrived.last(), Some(&3), "{arrived:?}");
    product.states(&[2]).await;
    assert_eq!(product.arrived().await, arrived, "an old state after the newest");
    downstreamer.kill9();
    downstreamer.restart();
    product.states(&[1, 4]).await;
    let since = product.arrived().await.split_off(arrived.len());
    assert_eq!(since, [4], "an old state after the newest, after a crash");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_copy_of_a_state_that_was_given_up_stands_for_no_newer_one() {
    const DEAD: &str = "{spillway}:http:dead";
    let product = Product::new().await;
    product.backend.behave(|_| Behaviour::status(400));
    let mut downstreamer = product.start().await;
    product.states(&[1]).await;
    let is_dead = async || product.redis.stream_len(DEAD).await == 1;
    until("the first is a dead letter", SOON, is_dead).await;
    // The third may wait with the copy.
    product.backend.behave(|_| Behaviour::slowly(Duration::from_secs(1)));
    downstreamer.kill9();
    // Shopify sends the first again, because it received no answer.
    product.states(&[2, 3, 1]).await;
    downstreamer.restart();
    let mut arrived = product.arrived().await;
    // The third may stand for the second.
    arrived.retain(|state| *state != 2);
    assert_eq!(arrived, [1, 3, 1], "the third is the newest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_state_stands_for_one_before_a_barrier() {
    let product = Product::new().await;
    product.states(&[1, 2, 3]).await;
    let redact = Event { resource: 2, sequence: 0 };
    let webhook = shop::webhook(1, "customers/redact", redact).body("{\"customer\":{\"id\":9}}");
    product.feed.store_in_turn(vec![(redact, webhook)]).await;
    product.states(&[4, 5, 6]).await;
    let _downstreamer = product.start().await;
    let arrived = product.arrived().await;
    say(&format!("coalesce: around a barrier (0) came {arrived:?}"));
    // The first delivery may be under way before the other states are read.
    assert!(arrived.ends_with(&[3, 0, 6]), "{arrived:?}");
}

#[tokio::test]
async fn topics_whose_every_event_counts_are_refused() {
    let cell = Cell::shared();
    let check = async |topics: &str| {
        let settings = [
            ("REDIS_URL", "unix:///nowhere/redis.sock"),
            ("DOWNSTREAM_APP_URL", "http://127.0.0.1:9/"),
            ("COALESCE_TOPICS", topics),
        ];
        let output = cell.run("downstreamer", &["--check"], &settings).await;
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for topics in [
        "products/create",
        "products/delete",
        "orders/create",
        "orders/paid",
        "orders/*",
        "customers/redact",
        "customers/data_request",
        "shop/redact",
        "app/uninstalled",
        "products/update,collections/delete",
    ] {
        let (code, errors) = check(topics).await;
        assert_eq!(code, Some(78), "{topics}: {errors}");
        let named = topics.rsplit(',').next().unwrap();
        assert!(errors.contains("COALESCE_TOPICS") && errors.contains(named), "{topics}: {errors}");
    }
    for topics in ["products/update", "products/update, inventory_levels/update"] {
        let (code, errors) = check(topics).await;
        assert_eq!(code, Some(0), "{topics}: {errors}");
    }
}
