//! The console of a full cell: a million waiting webhooks, 100,000 dead letters, 20,000 shops. `make endure` has
//! these sizes; the suite plays it small, and looks at no times.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stories::cell::Cell;
use stories::console::{Accounts, ConsoleClient, ConsoleServer, Watcher};
use stories::endurance::crowd::Crowd;
use stories::endurance::record::Record;
use stories::endurance::results;
use stories::endurance::sender::Sender;
use stories::endurance::sink::{Reply, Sink};
use stories::measure::percentile;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::shop;
use stories::size::size;
use stories::until::until;
use tokio::time::sleep;

const SOON: Duration = Duration::from_secs(60);
const DEAD: &str = "{spillway}:http:dead";
/// Promised limits.
const FIRST_BYTE: Duration = Duration::from_millis(300);
const REDIS_MAX: f64 = 0.01;
const WATCHERS: usize = 10;
/// Latency and rate with watchers may be this much worse: two runs without any differ as much.
const NOISE: f64 = 1.25;

/// Shops whose webhooks are refused.
const REFUSED: u32 = 10;
/// Webhooks per second of healthy shops while others are refused.
const BESIDE: f64 = 500.0;
/// Webhooks per second of healthy shops.
const RATE: f64 = 200.0;

struct FullCell {
    console: ConsoleServer,
    client: ConsoleClient,
    record: Arc<Record>,
    healthy: Arc<Crowd>,
    _sink: Sink,
    address: std::net::SocketAddr,
    redis: RedisServer,
    _others: [stories::service::Service; 2],
    _accounts: Accounts,
    cell: Cell,
}

/// Numbers of webhooks that wait, of dead letters, and of shops.
fn sizes() -> [u32; 3] {
    size([3_000, 400, 200], [1_000_000, 100_000, 20_000])
}

impl FullCell {
    /// Fills a cell: the shops of one crowd are refused, those of another are paused.
    async fn start(cell: Cell) -> Self {
        let [waiting, dead, shops] = sizes();
        let refused = Arc::new(Crowd::new("products/update", 0..REFUSED, 0..dead));
        let end = dead + waiting;
        let paused = Arc::new(Crowd::new("inventory_levels/update", 0..shops, dead..end));
        let healthy = shops..shops + 20;
        let healthy = Arc::new(Crowd::new("orders/create", healthy, end..end + 1_000_000));
        let record = Arc::new(Record::new(end + 1_000_000));
        let redis = cell.redis(&["--maxmemory", "0"]).await;
        let receiver = cell.receiver(&[]).await;
        let crowds = [&refused, &paused, &healthy].map(|crowd| (**crowd).clone()).to_vec();
        let sink = Sink::start(crowds, &record).await;
        sink.behave(|shop| match shop < REFUSED {
            true => Reply::Status(422),
            false => Reply::After(Duration::from_millis(5)),
        });
        let usual = [("RETRY_FIRST", ""), ("RETRY_LONGEST", ""), ("MIN_CONCURRENCY", "32")];
        let downstreamer = cell.downstreamer_starting(&sink.url(), &usual);
        downstreamer.leads().await;
        let address = receiver.address();
        let sender = |crowd: &Arc<Crowd>| Sender {
            address,
            crowd: Arc::clone(crowd),
            record: Arc::clone(&record),
            rate: None,
        };
        // A backend that refuses most shops would be taken for one that is broken.
        let beside = Sender { rate: Some(BESIDE), ..sender(&healthy) };
        let last = end + 900_000..end + 1_000_000;
        let beside = tokio::spawn(async move { beside.send_some(last).await });
        sender(&refused).send_all().await;
        let all_dead = async || redis.stream_len(DEAD).await >= u64::from(dead);
        until("all are dead letters", size(SOON, 30 * SOON), all_dead).await;
        beside.abort();
        let pause = cell.spillway(&["pause", "--topic", "inventory_levels/update"]).await;
        assert!(pause.status.success(), "{pause:?}");
        let is_read = async || downstreamer.metric("spillway_pauses").await == Some(1.0);
        until("the pause is read", SOON, is_read).await;
        sender(&paused).send_all().await;
        let all_wait = async || {
            let told = cell.spillway(&["status", "-o", "json"]).await;
            let status: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
            status["consumers"][0]["waiting"].as_u64() >= Some(u64::from(waiting) * 9 / 10)
        };
        until("all of it waits", size(SOON, 30 * SOON), all_wait).await;
        let accounts = Accounts::new(&cell);
        let token = accounts.add_token("ada-program", "admin", true).await;
        let console = ConsoleServer::start(&cell, &accounts.settings()).await;
        let client = console.program(&token);
        Self {
            console,
            client,
            record,
            healthy,
            _sink: sink,
            address,
            redis,
            _others: [receiver, downstreamer],
            _accounts: accounts,
            cell,
        }
    }

    /// Every view, and every read of the API.
    async fn paths(&self) -> Vec<String> {
        let domain = shop::domain(7);
        let id = |value: &serde_json::Value| value.as_str().expect("an id").to_owned();
        let dead = self.client.json("/api/v1/dead?limit=1").await;
        let letter = id(&dead["letters"][0]["spillway_id"]);
        let known = id(&dead["letters"][0]["webhook_id"]);
        let waits = self.client.json("/api/v1/webhooks?limit=1").await;
        let waits = id(&waits["webhooks"][0]["spillway_id"]);
        let views = ["", "lanes", "webhooks", "dead", "shops", "gaps", "audit", "doctor"];
        let views = views.map(|view| format!("/{view}")).to_vec();
        let api = ["status", "metrics", "consumers", "lanes", "top", "webhooks", "dead"];
        let api = api.map(|name| format!("/api/v1/{name}")).to_vec();
        let single = [
            format!("/shops/{domain}"),
            format!("/lanes?shop={domain}"),
            format!("/webhooks?shop={domain}"),
            "/webhooks?topic=no/such".to_owned(),
            format!("/webhooks/{waits}"),
            format!("/webhooks/{known}"),
            "/webhooks/no-such-webhook".to_owned(),
            format!("/webhooks/{waits}/content"),
            format!("/dead?shop={domain}"),
            "/dead?topic=no/such".to_owned(),
            "/dead?since=1s".to_owned(),
            format!("/dead/{letter}"),
            "/api/v1/top?by=topic".to_owned(),
            "/api/v1/doctor".to_owned(),
            "/api/v1/audit".to_owned(),
            "/api/v1/gaps".to_owned(),
        ];
        [views, api, single.to_vec()].concat()
    }

    /// CPU time that Redis has used.
    async fn redis_cpu(&self) -> Duration {
        let info: String = self.redis.command(&["INFO", "cpu"]).await;
        let seconds = info.lines().filter_map(|line| {
            let (name, value) = line.trim().split_once(':')?;
            let is_meant = name == "used_cpu_sys" || name == "used_cpu_user";
            is_meant.then(|| value.parse::<f64>().expect("seconds"))
        });
        Duration::from_secs_f64(seconds.sum())
    }

    /// Part of a core that Redis needs for a while.
    async fn redis_load(&self, window: Duration) -> f64 {
        let (before, began) = (self.redis_cpu().await, tokio::time::Instant::now());
        sleep(window).await;
        (self.redis_cpu().await - before).as_secs_f64() / began.elapsed().as_secs_f64()
    }

    /// Part of a core that Redis needs for the watchers: the mean of windows in turns. What the views before asked for is
    /// read to its end first.
    async fn watching_cost(&self) -> f64 {
        let window = Duration::from_secs(size(2, 20));
        let rounds = size(1, 3);
        sleep(size(Duration::ZERO, Duration::from_secs(30))).await;
        let mut cost = 0.0;
        for round in 1..=rounds {
            let alone = self.redis_load(window).await;
            let watchers = self.watchers().await;
            let watched = self.redis_load(window).await;
            drop(watchers);
            say(&format!(
                "console: round {round}: Redis needs {:.2} % of a core alone, {:.2} % watched",
                alone * 100.0,
                watched * 100.0
            ));
            cost += (watched - alone) / f64::from(rounds);
        }
        cost
    }

    async fn watchers(&self) -> Vec<Watcher> {
        let mut watchers = Vec::new();
        for _ in 0..WATCHERS {
            watchers.push(self.client.watch("/events/overview").await);
        }
        let all_see = async || watchers.iter().all(|watcher| watcher.events() > 1);
        until("all watchers see events", SOON, all_see).await;
        watchers
    }

    /// p99 of the time from acceptance to delivery of the healthy shops' webhooks, at a steady rate.
    async fn healthy_p99(&self, round: u32) -> Duration {
        let seconds = size(3, 60);
        let count = RATE as u32 * seconds;
        let first = self.healthy.numbers().start + round * count;
        let numbers = first..first + count;
        let began = self.record.elapsed();
        let sender = Sender {
            address: self.address,
            crowd: Arc::clone(&self.healthy),
            record: Arc::clone(&self.record),
            rate: Some(RATE),
        };
        sender.send_some(numbers.clone()).await;
        let are_delivered =
            async || self.record.outcome(numbers.clone()).delivered >= u64::from(count);
        until("the healthy webhooks are delivered", SOON, are_delivered).await;
        let window = began..self.record.elapsed();
        let mut waits = self.record.waits(numbers, &window, |_| true);
        waits.percentile(0.99)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_view_of_a_full_cell_answers_soon_and_watching_costs_it_little() {
    let full = FullCell::start(Cell::measured()).await;
    let [waiting, dead, shops] = sizes();
    say(&format!("console: {waiting} wait, {dead} dead letters, {shops} shops"));
    let mut broken = Vec::new();
    let mut rows = Vec::new();
    let rounds = size(3, 40);
    let paths = full.paths().await;
    // The first look at a cell may take longer: what is read in the background is not there yet.
    for path in &paths {
        full.client.get(path).await;
    }
    say("console: first byte          median       p95   view");
    for path in &paths {
        let mut took = Vec::new();
        for _ in 0..rounds {
            took.push(full.client.first_byte(path).await);
        }
        let [median, p95] = [0.5, 0.95].map(|part| percentile(&took, part));
        say(&format!("console: first byte {median:>15.2?} {p95:>9.2?}   {path}"));
        rows.push(json!({ "view": path, "p95_ms": p95.as_secs_f64() * 1_000.0 }));
        if size(false, p95 > FIRST_BYTE) {
            broken.push(format!("{path}: {p95:?}"));
        }
    }
    let cost = full.watching_cost().await;
    let watchers = full.watchers().await;
    say(&format!("console: {WATCHERS} watchers cost Redis {:.2} % of a core", cost * 100.0));
    if size(false, cost > REDIS_MAX) {
        broken.push(format!("{WATCHERS} watchers cost Redis {cost:.4} of a core"));
    }
    let p99_watched = full.healthy_p99(0).await;
    drop(watchers);
    let p99_alone = full.healthy_p99(1).await;
    say(&format!("console: p99 to the backend {p99_watched:?} watched, {p99_alone:?} alone"));
    let is_slower = p99_watched.as_secs_f64() > NOISE * p99_alone.as_secs_f64();
    if size(false, is_slower && p99_watched > Duration::from_millis(50)) {
        broken.push(format!("p99 is {p99_watched:?} watched, and {p99_alone:?} alone"));
    }
    let memory = full.console.resident_bytes() >> 20;
    say(&format!("console: {memory} MiB resident"));
    let figures = json!({
        "views": rows, "redis_core": cost, "resident_mib": memory,
        "p99_watched_ms": p99_watched.as_secs_f64() * 1_000.0,
        "p99_alone_ms": p99_alone.as_secs_f64() * 1_000.0,
    });
    results::write("console", "full cell", figures);
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(full.cell.directory().exists());
}
