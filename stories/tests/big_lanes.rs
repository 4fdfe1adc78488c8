//! Large lanes and many lanes: waiting outside the main stream costs neither memory nor time.
//!
//! The suite uses small numbers. `make endure-lanes` uses a million webhooks of one paused shop,
//! and 200,000 lanes of one webhook each. `WEBHOOKS` and `LANES` override the numbers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stories::cell::{Cell, Settings};
use stories::endurance::crowd::Crowd;
use stories::endurance::lanes::{gauge, left_over, redis_bytes};
use stories::endurance::record::Record;
use stories::endurance::results;
use stories::endurance::sender::Sender;
use stories::endurance::sink::{Reply, Sink};
use stories::endurance::slowest::{LOGGED, Slowest};
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use tokio::task::JoinHandle;

const QUEUE: &str = "{spillway}:in";
const SOON: Duration = Duration::from_secs(60);
const TOPIC: &str = "products/update";
/// Number of shops that are never paused. Together they send a hundred webhooks per second.
const HEALTHY_SHOPS: u32 = 20;
const HEALTHY_RATE: f64 = 100.0;
/// Webhooks that they send in an hour.
const HEALTHY_WEBHOOKS: u32 = 360_000;
/// Packs of the healthy shops that may be in the main stream while all others are in lanes.
const AT_HAND: u64 = 20;

/// Promised limits. This one is the downstreamer's memory, in MiB, for a lane of any length, beyond
/// what the same webhooks need in the main stream.
const RESIDENT_MORE_MAX: f64 = 16.0;
/// Freed memory, in MiB, that the allocator keeps for a while. It matters if there are few lanes.
const KEPT_SMALL: f64 = 12.0;
/// Time after which the allocator has returned what it can.
const ALLOCATOR_RETURNS_WITHIN: Duration = Duration::from_secs(20);
/// Memory per lane if there are many: names, row, window. docs/sizing.md has the same figure.
const ROW_MEBIBYTES: f64 = 1_536.0 / 1_048_576.0;
const READY_MAX: Duration = Duration::from_secs(2);
/// After SIGKILL, a lease must end first.
const READY_AFTER_KILL_MAX: Duration = Duration::from_secs(15);
const RATE_LEAST: f64 = 0.8;
/// In the suite, both runs take only a second, and binaries are not optimised.
const RATE_LEAST_SMALL: f64 = 0.2;
const SETTLEMENT_MAX_SMALL: Duration = Duration::from_millis(100);
const SETTLEMENT_MAX: Duration = Duration::from_millis(5);
const HEALTHY_P99: Duration = Duration::from_secs(1);
const VERB_MAX: Duration = Duration::from_secs(5);

/// The usual settings, except that blocked webhooks leave the main stream early and the concurrency
/// is the same with and without lanes: an instant backend gives the limiter no signal.
const USUAL: Settings<'static> = &[
    ("PARK_AFTER", "2s"),
    ("DELIVERY_TIMEOUT", "4s"),
    ("RETRY_FIRST", ""),
    ("RETRY_LONGEST", "10s"),
    ("MIN_CONCURRENCY", "64"),
];

/// A cell and the two crowds that send to it.
struct App {
    many: Arc<Crowd>,
    healthy: Arc<Crowd>,
    record: Arc<Record>,
    sink: Sink,
    redis: RedisServer,
    receiver: Service,
    cell: Cell,
}

/// The figures of one measurement, and the limits that they exceed.
struct Figures {
    story: &'static str,
    all: Vec<Value>,
    broken: Vec<String>,
    /// CPU ticks of all cores at the start: stolen and total.
    ticks: (u64, u64),
}

/// CPU ticks that the hypervisor took away, and the total.
fn ticks() -> (u64, u64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let all: Vec<u64> = stat
        .lines()
        .next()
        .map(|cores| {
            cores.split_whitespace().filter_map(|word| word.parse().ok()).take(8).collect()
        })
        .unwrap_or_default();
    (all.get(7).copied().unwrap_or(0), all.iter().sum())
}

impl Figures {
    fn new(story: &'static str) -> Self {
        Self { story, all: Vec::new(), broken: Vec::new(), ticks: ticks() }
    }

    fn note(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        say(&format!("{}: {name} {value}", self.story));
        self.all.push(json!({ "figure": name, "value": value }));
    }

    /// Records a figure, and if it is within its limit.
    fn judge(&mut self, name: &str, value: f64, holds: bool) {
        let rounded = (value * 1_000.0).round() / 1_000.0;
        self.note(name, rounded);
        if !holds {
            self.broken.push(format!("{name} is {rounded}"));
        }
    }

    fn at_most(&mut self, name: &str, took: Duration, most: Duration) {
        self.judge(name, took.as_secs_f64(), took <= most);
    }

    /// Ends the measurement. The figures are written before the limits are checked.
    #[track_caller]
    fn end(mut self) {
        let (stolen, all) = ticks();
        let part = (stolen - self.ticks.0) as f64 / (all - self.ticks.1).max(1) as f64;
        self.note("part of the cores that the hypervisor gave to others", part);
        let figures = json!({ "figures": self.all, "broken": self.broken });
        results::write("big-lanes", self.story, figures);
        assert!(self.broken.is_empty(), "{}: {:?}", self.story, self.broken);
    }
}

impl App {
    async fn start(cell: Cell, shops: u32, webhooks: u32) -> Self {
        let many = Crowd::new(TOPIC, 0..shops, 0..webhooks);
        let numbers = webhooks..webhooks + HEALTHY_WEBHOOKS;
        let healthy = Crowd::new("orders/create", shops..shops + HEALTHY_SHOPS, numbers);
        let record = Arc::new(Record::new(webhooks + HEALTHY_WEBHOOKS));
        let redis = cell.redis(&LOGGED).await;
        // The measured time must be that of the script, without waiting for a core.
        if size(false, true) && !redis.put_first() {
            say("not root: what Redis takes includes waiting for a core");
        }
        let receiver = cell.receiver(&[]).await;
        let sink = Sink::start(vec![many.clone(), healthy.clone()], &record).await;
        sink.behave(|_| Reply::After(Duration::ZERO));
        Self {
            many: Arc::new(many),
            healthy: Arc::new(healthy),
            record,
            sink,
            redis,
            receiver,
            cell,
        }
    }

    fn sender(&self, crowd: &Arc<Crowd>, rate: Option<f64>) -> Sender {
        let (crowd, record) = (Arc::clone(crowd), Arc::clone(&self.record));
        Sender { address: self.receiver.address(), crowd, record, rate }
    }

    /// Stores all webhooks of the large crowd.
    async fn fill(&self) -> Duration {
        let began = Instant::now();
        self.sender(&self.many, None).send_all().await;
        began.elapsed()
    }

    /// Lets the healthy shops send until the task is aborted.
    fn healthy_flow(&self) -> JoinHandle<()> {
        let sender = self.sender(&self.healthy, Some(HEALTHY_RATE));
        tokio::spawn(async move { sender.send_all().await })
    }

    async fn downstreamer(&self) -> Service {
        let downstreamer = self.cell.downstreamer_starting(&self.sink.url(), USUAL);
        downstreamer.leads().await;
        downstreamer
    }

    async fn spillway(&self, arguments: &[&str]) -> String {
        let output = self.cell.spillway(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn webhooks(&self) -> u64 {
        u64::from(self.many.numbers().end)
    }

    /// True if the memory is within the limit, which allows a row for each of many lanes.
    fn is_bounded(&self, more: f64) -> bool {
        let rows = if self.many.shops() > 1 { self.many.shops() as f64 } else { 0.0 };
        more <= RESIDENT_MORE_MAX + size(KEPT_SMALL, 0.0) + rows * ROW_MEBIBYTES
    }

    /// Waits until everything that is paused is in lanes.
    async fn all_in_lanes(&self) -> Duration {
        let began = Instant::now();
        until("everything that is paused lies in lanes", 10 * SOON, async || {
            self.redis.in_lanes().await >= self.webhooks()
                && self.redis.stream_len(QUEUE).await <= AT_HAND
        })
        .await;
        began.elapsed()
    }

    /// Waits until all webhooks of the large crowd are delivered, except `except` of them.
    async fn delivered(&self, except: u64) {
        let least = self.webhooks() - except;
        until("all webhooks are delivered", 30 * SOON, async || {
            self.sink.delivered() >= least
                && self.record.outcome(self.many.numbers()).delivered >= least
        })
        .await;
    }

    /// Waits until the lanes and the main stream are empty.
    async fn nothing_left(&self) {
        until("nothing is left in Redis", SOON, async || {
            left_over(&self.redis).await.is_empty() && self.redis.stream_len(QUEUE).await == 0
        })
        .await;
    }

    fn healthy_p99(&self, window: std::ops::Range<Duration>) -> Duration {
        let mut waits = self.record.waits(self.healthy.numbers(), &window, |_| true);
        if waits.is_empty() { Duration::ZERO } else { waits.percentile(0.99) }
    }
}

/// Returns the time from the start until it is ready and leads.
async fn restart(downstreamer: &mut Service, is_killed: bool) -> Duration {
    if is_killed {
        downstreamer.kill9();
    } else {
        downstreamer.sigterm();
        downstreamer.exit(SOON).await;
    }
    let began = Instant::now();
    downstreamer.restart();
    downstreamer.leads().await;
    began.elapsed()
}

/// A number from the environment.
fn number(name: &str, usual: u32, full: u32) -> u32 {
    let given = std::env::var(name).ok();
    given.map_or(size(usual, full), |text| text.parse().expect("a number"))
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Runs a command and records how long it took.
async fn verb(app: &App, figures: &mut Figures, arguments: &[&str]) -> String {
    let began = Instant::now();
    let told = app.spillway(arguments).await;
    let name: Vec<&str> = arguments.iter().copied().filter(|word| !word.contains('.')).collect();
    figures.at_most(&format!("`spillway {}` (s)", name.join(" ")), began.elapsed(), VERB_MAX);
    told
}

fn parsed(told: &str) -> Value {
    serde_json::from_str(told).expect("JSON")
}

/// Runs each of the operators' commands on everything that waits. It also orders the drop of
/// webhook `number`, the only one of its resource. It is dropped when it is read, if it is not
/// indexed.
async fn verbs(app: &App, figures: &mut Figures, number: u32) {
    let webhooks = app.webhooks();
    let domain = shop::domain(app.many.shop(number).into());
    let shop = domain.as_str();
    let of_shop = app.many.numbers().filter(|one| app.many.shop(*one) == app.many.shop(number));
    let of_shop = of_shop.count() as u64;
    let status = parsed(&verb(app, figures, &["status", "-o", "json"]).await);
    let waiting = status["consumers"][0]["waiting"].as_u64().expect("a count");
    assert!((webhooks..webhooks + 1_000).contains(&waiting), "{status}");
    let top = parsed(&verb(app, figures, &["top", "--by", "topic", "-o", "json"]).await);
    assert_eq!(top["rows"][0]["name"], TOPIC, "{top}");
    let exact = ["top", "--by", "topic", "--exact", "-o", "json"];
    let top = parsed(&verb(app, figures, &exact).await);
    assert_eq!(top["rows"][0]["waiting"], webhooks, "{top}");
    verb(app, figures, &["top"]).await;

    let listed = verb(app, figures, &["queue", "list", "--shop", shop, "--limit", "5"]).await;
    let rows: Vec<&str> = listed.lines().filter(|line| line.contains(shop)).collect();
    assert_eq!(rows.len() as u64, of_shop.min(5), "{listed}");
    let id = rows[0].split_whitespace().next().expect("an id");
    let shown = app_show(app, figures, id).await;
    assert!(shown.contains(shop), "{shown}");
    let event = stories::ledger::Event { resource: u64::from(number) + 1, sequence: number.into() };
    let delivery = event.webhook_id();
    let began = Instant::now();
    let known = parsed(&app.spillway(&["explain", &delivery, "-o", "json"]).await);
    figures.at_most("`spillway explain` (s)", began.elapsed(), VERB_MAX);
    let fact = &known["consumers"][0]["facts"][0];
    assert_eq!((&fact["in_lane"], &fact["paused"]), (&true.into(), &true.into()), "{known}");

    let drop = ["queue", "drop", "--webhook-id", &delivery, "--yes", "-o", "json"];
    let began = Instant::now();
    let dropped = parsed(&app.spillway(&drop).await);
    figures.at_most("`spillway queue drop` (s)", began.elapsed(), VERB_MAX);
    assert_eq!(dropped["matched"], 1, "{dropped}");
    figures.note("dropped at once, of 1", dropped["dropped"].clone());
    verb(app, figures, &["pause", "--shop", "nobody.myshopify.com"]).await;
    verb(app, figures, &["resume", "--shop", "nobody.myshopify.com"]).await;
}

async fn app_show(app: &App, figures: &mut Figures, id: &str) -> String {
    let began = Instant::now();
    let shown = app.spillway(&["queue", "show", id]).await;
    figures.at_most("`spillway queue show` (s)", began.elapsed(), VERB_MAX);
    shown
}

/// Measures memory and restarts while everything is in lanes, next to healthy shops.
async fn waits_in_lanes(
    app: &App,
    figures: &mut Figures,
    downstreamer: &mut Service,
    pause: &[&str],
    direct: &Direct,
) {
    let flow = app.healthy_flow();
    let flows = async || app.sink.delivered() >= 500;
    until("the healthy webhooks flow", SOON, flows).await;
    app.spillway(&[&["pause"], pause].concat()).await;
    let is_read = async || gauge(downstreamer, "spillway_pauses").await == 1.0;
    until("the pause is read", SOON, is_read).await;
    let before = mebibytes(downstreamer.resident_bytes());
    let redis_before = redis_bytes(&app.redis).await;
    let began = app.record.elapsed();
    figures.note("filled in (s)", app.fill().await.as_secs_f64());
    figures.note("then in lanes after (s)", app.all_in_lanes().await.as_secs_f64());
    let moved = app.record.elapsed();
    // The allocator returns the memory that the move needed.
    tokio::time::sleep(Duration::from_secs(size(0, 15))).await;
    let more = mebibytes(downstreamer.resident_bytes()) - before;
    figures.note("downstreamer resident before (MiB)", before);
    let index = gauge(downstreamer, "spillway_index_bytes").await / f64::from(1 << 20);
    figures.note("downstreamer resident more (MiB)", more);
    figures.note("index (MiB)", index);
    let beyond = before + more - direct.resident;
    figures.judge("beyond that without lanes (MiB)", beyond, app.is_bounded(beyond));
    figures.note("lanes", gauge(downstreamer, "spillway_lanes").await);
    let each = (redis_bytes(&app.redis).await - redis_before) as f64 / app.webhooks() as f64;
    figures.note("Redis bytes for each webhook", each);
    let p99 = app.healthy_p99(began..moved);
    figures.at_most("healthy p99 while the lanes fill (s)", p99, HEALTHY_P99);

    for (is_killed, most) in [(false, READY_MAX), (true, READY_AFTER_KILL_MAX)] {
        let name = if is_killed { "SIGKILL" } else { "SIGTERM" };
        let took = restart(downstreamer, is_killed).await;
        figures.at_most(&format!("ready after {name} (s)"), took, most);
        let from = app.record.elapsed();
        let again = async || app.record.first_delivered(app.healthy.numbers(), from).is_some();
        until("the healthy webhooks flow again", SOON, again).await;
        let first = app.record.first_delivered(app.healthy.numbers(), from).expect("just seen");
        figures.note(
            &format!("first delivery after {name}, after it leads (s)"),
            (first - from).as_secs_f64(),
        );
        tokio::time::sleep(Duration::from_secs(size(3, 20))).await;
        let settled = from + Duration::from_secs(1)..app.record.elapsed();
        let p99 = app.healthy_p99(settled);
        figures.at_most(&format!("healthy p99 after {name} (s)"), p99, HEALTHY_P99);
        // The allocator returns the memory that loading needed.
        let more = || mebibytes(downstreamer.resident_bytes()) - before;
        let began = Instant::now();
        while !app.is_bounded(more()) && began.elapsed() < ALLOCATOR_RETURNS_WITHIN {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        figures.note(&format!("returned after {name} within (s)"), began.elapsed().as_secs_f64());
        let more = more();
        figures.judge(&format!("resident more after {name} (MiB)"), more, app.is_bounded(more));
    }
    flow.abort();
    note_slowest(app, figures, "while the lanes fill").await;
}

async fn note_slowest(app: &App, figures: &mut Figures, when: &str) {
    let slowest = Slowest::take(&app.redis).await;
    let (took, what) = &slowest.other;
    figures.at_most(
        &format!("999 of 1,000 settlements {when} take at most (s)"),
        slowest.usual_settlement(),
        size(SETTLEMENT_MAX_SMALL, SETTLEMENT_MAX),
    );
    figures.note(&format!("longest settlement {when} (s)"), slowest.settlement().as_secs_f64());
    figures.note(&format!("settlements over a millisecond {when}"), slowest.settlements.len());
    figures.note(&format!("longest other command {when}"), format!("{took:?} {what}"));
}

/// Delivers everything from the lanes and returns the rate.
async fn leaves_lanes(app: &App, figures: &mut Figures, dropped: u32) -> f64 {
    let resumed = Instant::now();
    app.spillway(&["resume", "--all"]).await;
    app.delivered(1).await;
    figures.note("delivered after `resume` within (s)", resumed.elapsed().as_secs_f64());
    let rate = app.record.rate(app.many.numbers());
    figures.note("delivered a second from lanes", rate);
    app.nothing_left().await;
    app.record.forget(dropped);
    note_slowest(app, figures, "while the lanes empty").await;
    // Deliveries under way at a kill are repeated.
    app.record.expect_sound(figures.story, app.many.numbers(), 0);
    app.record.expect_sound(figures.story, app.healthy.numbers(), 64 + 256);
    rate
}

/// Figures of the same webhooks, delivered from the main stream.
struct Direct {
    /// Deliveries per second.
    rate: f64,
    /// Memory of the downstreamer at the end, in MiB.
    resident: f64,
}

async fn without_lanes(shops: u32, webhooks: u32) -> Direct {
    let app = App::start(Cell::beside(), shops, webhooks).await;
    app.fill().await;
    let downstreamer = app.downstreamer().await;
    app.delivered(0).await;
    app.record.expect_sound("without lanes", app.many.numbers(), 0);
    let resident = mebibytes(downstreamer.resident_bytes());
    Direct { rate: app.record.rate(app.many.numbers()), resident }
}

/// Number of a webhook that is the only one of its resource: see [`Crowd::before`].
fn alone(crowd: &Crowd) -> u32 {
    let is_alone = |one: &u32| crowd.before(*one).is_none() && crowd.after(*one).is_none();
    crowd.numbers().rev().find(is_alone).expect("most are")
}

async fn lives_through(story: &'static str, shops: u32, webhooks: u32, pause: &[&str]) {
    let cell = Cell::alone();
    let mut figures = Figures::new(story);
    figures.note("shops", shops);
    figures.note("webhooks", webhooks);
    let direct = without_lanes(shops, webhooks).await;
    figures.note("delivered a second without lanes", direct.rate);
    figures.note("downstreamer resident without lanes (MiB)", direct.resident);
    let app = App::start(cell, shops, webhooks).await;
    let mut downstreamer = app.downstreamer().await;
    waits_in_lanes(&app, &mut figures, &mut downstreamer, pause, &direct).await;
    let dropped = alone(&app.many);
    verbs(&app, &mut figures, dropped).await;
    note_slowest(&app, &mut figures, "under the verbs").await;
    let rate = leaves_lanes(&app, &mut figures, dropped).await;
    drop((app, downstreamer));
    // Measured before and after, because other load on the machine varies.
    let again =
        if size(false, true) { without_lanes(shops, webhooks).await.rate } else { direct.rate };
    figures.note("delivered a second without lanes, again", again);
    let part = 2.0 * rate / (direct.rate + again);
    let least = size(RATE_LEAST_SMALL, RATE_LEAST);
    figures.judge("part of the rate without lanes", part, part >= least);
    figures.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_lane_of_a_paused_shop_costs_little_and_empties_fast() {
    let domain = shop::domain(0);
    lives_through("one long lane", 1, number("WEBHOOKS", 30_000, 1_000_000), &["--shop", &domain])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_lanes_of_one_webhook_each_cost_little_and_delay_no_other() {
    let lanes = number("LANES", 5_000, 200_000);
    lives_through("many short lanes", lanes, lanes, &["--topic", TOPIC]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_lane_of_a_paused_shop_is_dropped_whole_after_a_restart() {
    let webhooks = number("WEBHOOKS", 30_000, 1_000_000);
    let mut figures = Figures::new("one long lane, dropped");
    let app = App::start(Cell::measured(), 1, webhooks).await;
    let mut downstreamer = app.downstreamer().await;
    let domain = shop::domain(0);
    app.spillway(&["pause", "--shop", &domain]).await;
    let is_read = async || gauge(&downstreamer, "spillway_pauses").await == 1.0;
    until("the pause is read", SOON, is_read).await;
    app.fill().await;
    app.all_in_lanes().await;
    restart(&mut downstreamer, false).await;
    let began = Instant::now();
    let drop = ["queue", "drop", "--shop", &domain, "--yes", "-o", "json"];
    let dropped = parsed(&app.spillway(&drop).await);
    figures.note("the command took (s)", began.elapsed().as_secs_f64());
    figures.note("the command said", dropped.to_string());
    assert_eq!(dropped["matched"], webhooks, "{dropped}");
    app.nothing_left().await;
    figures.note("nothing left after (s)", began.elapsed().as_secs_f64());
    note_slowest(&app, &mut figures, "until all is dropped").await;
    assert_eq!(app.sink.attempts(), 0, "attempts of what is dropped");
    figures.end();
}
