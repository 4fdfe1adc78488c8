//! Both consumers on one queue, a forgotten consumer, and a Redis that came back with older data.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stories::backend::Backend;
use stories::cell::Cell;
use stories::exactly_once::check;
use stories::feed::Feed;
use stories::kafka_server::KafkaServer;
use stories::kafka_topic::Topic;
use stories::ledger::{Event, Ledger};
use stories::redis_server::RedisServer;
use stories::service::Service;
use stories::shop;
use stories::until::until;

const TOPIC: &str = "shopify-webhooks";
const PARTITIONS: i32 = 2;
const SOON: Duration = Duration::from_secs(60);

struct Queue {
    redis: RedisServer,
    receiver: Service,
    ledger: Arc<Ledger>,
    fed: u64,
}

impl Queue {
    async fn new(cell: &Cell) -> Self {
        let redis = cell.redis(&[]).await;
        let receiver = cell.receiver(&[]).await;
        Self { redis, receiver, ledger: Arc::default(), fed: 0 }
    }

    /// Stores `count` more webhooks, each about a different resource.
    async fn feed(&mut self, count: u64) {
        self.feed_of(count, |_| 1).await;
    }

    /// Stores `count` more webhooks. `shop` gives the shop of each resource.
    async fn feed_of(&mut self, count: u64, shop: impl Fn(u64) -> u64) {
        let events =
            (self.fed + 1..=self.fed + count).map(|resource| Event { resource, sequence: 1 });
        let of = |event: Event| shop::webhook(shop(event.resource), "orders/create", event);
        let items = events.map(|event| (event, of(event))).collect();
        Feed::to(self.receiver.address(), &self.ledger).store(items).await;
        self.fed += count;
    }

    async fn entries(&self) -> u64 {
        self.redis.stream_len("{spillway}:in").await
    }

    async fn is_empty_soon(&self) {
        until("the queue is empty", SOON, async || self.entries().await == 0).await;
    }
}

async fn kafka_with_topic(cell: &Cell) -> KafkaServer {
    let kafka = cell.kafka().await;
    kafka.topic(TOPIC, PARTITIONS, &[]).await;
    kafka
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_is_freed_when_both_consumers_are_past_it() {
    let cell = Cell::busy();
    let kafka = kafka_with_topic(&cell).await;
    let mut queue = Queue::new(&cell).await;
    let backend = Backend::start().await;
    assert!(cell.spillway(&["consumers", "add", "kafka"]).await.status.success());
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    queue.feed(500).await;
    queue.ledger.delivered_to(&backend, SOON).await;
    assert!(queue.entries().await > 0, "freed, and kafka has not seen it");

    let mut producer = cell.kafka_producer(&kafka, &[]);
    let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
    topic.reaches(500, SOON).await;
    queue.is_empty_soon().await;
    queue.feed(500).await;
    topic.reaches(1000, SOON).await;
    queue.is_empty_soon().await;
    check(&queue.ledger, topic.all(), &HashSet::new()).expect_exact();

    // A forgotten consumer holds nothing back. When it returns, it reports what was freed meanwhile.
    producer.kill9();
    queue.feed(200).await;
    queue.ledger.delivered_to(&backend, SOON).await;
    assert!(queue.entries().await > 0, "freed, and kafka has not seen it");
    assert!(cell.spillway(&["consumers", "forget", "kafka", "--yes"]).await.status.success());
    queue.is_empty_soon().await;
    producer.restart();
    producer.ready().await;
    assert_eq!(producer.metric("spillway_cursor_gaps_total").await, Some(1.0));
    assert!(producer.output().contains("webhooks were freed"), "no word of what was freed");
    queue.feed(300).await;
    topic.reaches(1300, SOON).await;
    queue.is_empty_soon().await;
    let freed = (1001..=1200).map(|resource| Event { resource, sequence: 1 }).collect();
    check(&queue.ledger, topic.all(), &freed).expect_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_consumer_stands_and_what_is_dropped_meanwhile_never_appears() {
    let cell = Cell::busy();
    let kafka = kafka_with_topic(&cell).await;
    let mut queue = Queue::new(&cell).await;
    let mut producer = cell.kafka_producer(&kafka, &[]);
    let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
    queue.feed(100).await;
    topic.reaches(100, SOON).await;
    queue.is_empty_soon().await;
    let told = async |arguments: &[&str]| {
        let output = cell.spillway(&[arguments, &["--consumer", "kafka"]].concat()).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    told(&["pause", "--all"]).await;
    let is_paused = async || producer.metric("spillway_pauses").await == Some(1.0);
    until("it is paused", SOON, is_paused).await;
    queue.feed_of(600, |resource| resource % 3).await;
    let shop = shop::domain(2);
    let dropped =
        told(&["queue", "drop", "--shop", &shop, "--yes", "--no-wait", "-o", "json"]).await;
    assert!(dropped.contains(r#""matched":200"#), "{dropped}");
    // The next leader of the consumer applies both orders.
    producer.kill9();
    producer.restart();
    until("it is paused", SOON, async || producer.metric("spillway_pauses").await == Some(1.0))
        .await;
    assert_eq!(topic.count(), 100, "while it was paused");
    told(&["resume"]).await;
    topic.reaches(500, SOON).await;
    queue.is_empty_soon().await;
    let gone = (101..=700).filter(|resource| resource % 3 == 2);
    let gone = gone.map(|resource| Event { resource, sequence: 1 }).collect();
    check(&queue.ledger, topic.all(), &gone).expect_exact();
    let status = cell.spillway(&["status", "-o", "json"]).await;
    let status = String::from_utf8(status.stdout).expect("text");
    assert!(status.contains(r#""dropped": 200"#), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_came_back_with_older_data_is_said_and_the_rest_flows() {
    let cell = Cell::busy();
    let kafka = kafka_with_topic(&cell).await;
    let mut queue = Queue::new(&cell).await;
    let mut producer = cell.kafka_producer(&kafka, &[]);
    let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
    queue.feed(300).await;
    topic.reaches(300, SOON).await;
    queue.is_empty_soon().await;
    producer.sigterm();
    assert!(producer.exit(SOON).await.success());

    // After the copy is made, 200 more webhooks are stored and produced.
    queue.feed(200).await;
    queue.redis.kill9();
    let (data, copy) = (cell.directory().join("appendonlydir"), cell.directory().join("copy"));
    copy_directory(&data, &copy);
    queue.redis.restart();
    queue.redis.ready().await;
    queue.receiver.ready().await;
    queue.feed(100).await;
    producer.restart();
    topic.reaches(600, SOON).await;
    queue.is_empty_soon().await;
    producer.sigterm();
    assert!(producer.exit(SOON).await.success());
    queue.redis.kill9();
    std::fs::remove_dir_all(&data).expect("remove the data");
    copy_directory(&copy, &data);
    queue.redis.restart();
    queue.redis.ready().await;
    queue.receiver.ready().await;

    producer.restart();
    producer.ready().await;
    assert_eq!(producer.metric("spillway_cursor_gaps_total").await, Some(1.0));
    assert!(producer.output().contains("redis lost data"), "no word of the loss");
    queue.feed(100).await;
    // Webhooks after Redis' older cursor are produced again, and this is logged.
    topic.reaches(600 + 200 + 100, SOON).await;
    queue.is_empty_soon().await;
    let found = check(&queue.ledger, topic.all(), &HashSet::new());
    found.print("kafka, older data");
    assert_eq!((found.lost, found.repeated, found.invented), (0, 200, 0), "{found:?}");
}

fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("make a directory");
    for entry in std::fs::read_dir(from).expect("read a directory") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copy a file");
    }
}
