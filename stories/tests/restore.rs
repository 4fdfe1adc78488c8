//! docs/backup.md, rehearsed: a copy of Redis is made under load by the shipped script, and put back
//! when more has been accepted and delivered. What comes again, what is gone, and what is said of it.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::binaries::repository;
use stories::cell::Cell;
use stories::exactly_once;
use stories::feed::Feed;
use stories::kafka_topic::Topic;
use stories::ledger::{Event, Ledger};
use stories::load::Load;
use stories::redis_server::{RedisServer, socket_in};
use stories::report::say;
use stories::seed::seed;
use stories::service::Service;
use stories::shop;
use stories::until::until;

const SOON: Duration = Duration::from_secs(60);
const TOPIC: &str = "shopify-webhooks";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_put_back_delivers_again_what_was_delivered_since_and_takes_more() {
    let cell = Cell::alone();
    let mut redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let mut downstreamer = cell.downstreamer(&backend, &[]).await;
    let before = Arc::new(Ledger::default());
    let load = Load::steady(seed("restore", 71));
    let running = load.start(receiver.address(), &before);
    until("the load flows", SOON, async || backend.delivered() > 500).await;

    let settled = backend.delivered();
    let copy = back_up(&cell).await;
    until("more is delivered", SOON, async || backend.delivered() > settled + 500).await;
    running.stop().await;
    before.delivered_to(&backend, SOON).await;
    until("all is settled", SOON, async || redis.stream_len("spillway:in").await == 0).await;
    let first: HashSet<String> = ids(&backend).into_iter().collect();

    // What is accepted and not delivered when the disk dies is lost with it.
    backend.behave(|_| Behaviour::status(503));
    let lost = Arc::new(Ledger::default());
    feed(&receiver, &lost, 1_000_001..=1_000_050).await;
    downstreamer.sigterm();
    assert!(downstreamer.exit(SOON).await.success());
    put_back(&cell, &mut redis, &copy).await;
    receiver.ready().await;
    backend.behave(|_| Behaviour::ok());

    let known = ids(&backend).len();
    downstreamer.restart();
    let after = Arc::new(Ledger::default());
    feed(&receiver, &after, 2_000_001..=2_000_050).await;
    after.delivered_to(&backend, SOON).await;
    until("all is settled", SOON, async || redis.stream_len("spillway:in").await == 0).await;
    let again: Vec<String> = ids(&backend).split_off(known);
    let repeated = again.iter().filter(|id| first.contains(*id)).count();
    say(&format!("restore: {} were delivered, {repeated} of them again", first.len()));
    // With the ids they had: an app that goes by them knows them all.
    assert_eq!(repeated + 50, again.len(), "delivered under new ids");
    for event in lost.stored() {
        assert!(!backend.has_delivered(&event.webhook_id()), "{event:?} was on no disk");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kafka_producer_that_starts_when_new_webhooks_have_come_repeats_nothing() {
    let cell = Cell::alone();
    let kafka = cell.kafka().await;
    kafka.topic(TOPIC, 2, &[]).await;
    let mut redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let mut producer = cell.kafka_producer(&kafka, &[]);
    producer.ready().await;
    let topic = Topic::arrivals(kafka.clients(), TOPIC, 2);
    let ledger = Arc::new(Ledger::default());
    let empty = async |redis: &RedisServer| {
        until("all is settled", SOON, async || redis.stream_len("spillway:in").await == 0).await;
    };
    // As it was when the copy was made: 100 behind the cursor.
    producer.sigstop();
    feed(&receiver, &ledger, 1..=100).await;
    let copy = back_up(&cell).await;
    producer.sigcont();
    feed(&receiver, &ledger, 101..=200).await;
    topic.reaches(200, SOON).await;
    empty(&redis).await;
    producer.sigterm();
    assert!(producer.exit(SOON).await.success());
    put_back(&cell, &mut redis, &copy).await;
    receiver.ready().await;

    feed(&receiver, &ledger, 201..=250).await;
    producer.restart();
    topic.reaches(250, SOON).await;
    empty(&redis).await;
    assert_eq!(producer.metric("spillway_cursor_gaps_total").await, Some(0.0));
    let found = exactly_once::check(&ledger, topic.all(), &HashSet::new());
    found.print("restore, kafka");
    found.expect_exact();
}

/// Makes a copy by the shipped script.
async fn back_up(cell: &Cell) -> PathBuf {
    let copy = cell.directory().join("copy");
    let mut script = Command::new(repository().join("ops/backup.sh"));
    script.arg(socket_in(cell.directory())).arg(&copy);
    let run = move || script.output().expect("run ops/backup.sh");
    let ended = tokio::task::spawn_blocking(run).await.expect("it was run");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let left = fs::read_dir(cell.directory()).expect("read the directory");
    let left = left.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert!(!left.into_iter().any(|name| name.starts_with("backup.")), "links are left");
    copy
}

/// The disk dies, and the copy takes its place.
async fn put_back(cell: &Cell, redis: &mut RedisServer, copy: &Path) {
    let data = cell.directory().join("appendonlydir");
    redis.kill9();
    fs::remove_dir_all(&data).expect("remove the data");
    fs::rename(copy, &data).expect("put the copy in its place");
    redis.restart();
    redis.ready().await;
}

/// Stores one webhook of each of these resources.
async fn feed(receiver: &Service, ledger: &Arc<Ledger>, resources: std::ops::RangeInclusive<u64>) {
    let events = resources.map(|resource| Event { resource, sequence: 1 });
    let items = events.map(|event| (event, shop::webhook(1, "orders/create", event))).collect();
    Feed::to(receiver.address(), ledger).store(items).await;
}

fn ids(backend: &Backend) -> Vec<String> {
    backend.look(|receipts| {
        let taken = receipts.iter().filter(|receipt| receipt.delivered());
        taken.map(|receipt| receipt.spillway_id().to_owned()).collect()
    })
}
