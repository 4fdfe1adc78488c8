//! Other software that reads or writes the topic: the consumers shown in the docs (the example in
//! Rust, Kafka's console consumer), the CloudEvents SDK, and Java's producer, which must choose the
//! same partitions.

use std::collections::{BTreeMap, HashSet};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use stories::binaries;
use stories::cell::Cell;
use stories::client::post;
use stories::feed::Feed;
use stories::kafka_server::KafkaServer;
use stories::kafka_topic::{Record, Topic};
use stories::ledger::{Event, Ledger};
use stories::shop;
use stories::webhook::Webhook;

const TOPIC: &str = "shopify-webhooks";
const PARTITIONS: i32 = 3;
const COUNT: usize = 300;
const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_consumers_of_the_page_read_each_webhook_once() {
    let cell = Cell::busy();
    let kafka = cell.kafka().await;
    kafka.topic(TOPIC, PARTITIONS, &[]).await;
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let _producer = cell.kafka_producer(&kafka, &[]);
    let ledger = Arc::new(Ledger::default());
    let events = (1..=COUNT as u64).map(|resource| Event { resource, sequence: 1 });
    let items = events.map(|event| (event, shop::webhook(7, "products/update", event)));
    Feed::to(receiver.address(), &ledger).store(items.collect()).await;
    let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
    topic.reaches(COUNT, SOON).await;

    let lines = lines(&run(example(&kafka)).await);
    let ids: HashSet<_> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!((lines.len(), ids.len()), (COUNT, COUNT));
    assert!(lines[0].contains("products/update shop-0007.myshopify.com/product/"), "{}", lines[0]);

    let output = run(console_consumer(&kafka, TOPIC, COUNT)).await;
    let lines = self::lines(&output);
    let ids: HashSet<_> = lines.iter().filter_map(|line| spillway_id(line)).collect();
    assert_eq!((lines.len(), ids.len()), (COUNT, COUNT), "{output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cloudevents_sdk_reads_what_was_received() {
    let cell = Cell::busy();
    let kafka = cell.kafka().await;
    kafka.topic(TOPIC, PARTITIONS, &[]).await;
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let _producer = cell.kafka_producer(&kafka, &[("KAFKA_FORMAT", "cloudevents")]);
    let event = |resource| Event { resource, sequence: 1 };
    let bodies = [b"{\"id\":1,\"title\":\"caf\xc3\xa9\"}".to_vec(), b"{\"id\":2}\xff\xfe".to_vec()];
    for (resource, body) in (1..).zip(&bodies) {
        let webhook = Webhook::product(resource, &event(resource).webhook_id(), body.clone());
        assert_eq!(post(receiver.address(), &webhook).await.status, 200);
    }
    let mut command = console_consumer(&kafka, TOPIC, bodies.len());
    command.args(["--value-deserializer", "io.cloudevents.kafka.CloudEventDeserializer"]);
    let read = lines(&run(command).await);
    assert_eq!(read.len(), bodies.len(), "{read:?}");
    for (resource, body) in (1..).zip(&bodies) {
        let webhook_id = event(resource).webhook_id();
        let one = read.iter().find(|line| line.contains(&webhook_id));
        let one = one.unwrap_or_else(|| panic!("{webhook_id} in {read:?}"));
        let subject = format!("subject='{resource}'");
        for part in [
            "CloudEvent{id='",
            "source=https://story.myshopify.com",
            "type='com.shopify.products.update'",
            "datacontenttype='application/json'",
            &subject,
            // Bytes in Java are signed.
            &format!("{:?}", body.iter().map(|byte| byte.cast_signed()).collect::<Vec<_>>()),
        ] {
            assert!(one.contains(part), "{part} in {one}");
        }
        let id = spillway_id(one).expect("a Spillway id");
        assert!(one.contains(&format!("CloudEvent{{id='{id}'")), "{one}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn javas_producer_puts_the_same_keys_into_the_same_partitions() {
    const JAVAS: &str = "javas";
    let cell = Cell::busy();
    let kafka = cell.kafka().await;
    // Not a power of two, so that a wrong hash cannot pass by its last bits.
    let partitions = 7;
    kafka.topic(TOPIC, partitions, &[]).await;
    kafka.topic(JAVAS, partitions, &[]).await;
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let _producer = cell.kafka_producer(&kafka, &[]);
    let ledger = Arc::new(Ledger::default());
    let events = (1..=COUNT as u64).map(|resource| Event { resource, sequence: 1 });
    let items =
        events.map(|event| (event, shop::webhook(event.resource % 11, "products/update", event)));
    Feed::to(receiver.address(), &ledger).store(items.collect()).await;
    let ours = partitions_of(&kafka, TOPIC, partitions).await;
    let keys: String = ours.keys().map(|key| format!("{key}\tx\n")).collect();
    let mut command = tool("org.apache.kafka.tools.ConsoleProducer");
    command.args(["--bootstrap-server", &kafka.url(), "--topic", JAVAS]);
    command.args(["--property", "parse.key=true"]);
    let file = cell.directory().join("keys");
    std::fs::write(&file, keys).expect("write the keys");
    command.stdin(std::fs::File::open(&file).expect("open the keys"));
    run(command).await;
    assert_eq!(partitions_of(&kafka, JAVAS, partitions).await, ours);
    let used: HashSet<_> = ours.values().collect();
    assert_eq!(used.len(), partitions as usize, "keys are spread: {ours:?}");
}

/// Partition of each key, once all records are read.
async fn partitions_of(kafka: &KafkaServer, topic: &str, partitions: i32) -> BTreeMap<String, i32> {
    let records = Topic::records(kafka.clients(), topic, partitions);
    records.reaches(COUNT, SOON).await;
    let pair = |record: Record| (String::from_utf8(record.key).expect("text"), record.partition);
    records.all().into_iter().map(pair).collect()
}

fn tool(class: &str) -> Command {
    let mut command = Command::new(binaries::repository().join("ops/kafka.sh"));
    command.args(["tool", class]);
    command
}

fn example(kafka: &KafkaServer) -> Command {
    let mut command = Command::new(binaries::example("consume"));
    command.env("KAFKA_URL", kafka.url()).env("COUNT", COUNT.to_string());
    command
}

fn console_consumer(kafka: &KafkaServer, topic: &str, count: usize) -> Command {
    let mut command = tool("org.apache.kafka.tools.consumer.ConsoleConsumer");
    command.args(["--bootstrap-server", &kafka.url(), "--topic", topic]);
    command.args(["--isolation-level", "read_committed", "--from-beginning"]);
    command.args(["--property", "print.headers=true", "--max-messages", &count.to_string()]);
    command
}

async fn run(mut command: Command) -> Output {
    let ended = tokio::task::spawn_blocking(move || command.output().expect("run a consumer"));
    let output = ended.await.expect("a consumer was run");
    assert!(output.status.success(), "{output:?}");
    output
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(ToOwned::to_owned).collect()
}

fn spillway_id(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("spillway-id:")?;
    rest.split([',', '\t']).next()
}
