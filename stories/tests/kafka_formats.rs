//! Records in the topic contain exactly what was received, in each of the three formats.

use std::time::Duration;

use serde_json::{Value, json};
use stories::cell::Cell;
use stories::client::post;
use stories::kafka_server::KafkaServer;
use stories::kafka_topic::{Record, Topic};
use stories::ledger::Event;
use stories::service::Service;
use stories::webhook::{SECRET, Webhook, sign};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const SOON: Duration = Duration::from_secs(60);
const PARTITIONS: i32 = 4;

/// Webhooks with legal but rare content: bytes that are not text in a header and in the body, a
/// repeated header, an empty header, a query.
fn odd() -> Vec<Webhook> {
    let id = |resource| Event { resource, sequence: 1 }.webhook_id();
    vec![
        Webhook::product(1, &id(1), b"{\"id\":1,\"title\":\"caf\xc3\xa9\"}".to_vec())
            .to("/hooks/a%2Fb?tenant=7&x=%20&x=+"),
        Webhook::product(2, &id(2), b"{\"id\":2}\xff\xfe\x00\r\n".to_vec())
            .header("X-Bytes", b"\xe9\x80\xff")
            .header("X-Twice", "one")
            .header("X-Twice", "two")
            .header("X-Empty", ""),
        Webhook::product(3, &id(3), vec![b'['; 300_000]),
        Webhook::product(4, &id(4), b"<order><id>4</id></order>".to_vec())
            .topic("carts/update")
            .without("X-Shopify-Product-Id")
            .with("Content-Type", "application/xml"),
    ]
}

/// Stores the odd webhooks, each in its own pack, and reads their records.
async fn produced(format: &str, kafka: &KafkaServer, cell: &Cell) -> (Vec<Webhook>, Vec<Record>) {
    let sent = odd();
    let receiver = cell.receiver(&[]).await;
    let topic = format!("format-{format}");
    kafka.topic(&topic, PARTITIONS, &[]).await;
    let settings = [("KAFKA_TOPIC", topic.as_str()), ("KAFKA_FORMAT", format)];
    let producer: Service = cell.kafka_producer(kafka, &settings);
    for webhook in &sent {
        assert_eq!(post(receiver.address(), webhook).await.status, 200);
    }
    let read = Topic::records(kafka.clients(), &topic, PARTITIONS);
    read.reaches(sent.len(), SOON).await;
    producer.ready().await;
    let mut records = read.all();
    assert_eq!(records.len(), sent.len(), "each appears once");
    records.sort_by_key(|record| record.header("spillway-id").map(ToOwned::to_owned));
    (sent, records)
}

/// Header lines of a request as they are stored: lower-case names, without its framing.
fn kept(webhook: &Webhook) -> Vec<(String, Vec<u8>)> {
    let lines = webhook.headers().iter();
    lines.map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect()
}

/// Sorts the headers by name. Values of one name stay in order; names may change places.
fn by_name(mut headers: Vec<(String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    headers.retain(|(name, _)| name != "host");
    headers.sort_by(|a, b| a.0.cmp(&b.0));
    headers
}

fn triggered_ms(webhook: &Webhook) -> i64 {
    let lines = webhook.headers();
    let line = lines.iter().find(|(name, _)| name == "X-Shopify-Triggered-At");
    let text = std::str::from_utf8(&line.expect("a time").1).expect("a time of text");
    let time = OffsetDateTime::parse(text, &Rfc3339).expect("a time");
    (time.unix_timestamp_nanos() / 1_000_000) as i64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_hold_what_was_received_in_each_form() {
    let cell = Cell::busy();
    let kafka = cell.kafka().await;
    expect_raw(&kafka).await;
    expect_envelope(&kafka).await;
    expect_cloudevents(&kafka).await;
}

async fn expect_raw(kafka: &KafkaServer) {
    let cell = Cell::beside();
    let _redis = cell.redis(&[]).await;
    let (sent, records) = produced("raw", kafka, &cell).await;
    for (record, webhook) in records.iter().zip(&sent) {
        assert_eq!(record.value, webhook.payload());
        let (own, request): (Vec<_>, Vec<_>) =
            record.headers.iter().cloned().partition(|(name, _)| name.starts_with("spillway-"));
        assert_eq!(by_name(request), by_name(kept(webhook)));
        let names: Vec<_> = own.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["spillway-path", "spillway-received-at", "spillway-id"]);
        assert_eq!(record.header("spillway-path"), Some(webhook.target()));
        let received = record.header("spillway-received-at").expect("a time of receipt");
        assert!(OffsetDateTime::parse(received, &Rfc3339).is_ok(), "{received}");
        assert_eq!(record.timestamp_ms, triggered_ms(webhook));
        // A consumer that verifies again gets the same result as the backend.
        assert_eq!(record.header("x-shopify-hmac-sha256"), Some(&*sign(SECRET, &record.value)));
    }
    let keys: Vec<_> = records.iter().map(|record| record.key.as_slice()).collect();
    let expected: [&[u8]; 4] = [
        b"story.myshopify.com/product/1",
        b"story.myshopify.com/product/2",
        b"story.myshopify.com/product/3",
        b"story.myshopify.com/carts",
    ];
    assert_eq!(keys, expected);
}

async fn expect_envelope(kafka: &KafkaServer) {
    let cell = Cell::beside();
    let _redis = cell.redis(&[]).await;
    let (_, records) = produced("envelope", kafka, &cell).await;
    let values: Vec<Value> = records
        .iter()
        .map(|record| serde_json::from_slice(&record.value).expect("an envelope is JSON"))
        .collect();
    assert_eq!(values[0]["endpoint"], json!("/hooks/a%2Fb"));
    assert_eq!(values[0]["method"], json!("POST"));
    assert_eq!(values[0]["queries"], json!({"tenant": "7", "x": [" ", " "]}));
    assert_eq!(values[0]["payload"], json!("{\"id\":1,\"title\":\"café\"}"));
    assert_eq!(values[0]["headers"]["x-shopify-topic"], json!("products/update"));
    assert_eq!(values[1]["payload_base64"], json!("eyJpZCI6Mn3//gANCg=="));
    assert_eq!(values[1]["headers"]["x-twice"], json!("one, two"));
    assert_eq!(values[1]["headers"]["x-bytes"], json!("é\u{80}ÿ"));
    assert_eq!(values[2]["payload"].as_str().map(str::len), Some(300_000));
}

async fn expect_cloudevents(kafka: &KafkaServer) {
    let cell = Cell::beside();
    let _redis = cell.redis(&[]).await;
    let (sent, records) = produced("cloudevents", kafka, &cell).await;
    for (record, webhook) in records.iter().zip(&sent) {
        assert_eq!(record.value, webhook.payload());
        assert_eq!(record.header("ce_specversion"), Some("1.0"));
        assert_eq!(record.header("ce_id"), record.header("spillway-id"));
        assert_eq!(record.header("ce_source"), Some("https://story.myshopify.com"));
        let time = record.header("ce_time").expect("a time");
        assert!(OffsetDateTime::parse(time, &Rfc3339).is_ok(), "{time}");
    }
    let of = |name| records.iter().map(|record| record.header(name)).collect::<Vec<_>>();
    let update = Some("com.shopify.products.update");
    assert_eq!(of("ce_type"), [update, update, update, Some("com.shopify.carts.update")]);
    assert_eq!(of("ce_subject"), [Some("1"), Some("2"), Some("3"), None]);
    let (json, xml) = (Some("application/json"), Some("application/xml"));
    assert_eq!(of("content-type"), [json, json, json, xml]);
}
