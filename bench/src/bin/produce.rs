//! Plain producer for the comparison with Spillway's Kafka consumer: librdkafka, idempotent, every
//! record on all replicas, without transactions and without reading. Bodies, headers, keys and
//! compression are the same as in Spillway's records.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bench::product::Products;
use bench::signature::Secret;
use bench::target::Target;
use bench::webhook::Maker;
use clap::Parser;
use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::json;

/// Bodies that are made in advance and sent in turn: as many as `fill` uses.
const BODIES: u64 = 10_000;
/// Wait while the producer's queue is full.
const QUEUE_FULL_WAIT: Duration = Duration::from_millis(5);
/// Time within which everything must be delivered; otherwise the run fails.
const DELIVERED_WITHIN: Duration = Duration::from_secs(300);

/// Produces webhooks as records. Prints their number and rate.
#[derive(Parser)]
struct Options {
    /// Bootstrap servers.
    #[arg(long)]
    servers: String,
    /// Topic of the records.
    #[arg(long)]
    topic: String,
    /// Number of records.
    #[arg(long, default_value_t = 100_000)]
    count: u64,
    /// Approximate size of each body, in bytes.
    #[arg(long, default_value_t = 5_300)]
    size: u32,
    /// Template of the headers; its `@body` is the product's template.
    #[arg(long, default_value = "loadtest")]
    targets: PathBuf,
}

struct Prepared {
    key: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let prepared = prepare(&options)?;
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &options.servers)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("max.in.flight", "5")
        .set("compression.type", "lz4")
        .set("linger.ms", "5")
        .set("batch.size", "1000000")
        .set("queue.buffering.max.kbytes", "196608")
        .set("queue.buffering.max.messages", "500000")
        .set("partitioner", "murmur2_random")
        .set("delivery.report.only.error", "true")
        .create()?;
    // The first use creates the topic, which is not measured.
    producer.client().fetch_metadata(Some(&options.topic), Duration::from_secs(20))?;
    let began = Instant::now();
    for number in 0..options.count {
        send(&producer, &options.topic, &prepared[number as usize % prepared.len()])?;
    }
    while producer.in_flight_count() > 0 {
        producer.poll(Duration::from_millis(1));
        if began.elapsed() > DELIVERED_WITHIN {
            bail!("not delivered within {DELIVERED_WITHIN:?}");
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let per_second = options.count as f64 / seconds;
    println!("{}", json!({"records": options.count, "seconds": seconds, "per_second": per_second}));
    Ok(())
}

fn prepare(options: &Options) -> anyhow::Result<Vec<Prepared>> {
    let target = Target::read(&options.targets)
        .with_context(|| format!("target template {}", options.targets.display()))?;
    let product = serde_json::from_slice(&fs::read(&target.body)?)?;
    let maker = Maker {
        event: None,
        products: Products::new(product, options.size as usize),
        secret: Secret::new("a secret for the benchmark only"),
        shops: 100,
        seed: 1,
        now: None,
    };
    let one = |number| {
        let webhook = maker.make(number);
        let headers = target.headers.iter().map(|(name, value)| {
            let mut text = Vec::new();
            webhook.write_value(value, &mut text);
            (name.to_ascii_lowercase(), text)
        });
        let headers = headers.collect();
        Prepared { key: format!("shop/product/{number}"), headers, body: webhook.body }
    };
    Ok((0..BODIES.min(options.count)).map(one).collect())
}

fn send(producer: &BaseProducer, topic: &str, prepared: &Prepared) -> anyhow::Result<()> {
    loop {
        let mut headers = OwnedHeaders::new_with_capacity(prepared.headers.len());
        for (name, value) in &prepared.headers {
            headers = headers.insert(Header { key: name, value: Some(value) });
        }
        let record = BaseRecord::to(topic).key(&prepared.key).payload(&prepared.body);
        match producer.send(record.headers(headers)) {
            Ok(()) => return Ok(()),
            Err((error, _)) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) => {
                producer.poll(QUEUE_FULL_WAIT);
            }
            Err((error, _)) => return Err(error.into()),
        }
    }
}
