//! Lanes without free space: a full Redis, a main stream that another consumer keeps, and a changed
//! unit of order. Also barriers and coalesced runs in the part of a lane that is not indexed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use serde_json::Value;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{Cell, Settings};
use stories::check::check;
use stories::client::post;
use stories::exactly_once;
use stories::feed::{Feed, Trickle};
use stories::kafka_topic::Topic;
use stories::latest::check_latest;
use stories::ledger::{Event, Ledger};
use stories::measure::{percentile, waits};
use stories::receipt::Receipt;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::until::until;
use stories::webhook::Webhook;
use tokio::time::sleep;

const MAIN: &str = "{spillway}:in";
const CHUNKS: &str = "{spillway}:http:chunks";
const SOON: Duration = Duration::from_secs(60);
/// Longer than `PARK_AFTER`, a check of the front and a settlement.
const MOVES_WITHIN: Duration = Duration::from_secs(4);
const SETTINGS: Settings<'static> = &[("PARK_AFTER", "1s"), ("RETRY_LONGEST", "300ms")];
/// The shop whose webhooks fail until the backend accepts them; the healthy shops have other
/// numbers.
const FAILING: u64 = 0;
const HEALTHY: std::ops::Range<u64> = 10..20;
/// First resource number of the healthy shops.
const HEALTHY_RESOURCES: u64 = 1_000_000;

struct App {
    backend: Backend,
    /// Webhooks of the healthy shops.
    healthy: Arc<Ledger>,
    /// Webhooks of the failing shop.
    failing: Arc<Ledger>,
    receiver: Service,
    redis: RedisServer,
    cell: Cell,
}

impl App {
    /// Starts everything except a downstreamer. The failing shop is answered 500.
    async fn start() -> Self {
        let cell = Cell::busy();
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        backend.behave(|receipt| {
            let fails = receipt.shop() == shop::domain(FAILING);
            if fails { Behaviour::status(500) } else { works() }
        });
        let receiver = cell.receiver(&[]).await;
        Self { backend, healthy: Arc::default(), failing: Arc::default(), receiver, redis, cell }
    }

    fn feed(&self, ledger: &Arc<Ledger>) -> Feed {
        Feed::to(self.receiver.address(), ledger)
    }

    /// Stores these states of `resources` resources of the failing shop.
    async fn store_failing(&self, resources: u64, states: std::ops::Range<u64>) {
        let events = states
            .flat_map(|sequence| (1..=resources).map(move |resource| Event { resource, sequence }));
        let of = |event: Event| shop::webhook(FAILING, "products/update", event);
        self.feed(&self.failing).store(events.map(|event| (event, of(event))).collect()).await;
    }

    async fn store_healthy(&self, count: u64) {
        let events =
            (0..count).map(|number| Event { resource: HEALTHY_RESOURCES + number, sequence: 1 });
        let of = |event: Event| {
            shop::webhook(HEALTHY.start + event.resource % 10, "orders/create", event)
        };
        self.feed(&self.healthy).store(events.map(|event| (event, of(event))).collect()).await;
    }

    /// Fills Redis until it exceeds its limit by `1/part` of the memory of `key`, or of all memory.
    async fn fill_up(&self, part: u64, key: Option<&str>) {
        until("Redis is full", SOON, async || {
            // Memory of its clients is freed only after a while.
            let used = self.memory("used_memory").await;
            let over = match key {
                Some(key) => self.key_bytes(key).await,
                None => used,
            };
            let limit = (used - over / part).to_string();
            self.redis.command::<()>(&["CONFIG", "SET", "maxmemory", &limit]).await;
            post(self.receiver.address(), &Webhook::any()).await.status == 503
        })
        .await;
    }

    async fn make_room(&self) {
        self.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    }

    /// A figure of `INFO memory`.
    async fn memory(&self, name: &str) -> u64 {
        let info: String = self.redis.command(&["INFO", "memory"]).await;
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.expect("a figure of Redis").trim().parse().expect("a number")
    }

    /// Memory of a key.
    async fn key_bytes(&self, key: &str) -> u64 {
        let bytes: Option<u64> =
            self.redis.command(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).await;
        bytes.unwrap_or(0)
    }

    async fn settled(&self, waiting: usize) {
        let is_settled = async || {
            let status = self.cell.spillway(&["status", "-o", "json"]).await;
            let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
            let consumers = status["consumers"].as_array().expect("a list of consumers");
            let http = consumers.iter().find(|consumer| consumer["name"] == "http");
            http.expect("the downstreamer's")["waiting"] == waiting
        };
        until("the healthy shops' webhooks are settled", SOON, is_settled).await;
    }

    async fn in_lanes(&self, count: usize) {
        let what = format!("{count} webhooks wait in lanes");
        until(&what, SOON, async || self.redis.in_lanes().await == count as u64).await;
    }

    async fn main_is_empty(&self) {
        until("main is empty", SOON, async || self.redis.stream_len(MAIN).await == 0).await;
    }

    /// Waits until everything is delivered. Fails unless all came in order and no key of a lane is
    /// left.
    async fn expect_all(&self, story: &str, repeats_max: usize) {
        self.healthy.delivered_to(&self.backend, SOON).await;
        self.failing.delivered_to(&self.backend, SOON).await;
        self.expect_no_lanes().await;
        self.healthy.absorb(&self.failing);
        let figures = check(&self.healthy, &self.backend.receipts_of_load(), &HashSet::new());
        figures.print(&format!("lanes full, {story}"));
        figures.expect_sound(repeats_max);
    }

    async fn expect_no_lanes(&self) {
        let keys =
            ["chunks", "chunks:done", "lanes", "barriers", "leads", "retries", "retries:main"];
        let keys = keys.map(|key| format!("{{spillway}}:http:{key}"));
        until("no key of a lane is left", SOON, async || {
            let names: Vec<&str> =
                ["EXISTS"].into_iter().chain(keys.iter().map(String::as_str)).collect();
            self.redis.command::<u64>(&names).await == 0
        })
        .await;
    }
}

fn works() -> Behaviour {
    Behaviour::slowly(Duration::from_millis(2))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_redis_moves_make_room_and_healthy_shops_flow() {
    let app = App::start().await;
    app.store_failing(1_000, 1..3).await;
    app.store_healthy(1_000).await;
    app.store_failing(1_000, 3..4).await;
    app.fill_up(8, Some(MAIN)).await;
    let (before, main) = (app.memory("used_memory").await, app.key_bytes(MAIN).await);

    let began = Instant::now();
    let mut downstreamer = app.cell.downstreamer(&app.backend, SETTINGS).await;
    app.healthy.delivered_to(&app.backend, SOON).await;
    let healthy = began.elapsed();
    let stored = app.failing.stored_count();
    app.in_lanes(stored).await;
    app.main_is_empty().await;
    let chunks = app.key_bytes(CHUNKS).await;
    say(&format!(
        "lanes full, moves: healthy delivered after {healthy:?}, moved after {:?}; main took {main} \
         bytes, its chunks {chunks}; memory {before}, then {}",
        began.elapsed(),
        app.memory("used_memory").await
    ));
    assert!(chunks < main, "{chunks} bytes of chunks for {main} of main");
    app.settled(stored).await;
    // Another leader reads the lanes again.
    downstreamer.sigterm();
    downstreamer.exit(SOON).await;
    downstreamer.restart();
    app.make_room().await;
    app.store_failing(1_000, 4..5).await;
    app.backend.behave(|_| works());
    app.expect_all("moves", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_redis_nothing_moves_that_another_consumer_keeps() {
    let app = App::start().await;
    assert!(app.cell.spillway(&["consumers", "add", "kafka"]).await.status.success());
    app.store_failing(1_000, 1..2).await;
    app.store_healthy(1_000).await;
    app.fill_up(2, None).await;
    let packs = app.redis.stream_len(MAIN).await;

    let downstreamer = app.cell.downstreamer(&app.backend, SETTINGS).await;
    app.healthy.delivered_to(&app.backend, SOON).await;
    let stored = app.failing.stored_count();
    app.settled(stored).await;
    sleep(MOVES_WITHIN).await;
    let moved = app.redis.in_lanes().await;
    say(&format!("lanes full, kept: {moved} of {stored} moved while Redis is full"));
    assert_eq!((moved, app.key_bytes(CHUNKS).await), (0, 0), "moved beside a main that is kept");
    assert_eq!(app.redis.stream_len(MAIN).await, packs, "main was trimmed");
    downstreamer.ready().await;

    app.make_room().await;
    app.in_lanes(stored).await;
    app.store_failing(1_000, 2..3).await;
    app.backend.behave(|_| works());
    app.expect_all("kept", 0).await;
    assert!(app.cell.spillway(&["consumers", "forget", "kafka", "--yes"]).await.status.success());
    app.main_is_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_shops_flow_while_webhooks_move_and_a_stopped_kafka_producer_keeps_main() {
    const TOPIC: &str = "shopify-webhooks";
    const PARTITIONS: i32 = 4;
    const P99: Duration = Duration::from_secs(1);
    let app = App::start().await;
    assert!(app.cell.spillway(&["consumers", "add", "kafka"]).await.status.success());
    let downstreamer = app.cell.downstreamer(&app.backend, SETTINGS).await;
    downstreamer.ready().await;
    let trickle = Trickle {
        shops: HEALTHY,
        topics: &["orders/create"],
        every: Duration::from_millis(500),
        first_resource: HEALTHY_RESOURCES,
    };
    let others = app.feed(&app.healthy).trickle(&trickle);
    until("the healthy shops flow", SOON, async || app.backend.delivered() >= 20).await;
    let began = Instant::now();
    app.store_failing(1_500, 1..3).await;
    let stored = app.failing.stored_count();
    app.in_lanes(stored).await;
    sleep(MOVES_WITHIN).await;
    others.stop().await;
    let window = began..Instant::now();
    let waits = waits(&app.healthy, &app.backend.receipts(), &window, |_| true);
    let [p50, p99] = [0.5, 0.99].map(|part| percentile(&waits.all, part));

    let (main, chunks) = (app.key_bytes(MAIN).await, app.key_bytes(CHUNKS).await);
    let shown = downstreamer.metric("spillway_queue_bytes").await.expect("a gauge") as u64;
    say(&format!(
        "lanes full, kafka stopped: {} healthy, p50 {p50:?}, p99 {p99:?}; main takes {main} bytes, \
         chunks {chunks} beside it, Redis {shown}",
        waits.all.len()
    ));
    assert!(p99 < P99, "{p99:?}");
    assert!(chunks > 0 && chunks < main, "{chunks} bytes of chunks beside {main} of main");
    assert!(shown >= main + chunks, "{shown} bytes shown, {main} and {chunks} held");

    let brokers = MockCluster::new(1).expect("a mock cluster");
    brokers.create_topic(TOPIC, PARTITIONS, 1).expect("a topic");
    let mut clients = ClientConfig::new();
    clients.set("bootstrap.servers", brokers.bootstrap_servers());
    let topic = Topic::arrivals(clients, TOPIC, PARTITIONS);
    let _producer = app.cell.kafka_producer_to(&brokers.bootstrap_servers(), &[]);
    app.main_is_empty().await;
    assert_eq!(app.redis.in_lanes().await, stored as u64, "lanes are another consumer's");
    app.backend.behave(|_| works());
    app.expect_all("kafka stopped", 0).await;
    let all = async || exactly_once::check(&app.healthy, topic.all(), &HashSet::new()).lost == 0;
    until("all are in the topic", SOON, all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_unit_of_order_keeps_the_order_of_what_waits_in_lanes() {
    let app = App::start().await;
    let ordered_by = |unit| [SETTINGS, &[("ORDER_BY", unit)]].concat();
    let mut downstreamer = app.cell.downstreamer(&app.backend, &ordered_by("resource")).await;
    let mut states = 1..1;
    for unit in ["shop", "resource", "topic", "resource"] {
        states = states.end..states.end + 2;
        app.store_failing(100, states.clone()).await;
        app.in_lanes(app.failing.stored_count()).await;
        // Stopped in some cases, killed in others.
        if unit == "resource" {
            downstreamer.kill9();
        } else {
            downstreamer.sigterm();
            downstreamer.exit(SOON).await;
        }
        downstreamer = app.cell.downstreamer(&app.backend, &ordered_by(unit)).await;
        until("it leads", SOON, async || downstreamer.is_leader().await).await;
    }
    app.store_healthy(100).await;
    app.store_failing(100, states.end..states.end + 2).await;
    app.healthy.delivered_to(&app.backend, SOON).await;
    app.in_lanes(app.failing.stored_count()).await;
    app.backend.behave(|_| works());
    app.expect_all("order by", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_keeps_barriers_and_coalesced_runs_in_what_is_not_indexed() {
    /// More than the index can hold.
    const MANY: u64 = 9_000;
    const PRODUCTS: u64 = 30;
    const BEFORE: u64 = 6;
    const AFTER: u64 = 9;
    let settings =
        [SETTINGS, &[("INDEX_MEMORY", "1MiB"), ("COALESCE_TOPICS", "products/update")]].concat();
    let app = App::start().await;
    let mut leader = app.cell.downstreamer(&app.backend, &settings).await;
    until("the first leads", SOON, async || leader.is_leader().await).await;
    let standby = app.cell.downstreamer(&app.backend, &settings).await;
    let of = |topic, events: Vec<Event>| -> Vec<(Event, Webhook)> {
        events.into_iter().map(|event| (event, shop::webhook(FAILING, topic, event))).collect()
    };
    let states = |range: std::ops::RangeInclusive<u64>| {
        let state = |sequence| (1..=PRODUCTS).map(move |resource| Event { resource, sequence });
        of("products/update", range.flat_map(state).collect())
    };
    let feed = app.feed(&app.failing);
    let orders = (10_000..10_000 + MANY).map(|resource| Event { resource, sequence: 1 });
    let products = (20_000..20_000 + MANY).map(|resource| Event { resource, sequence: 1 });
    feed.store(of("orders/create", orders.collect())).await;
    feed.store(of("products/update", products.collect())).await;
    feed.store(states(1..=BEFORE)).await;
    let redact = Event { resource: 30_000, sequence: 1 };
    let webhook =
        shop::webhook(FAILING, "customers/redact", redact).body("{\"customer\":{\"id\":9}}");
    feed.store_in_turn(vec![(redact, webhook)]).await;
    feed.store(states(BEFORE + 1..=AFTER)).await;
    app.in_lanes(app.failing.stored_count()).await;
    leader.kill9();
    until("the standby leads", SOON, async || standby.is_leader().await).await;
    assert_eq!(app.backend.delivered(), 0, "delivered while the shop fails");
    app.backend.behave(|_| works());
    app.expect_no_lanes().await;
    app.main_is_empty().await;

    let receipts = app.backend.receipts();
    let found = check_latest(&app.failing, &receipts, |_| true);
    found.print("lanes full, takeover");
    found.expect_sound(0);
    assert_eq!(found.stood_for, found.stored, "some were neither delivered nor stood for");
    expect_apart(&receipts, redact, BEFORE, PRODUCTS);
    let runs = receipts.iter().filter(|one| one.delivered() && one.event().resource <= PRODUCTS);
    let runs = runs.count() as u64;
    say(&format!("lanes full, takeover: {runs} deliveries of {} states", PRODUCTS * AFTER));
    assert!(runs < PRODUCTS * AFTER / 2, "hardly anything was coalesced");
}

/// Fails unless everything before the redaction was delivered first, including the newest state of
/// each product, and everything after it later.
#[track_caller]
fn expect_apart(receipts: &[Receipt], redact: Event, before: u64, products: u64) {
    let delivered: Vec<Event> =
        receipts.iter().filter(|one| one.delivered()).map(Receipt::event).collect();
    let barrier = delivered.iter().position(|event| *event == redact).expect("the redaction");
    let (earlier, later) = delivered.split_at(barrier);
    let is_later = |event: &Event| event.resource <= products && event.sequence > before;
    assert!(!earlier.iter().any(is_later), "something later came before the redaction");
    assert!(later[1..].iter().all(is_later), "something earlier came after the redaction");
    for resource in 1..=products {
        let newest = Event { resource, sequence: before };
        assert!(earlier.contains(&newest), "{newest:?} stands for all before the redaction");
    }
    let redacted_at = receipts.iter().find(|one| one.event() == redact && one.delivered());
    let arrived = redacted_at.expect("the redaction").arrived;
    let late = receipts.iter().filter(|one| one.delivered() && !is_later(&one.event()));
    let late = late.filter(|one| one.event() != redact && one.answered > Some(arrived)).count();
    assert_eq!(late, 0, "answered after the redaction arrived");
}
