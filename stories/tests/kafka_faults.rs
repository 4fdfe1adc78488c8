//! Faults between the producer and Kafka: a record that is always refused, an unavailable broker, a
//! queue that fills up meanwhile, and a wrong password.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;
use stories::authority::Authority;
use stories::cell::Cell;
use stories::client::post;
use stories::exactly_once::check;
use stories::feed::Feed;
use stories::kafka_server::{KafkaOptions, KafkaServer};
use stories::kafka_topic::{Arrival, Topic};
use stories::ledger::{Event, Ledger, Outcome};
use stories::line::Line;
use stories::load::Load;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::{chance, seed};
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::Webhook;

const TOPIC: &str = "shopify-webhooks";
const PARTITIONS: i32 = 2;
const SOON: Duration = Duration::from_secs(90);

/// Largest batch of a topic in the tests. It is less than a usual batch, so valid records are
/// refused too.
const TOPIC_BYTES_MAX: usize = 50_000;
/// Password of the broker that requires one.
const PASSWORD: &str = "hush-hush";
/// Memory for librdkafka's queue, plus what a process needs in any case.
const GROWTH_MAX: u64 = (192 + 128) << 20;

fn order(resource: u64) -> (Event, Webhook) {
    let event = Event { resource, sequence: 1 };
    (event, shop::webhook(1, "orders/create", event))
}

/// A webhook with a body that does not compress.
fn large(resource: u64, bytes: usize, chance: &mut impl Rng) -> (Event, Webhook) {
    let event = Event { resource, sequence: 1 };
    let mut fill = vec![0; bytes];
    chance.fill_bytes(&mut fill);
    let mut body = format!("{{\"id\":{resource}}}").into_bytes();
    body.extend(fill);
    (event, Webhook::product(resource, &event.webhook_id(), body))
}

async fn drained(redis: &RedisServer) {
    until("the queue is empty", SOON, async || redis.stream_len("{spillway}:in").await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_too_large_is_a_dead_letter_and_the_rest_flows() {
    let mut chance = chance(seed("kafka, too large", 103), 0);
    let cell = Cell::busy();
    let kafka = cell.kafka().await;
    let limit = TOPIC_BYTES_MAX.to_string();
    kafka.topic(TOPIC, PARTITIONS, &[("max.message.bytes", &limit)]).await;
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    let is_large = |resource: u64| resource.is_multiple_of(40);
    let items = (1..=200).map(|resource| match resource {
        _ if is_large(resource) => large(resource, 2 * TOPIC_BYTES_MAX, &mut chance),
        _ => large(resource, 700, &mut chance),
    });
    Feed::to(receiver.address(), &ledger).store(items.collect()).await;
    let mut producer = cell.kafka_producer(&kafka, &[]);
    let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
    // A crash during this changes nothing.
    until("one is given up", SOON, async || redis.stream_len("{spillway}:kafka:dead").await > 0)
        .await;
    producer.kill9();
    producer.restart();
    topic.reaches(195, SOON).await;
    drained(&redis).await;
    assert_eq!(redis.stream_len("{spillway}:kafka:dead").await, 5, "each is given up once");
    assert_eq!(redis.command::<u64>(&["HLEN", "{spillway}:kafka:done"]).await, 0);
    let dead: HashSet<Event> = (1..=200)
        .filter(|resource| is_large(*resource))
        .map(|resource| Event { resource, sequence: 1 })
        .collect();
    let found = check(&ledger, topic.all(), &dead);
    found.print("kafka, too large");
    found.expect_exact();
    assert_eq!(found.appeared, 195);

    // With a larger limit, the topic accepts them when they are replayed.
    kafka.configure_topic(TOPIC, &[("max.message.bytes", "1000000")]).await;
    let listed = cell.spillway(&["dead", "list", "--consumer", "kafka", "-o", "json"]).await;
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(listed.matches("too_large").count(), 5, "{listed}");
    let replay = ["dead", "replay", "--consumer", "kafka", "--all", "--yes"];
    let replayed = cell.spillway(&replay).await;
    assert!(replayed.status.success(), "{replayed:?}");
    topic.reaches(200, SOON).await;
    let replays = async || redis.stream_len("{spillway}:kafka:replays").await;
    until("no replay is left", SOON, async || replays().await == 0).await;
    check(&ledger, topic.all(), &HashSet::new()).expect_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_too_large_among_many_holds_nothing_up() {
    const MANY: u64 = 20_000;
    let mut chance = chance(seed("kafka, one among many", 107), 0);
    let cell = Cell::busy();
    let kafka = cell.kafka().await;
    // Many batches wait next to the one that is refused.
    kafka.topic(TOPIC, 24, &[]).await;
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    let items = (1..=MANY).map(|resource| {
        let bytes = if resource == MANY / 4 { 2_000_000 } else { 1_000 };
        large(resource, bytes, &mut chance)
    });
    Feed::to(receiver.address(), &ledger).store(items.collect()).await;
    let producer = cell.kafka_producer(&kafka, &[]);
    let topic = Topic::arrivals(kafka.clients(), TOPIC, 24);
    topic.reaches(MANY as usize - 1, SOON).await;
    drained(&redis).await;
    assert_eq!(redis.stream_len("{spillway}:kafka:dead").await, 1);
    let dead = HashSet::from([Event { resource: MANY / 4, sequence: 1 }]);
    let found = check(&ledger, topic.all(), &dead);
    found.print("kafka, one among many");
    found.expect_exact();
    let built = producer.metric("spillway_producers_built_total").await;
    assert_eq!(built, Some(1.0), "what was refused was not learned at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_is_waited_for_while_the_queue_fills_up() {
    let cell = Cell::busy();
    let mut kafka = cell.kafka().await;
    kafka.topic(TOPIC, PARTITIONS, &[]).await;
    let redis = cell.redis(&["--maxmemory", "24mb"]).await;
    let receiver = cell.receiver(&[]).await;
    let properties = cell.directory().join("kafka.properties");
    std::fs::write(&properties, "transaction.timeout.ms=10000\n").expect("write the properties");
    let properties = properties.to_str().expect("a path of text");
    let producer = cell.kafka_producer(&kafka, &[("KAFKA_PROPERTIES_FILE", properties)]);
    producer.ready().await;
    let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
    let ledger = Arc::new(Ledger::default());
    let feed = Feed::to(receiver.address(), &ledger);
    feed.store((1..=500).map(order).collect()).await;
    topic.reaches(500, SOON).await;
    drained(&redis).await;

    let before = producer.resident_bytes();
    kafka.kill9();
    let gone = Instant::now();
    let stored = fill(&receiver, &ledger).await;
    producer.unready("kafka_unavailable").await;
    let growth = producer.resident_bytes().saturating_sub(before);
    say(&format!("kafka, away: {stored} stored until the queue was full, {growth} bytes more"));
    assert!(growth < GROWTH_MAX, "{growth} bytes more");
    // The broker is away until the records time out, so their outcome is unknown.
    until("another producer is built", SOON, async || {
        producer.metric("spillway_producers_built_total").await >= Some(2.0)
    })
    .await;
    tokio::time::sleep_until((gone + Duration::from_secs(size(0, 60))).into()).await;
    let growth = producer.resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes more");
    say(&format!("kafka, away: for {:?}, {growth} bytes more", gone.elapsed()));
    kafka.restart();
    let back = Instant::now();
    topic.reaches(ledger.stored_count(), SOON * 2).await;
    say(&format!("kafka, away: all appeared {:?} after it was started again", back.elapsed()));
    producer.ready().await;
    drained(&redis).await;
    // The receiver checks a full Redis four times a second.
    receiver.ready().await;
    assert_eq!(post(receiver.address(), &Webhook::any()).await.status, 200);
    check_without_any(&ledger, &topic).expect_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stands_still_for_longer_than_its_session_holds_nothing_up_for_long() {
    // ops/kafka.sh: broker.session.timeout.ms is 4 s.
    const STILL: Duration = Duration::from_secs(6);
    // A call that librdkafka never ends is given up after 45 s, and another producer takes over. Less
    // than the five minutes for which librdkafka otherwise trusts what it has learned.
    const BACK: Duration = Duration::from_secs(120);
    let cell = Cell::busy();
    let kafka = cell.kafka().await;
    kafka.topic(TOPIC, PARTITIONS, &[]).await;
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let producer = cell.kafka_producer(&kafka, &[]);
    producer.ready().await;
    let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
    let ledger = Arc::new(Ledger::default());
    let load = Load { resources: 64, pause: Duration::from_millis(30), ..Load::steady(5) };
    let running = load.start(receiver.address(), &ledger);
    for round in 0..size(2, 20) {
        let before = topic.count();
        until("records appear", SOON, async || topic.count() > before + 500).await;
        kafka.sigstop();
        tokio::time::sleep(STILL).await;
        kafka.sigcont();
        let (stored, began) = (ledger.stored_count(), Instant::now());
        until("all records of before appear", BACK, async || topic.count() >= stored).await;
        say(&format!("kafka, stands still: round {round}: back after {:?}", began.elapsed()));
    }
    running.stop().await;
    drained(&redis).await;
    topic.reaches(ledger.stored_count(), SOON).await;
    check(&ledger, topic.all(), &HashSet::new()).expect_exact();
}

fn check_without_any(ledger: &Ledger, topic: &Topic<Arrival>) -> stories::exactly_once::Once {
    let ours = topic.all().into_iter().filter(|arrival| arrival.event.is_some()).collect();
    check(ledger, ours, &HashSet::new())
}

/// Stores large webhooks until the queue is full. Returns their number.
async fn fill(receiver: &Service, ledger: &Arc<Ledger>) -> usize {
    let mut chance = chance(seed("kafka, away", 104), 0);
    let mut line = Line::new(receiver.address(), ledger);
    for resource in 10_001.. {
        let (event, webhook) = large(resource, 100_000, &mut chance);
        match line.attempt(event, &webhook).await {
            Outcome::Stored => {}
            Outcome::Later => return (resource - 10_001) as usize,
            other => panic!("{event:?}: {other:?}"),
        }
    }
    unreachable!("the queue takes everything")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_a_wrong_password_is_said_and_the_right_one_lets_it_in() {
    let cell = Cell::shared();
    let authority = Authority::new(cell.directory(), "authority");
    authority.certify("localhost");
    let ca = authority.certificate();
    let kafka = secured(&cell, &ca).await;
    kafka.topic(TOPIC, PARTITIONS, &[]).await;
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let mut wrong = with_password(&cell, &kafka, &ca, "not-it").await;
    wrong.unready("kafka_refuses").await;
    let reason = wrong.admin("/readyz").await.expect("an answer").text();
    assert!(reason.to_lowercase().contains("authentication"), "{reason}");
    assert!(wrong.is_running());
    let output = wrong.output();
    assert!(output.contains("kafka_refuses"), "{output}");
    assert!(!output.contains("not-it"), "a password is logged");
    wrong.sigterm();
    assert!(wrong.exit(SOON).await.success());

    let right = with_password(&cell, &kafka, &ca, PASSWORD).await;
    right.ready().await;
    let (_, webhook) = order(1);
    assert_eq!(post(receiver.address(), &webhook).await.status, 200);
    let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
    topic.reaches(1, SOON).await;
}

/// A broker that requires TLS and a password.
async fn secured(cell: &Cell, ca: &str) -> KafkaServer {
    let pem = |ending| {
        let file = cell.directory().join(format!("localhost.{ending}"));
        std::fs::read_to_string(file).expect("read what openssl made")
    };
    let keystore = cell.directory().join("keystore.pem");
    std::fs::write(&keystore, pem("key") + &pem("pem")).expect("write the keystore");
    let settings = format!(
        "listeners=SASL_SSL://localhost:{{port}},CONTROLLER://127.0.0.1:{{controller}}\n\
         advertised.listeners=SASL_SSL://localhost:{{port}}\n\
         listener.security.protocol.map=CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL\n\
         inter.broker.listener.name=SASL_SSL\n\
         ssl.keystore.type=PEM\nssl.keystore.location={}\n\
         ssl.truststore.type=PEM\nssl.truststore.location={ca}\n\
         sasl.enabled.mechanisms=SCRAM-SHA-512\n\
         sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512\n\
         listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\
         org.apache.kafka.common.security.scram.ScramLoginModule required \
         username=\"spillway\" password=\"{PASSWORD}\";\n",
        keystore.display()
    );
    cell.kafka_with(&KafkaOptions {
        settings: &settings,
        format_arguments: &format!("--add-scram SCRAM-SHA-512=[name=spillway,password={PASSWORD}]"),
        clients: &[
            ("security.protocol", "SASL_SSL"),
            ("ssl.ca.location", ca),
            ("sasl.mechanisms", "SCRAM-SHA-512"),
            ("sasl.username", "spillway"),
            ("sasl.password", PASSWORD),
        ],
    })
    .await
}

async fn with_password(cell: &Cell, kafka: &KafkaServer, ca: &str, password: &str) -> Service {
    let file = cell.directory().join("kafka.properties");
    let text = format!(
        "# As a Java client's file.\nsecurity.protocol=SASL_SSL\nssl.ca.location={ca}\n\
         sasl.mechanism=SCRAM-SHA-512\nsasl.username: spillway\nsasl.password {password}\n"
    );
    std::fs::write(&file, text).expect("write the properties");
    let file = file.to_str().expect("a path of text");
    cell.kafka_producer(kafka, &[("KAFKA_PROPERTIES_FILE", file)])
}
