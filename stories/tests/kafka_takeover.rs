//! Two Kafka producers on one queue: one leads, the other is a standby and takes over. The first,
//! resumed in the middle of a transaction, can add nothing to the topic.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use stories::cell::Cell;
use stories::exactly_once::check;
use stories::kafka_topic::Topic;
use stories::ledger::Ledger;
use stories::load::Load;
use stories::seed::seed;
use stories::until::until;
use tokio::time::{Instant, sleep_until};

const TOPIC: &str = "shopify-webhooks";
const PARTITIONS: i32 = 4;
const SOON: Duration = Duration::from_secs(60);
/// Time for which the first is stopped: twice what a takeover may take.
const ASLEEP: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_slept_through_a_takeover_adds_nothing() {
    let seed = seed("kafka, takeover", 102);
    let cell = Cell::busy();
    let kafka = cell.kafka().await;
    kafka.topic(TOPIC, PARTITIONS, &[]).await;
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let first = cell.kafka_producer(&kafka, &[]);
    first.ready().await;
    let second = cell.kafka_producer(&kafka, &[]);
    second.unready("standby").await;
    let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
    let ledger = Arc::new(Ledger::default());
    let running = Load::steady(seed).start(receiver.address(), &ledger);
    topic.reaches(1000, SOON).await;
    assert!(!second.is_leader().await, "two leaders");

    // Under this load, a transaction is almost always open.
    first.sigstop();
    let stopped = Instant::now();
    until("the second owns the queue", SOON, async || second.is_leader().await).await;
    let before = topic.count();
    topic.reaches(before + 1000, SOON).await;
    sleep_until(stopped + ASLEEP).await;
    first.sigcont();
    until("the first sees that it lost", SOON, async || {
        first.metric("spillway_leader").await == Some(0.0)
    })
    .await;
    first.unready("standby").await;
    assert!(second.is_leader().await);
    let before = topic.count();
    topic.reaches(before + 1000, SOON).await;

    // Takeover back: after SIGTERM, the second gives up its lease at once.
    let mut second = second;
    second.sigterm();
    assert!(second.exit(SOON).await.success());
    until("the first owns the queue", SOON, async || first.is_leader().await).await;
    let before = topic.count();
    topic.reaches(before + 1000, SOON).await;
    running.stop().await;
    until("the queue is empty", SOON, async || redis.stream_len("{spillway}:in").await == 0).await;
    topic.reaches(ledger.stored_count(), SOON).await;
    let found = check(&ledger, topic.all(), &HashSet::new());
    found.print("kafka, takeover");
    found.expect_exact();
}
