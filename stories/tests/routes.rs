//! Several consumers of one cell, each with a filter: each target gets exactly its own webhooks, in
//! order, and waits for no other one.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::check::check;
use stories::client::post;
use stories::exactly_once;
use stories::feed::Feed;
use stories::kafka_topic::Topic;
use stories::ledger::{Event, Ledger};
use stories::redis_server::RedisServer;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::Webhook;
use tokio::time::sleep;

const TOPIC: &str = "shopify-webhooks";
const PARTITIONS: i32 = 2;
const SOON: Duration = Duration::from_secs(60);
/// Pause between two events of each resource in the full size, in which one backend is down for an hour.
const BETWEEN: Duration = Duration::from_millis(7_200);
/// Resources of each topic.
const RESOURCES: u64 = 20;
/// Topics, by the remainder of the resource's number.
const TOPICS: [&str; 3] = ["orders/updated", "products/update", "carts/update"];

fn topic_of(event: Event) -> &'static str {
    TOPICS[event.resource as usize % TOPICS.len()]
}

/// Events of all topics, the first events of all resources first.
fn events() -> Vec<Event> {
    let sequences = 1..=size(5, 500);
    let resources = 1..=RESOURCES * TOPICS.len() as u64;
    sequences
        .flat_map(|sequence| resources.clone().map(move |resource| Event { resource, sequence }))
        .collect()
}

async fn store(receiver: &Service, ledger: &Arc<Ledger>, events: &[Event]) {
    let of =
        |event: &Event| (*event, shop::webhook(1 + event.resource % 4, topic_of(*event), *event));
    Feed::to(receiver.address(), ledger).store(events.iter().map(of).collect()).await;
}

/// Webhooks that a consumer has not settled.
async fn waiting(cell: &Cell, consumer: &str) -> Value {
    let status = cell.spillway(&["status", "-o", "json"]).await;
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let consumers = status["consumers"].as_array().expect("consumers");
    let own = consumers.iter().find(|known| known["name"] == consumer);
    own.map_or(Value::Null, |own| own["waiting"].clone())
}

async fn is_empty_soon(redis: &RedisServer) {
    until("the queue is empty", SOON, async || redis.stream_len("{spillway}:in").await == 0).await;
}

/// Sends webhooks that none delivers until that is counted: from then on, the filters of all are known.
/// Returns how many were counted.
async fn know_each_other(receiver: &Service, redis: &RedisServer, first: &Service) -> f64 {
    let counted = async || first.metric("spillway_unmatched_webhooks_total").await.unwrap_or(0.0);
    let mut resource = 1_000_000;
    until("the filters of all are known", SOON, async || {
        resource += 1;
        let event = Event { resource, sequence: 1 };
        post(receiver.address(), &shop::webhook(1, "carts/update", event)).await.expect_stored();
        counted().await > 0.0
    })
    .await;
    is_empty_soon(redis).await;
    counted().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_consumer_gets_its_own_in_order_and_waits_for_no_other() {
    let cell = Cell::busy();
    let kafka = cell.kafka().await;
    kafka.topic(TOPIC, PARTITIONS, &[]).await;
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let (orders, rest) = (Backend::start().await, Backend::start().await);
    let of_orders =
        cell.downstreamer(&orders, &[("CONSUMER", "orders"), ("ONLY_TOPICS", "orders/*")]).await;
    let of_rest = cell.downstreamer(&rest, &[("EXCEPT_TOPICS", "carts/*")]).await;
    let audit = [("CONSUMER", "audit"), ("ONLY_TOPICS", "products/*,Product/*")];
    let of_kafka = cell.kafka_producer(&kafka, &audit);
    for consumer in [&of_orders, &of_rest, &of_kafka] {
        consumer.leads().await;
    }
    let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
    let counted = know_each_other(&receiver, &redis, &of_kafka).await;
    let excluded = async |consumer: &Service| {
        consumer.metric("spillway_excluded_webhooks_total").await.expect("it is shown")
    };
    let before = [excluded(&of_orders).await, excluded(&of_rest).await, excluded(&of_kafka).await];

    // One backend is down: the others get theirs, and only its own webhooks wait.
    orders.behave(|_| Behaviour::status(503));
    let ledger = Arc::new(Ledger::default());
    let all = events();
    for part in all.chunks(RESOURCES as usize * TOPICS.len()) {
        store(&receiver, &ledger, part).await;
        let delivered = 2 * ledger.stored_count() / TOPICS.len();
        until("the other backend has its own", SOON, async || rest.delivered() == delivered).await;
        sleep(BETWEEN.mul_f64(size(0.0, 1.0))).await;
    }
    let of = |topics: &[&str]| -> HashSet<Event> {
        all.iter().copied().filter(|event| topics.contains(&topic_of(*event))).collect()
    };
    let third = of(&TOPICS[..1]).len();
    topic.reaches(third, SOON).await;
    for (consumer, expected) in [("orders", third), ("http", 0), ("audit", 0)] {
        let what = format!("{expected} wait for {consumer}");
        until(&what, SOON, async || waiting(&cell, consumer).await == expected).await;
    }
    assert_eq!(orders.delivered(), 0);
    assert!(redis.stream_len("{spillway}:in").await > 0, "freed, and one backend is down");
    orders.behave(|_| Behaviour::ok());
    until("it has its own", SOON, async || orders.delivered() == third).await;
    is_empty_soon(&redis).await;

    for (backend, own, others) in
        [(&orders, &TOPICS[..1], &TOPICS[1..]), (&rest, &TOPICS[..2], &TOPICS[2..])]
    {
        let foreign = of(others);
        assert!(backend.receipts().iter().all(|one| own.contains(&topic_of(one.event()))));
        check(&ledger, &backend.receipts(), &foreign).expect_sound(0);
    }
    exactly_once::check(&ledger, topic.all(), &of(&[TOPICS[0], TOPICS[2]])).expect_exact();
    assert_eq!(topic.count(), third);

    // What none delivers is counted once, by the first of them.
    let third = third as f64;
    let unmatched = async |consumer: &Service| {
        consumer.metric("spillway_unmatched_webhooks_total").await.expect("it is shown")
    };
    assert_eq!(unmatched(&of_kafka).await, counted + third);
    assert_eq!([unmatched(&of_orders).await, unmatched(&of_rest).await], [0.0, 0.0]);
    let after = [excluded(&of_orders).await, excluded(&of_rest).await, excluded(&of_kafka).await];
    assert_eq!([0, 1, 2].map(|at| after[at] - before[at]), [2.0 * third, third, 2.0 * third]);
    let doctor = cell.spillway(&["doctor"]).await;
    let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(told.contains("together they may leave webhooks out"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_filter_holds_for_what_waits_in_lanes_and_not_for_replays() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|receipt| {
        if receipt.topic() == "carts/update" { Behaviour::status(422) } else { Behaviour::ok() }
    });
    let mut downstreamer = cell.downstreamer(&backend, &[("PARK_AFTER", "1s")]).await;
    downstreamer.leads().await;
    let paused = shop::domain(1);
    let told = async |arguments: &[&str]| {
        let output = cell.spillway(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    };
    told(&["pause", "--shop", &paused]).await;
    until("it is paused", SOON, async || downstreamer.metric("spillway_pauses").await == Some(1.0))
        .await;
    let send = async |shop: u64, topic: &str, resource: u64| -> Event {
        let event = Event { resource, sequence: 1 };
        let webhook: Webhook = shop::webhook(shop, topic, event);
        post(receiver.address(), &webhook).await.expect_stored();
        event
    };
    for resource in 1..=20 {
        send(1, "products/update", resource).await;
        send(2, "products/update", 100 + resource).await;
    }
    let refused = send(2, "carts/update", 200).await;
    let has = async |name: &str, value: f64| downstreamer.metric(name).await == Some(value);
    until("the paused ones lie in a lane", SOON, async || {
        has("spillway_lane_webhooks", 20.0).await
    })
    .await;
    until("one is given up", SOON, async || has("spillway_dead_letters", 1.0).await).await;
    assert_eq!(backend.delivered(), 20);
    downstreamer.sigterm();
    assert!(downstreamer.exit(SOON).await.success());
    told(&["resume", "--all"]).await;

    let filter = [("EXCEPT_SHOPS", paused.as_str()), ("EXCEPT_TOPICS", "carts/*")];
    let downstreamer = cell.downstreamer(&backend, &filter).await;
    downstreamer.leads().await;
    until("nothing waits", SOON, async || waiting(&cell, "http").await == 0).await;
    assert_eq!(downstreamer.metric("spillway_excluded_webhooks_total").await, Some(20.0));
    is_empty_soon(&redis).await;
    let lanes: u64 = redis.command(&["HLEN", "{spillway}:http:lanes"]).await;
    assert_eq!(lanes, 0);
    backend.behave(|_| Behaviour::ok());
    told(&["dead", "replay", "--all", "--yes"]).await;
    until("the replay is delivered", SOON, async || backend.has_delivered(&refused.webhook_id()))
        .await;
    assert!(backend.receipts().iter().all(|one| one.shop() != paused));
    assert_eq!(backend.delivered(), 21);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_of_one_program_is_never_led_by_the_other() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let mut downstreamer = cell.downstreamer(&backend, &[("CONSUMER", "audit")]).await;
    downstreamer.leads().await;
    let producer = cell.kafka_producer_to("127.0.0.1:9", &[("CONSUMER", "audit")]);
    // It is refused at once, not only when the leader is gone.
    producer.unready("queue_refused").await;
    producer.unready("is one of the kind downstreamer").await;
    downstreamer.sigterm();
    assert!(downstreamer.exit(SOON).await.success());
    producer.unready("is one of the kind downstreamer").await;
    assert!(!producer.is_leader().await);
}
