//! A cell whose only consumer is a Kafka producer purges, too: the producer notes a redaction before it commits it.

use serde_json::{Value, json};
use stories::cell::Cell;
use stories::client::post;
use stories::kafka_topic::Topic;
use stories::redis_server::RedisServer;
use stories::service::Service;
use stories::traces::traces;
use stories::until::until;

use crate::forget::{ANN, OTHER_SHOP, SHOP, SOON, of_ann, of_bob, redaction, webhook};

const TOPIC: &str = "shopify-webhooks";
const PARTITIONS: i32 = 2;

/// A cell with a Kafka producer and nothing else.
struct KafkaCell {
    redis: RedisServer,
    receiver: Service,
    cell: Cell,
}

impl KafkaCell {
    async fn post(&self, shop: &str, prefix: &str, webhooks: Vec<(&'static str, Value)>) {
        for (number, (topic, body)) in webhooks.iter().enumerate() {
            let webhook = webhook(shop, topic, &format!("{prefix}-{number}"), body);
            assert_eq!(post(self.receiver.address(), &webhook).await.status, 200);
        }
    }

    async fn pending(&self) -> u64 {
        self.redis.command(&["HLEN", "{spillway}:redactions"]).await
    }

    /// Runs `spillway forget`. Returns whether it succeeded, and its output.
    async fn forget(&self, arguments: &[&str]) -> (bool, String) {
        let redis = self.cell.redis_url();
        let settings = [("REDIS_URL", redis.as_str()), ("REDACT_WITHIN", "2s")];
        let arguments = [&["forget"], arguments].concat();
        let output = self.cell.run("spillway", &arguments, &settings).await;
        let told = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&told).into_owned())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_that_has_only_a_kafka_producer_forgets_a_customer() {
    let cell = Cell::busy();
    // Text in place of the compact form of Redis, which a search cannot read.
    let redis = cell.redis(&["--aof-use-rdb-preamble", "no"]).await;
    let receiver = cell.receiver(&[]).await;
    let kafka = cell.kafka().await;
    kafka.topic(TOPIC, PARTITIONS, &[]).await;
    let producer = cell.kafka_producer(&kafka, &[]);
    producer.ready().await;
    let topic = Topic::records(kafka.clients(), TOPIC, PARTITIONS);
    let cell = KafkaCell { redis, receiver, cell };
    cell.post(SHOP, "ann", of_ann()).await;
    cell.post(OTHER_SHOP, "other", of_bob()).await;
    topic.reaches(of_ann().len() + of_bob().len(), SOON).await;
    assert_eq!(cell.pending().await, 0);
    // Its body is not of its shop: a producer notes nothing, and delivers it like any other.
    cell.post(OTHER_SHOP, "stolen", vec![("shop/redact", json!({ "shop_domain": SHOP }))]).await;
    topic.reaches(of_ann().len() + of_bob().len() + 1, SOON).await;
    assert_eq!(cell.pending().await, 0);
    cell.post(SHOP, "redact", vec![("customers/redact", redaction())]).await;
    let all = of_ann().len() + of_bob().len() + 2;
    topic.reaches(all, SOON).await;
    assert_eq!(cell.pending().await, 1, "it is noted before it is committed");
    let is_settled = async || cell.redis.stream_len("{spillway}:in").await == 0;
    until("all is settled", SOON, is_settled).await;
    let files = cell.cell.directory().join("appendonlydir");
    assert!(!traces(&files, &ANN[..1]).is_empty(), "the search finds what is there");

    let (_, told) = cell.forget(&["--list", "-o", "json"]).await;
    assert!(told.contains(r#""consumer":"kafka""#), "{told}");
    until("everything is purged", SOON, async || {
        cell.forget(&["--due"]).await;
        cell.pending().await == 0
    })
    .await;
    // Redis deletes the files of before the rewrite in the background.
    until("no file of Redis shows her", SOON, async || traces(&files, &ANN).is_empty()).await;
    let (_, told) = cell.forget(&["--list", "-o", "json"]).await;
    assert!(told.contains(r#""complete":true"#), "{told}");
    assert_eq!(topic.count(), all, "what Kafka has is its reader's to purge");
}
