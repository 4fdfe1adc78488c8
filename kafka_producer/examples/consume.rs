//! Example: reads what the Kafka producer writes. Only committed records, each handled before its
//! offset is committed.
//!
//!     KAFKA_URL=127.0.0.1:9092 cargo run -p kafka_producer --example consume
//!
//! Prints a line for each webhook. With `COUNT` set, ends after that many.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};

fn main() -> anyhow::Result<()> {
    let setting =
        |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", setting("KAFKA_URL", "127.0.0.1:9092"))
        .set("group.id", setting("GROUP", "my-app"))
        // Without this, records of aborted transactions are read, too: webhooks appear twice. It is
        // the default of librdkafka, but not of Java.
        .set("isolation.level", "read_committed")
        // A new group begins with the oldest record that the topic still has.
        .set("auto.offset.reset", "earliest")
        // Committed below, after a webhook is handled. After a crash it is handled again.
        .set("enable.auto.commit", "false")
        .create()?;
    consumer.subscribe(&[&setting("KAFKA_TOPIC", "shopify-webhooks")])?;
    let mut left: u64 = setting("COUNT", "18446744073709551615").parse()?;
    while left > 0 {
        match consumer.poll(Duration::from_secs(1)) {
            Some(Ok(record)) => {
                handle(&record);
                consumer.commit_message(&record, CommitMode::Async)?;
                left -= 1;
            }
            // Waits for a broker that is away.
            Some(Err(error)) => eprintln!("{error}"),
            None => {}
        }
    }
    consumer.commit_consumer_state(CommitMode::Sync)?;
    Ok(())
}

/// Handles a webhook, in place of your app. `spillway-id` is unique. Two webhooks with one
/// `x-shopify-webhook-id` are one event that Shopify sent twice.
fn handle(record: &BorrowedMessage<'_>) {
    println!(
        "{} {} {} ({} bytes)",
        header(record, "spillway-id"),
        header(record, "x-shopify-topic"),
        String::from_utf8_lossy(record.key().unwrap_or_default()),
        record.payload().unwrap_or_default().len(),
    );
}

fn header<'a>(record: &'a BorrowedMessage<'_>, name: &str) -> std::borrow::Cow<'a, str> {
    let mut headers = record.headers().into_iter().flat_map(|headers| headers.iter());
    let value = headers.find(|header| header.key == name).and_then(|header| header.value);
    String::from_utf8_lossy(value.unwrap_or_default())
}
