//! Exactly once into Kafka under load, while producer, broker, Redis and receiver are killed.
//!
//! `make endure` uses at least a million webhooks and forty kills.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use stories::cell::Cell;
use stories::exactly_once::check;
use stories::kafka_server::KafkaServer;
use stories::kafka_topic::{Arrival, Topic};
use stories::ledger::{Ledger, Outcome};
use stories::load::Load;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::{chance, seed};
use stories::service::Service;
use stories::size::size;
use stories::until::until;
use tokio::time::sleep;

const TOPIC: &str = "shopify-webhooks";
const PARTITIONS: i32 = 6;
/// Time limit for new records after any kill, on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(120);
/// Time limit for all stored webhooks to arrive.
const DRAINED_WITHIN: Duration = Duration::from_secs(180);
/// Time without a new record after which no more are expected.
const QUIET: Duration = Duration::from_secs(2);
/// Number of webhooks up to which the load is slowed down, so that the kills meet it running.
const PACED_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug)]
enum Victim {
    Producer,
    Broker,
    Redis,
    Receiver,
}

struct Parts {
    producer: Service,
    kafka: KafkaServer,
    redis: RedisServer,
    receiver: Service,
    topic: Topic<Arrival>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_webhook_appears_once_whatever_is_killed() {
    let seed = seed("kafka, kills", 101);
    let (count, kills) = (size(12_000, 1_000_000), size(8, 40));
    let cell = Cell::busy();
    let kafka = cell.kafka().await;
    kafka.topic(TOPIC, PARTITIONS, &[]).await;
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let producer = cell.kafka_producer(&kafka, &[]);
    let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
    let mut parts = Parts { producer, kafka, redis, receiver, topic };
    let ledger = Arc::new(Ledger::default());
    let pause = if count > PACED_MAX { Duration::ZERO } else { Duration::from_millis(60) };
    let load = Load { resources: 500, pause, ..Load::steady(seed) };
    let running = load.start(parts.receiver.address(), &ledger);
    let began = Instant::now();
    kill_all(&mut parts, kills, chance(seed, 1 << 32)).await;
    until("enough is stored", DRAINED_WITHIN * 10, async || ledger.stored_count() >= count).await;
    running.stop().await;
    parts.drained(ledger.stored_count()).await;
    let found = check(&ledger, parts.topic.all(), &HashSet::new());
    found.print("kafka, kills");
    let unknown = ledger.count(Outcome::Later) + ledger.count(Outcome::Unanswered);
    let built = parts.producer.metric("spillway_producers_built_total").await;
    say(&format!(
        "kafka, kills: {kills} kills in {:?}, {unknown} attempts of unknown fate, {built:?} \
         producers built by the last process",
        began.elapsed()
    ));
    found.expect_exact();
}

async fn kill_all(parts: &mut Parts, kills: usize, mut chance: StdRng) {
    let mut victims = [Victim::Producer, Victim::Broker, Victim::Redis, Victim::Receiver]
        .repeat(kills.div_ceil(4));
    victims.truncate(kills);
    victims.shuffle(&mut chance);
    for (number, victim) in victims.into_iter().enumerate() {
        parts.progress().await;
        sleep(Duration::from_millis(chance.random_range(0..2000))).await;
        say(&format!("kafka, kills: {number}: {victim:?} at {} records", parts.topic.count()));
        parts.kill(victim).await;
    }
    parts.progress().await;
}

impl Parts {
    async fn kill(&mut self, victim: Victim) {
        match victim {
            Victim::Producer => {
                self.producer.kill9();
                self.producer.restart();
            }
            Victim::Broker => {
                self.kafka.kill9();
                self.kafka.restart();
            }
            Victim::Redis => {
                self.redis.kill9();
                self.redis.restart();
                self.redis.ready().await;
            }
            Victim::Receiver => {
                self.receiver.kill9();
                self.receiver.restart();
            }
        }
    }

    /// Waits until more records appear, so that the next kill hits a working process.
    async fn progress(&self) {
        let before = self.topic.count();
        until("records appear", BACK_WITHIN, async || self.topic.count() >= before + 50).await;
    }

    /// Waits until the queue is empty, `stored` records are read, and nothing more appears.
    async fn drained(&self, stored: usize) {
        until("the queue is empty", DRAINED_WITHIN, async || {
            self.redis.stream_len("{spillway}:in").await == 0
        })
        .await;
        self.topic.reaches(stored, DRAINED_WITHIN).await;
        let (mut count, mut since) = (self.topic.count(), Instant::now());
        until("the topic is read", DRAINED_WITHIN, async || {
            if self.topic.count() != count {
                (count, since) = (self.topic.count(), Instant::now());
            }
            since.elapsed() > QUIET
        })
        .await;
    }
}
