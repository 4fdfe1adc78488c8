//! A real Prometheus with the shipped files scrapes a real cell. Nothing fires without a fault, and
//! each alert fires in its fault.
//!
//! In the copy of the rules that is used, every duration is a few seconds; nothing else is changed.
//! `make alerts-live` makes every fault and writes the alerts that fired to a table. Without it,
//! the suite makes only the faults that kill no process.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::archive::ArchiveDirectory;
use stories::authority::Authority;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::binaries::{self, repository};
use stories::cell::Cell;
use stories::client::Connection;
use stories::feed::{Feed, Trickle};
use stories::kafka_server::KafkaServer;
use stories::ledger::{Event, Ledger};
use stories::load::Running;
use stories::locked_bucket::LockedBucket;
use stories::port;
use stories::process::Recipe;
use stories::prometheus::Prometheus;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::{SECRET, Webhook};
use time::OffsetDateTime;
use tokio::time::sleep;

const SOON: Duration = Duration::from_secs(90);

/// 100 webhooks per second of ten shops.
const SHOPS: Trickle = Trickle {
    shops: 1..11,
    topics: &["products/update", "orders/create"],
    every: Duration::from_millis(200),
    first_resource: 1,
};

/// The shipped durations, and their replacements in the copy.
const SHORTER: [(&str, &str); 22] = [
    ("for: 10m", "for: 3s"),
    ("for: 5m", "for: 2s"),
    ("for: 2m", "for: 2s"),
    ("for: 1m", "for: 2s"),
    ("[7d:1h]", "[30s:1s]"),
    // Step of that subquery in seconds.
    ("* 3600 > 100", "* 1 > 100"),
    ("[4h]", "[10s]"),
    ("[1h]", "[10s]"),
    ("[30m]", "[10s]"),
    ("[15m]", "[10s]"),
    ("[10m]", "[10s]"),
    ("[5m]", "[10s]"),
    ("offset 1h", "offset 10s"),
    ("> 86400", "> 10"),
    ("oldest_age_seconds:max > 3600", "oldest_age_seconds:max > 10"),
    ("> 1800", "> 8"),
    ("> 300", "> 12"),
    ("> 600", "> 10"),
    ("time_to_full_seconds < 3600", "time_to_full_seconds < 60"),
    ("time_to_disk_full_seconds < 3600", "time_to_disk_full_seconds < 20"),
    ("scrape_interval: 15s", "scrape_interval: 1s"),
    ("evaluation_interval: 15s", "evaluation_interval: 1s"),
];

/// Writes a copy of the shipped files with shorter durations. Returns the configuration.
fn shipped(directory: &Path, targets: &[(&str, SocketAddr)]) -> String {
    let mut files = ["recording.yml", "alerts.yml", "prometheus.yml"].map(|name| {
        let path = repository().join("ops/prometheus").join(name);
        (name, fs::read_to_string(path).expect("read a shipped file"))
    });
    for (from, to) in SHORTER {
        // Makes sure that the shipped files and this table stay consistent.
        assert!(files.iter().any(|(_, text)| text.contains(from)), "{from:?} is nowhere");
        files.iter_mut().for_each(|(_, text)| *text = text.replace(from, to));
    }
    for (name, text) in &files[..2] {
        fs::write(directory.join(name), text).expect("write a copy");
    }
    let mut configuration = files[2].1.clone();
    for (shipped, target) in targets {
        assert_eq!(configuration.matches(shipped).count(), 1, "{shipped} in prometheus.yml");
        configuration = configuration.replace(shipped, &target.to_string());
    }
    configuration
}

/// A cell with both consumers and traffic, and a Prometheus that monitors it.
struct Watched {
    prometheus: Prometheus,
    receiver: Service,
    downstreamer: Service,
    producer: Service,
    backend: Backend,
    redis: RedisServer,
    table: String,
    _kafka: KafkaServer,
    cell: Cell,
}

impl Watched {
    async fn start() -> (Self, Running) {
        let cell = Cell::busy();
        let kafka = cell.kafka().await;
        kafka.topic("shopify-webhooks", 2, &[]).await;
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        let receiver = cell.receiver(&[("REQUIRE_DURABLE", "false")]).await;
        let downstreamer = cell.downstreamer(&backend, &[]).await;
        let producer = cell.kafka_producer(&kafka, &[]);
        producer.ready().await;
        let configuration = shipped(
            cell.directory(),
            &[
                ("127.0.0.1:9811", receiver.admin_address()),
                ("127.0.0.1:9812", downstreamer.admin_address()),
                ("127.0.0.1:9813", producer.admin_address()),
            ],
        );
        let prometheus = Prometheus::start(cell.directory(), &configuration).await;
        let traffic = Feed::to(receiver.address(), &Arc::new(Ledger::default())).trickle(&SHOPS);
        let table = String::new();
        let watched = Self {
            prometheus,
            receiver,
            downstreamer,
            producer,
            backend,
            redis,
            table,
            _kafka: kafka,
            cell,
        };
        (watched, traffic)
    }

    /// Waits until all of these alerts fire, and records the time of each.
    async fn fire(&mut self, fault: &str, alerts: &[&str]) {
        let began = Instant::now();
        let mut missing = alerts.to_vec();
        while !missing.is_empty() {
            let firing = self.prometheus.firing().await;
            missing.retain(|alert| {
                let fires = firing.iter().any(|name| name == alert);
                if fires {
                    let took = began.elapsed().as_secs_f64();
                    writeln!(self.table, "| `{alert}` | {fault} | {took:.0} s |")
                        .expect("a string");
                    say(&format!("alerts: {alert} fires {took:.1} s after: {fault}"));
                }
                !fires
            });
            assert!(
                began.elapsed() < SOON,
                "{missing:?} do not fire though {fault}; {firing:?} do"
            );
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until nothing has fired for 6 s, which is longer than any `for` in the copy.
    async fn calm(&self) {
        let mut since = Instant::now();
        let mut last = Vec::new();
        until("nothing fires", 2 * SOON, async || {
            let firing = self.prometheus.firing().await;
            if !firing.is_empty() {
                since = Instant::now();
            }
            if firing != last {
                say(&format!("alerts: {firing:?} fire"));
                last = firing;
            }
            since.elapsed() > Duration::from_secs(6)
        })
        .await;
    }

    /// Same as [`fire`](Self::fire), while these webhooks are sent repeatedly in turn.
    async fn while_sending(&mut self, webhooks: Vec<Webhook>, fault: &str, alerts: &[&str]) {
        let address = self.receiver.address();
        let sending = tokio::spawn(async move {
            for webhook in webhooks.iter().cycle() {
                Connection::to(address).await.post(webhook).await;
                sleep(Duration::from_millis(20)).await;
            }
        });
        self.fire(fault, alerts).await;
        sending.abort();
    }

    async fn store(&self, count: usize, topic: &str) {
        let mut connection = Connection::to(self.receiver.address()).await;
        for _ in 0..count {
            connection.post(&Webhook::any().topic(topic)).await.expect_stored();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_alert_fires_in_its_fault_and_in_no_calm() {
    let (mut watched, traffic) = Watched::start().await;
    until("prometheus scrapes all three", SOON, async || {
        watched.prometheus.values("up").await == [1.0; 3]
    })
    .await;
    watched.calm().await;
    // The first webhooks of a topic are not an increase, because its counter starts with them.
    for topic in ["carts/create", "carts/update"] {
        watched.store(1, topic).await;
    }
    until("prometheus has seen them", SOON, async || {
        watched.prometheus.values("count(spillway_accepted_total)").await == [4.0]
    })
    .await;
    watched.store(200, "carts/create").await;
    watched.requests().await;
    watched.redis_and_packs().await;
    if size(false, true) {
        watched.backend_answers().await;
        watched.consumers_die(traffic).await;
        watched.intake_dies().await;
        watched.disk().await;
        watched.spill().await;
        watched.routes().await;
        watched.checkpoint().await;
        watched.damaged_object().await;
        watched.certificates().await;
        report(&watched.table);
    } else {
        watched.calm().await;
        traffic.stop().await;
    }
}

/// The rounds: one fault each, or several at once if they do not hide each other.
impl Watched {
    /// Faults of requests.
    async fn requests(&mut self) {
        let of_topic = || Webhook::any().topic("carts/update");
        let fault = "every webhook of one topic forged, stale or of no time; of another, none";
        let bad = vec![
            of_topic().signed_with("a guess"),
            of_topic().with("X-Shopify-Triggered-At", "2020-01-01T00:00:00Z"),
            of_topic().with("X-Shopify-Triggered-At", "2120-01-01T00:00:00Z"),
            of_topic().with("X-Shopify-Triggered-At", "yesterday"),
        ];
        let alerts = [
            "SpillwayBadSignatures",
            "SpillwayStaleEvents",
            "SpillwayRefusedForGood",
            "SpillwaySubscriptionAtRisk",
            // Expected together with the others: it fires only for as long as its copy of a week
            // lasts.
            "SpillwayTopicSilent",
        ];
        self.while_sending(bad, fault, &alerts).await;
    }

    /// A Redis with other settings, and foreign data in its stream.
    async fn redis_and_packs(&mut self) {
        let _: String = self.redis.command(&["CONFIG", "SET", "appendfsync", "everysec"]).await;
        self.fire("CONFIG SET appendfsync everysec", &["SpillwayNotDurable"]).await;
        let _: String = self.redis.command(&["XADD", "{spillway}:in", "*", "p", "no pack"]).await;
        self.fire("an entry that is no pack", &["SpillwayCorruptPack"]).await;
        let _: String = self.redis.command(&["CONFIG", "SET", "appendfsync", "always"]).await;
    }

    /// Faults of the backend.
    async fn backend_answers(&mut self) {
        self.backend.behave(|receipt| match receipt.shop() {
            "shop-0001.myshopify.com" => Behaviour::status(400),
            _ => Behaviour::ok(),
        });
        self.fire("the backend answers 400 to one shop", &["SpillwayDeadLetters"]).await;
        let now = OffsetDateTime::now_utc();
        let stub = |sequence| {
            let event = Event { resource: 80_000_000, sequence };
            shop::stub(2, event, "https://payloads.example/1", now)
        };
        let fault = "stubs whose payloads have expired";
        self.while_sending((1..1_000).map(stub).collect(), fault, &["SpillwayPayloadsExpire"])
            .await;
        let nothing = vec![Webhook::any().topic("carts/update").body("{}")];
        let fault = "webhooks that name no resource";
        self.while_sending(nothing, fault, &["SpillwayResourceUnknown"]).await;
        self.backend.behave(|_| Behaviour::status(404));
        self.fire("the backend answers 404", &["SpillwayBackendRefuses", "SpillwayBacklogOld"])
            .await;
        self.backend.behave(|_| Behaviour::ok());
        until("it flows", SOON, async || self.downstreamer.is_ready().await).await;
        self.backend.behave(|_| Behaviour::Reset);
        self.fire("the backend resets every connection", &["SpillwayDeliveryPaused"]).await;
        self.backend.behave(|_| Behaviour::ok());
    }

    /// Both consumers are killed; the Kafka consumer is forgotten and registers again.
    async fn consumers_die(&mut self, traffic: Running) {
        let used: u64 =
            self.receiver.metric("spillway_queue_bytes").await.expect("a metric") as u64;
        let limit = (used + (3 << 20)).to_string();
        self.downstreamer.kill9();
        self.producer.kill9();
        let _: String = self.redis.command(&["CONFIG", "SET", "maxmemory", &limit]).await;
        let alerts = ["SpillwayNoLeader", "SpillwayInstanceDown", "SpillwayConsumerSilent"];
        self.fire("kill -9 of both consumers", &alerts).await;
        self.fire("the same, and 3 MiB of memory left", &["SpillwayQueueFillsUp"]).await;
        let _: String = self.redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
        let forgotten = self.cell.spillway(&["consumers", "forget", "kafka", "--yes"]).await;
        assert!(forgotten.status.success(), "{forgotten:?}");
        self.downstreamer.restart();
        // Entries that the http consumer settles are freed, and Kafka never receives them.
        let http = "spillway_queue_webhooks{consumer=\"http\"}";
        until("the queue is freed", SOON, async || {
            let page = self.downstreamer.admin("/metrics").await;
            page.is_some_and(|page| page.text().lines().any(|line| line == format!("{http} 0")))
        })
        .await;
        self.producer.restart();
        self.fire("spillway consumers forget kafka, and its return", &["SpillwayCursorGap"]).await;
        let added = self.cell.spillway(&["consumers", "add", "archive"]).await;
        assert!(added.status.success(), "{added:?}");
        self.fire("spillway consumers add archive, without one", &["SpillwayArchiveLags"]).await;
        let forgotten = self.cell.spillway(&["consumers", "forget", "archive", "--yes"]).await;
        assert!(forgotten.status.success(), "{forgotten:?}");
        traffic.stop().await;
    }

    /// Faults of the intake: first no Redis, then no receiver.
    async fn intake_dies(&mut self) {
        self.redis.kill9();
        let webhooks = vec![Webhook::any()];
        self.while_sending(webhooks, "kill -9 of Redis", &["SpillwayRefusals"]).await;
        self.redis.restart();
        self.redis.ready().await;
        self.receiver.ready().await;
        self.receiver.kill9();
        self.fire("kill -9 of the receiver", &["SpillwayReceiverDown"]).await;
        self.receiver.restart();
        self.receiver.ready().await;
        self.calm().await;
    }

    /// A Redis on a disk of 1.5 GiB, monitored through its own receiver and Prometheus. The disk is
    /// a tmpfs in a mount namespace, which needs root.
    async fn disk(&mut self) {
        let cell = Cell::beside();
        let (listen, admin) = (port::free(), port::free());
        let script = format!(
            "mount -t tmpfs -o size=1500m tmpfs {directory} && \
             {redis} {conf} --dir {directory} --unixsocket {directory}/redis.sock --port 0 & \
             exec {receiver} --redis-url unix://{directory}/redis.sock --listen {listen} \
             --admin-listen {admin}",
            directory = cell.directory().join("small").display(),
            redis = binaries::redis_server().display(),
            conf = repository().join("ops/redis.conf").display(),
            receiver = binaries::ours("request-receiver").display(),
        );
        fs::create_dir(cell.directory().join("small")).expect("make a directory");
        let arguments = ["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", &script];
        let recipe = Recipe {
            sockets: Vec::new(),
            name: "small-disk".into(),
            program: "unshare".into(),
            arguments: arguments.map(Into::into).to_vec(),
            environment: vec![("SHOPIFY_CLIENT_SECRET".into(), SECRET.into())],
            directory: cell.directory().to_path_buf(),
        };
        let _small = recipe.start();
        let nobody = port::free();
        let targets =
            [("127.0.0.1:9811", admin), ("127.0.0.1:9812", nobody), ("127.0.0.1:9813", nobody)];
        let configuration = shipped(cell.directory(), &targets);
        self.prometheus = Prometheus::start(cell.directory(), &configuration).await;
        self.fire("a disk with 1.5 GiB", &["SpillwayDiskFillsUp"]).await;
    }

    /// A receiver with its own overflow disk, and a Prometheus that monitors it: without Redis, and
    /// with damage on that disk.
    async fn spill(&mut self) {
        let cell = Cell::beside();
        let mut redis = cell.redis(&[]).await;
        let directory = cell.directory().join("spill");
        let spill = directory.to_str().expect("a path of letters");
        let settings = [("SPILL_DIR", spill), ("SPILL_MAX", "4MiB"), ("MAX_BODY", "1MiB")];
        let mut receiver = cell.receiver(&settings).await;
        self.watch_alone(&cell, &receiver).await;
        redis.kill9();
        let fault = "kill -9 of Redis, with SPILL_DIR";
        self.fire(fault, &["SpillwaySpilling"]).await;
        let mut connection = Connection::to(receiver.address()).await;
        until("it fills up", SOON, async || {
            let noise: String =
                (0..3000).map(|_| format!("{:032x}", rand::random::<u128>())).collect();
            connection.post(&Webhook::any().body(format!(r#"{{"a":"{noise}"}}"#))).await;
            receiver.metric("spillway_spill_bytes").await > Some(3.0 * 1024.0 * 1024.0)
        })
        .await;
        self.fire("the same, and 3 of 4 MiB spilled", &["SpillwaySpillFillsUp"]).await;
        receiver.kill9();
        let segments = fs::read_dir(&directory).expect("read the spill");
        let segments = segments.map(|entry| entry.expect("an entry").path());
        let segment = segments
            .filter(|path| path.extension().is_some_and(|ending| ending == "spill"))
            .max_by_key(|path| fs::metadata(path).map_or(0, |file| file.len()))
            .expect("a segment");
        let mut bytes = fs::read(&segment).expect("read a segment");
        bytes[1000] ^= 1;
        fs::write(&segment, bytes).expect("damage a segment");
        redis.restart();
        receiver.restart();
        self.fire("a byte on that disk changed", &["SpillwaySpillErrors"]).await;
    }

    /// A cell whose only consumer excludes what comes, and then one with a consumer that never runs.
    async fn routes(&mut self) {
        let cell = Cell::beside();
        let redis = cell.redis(&[]).await;
        let receiver = cell.receiver(&[]).await;
        let backend = Backend::start().await;
        let orders = cell.downstreamer(&backend, &[("ONLY_TOPICS", "orders/*,shop/redact")]).await;
        orders.leads().await;
        let targets = [
            ("127.0.0.1:9811", receiver.admin_address()),
            ("127.0.0.1:9812", orders.admin_address()),
            ("127.0.0.1:9813", port::free()),
        ];
        let configuration = shipped(cell.directory(), &targets);
        self.prometheus = Prometheus::start(cell.directory(), &configuration).await;
        let mut connection = Connection::to(receiver.address()).await;
        connection.post(&Webhook::any().topic("carts/update")).await.expect_stored();
        let fault = "a webhook that the filter of the only consumer excludes";
        self.fire(fault, &["SpillwayUnmatched"]).await;
        let redaction = Webhook::any().topic("shop/redact");
        let redaction = redaction.body(r#"{"shop_domain":"story.myshopify.com"}"#);
        connection.post(&redaction).await.expect_stored();
        let fault = "shop/redact is delivered, and `spillway forget --due` does not run";
        self.fire(fault, &["SpillwayRedactionLate"]).await;
        let added = cell.spillway(&["consumers", "add", "billing"]).await;
        assert!(added.status.success(), "{added:?}");
        connection.post(&Webhook::any().topic("orders/create")).await.expect_stored();
        let used = receiver.metric("spillway_queue_bytes").await.expect("a metric") as u64;
        let limit = (used + used / 2).to_string();
        let _: String = redis.command(&["CONFIG", "SET", "maxmemory", &limit]).await;
        let fault =
            "spillway consumers add billing, without one, and two thirds of the memory in use";
        self.fire(fault, &["SpillwayConsumerHoldsQueue"]).await;
    }

    /// An archiver that can write objects, and no checkpoint: a directory has its name.
    async fn checkpoint(&mut self) {
        let cell = Cell::beside();
        let redis = cell.redis(&[]).await;
        let receiver = cell.receiver(&[]).await;
        receiver.ready().await;
        let id: String = redis.command(&["GET", "{spillway}:cell"]).await;
        let archive = ArchiveDirectory::new(&cell.directory().join("archive"));
        let name = archive.path().join(id).join("consumers.json");
        fs::create_dir_all(name.join("occupied")).expect("make a directory");
        let archiver = cell.archiver(&archive.url(), &[]);
        let nobody = port::free();
        let targets = [
            ("127.0.0.1:9811", receiver.admin_address()),
            ("127.0.0.1:9812", archiver.admin_address()),
            ("127.0.0.1:9813", nobody),
        ];
        let configuration = shipped(cell.directory(), &targets);
        self.prometheus = Prometheus::start(cell.directory(), &configuration).await;
        let fault = "the archiver may not write over `consumers.json`";
        self.fire(fault, &["SpillwayCheckpointOld"]).await;
    }

    /// An archiver whose first object is damaged, in a bucket that forbids to write over it.
    async fn damaged_object(&mut self) {
        let cell = Cell::beside();
        let _redis = cell.redis(&[]).await;
        let receiver = cell.receiver(&[]).await;
        let bucket = LockedBucket::start(&cell.directory().join("locked")).await;
        let settings = [&bucket.settings()[..], &[("ARCHIVE_MAX_DELAY", "1s")]].concat();
        let archiver = cell.archiver(&bucket.url(), &settings);
        archiver.ready().await;
        let targets = [
            ("127.0.0.1:9811", receiver.admin_address()),
            ("127.0.0.1:9812", archiver.admin_address()),
            ("127.0.0.1:9813", port::free()),
        ];
        let configuration = shipped(cell.directory(), &targets);
        self.prometheus = Prometheus::start(cell.directory(), &configuration).await;
        until("prometheus has seen the counter", SOON, async || {
            self.prometheus.values("spillway_archive_renamed_total").await == [0.0]
        })
        .await;
        Connection::to(receiver.address()).await.post(&Webhook::any()).await.expect_stored();
        let fault = "an object is damaged in a bucket that forbids to write over it";
        self.fire(fault, &["SpillwayArchiveRenamed"]).await;
    }

    /// Another receiver, with a certificate of two days, and then with a key that is none.
    async fn certificates(&mut self) {
        let cell = Cell::beside();
        let _redis = cell.redis(&[]).await;
        Authority::new(cell.directory(), "authority").certify("served");
        let path = |name: &str| cell.directory().join(name).display().to_string();
        let listen = port::free().to_string();
        let (certificate, key) = (path("served.pem"), path("served.key"));
        let settings = [
            ("LISTEN_TLS", listen.as_str()),
            ("TLS_CERT_FILE", &certificate),
            ("TLS_KEY_FILE", &key),
        ];
        let receiver = cell.receiver(&settings).await;
        self.watch_alone(&cell, &receiver).await;
        let fault = "a certificate that is valid for two days";
        self.fire(fault, &["SpillwayCertificateExpires"]).await;
        fs::write(&key, "nonsense").expect("write the key");
        receiver.sighup();
        self.fire("SIGHUP with a key that is none", &["SpillwayReloadFailed"]).await;
    }

    /// A Prometheus that monitors this receiver alone.
    async fn watch_alone(&mut self, cell: &Cell, receiver: &Service) {
        let nobody = port::free();
        let targets = [
            ("127.0.0.1:9811", receiver.admin_address()),
            ("127.0.0.1:9812", nobody),
            ("127.0.0.1:9813", nobody),
        ];
        let configuration = shipped(cell.directory(), &targets);
        self.prometheus = Prometheus::start(cell.directory(), &configuration).await;
    }
}

/// Writes the table to the directory of the other results.
fn report(table: &str) {
    let shipped = fs::read_to_string(repository().join("ops/prometheus/alerts.yml"));
    let shipped = shipped.expect("read the alerts");
    let names = shipped.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    for name in names {
        assert!(table.contains(&format!("`{name}`")), "{name} was not made to fire");
    }
    let shorter: Vec<String> =
        SHORTER.iter().map(|(from, to)| format!("`{from}` → `{to}`")).collect();
    let page = format!(
        "# Every alert, fired by its fault\n\n`make alerts-live`: a real Prometheus scrapes a real cell \
         (receiver, downstreamer, Kafka producer, Redis, broker) with the shipped rules, in which only \
         durations are shorter: {}.\n\nThe time is from the fault to the alert, in that copy. Before the \
         first fault nothing fired, and nothing fired some time after the last but the disk's. 0 s: it fired \
         while the alert above it was waited for.\n\n\
         | alert | fault | fires after |\n|---|---|---|\n{table}",
        shorter.join(", ")
    );
    let directory = std::env::var_os("RESULTS").expect("RESULTS: where results are written");
    let directory = repository().join(directory);
    fs::write(directory.join("alerts.md"), page).expect("write the result");
}
