//! Errors of several brokers that disagree. librdkafka's mock cluster of three brokers produces
//! them on demand.
//!
//! The mock cluster supports transactions but shows every record at once, even aborted ones. A
//! record may therefore be read twice here. The tests check that none is lost or altered, and that
//! the first copies are in order. `kafka_exactly_once.rs` checks exactly-once with a real broker.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Error};
use stories::cell::{Cell, Settings};
use stories::exactly_once::check;
use stories::kafka_topic::{Arrival, Topic};
use stories::ledger::Ledger;
use stories::load::Load;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::seed;
use stories::service::Service;
use stories::until::until;

const TOPIC: &str = "shopify-webhooks";
const PARTITIONS: i32 = 4;
const BROKERS: i32 = 3;
/// Longer than the transaction timeout, after which stuck work is repeated.
const SOON: Duration = Duration::from_secs(150);
/// Number of records before the first fault, and after each.
const SOME: usize = 200;
/// The mock cluster drops what exceeds 5 MiB of a partition (`max_size` in rdkafka_mock.c), read or
/// not. The load is small and slow, 90 KB/s in all, so that records within `SOON` are kept.
const BODY_BYTES: RangeInclusive<usize> = 100..=200;
const PAUSE: Duration = Duration::from_millis(200);

struct Cluster {
    brokers: MockCluster<'static, DefaultProducerContext>,
    topic: Topic<Arrival>,
    producer: Service,
    redis: RedisServer,
    cell: Cell,
}

impl Cluster {
    async fn start(settings: Settings<'_>) -> Self {
        let brokers = MockCluster::new(BROKERS).expect("a mock cluster");
        brokers.create_topic(TOPIC, PARTITIONS, BROKERS).expect("a topic");
        let url = brokers.bootstrap_servers();
        let cell = Cell::shared();
        let redis = cell.redis(&[]).await;
        let producer = cell.kafka_producer_to(&url, settings);
        let mut clients = ClientConfig::new();
        clients.set("bootstrap.servers", &url);
        let topic = Topic::arrivals(clients, TOPIC, PARTITIONS);
        Self { brokers, topic, producer, redis, cell }
    }

    /// Makes `faults` one after the other during a load, and checks the result.
    async fn flows_through(&mut self, story: &str, faults: &[&dyn Fn(&Self)]) {
        let receiver = self.cell.receiver(&[]).await;
        let ledger = Arc::new(Ledger::default());
        let load = Load {
            resources: 50,
            body_bytes: BODY_BYTES,
            pause: PAUSE,
            ..Load::steady(seed(story, 106))
        };
        let running = load.start(receiver.address(), &ledger);
        self.more_come().await;
        for fault in faults {
            fault(self);
            self.more_come().await;
        }
        running.stop().await;
        until("the queue is empty", SOON, async || {
            self.redis.stream_len("{spillway}:in").await == 0
        })
        .await;
        // A count alone would include repeats.
        let all = async || check(&ledger, self.topic.all(), &HashSet::new()).lost == 0;
        until("all are read", SOON, all).await;
        let found = check(&ledger, self.topic.all(), &HashSet::new());
        found.print(story);
        let built = self.producer.metric("spillway_producers_built_total").await;
        say(&format!("{story}: {built:?} producers built"));
        let faults = [found.lost, found.invented, found.altered, found.disordered, found.scattered];
        assert_eq!(faults, [0; 5], "{found:?}");
        assert!(self.producer.is_running(), "it ended");
        self.producer.ready().await;
        assert_eq!(self.redis.stream_len("{spillway}:kafka:dead").await, 0, "dead letters");
    }

    async fn more_come(&self) {
        let before = self.topic.count();
        until("more records appear", SOON, async || self.topic.count() >= before + SOME).await;
    }

    fn answer(&self, api: Api, errors: &[Error]) {
        self.brokers.request_errors(api, errors);
    }

    /// Id of the transactions and of the group that holds the cursor, once the cell has it.
    async fn id(&self) -> String {
        until("the cell has its id", SOON, async || self.producer.is_ready().await).await;
        format!("spillway-{}", self.redis.command::<String>(&["GET", "{spillway}:cell"]).await)
    }

    /// Moves both coordinators to `broker`.
    fn coordinate(&self, id: &str, broker: i32) {
        for coordinator in
            [MockCoordinator::Transaction(id.to_owned()), MockCoordinator::Group(id.to_owned())]
        {
            self.brokers.coordinator(coordinator, broker).expect("another coordinator");
        }
    }

    /// Moves the leader of each partition on by `by` brokers.
    fn lead(&self, by: i32) {
        for partition in 0..PARTITIONS {
            let leader = Some((partition + by) % BROKERS + 1);
            self.brokers.partition_leader(TOPIC, partition, leader).expect("another leader");
        }
    }

    /// Takes a broker away as a real one would go: the others lead and coordinate in its place. It
    /// is removed from the metadata, so that librdkafka closes its connection for good.
    fn goes(&self, id: &str, broker: i32) {
        self.brokers.broker_down(broker).expect("a broker goes");
        let next = |step: i32| Some((broker - 1 + step) % BROKERS + 1);
        for partition in 0..PARTITIONS {
            let leader = next(partition % 2 + 1);
            self.brokers.partition_leader(TOPIC, partition, leader).expect("another leader");
        }
        self.coordinate(id, next(1).unwrap_or(1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_are_waited_for() {
    use Error::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS as TOO_FEW;
    use Error::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND as TOO_FEW_AFTER;
    let mut cluster = Cluster::start(&[]).await;
    cluster
        .flows_through(
            "kafka, replicas",
            &[&|cluster| cluster.answer(Api::Produce, &[TOO_FEW; 20]), &|cluster| {
                cluster.answer(Api::Produce, &[TOO_FEW_AFTER; 5]);
            }],
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_leader_is_followed() {
    let mut cluster = Cluster::start(&[]).await;
    let moves = [0, 1, 2].map(|by| move |cluster: &Cluster| cluster.lead(by));
    cluster.flows_through("kafka, leaders", &[&moves[1], &moves[2], &moves[0]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_goes_and_comes_back_holds_nothing_up_for_long() {
    let mut cluster = Cluster::start(&[]).await;
    let id = cluster.id().await;
    cluster.coordinate(&id, 1);
    cluster
        .flows_through(
            "kafka, a broker's restart",
            &[&|cluster| cluster.goes(&id, 1), &|cluster| {
                cluster.brokers.broker_up(1).expect("a broker comes");
            }],
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_coordinator_is_found() {
    use Error::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS as LOADING;
    use Error::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE as AWAY;
    use Error::RD_KAFKA_RESP_ERR_NOT_COORDINATOR as ANOTHER;
    let mut cluster = Cluster::start(&[]).await;
    let id = cluster.id().await;
    let moves = |cluster: &Cluster, broker: i32| cluster.coordinate(&id, broker);
    cluster
        .flows_through(
            "kafka, coordinators",
            &[
                &|cluster| moves(cluster, 2),
                &|cluster| moves(cluster, 3),
                &|cluster| cluster.answer(Api::EndTxn, &[ANOTHER, AWAY, LOADING]),
                &|cluster| cluster.answer(Api::AddPartitionsToTxn, &[LOADING, ANOTHER, AWAY]),
                &|cluster| cluster.answer(Api::AddOffsetsToTxn, &[AWAY, LOADING, ANOTHER]),
                &|cluster| cluster.answer(Api::TxnOffsetCommit, &[LOADING, AWAY, ANOTHER]),
            ],
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_of_librdkafka_holds_the_reading_up() {
    let files = tempfile::tempdir().expect("a directory");
    let file = files.path().join("kafka.properties");
    // A queue of a tenth of a pack, and slow brokers.
    std::fs::write(&file, "queue.buffering.max.messages=5\n").expect("write the properties");
    let file = file.to_str().expect("a path of text");
    let mut cluster = Cluster::start(&[("KAFKA_PROPERTIES_FILE", file)]).await;
    let slow = |cluster: &Cluster, ms: u64| {
        for broker in 1..=BROKERS {
            let delay = Duration::from_millis(ms);
            cluster.brokers.broker_round_trip_time(broker, delay).expect("a slow broker");
        }
    };
    cluster
        .flows_through("kafka, full", &[&|cluster| slow(cluster, 20), &|cluster| slow(cluster, 0)])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_producer_that_is_still_the_leader_begins_again() {
    use Error::RD_KAFKA_RESP_ERR_PRODUCER_FENCED as FENCED;
    let mut cluster = Cluster::start(&[]).await;
    cluster
        .flows_through(
            "kafka, fenced",
            &[&|cluster| cluster.answer(Api::EndTxn, &[FENCED]), &|cluster| {
                cluster.answer(Api::AddPartitionsToTxn, &[FENCED]);
            }],
        )
        .await;
    assert!(cluster.producer.metric("spillway_producers_built_total").await >= Some(2.0));
}
