//! Consumers as the page shows them: the example in Rust, and Kafka's own console consumer.

use std::collections::HashSet;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use stories::binaries;
use stories::cell::Cell;
use stories::feed::Feed;
use stories::kafka_server::KafkaServer;
use stories::kafka_topic::Topic;
use stories::ledger::{Event, Ledger};
use stories::shop;

const TOPIC: &str = "shopify-webhooks";
const PARTITIONS: i32 = 3;
const COUNT: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_consumers_of_the_page_read_each_webhook_once() {
    let cell = Cell::alone();
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
    topic.reaches(COUNT, Duration::from_secs(60)).await;

    let lines = lines(&run(example(&kafka)).await);
    let ids: HashSet<_> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!((lines.len(), ids.len()), (COUNT, COUNT));
    assert!(lines[0].contains("products/update shop-0007.myshopify.com/product/"), "{}", lines[0]);

    let output = run(console_consumer(&kafka)).await;
    let lines = self::lines(&output);
    let ids: HashSet<_> = lines.iter().filter_map(|line| spillway_id(line)).collect();
    assert_eq!((lines.len(), ids.len()), (COUNT, COUNT), "{output:?}");
}

fn example(kafka: &KafkaServer) -> Command {
    let mut command = Command::new(binaries::example("consume"));
    command.env("KAFKA_URL", kafka.url()).env("COUNT", COUNT.to_string());
    command
}

fn console_consumer(kafka: &KafkaServer) -> Command {
    let mut command = Command::new(binaries::repository().join("ops/kafka.sh"));
    command.args(["tool", "org.apache.kafka.tools.consumer.ConsoleConsumer"]);
    command.args(["--bootstrap-server", &kafka.url(), "--topic", TOPIC]);
    command.args(["--isolation-level", "read_committed", "--from-beginning"]);
    command.args(["--property", "print.headers=true", "--max-messages", &COUNT.to_string()]);
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
