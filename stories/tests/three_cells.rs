//! Three cells behind nginx as shipped, which hashes by shop, and one topic of Kafka: under load, processes are killed, and
//! cells are added, drained and removed as `docs/cells.md` describes. Nothing is lost or out of order, and each webhook is in the topic
//! once.
//!
//! `make endure` moves shops for half an hour, with at least thirty kills.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::Value;
use stories::backend::Backend;
use stories::binaries::repository;
use stories::cell::{CONCURRENCY, Cell};
use stories::check::check;
use stories::exactly_once;
use stories::kafka_server::KafkaServer;
use stories::kafka_topic::{Arrival, Topic};
use stories::ledger::Ledger;
use stories::load::Load;
use stories::nginx::Nginx;
use stories::port;
use stories::process::Process;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::{chance, seed};
use stories::service::Service;
use stories::size::size;
use stories::until::until;

const TOPIC: &str = "shopify-webhooks";
const PARTITIONS: i32 = 6;
const CELLS: usize = 3;
const SHOPS: u64 = 60;
/// Consumers of each cell.
const CONSUMERS: [&str; 2] = ["http", "kafka"];
/// A webhook is stored or answered 503 within it, so nothing is on its way after twice as long.
const ACK_TIMEOUT: &str = "1s";
const QUIET_FOR: &str = "2s";
/// Time limit for anything on a busy machine, with the takeover of a leader that was killed.
const SOON: Duration = Duration::from_secs(120);
/// Webhooks that wait for each consumer of a cell that is removed, when its drain begins.
const BACKLOG: u64 = 20;
/// Time without a new record after which no more are expected.
const QUIET: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
enum Victim {
    Receiver,
    Downstreamer,
    Producer,
    Redis,
}

const VICTIMS: [Victim; 4] =
    [Victim::Receiver, Victim::Downstreamer, Victim::Producer, Victim::Redis];

/// One cell of the three.
struct Member {
    producer: Service,
    downstreamer: Service,
    receiver: Service,
    redis: RedisServer,
    cell: Cell,
}

/// All cells, and what is around them.
struct Fleet {
    nginx: Nginx,
    address: SocketAddr,
    /// Numbers of the cells that nginx leads webhooks to.
    serving: BTreeSet<usize>,
    kills: usize,
    ledger: Arc<Ledger>,
    backend: Backend,
    topic: Topic<Arrival>,
    _kafka: KafkaServer,
    cells: Vec<Member>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shops_move_between_cells_under_load_and_kills() {
    let seed = seed("three cells", 211);
    let mut chance = chance(seed, 1 << 32);
    let (least, kills) = size((Duration::ZERO, 5), (Duration::from_secs(30 * 60), 30));
    let mut fleet = Fleet::start().await;
    let load = Load {
        resources: 240,
        shops: Some(0..SHOPS),
        pause: size(Duration::from_millis(80), Duration::from_millis(250)),
        ..Load::steady(seed)
    };
    let began = Instant::now();
    let running = load.start(fleet.address, &fleet.ledger);
    fleet.progress().await;
    // In the short version, each kind of process is killed once, and one of them twice.
    let victims = |number: usize| VICTIMS[number % VICTIMS.len()];
    while fleet.kills < kills || began.elapsed() < least {
        fleet.kill(0, victims(fleet.kills)).await;
        fleet.kill(1, victims(fleet.kills)).await;
        fleet.add(2, victims(fleet.kills), &mut chance).await;
        fleet.remove(0, victims(fleet.kills)).await;
        fleet.kill(2, victims(fleet.kills)).await;
        let is_last = fleet.kills >= kills && began.elapsed() >= least;
        if !is_last {
            fleet.add(0, victims(fleet.kills), &mut chance).await;
            fleet.remove(2, victims(fleet.kills)).await;
        }
    }
    running.stop().await;
    fleet.end().await;
}

impl Member {
    async fn start(cell: Cell, backend: &Backend, kafka: &KafkaServer) -> Self {
        let redis = cell.redis(&[]).await;
        let spill = cell.directory().join("spill").display().to_string();
        let receiver = cell.receiver(&[("SPILL_DIR", &spill), ("ACK_TIMEOUT", ACK_TIMEOUT)]).await;
        let producer = cell.kafka_producer(kafka, &[]);
        let downstreamer = cell.downstreamer(backend, &[]).await;
        let member = Self { producer, downstreamer, receiver, redis, cell };
        // What one consumer settles before the other one registers would not be kept for it.
        member.lead().await;
        member
    }

    async fn lead(&self) {
        self.downstreamer.leads().await;
        self.producer.leads().await;
    }

    /// Runs the operators' command, which must succeed.
    async fn spillway(&self, arguments: &[&str]) -> String {
        let output = self.cell.spillway(arguments).await;
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {told}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Pauses every consumer, and waits until they know it.
    async fn pause(&self) {
        self.lead().await;
        for consumer in CONSUMERS {
            self.spillway(&["pause", "--all", "--consumer", consumer]).await;
        }
        for worker in [&self.downstreamer, &self.producer] {
            let what = format!("{} is paused", worker.name());
            let is_paused = async || worker.metric("spillway_paused_all").await == Some(1.0);
            until(&what, SOON, is_paused).await;
        }
    }

    /// Least number of webhooks that wait for one of the consumers.
    async fn waiting_least(&self) -> u64 {
        let told = self.spillway(&["status", "-o", "json"]).await;
        let status: Value = serde_json::from_str(&told).expect("JSON");
        let consumers = status["consumers"].as_array().expect("consumers");
        assert_eq!(consumers.len(), CONSUMERS.len(), "{told}");
        let waiting =
            consumers.iter().map(|consumer| consumer["waiting"].as_u64().expect("a number"));
        waiting.min().expect("consumers")
    }

    async fn resume(&self) {
        for consumer in CONSUMERS {
            self.spillway(&["resume", "--consumer", consumer]).await;
        }
    }

    /// Waits with the operators' command, while one of the processes is killed.
    async fn drain(&mut self, flags: &[&str], victim: Option<Victim>) {
        let drain = self.start_drain(flags).await;
        if let Some(victim) = victim {
            self.kill(victim).await;
        }
        expect_drained(drain).await;
    }

    /// The same for a cell whose consumers are paused and have a backlog: they go on while the command waits.
    async fn drain_backlog(&mut self, victim: Victim) {
        let waiting = self.waiting_least().await;
        assert!(waiting > 0, "nothing waits when the drain begins");
        let mut drain = self.start_drain(&[]).await;
        self.kill(victim).await;
        assert_eq!(drain.ended(), None, "{waiting} wait: {}", drain.output());
        assert!(drain.output().contains(" left"), "{}", drain.output());
        self.resume().await;
        expect_drained(drain).await;
    }

    /// Starts the operators' command, and waits until it has looked at the cell.
    async fn start_drain(&self, flags: &[&str]) -> Process {
        let admin = self.receiver.admin_address().to_string();
        let fixed =
            ["cell", "drain", "--quiet-for", QUIET_FOR, "--timeout", "120s", "--receiver", &admin];
        let drain = self.cell.spillway_starting(&[&fixed[..], flags].concat());
        until("the cell is looked at", SOON, async || !drain.output().is_empty()).await;
        drain
    }

    async fn kill(&mut self, victim: Victim) {
        match victim {
            Victim::Receiver => {
                self.receiver.kill9();
                self.receiver.restart();
                self.receiver.ready().await;
            }
            Victim::Downstreamer => {
                self.downstreamer.kill9();
                self.downstreamer.restart();
            }
            Victim::Producer => {
                self.producer.kill9();
                self.producer.restart();
            }
            Victim::Redis => {
                self.redis.kill9();
                self.redis.restart();
                self.redis.ready().await;
            }
        }
    }

    /// Webhooks that the cell ever accepted.
    async fn accepted(&self) -> u64 {
        let accepted: Option<u64> =
            self.redis.command(&["HGET", "{spillway}:counts", "appended"]).await;
        accepted.unwrap_or(0)
    }
}

impl Fleet {
    /// Starts three cells. The first two serve.
    async fn start() -> Self {
        let first = Cell::busy();
        let kafka = first.kafka().await;
        kafka.topic(TOPIC, PARTITIONS, &[]).await;
        let topic = Topic::arrivals(kafka.clients(), TOPIC, PARTITIONS);
        let backend = Backend::start().await;
        let mut cells = vec![Member::start(first, &backend, &kafka).await];
        while cells.len() < CELLS {
            cells.push(Member::start(Cell::beside(), &backend, &kafka).await);
        }
        let address = port::free();
        let serving = BTreeSet::from([0, 1]);
        let site = site(address, &cells, &serving);
        let nginx = Nginx::start_reloadable(cells[0].cell.directory(), &site, address).await;
        Self {
            nginx,
            address,
            serving,
            kills: 0,
            ledger: Arc::default(),
            backend,
            topic,
            _kafka: kafka,
            cells,
        }
    }

    /// Waits until more arrives at both ends, so that the next kill hits cells that work.
    async fn progress(&self) {
        let (records, delivered) = (self.topic.count(), self.backend.delivered());
        until("webhooks arrive", SOON, async || {
            self.topic.count() >= records + 50 && self.backend.delivered() >= delivered + 50
        })
        .await;
    }

    async fn kill(&mut self, number: usize, victim: Victim) {
        self.count_kill(number, victim);
        self.cells[number].kill(victim).await;
        self.progress().await;
    }

    fn count_kill(&mut self, number: usize, victim: Victim) {
        self.kills += 1;
        let stored = self.ledger.stored_count();
        say(&format!("three cells: {victim:?} of cell {number} is killed at {stored} stored"));
    }

    /// Adds a cell: it stores from the reload on, and delivers once the others have settled what they stored before.
    async fn add(&mut self, number: usize, victim: Victim, chance: &mut StdRng) {
        let before = self.cells[number].accepted().await;
        let losing = self.serving.clone();
        self.cells[number].pause().await;
        self.serving.insert(number);
        self.reload().await;
        let hit = losing.iter().nth(chance.random_range(0..losing.len())).copied();
        for other in losing {
            let victim = Some(victim).filter(|_| hit == Some(other));
            if let Some(victim) = victim {
                self.count_kill(other, victim);
            }
            self.cells[other].drain(&["--so-far"], victim).await;
        }
        let stored = async || self.cells[number].accepted().await > before;
        until("the new cell stores its shops' webhooks", SOON, stored).await;
        self.cells[number].resume().await;
        self.progress().await;
    }

    /// Removes a cell: the others store from the reload on, and deliver once it is empty. It has a backlog then, whose
    /// webhooks the others' would overtake if they did not wait for the drain.
    async fn remove(&mut self, number: usize, victim: Victim) {
        self.serving.remove(&number);
        for other in &self.serving {
            self.cells[*other].pause().await;
        }
        self.cells[number].pause().await;
        let has_backlog = async || self.cells[number].waiting_least().await >= BACKLOG;
        until("the cell that is removed has a backlog", SOON, has_backlog).await;
        self.reload().await;
        self.count_kill(number, victim);
        self.cells[number].drain_backlog(victim).await;
        assert_eq!(self.cells[number].waiting_least().await, 0, "a drained cell");
        let accepted = self.cells[number].accepted().await;
        for other in &self.serving {
            self.cells[*other].resume().await;
        }
        self.progress().await;
        assert_eq!(self.cells[number].accepted().await, accepted, "a removed cell was sent more");
    }

    async fn reload(&self) {
        self.nginx.reload(&site(self.address, &self.cells, &self.serving)).await;
    }

    /// Waits until everything has arrived, and checks it.
    async fn end(mut self) {
        let [a, b, c] = &mut self.cells[..] else { panic!("three cells") };
        tokio::join!(a.drain(&[], None), b.drain(&[], None), c.drain(&[], None));
        self.ledger.delivered_to(&self.backend, SOON).await;
        self.topic.reaches(self.ledger.stored_count(), SOON).await;
        let (mut count, mut since) = (self.topic.count(), Instant::now());
        until("the topic is read", SOON, async || {
            if self.topic.count() != count {
                (count, since) = (self.topic.count(), Instant::now());
            }
            since.elapsed() > QUIET
        })
        .await;
        for member in &self.cells {
            assert!(member.accepted().await > 0, "a cell without webhooks");
        }
        say(&format!("three cells: {} kills", self.kills));
        let delivered = check(&self.ledger, &self.backend.receipts(), &HashSet::new());
        delivered.print("three cells, HTTP");
        let produced = exactly_once::check(&self.ledger, self.topic.all(), &HashSet::new());
        produced.print("three cells, Kafka");
        delivered.expect_sound(self.kills * CONCURRENCY);
        produced.expect_exact();
    }
}

/// Waits until the operators' command ends, which must succeed.
async fn expect_drained(mut drain: Process) {
    let status = drain.exit(SOON * 2).await;
    assert!(status.success(), "{}", drain.output());
    say(&format!("three cells: {}", drain.output().trim()));
}

/// `ops/nginx/cells.conf` as shipped with the cells that serve, and a server. A cell that is down is answered for with 503
/// in place of 502, which the senders of this story take for good.
fn site(address: SocketAddr, cells: &[Member], serving: &BTreeSet<usize>) -> String {
    let shipped = repository().join("ops/nginx/cells.conf");
    let mut upstream = fs::read_to_string(shipped).expect("read the shipped file");
    for (number, member) in cells.iter().enumerate() {
        let line = format!("server 10.0.0.{}:8080 max_fails=0;", number + 1);
        assert_eq!(upstream.matches(&line).count(), 1, "{line:?} in the shipped file");
        let own = match serving.contains(&number) {
            true => format!("server {} max_fails=0;", member.receiver.address()),
            false => String::new(),
        };
        upstream = upstream.replace(&line, &own);
    }
    format!(
        "{upstream}\nserver {{ listen {address}; error_page 502 504 =503 @down; \
         location @down {{ return 503; }} location / {{ proxy_pass http://spillway; \
         proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_next_upstream off; }} }}"
    )
}
