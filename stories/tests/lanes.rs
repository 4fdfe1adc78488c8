//! Isolation: when some webhooks fail, hang, are paused or held back, all others are delivered.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{Cell, Settings};
use stories::check::check;
use stories::feed::{Feed, Trickle};
use stories::ledger::{Event, Ledger};
use stories::measure::{Loud, Phases, percentile, until_quiet, waits};
use stories::receipt::Receipt;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::Webhook;
use tokio::time::sleep;

const QUEUE: &str = "{spillway}:in";
const DEAD: &str = "{spillway}:http:dead";
/// Packs of one second of the healthy shops, the limit of the main stream while they are delivered.
const AT_HAND: u64 = 40;
const SOON: Duration = Duration::from_secs(60);
/// Time within which a standby delivers after the leader's death.
const TAKEOVER: Duration = Duration::from_secs(15);

/// A small index and low concurrency, so that one shop can fill them.
const TIGHT: Settings<'static> = &[
    ("INDEX_MEMORY", "1MiB"),
    ("MAX_CONCURRENCY", CONCURRENCY_TEXT),
    ("DELIVERY_TIMEOUT", "4s"),
    ("PARK_AFTER", "1s"),
];
const CONCURRENCY: usize = 16;
const CONCURRENCY_TEXT: &str = "16";

/// The shop that fails; the healthy shops have other numbers.
const FAILING: u64 = 0;
/// Ten healthy shops, together 40 webhooks per second.
const HEALTHY: Trickle = Trickle {
    shops: 1..11,
    topics: &["products/update", "orders/create"],
    every: Duration::from_millis(500),
    first_resource: 1_000_000,
};
/// The same rate from more shops, each of which stays below two webhooks per second.
const HEALTHY_AND_SLOW: Trickle =
    Trickle { shops: 1..41, every: Duration::from_secs(2), ..HEALTHY };

/// Promised limits for other shops, and for other webhooks of the same shop.
const OTHERS_P99: Duration = Duration::from_secs(1);
const OWN_P99: Duration = Duration::from_secs(2);
/// Healthy webhooks of the calm phase before a standstill: those of two seconds.
const CALM_BEFORE: usize = 80;
/// Healthy webhooks of the calm phase after it: those of ten seconds, about as long as it was
/// measured.
const CALM_AFTER: usize = 400;
/// Number of the first resource in that phase.
const AFTER_RESOURCES: u64 = 2_000_000;

struct App {
    backend: Backend,
    /// Webhooks that must be delivered all the time.
    healthy: Arc<Ledger>,
    /// Webhooks that wait until the cause is removed.
    failing: Arc<Ledger>,
    downstreamer: Service,
    receiver: Service,
    redis: RedisServer,
    cell: Cell,
}

/// Signal that ends the downstreamer during a test: SIGKILL or SIGTERM.
#[derive(Clone, Copy)]
enum End {
    Killed,
    Stopped,
}

impl App {
    /// Starts an app.
    async fn start(settings: Settings<'_>) -> Self {
        Self::start_in(Cell::busy(), settings).await
    }

    async fn start_in(cell: Cell, settings: Settings<'_>) -> Self {
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        backend.behave(|_| works());
        let receiver = cell.receiver(&[]).await;
        let downstreamer = cell.downstreamer(&backend, settings).await;
        downstreamer.ready().await;
        let healthy = Arc::default();
        let failing = Arc::default();
        Self { backend, healthy, failing, downstreamer, receiver, redis, cell }
    }

    /// Behaves as `how` for the receipts that `meant` selects; all others succeed.
    fn fails(
        &self,
        how: impl Fn() -> Behaviour + Send + Sync + 'static,
        meant: impl Fn(&Receipt) -> bool + Send + Sync + 'static,
    ) {
        self.backend.behave(move |receipt| if meant(receipt) { how() } else { works() });
    }

    /// Lets everything succeed at once from now on: many webhooks have waited.
    fn heal(&self) {
        self.backend.behave(|_| Behaviour::ok());
    }

    fn feed(&self, ledger: &Arc<Ledger>) -> Feed {
        Feed::to(self.receiver.address(), ledger)
    }

    /// Stores webhooks of the failing shop, and a later event of every hundredth resource.
    async fn flood(&self, topic: &str, webhooks: u64) {
        let first = (1..=webhooks).map(|resource| Event { resource, sequence: 1 });
        let later = (1..=webhooks).step_by(100).map(|resource| Event { resource, sequence: 2 });
        self.feed(&self.failing).store(of(FAILING, topic, first.chain(later))).await;
    }

    /// Runs a command that must succeed.
    async fn spillway(&self, arguments: &[&str]) -> String {
        let output = self.cell.spillway(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    async fn pauses(&self, count: f64) {
        let is_read = async || self.downstreamer.metric("spillway_pauses").await == Some(count);
        until("the downstreamer has read the pauses", SOON, is_read).await;
    }

    async fn main_stream_is_empty(&self, within: Duration) {
        let is_empty = async || self.redis.stream_len(QUEUE).await == 0;
        until("the main stream is empty", within, is_empty).await;
    }

    /// Waits until the failing webhooks have left the main stream.
    async fn set_aside(&self) {
        let is_short = async || self.redis.stream_len(QUEUE).await <= AT_HAND;
        until("the failing webhooks leave the main stream", SOON, is_short).await;
    }

    async fn healthy_flow(&self) {
        let flow = async || self.backend.delivered() >= 20;
        until("the healthy webhooks flow", SOON, flow).await;
    }

    /// Waits until the healthy webhooks that were stored while nobody led are delivered. Those that are stored
    /// until then wait behind them, for as long as the machine takes.
    async fn catches_up(&self, story: &str) {
        let began = Instant::now();
        self.healthy.delivered_to(&self.backend, SOON).await;
        say(&format!("lanes, {story}: caught up after {:?}", began.elapsed()));
    }

    /// Ends the downstreamer, restarts it, and waits until it leads. Returns the time in between.
    async fn restart(&mut self, end: End) -> Range<Instant> {
        let ended = Instant::now();
        match end {
            End::Killed => self.downstreamer.kill9(),
            End::Stopped => {
                self.downstreamer.sigterm();
                self.downstreamer.exit(SOON).await;
            }
        }
        self.downstreamer.restart();
        until("it leads again", SOON, async || self.downstreamer.is_leader().await).await;
        ended..Instant::now()
    }

    /// p99 of the healthy webhooks accepted in each window. Prints figures.
    fn p99(
        &self,
        story: &str,
        windows: &[Range<Instant>],
        meant: impl Fn(Event) -> bool,
    ) -> Vec<Duration> {
        let receipts = self.backend.receipts();
        let p99 = |window| p99_of(story, &self.healthy, &receipts, window, &meant);
        windows.iter().map(p99).collect()
    }

    /// Fails unless healthy webhooks accepted in the windows are delivered in time.
    #[track_caller]
    fn expect_flow(
        &self,
        story: &str,
        windows: &[Range<Instant>],
        p99_max: Duration,
        meant: impl Fn(Event) -> bool,
    ) {
        let p99 = self.p99(story, windows, meant);
        assert!(p99.iter().all(|p99| *p99 < p99_max), "{story}: p99 {p99:?}, at most {p99_max:?}");
    }

    /// p99 of the next webhooks of a ledger, stored while no shop fails.
    async fn calm_p99(&self, story: &str, ledger: &Ledger, webhooks: usize) -> Duration {
        let began = Instant::now();
        let enough = ledger.stored_count() + webhooks;
        let are_stored = async || ledger.stored_count() >= enough;
        until("the webhooks of a calm phase are stored", SOON, are_stored).await;
        let window = began..Instant::now();
        ledger.delivered_to(&self.backend, SOON).await;
        let receipts = self.backend.receipts();
        p99_of(&format!("{story}, in calm"), ledger, &receipts, &window, |_| true)
    }

    /// Waits until everything is delivered, and fails unless each came once and in order.
    async fn expect_all(&self, story: &str, within: Duration, repeats_max: usize) {
        let began = Instant::now();
        self.healthy.delivered_to(&self.backend, within).await;
        self.failing.delivered_to(&self.backend, within).await;
        say(&format!("lanes, {story}: all delivered after {:?}", began.elapsed()));
        self.healthy.absorb(&self.failing);
        let figures = check(&self.healthy, &self.backend.receipts(), &HashSet::new());
        figures.print(&format!("lanes, {story}"));
        figures.expect_sound(repeats_max);
    }
}

fn works() -> Behaviour {
    Behaviour::slowly(Duration::from_millis(5))
}

/// p99 of the webhooks of a ledger that were accepted in a window. Prints figures.
fn p99_of(
    story: &str,
    ledger: &Ledger,
    receipts: &[Receipt],
    window: &Range<Instant>,
    meant: impl Fn(Event) -> bool,
) -> Duration {
    let waits = waits(ledger, receipts, window, meant);
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|part| percentile(&waits.all, part));
    say(&format!(
        "lanes, {story}: {} webhooks in {:?}, {} not delivered; p50 {p50:?}, p99 {p99:?}, \
         at most {max:?}",
        waits.all.len(),
        window.end - window.start,
        waits.undelivered,
    ));
    p99
}

fn of_failing_shop(receipt: &Receipt) -> bool {
    receipt.shop() == shop::domain(FAILING)
}

fn of(shop: u64, topic: &str, events: impl Iterator<Item = Event>) -> Vec<(Event, Webhook)> {
    events.map(|event| (event, shop::webhook(shop, topic, event))).collect()
}

/// The tight settings with `more`, which override them.
fn tight(more: Settings<'static>) -> Vec<(&'static str, &'static str)> {
    let is_replaced = |key: &str| more.iter().any(|(other, _)| *other == key);
    let kept = TIGHT.iter().filter(|(key, _)| !is_replaced(key));
    kept.chain(more).copied().collect()
}

/// The webhooks of one shop wait from the first second to the last.
struct Standstill {
    story: &'static str,
    settings: Settings<'static>,
    healthy: Trickle,
    end: End,
    cell: fn() -> Cell,
}

/// p99 of the others in calm before a standstill, and the largest in its windows.
struct Flow {
    before: Duration,
    fault: Duration,
}

impl Standstill {
    fn new(story: &'static str, end: End) -> Self {
        Self { story, settings: &[], healthy: HEALTHY, end, cell: Cell::busy }
    }

    fn webhooks() -> u64 {
        size(14_000, 140_000)
    }

    /// Time limit for the delivery of all of them.
    fn healed_within() -> Duration {
        size(2 * SOON, 10 * SOON)
    }

    async fn start(&self) -> App {
        App::start_in((self.cell)(), &tight(self.settings)).await
    }

    /// Measures the others before the flood, during it, after it, and after the downstreamer
    /// restarted and caught up.
    async fn others_flow(&self, app: &mut App) -> Flow {
        let before = Duration::from_secs(size(3, 60));
        let after = Duration::from_secs(size(4, 60));
        let others = app.feed(&app.healthy).trickle(&self.healthy);
        app.healthy_flow().await;
        let calm = app.calm_p99(self.story, &app.healthy, CALM_BEFORE).await;
        let began = Instant::now();
        app.flood("products/update", Self::webhooks()).await;
        let stored = began.elapsed();
        sleep(before).await;
        let down = app.restart(self.end).await;
        say(&format!(
            "lanes, {}: stored in {stored:?}, leads again after {:?}",
            self.story,
            down.end - down.start
        ));
        app.catches_up(self.story).await;
        let caught_up = Instant::now();
        let known = app.healthy.stored_count();
        sleep(after).await;
        // On a loud machine, none may be stored yet.
        until("the others are stored", SOON, async || app.healthy.stored_count() > known).await;
        others.stop().await;
        // Webhooks of the last second before the end may have waited for it, and are delivered
        // later.
        let windows = [began..down.start - OTHERS_P99, caught_up..Instant::now()];
        let p99 = app.p99(self.story, &windows, |_| true);
        let fault = p99.into_iter().max().expect("p99 of each window");
        if fault < OTHERS_P99 {
            app.cell.stop_measuring();
        }
        Flow { before: calm, fault }
    }

    /// Fails unless everything is delivered, and unless the standstill delayed no other.
    async fn all_arrive(&self, app: &App, flow: Flow) -> Result<(), Loud> {
        let repeats_max = match self.end {
            End::Killed => CONCURRENCY,
            End::Stopped => 0,
        };
        app.expect_all(self.story, Self::healed_within(), repeats_max).await;
        if flow.fault < OTHERS_P99 {
            // The calm phases can only raise the limit.
            return Ok(());
        }
        app.backend.behave(|_| works());
        let calm: Arc<Ledger> = Arc::default();
        let trickle = Trickle { first_resource: AFTER_RESOURCES, ..self.healthy.clone() };
        let others = app.feed(&calm).trickle(&trickle);
        let after = app.calm_p99(self.story, &calm, CALM_AFTER).await;
        others.stop().await;
        let phases = Phases { before: flow.before, fault: flow.fault, after };
        let delay = phases.delay("p99 of the others", OTHERS_P99)?;
        assert_eq!(delay, None, "lanes, {}", self.story);
        Ok(())
    }

    /// A complete test of a shop for which the backend behaves as `how`.
    async fn of_a_backend_that(self, how: impl Fn() -> Behaviour + Clone + Send + Sync + 'static) {
        until_quiet(&format!("lanes, {}", self.story), async || {
            let mut app = self.start().await;
            app.fails(how.clone(), of_failing_shop);
            let flow = self.others_flow(&mut app).await;
            app.heal();
            self.all_arrive(&app, flow).await
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_answered_500_delays_no_other() {
    let story = Standstill::new("answered 500", End::Killed);
    story.of_a_backend_that(|| Behaviour::status(500)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_answered_500_delays_no_other_with_the_usual_settings() {
    let usual = &[("PARK_AFTER", "")];
    // All of the shop's webhooks are still in the main stream at the restart. A downstreamer of the
    // tests' build reads them in 0.1 s with the machine to itself, and in 1 s beside six stories.
    let story = Standstill::new("500, usual", End::Stopped);
    let story = Standstill { settings: usual, cell: Cell::alone, ..story };
    story.of_a_backend_that(|| Behaviour::status(500)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_answered_404_delays_no_other() {
    let story = Standstill::new("answered 404", End::Stopped);
    story.of_a_backend_that(|| Behaviour::status(404)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_answered_429_delays_no_other() {
    let story = Standstill::new("answered 429", End::Killed);
    story.of_a_backend_that(|| Behaviour::status(429)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_answered_503_delays_no_other() {
    let story = Standstill::new("answered 503", End::Stopped);
    story.of_a_backend_that(|| Behaviour::status(503)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_never_answered_delays_no_other() {
    let story = Standstill::new("never answered", End::Killed);
    story.of_a_backend_that(|| Behaviour::Hang).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_never_answered_delays_no_other_with_the_usual_time_out() {
    if !size(false, true) {
        // The test would end only half a minute after the shop's webhooks succeed again.
        return;
    }
    let usual = &[("DELIVERY_TIMEOUT", "30s")];
    let story = "never answered, 30 s";
    let story = Standstill { settings: usual, ..Standstill::new(story, End::Killed) };
    story.of_a_backend_that(|| Behaviour::Hang).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_paused_delays_no_other() {
    let story = Standstill::new("paused", End::Stopped);
    let domain = shop::domain(FAILING);
    until_quiet("lanes, paused", async || {
        let mut app = story.start().await;
        app.spillway(&["pause", "--shop", &domain]).await;
        app.pauses(1.0).await;
        let flow = story.others_flow(&mut app).await;
        let of_paused =
            app.backend.look(|all| all.iter().filter(|one| of_failing_shop(one)).count());
        assert_eq!(of_paused, 0, "of the paused shop");
        app.spillway(&["resume", "--shop", &domain]).await;
        story.all_arrive(&app, flow).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_over_its_rate_delays_no_other() {
    let story = Standstill {
        settings: &[("SHOP_MAX_RATE", "2")],
        healthy: HEALTHY_AND_SLOW,
        ..Standstill::new("over its rate", End::Stopped)
    };
    until_quiet("lanes, over its rate", async || {
        let mut app = story.start().await;
        let flow = story.others_flow(&mut app).await;
        // A rate is changed by a restart.
        app.downstreamer.sigterm();
        app.downstreamer.exit(SOON).await;
        app.downstreamer = app.cell.downstreamer(&app.backend, TIGHT).await;
        story.all_arrive(&app, flow).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_failing_redaction_delays_no_other_and_follows_it() {
    let orders = size(1_500, 15_000);
    let app = App::start(TIGHT).await;
    app.fails(
        || Behaviour::status(500),
        |receipt| of_failing_shop(receipt) && receipt.topic() == "customers/redact",
    );
    let others = app.feed(&app.healthy).trickle(&HEALTHY);
    app.healthy_flow().await;
    let began = Instant::now();
    let redact = Event { resource: 500_000, sequence: 1 };
    let feed = app.feed(&app.failing);
    feed.store_in_turn(of(FAILING, "customers/redact", std::iter::once(redact))).await;
    app.flood("orders/create", orders).await;
    sleep(Duration::from_secs(size(5, 60))).await;
    others.stop().await;
    app.expect_flow("failing redaction", &[began..Instant::now()], OTHERS_P99, |_| true);
    app.main_stream_is_empty(SOON).await;
    let arrived = app.backend.look(|all| {
        all.iter()
            .filter(|one| of_failing_shop(one) && one.webhook_id() != redact.webhook_id())
            .count()
    });
    assert_eq!(arrived, 0, "orders that passed the redaction");
    app.heal();
    app.expect_all("failing redaction", SOON, 0).await;
    let first = app.backend.look(|all| {
        all.iter().find(|one| of_failing_shop(one) && one.delivered()).map(Receipt::event)
    });
    assert_eq!(first, Some(redact), "what arrives first");
}

/// The only shop sends products, which all fail, and customers. `shop/redact` waits in a chunk.
/// Redis returns with that chunk as `loss` (a script on one field of the hash of chunks) leaves it.
/// Everything else is delivered, and nothing is left of the lanes.
async fn a_chunk_is_lost(loss: &str) {
    let mut app = App::start(TIGHT).await;
    app.fails(|| Behaviour::status(500), of_failing_shop);
    let lost = Arc::default();
    let redact = Event { resource: 500_000, sequence: 1 };
    let redact = of(FAILING, "customers/redact", std::iter::once(redact));
    app.feed(&lost).store_in_turn(redact).await;
    app.flood("orders/create", 300).await;
    app.main_stream_is_empty(SOON).await;
    app.downstreamer.sigterm();
    app.downstreamer.exit(SOON).await;
    let rows: Vec<String> = app.redis.command(&["HVALS", "{spillway}:http:lanes"]).await;
    let rows = rows.iter().map(|row| serde_json::from_str::<Value>(row).expect("a row"));
    let row = rows.into_iter().find(|row| row["kind"] == "customer").expect("a lane of customers");
    let lane = row["lane"].as_u64().expect("a hash");
    let field = format!("{lane:016x}:{}", row["first_chunk"]);
    let eval = ["EVAL", loss, "1", "{spillway}:http:chunks", &field];
    assert_eq!(app.redis.command::<u64>(&eval).await, 1, "chunks that are lost");
    app.heal();
    app.downstreamer.restart();
    app.failing.delivered_to(&app.backend, SOON).await;
    let is_clean = async || {
        let mut left = 0;
        for key in
            ["lanes", "chunks", "chunks:done", "barriers", "retries", "retries:main", "leads"]
        {
            left +=
                app.redis.command::<u64>(&["EXISTS", &format!("{{spillway}}:http:{key}")]).await;
        }
        left == 0 && app.redis.in_lanes().await == 0
    };
    until("nothing is left of the lanes", SOON, is_clean).await;
    app.spillway(&["doctor"]).await;
    app.spillway(&["queue", "list"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_chunk_with_a_redaction_holds_nothing_back() {
    a_chunk_is_lost(
        "local chunk = redis.call('HGET', KEYS[1], ARGV[1])
        local last = string.char((string.byte(chunk, -1) + 1) % 256)
        redis.call('HSET', KEYS[1], ARGV[1], string.sub(chunk, 1, -2) .. last)
        return 1",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_chunk_with_a_redaction_holds_nothing_back() {
    a_chunk_is_lost("return redis.call('HDEL', KEYS[1], ARGV[1])").await;
}

async fn one_kind_fails(story: &str, every: Duration, lasts: Duration) {
    let app = App::start(TIGHT).await;
    app.fails(|| Behaviour::status(500), |receipt| receipt.topic() == "products/update");
    let products = Trickle {
        shops: FAILING..FAILING + 1,
        topics: &["products/update"],
        every: Duration::from_millis(20),
        first_resource: 1,
    };
    let customers = Trickle {
        topics: &["customers/update"],
        every,
        first_resource: 1_000_000,
        ..products.clone()
    };
    let products = app.feed(&app.failing).trickle(&products);
    until("products fail", SOON, async || app.failing.stored_count() >= 100).await;
    let began = Instant::now();
    let customers = app.feed(&app.healthy).trickle(&customers);
    sleep(lasts).await;
    let window = began..Instant::now();
    products.stop().await;
    app.expect_flow(story, &[window], OWN_P99, |_| true);
    app.heal();
    customers.stop().await;
    app.expect_all(story, SOON, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn customers_flow_while_every_product_of_the_only_shop_fails() {
    let lasts = Duration::from_secs(size(12, 120));
    one_kind_fails("one kind fails", Duration::from_millis(100), lasts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_customer_now_and_then_flows_while_every_product_of_the_only_shop_fails() {
    let lasts = Duration::from_secs(size(16, 180));
    one_kind_fails("one kind fails, the other is rare", Duration::from_secs(3), lasts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_customer_every_ten_seconds_flows_while_every_product_of_the_only_shop_fails() {
    if !size(false, true) {
        // A few webhooks would take a minute of the suite.
        return;
    }
    let lasts = Duration::from_secs(180);
    one_kind_fails("one kind fails, one every 10 s", Duration::from_secs(10), lasts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_products_delay_no_other_product_of_their_shop() {
    const POISON_EVERY: u64 = 200;
    let app = App::start(TIGHT).await;
    let is_poison = |event: Event| event.resource.is_multiple_of(POISON_EVERY);
    app.fails(|| Behaviour::status(500), move |receipt| is_poison(receipt.event()));
    let products = Trickle {
        shops: FAILING..FAILING + 1,
        topics: &["products/update"],
        every: Duration::from_millis(5),
        first_resource: 1,
    };
    let began = Instant::now();
    let products = app.feed(&app.healthy).trickle(&products);
    sleep(Duration::from_secs(size(12, 120))).await;
    products.stop().await;
    let window = began..Instant::now();
    app.expect_flow("poison", &[window], OWN_P99, |event| !is_poison(event));
    let delivered = app
        .backend
        .look(|all| all.iter().filter(|one| one.delivered() && is_poison(one.event())).count());
    assert_eq!(delivered, 0, "poison that was delivered");
    app.heal();
    app.expect_all("poison", SOON, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_deploy_amid_one_shops_flood_costs_few_dead_letters() {
    const DEAD_MAX: u64 = 200;
    let app = App::start(TIGHT).await;
    let flood = Trickle {
        shops: FAILING..FAILING + 1,
        topics: &["products/update"],
        every: Duration::from_millis(10),
        first_resource: 1,
    };
    let others = Trickle { topics: &["orders/create"], every: Duration::from_secs(10), ..HEALTHY };
    // Three senders of one hundred per second each.
    let floods: Vec<_> = [1, 100_000, 200_000]
        .into_iter()
        .map(|first_resource| Trickle { first_resource, ..flood.clone() })
        .map(|flood| app.feed(&app.failing).trickle(&flood))
        .collect();
    let others = app.feed(&app.healthy).trickle(&others);
    until("it flows", SOON, async || app.backend.delivered() >= 1_000).await;
    app.backend.behave(|_| Behaviour::status(400));
    sleep(Duration::from_secs(20)).await;
    let dead = app.redis.stream_len(DEAD).await;
    say(&format!("lanes, bad deploy: {dead} dead letters after 20 s"));
    assert!(dead <= DEAD_MAX, "{dead} dead letters");
    app.heal();
    for flood in floods {
        flood.stop().await;
    }
    others.stop().await;
    let stored = (app.healthy.stored_count() + app.failing.stored_count()) as u64;
    let delivered = async || app.backend.delivered() as u64 + app.redis.stream_len(DEAD).await;
    until("all others are delivered", SOON, async || delivered().await >= stored).await;
    let dead = app.redis.stream_len(DEAD).await;
    assert!(dead <= DEAD_MAX, "{dead} dead letters in the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_outside_the_main_stream_is_paused_by_topic_and_dropped_by_shop() {
    let many = 5_000;
    let app = App::start(TIGHT).await;
    let is_product = |one: &Receipt| of_failing_shop(one) && one.topic() == "products/update";
    app.fails(|| Behaviour::status(500), is_product);
    // The pause must hold none of these.
    let orders = Trickle { topics: &["orders/create"], every: HEALTHY.every / 2, ..HEALTHY };
    let others = app.feed(&app.healthy).trickle(&orders);
    app.healthy_flow().await;
    let products = (1..=many).map(|resource| Event { resource, sequence: 1 });
    app.feed(&app.failing).store(of(FAILING, "products/update", products)).await;
    app.set_aside().await;
    others.stop().await;
    app.spillway(&["pause", "--topic", "products/update"]).await;
    app.pauses(1.0).await;
    // Orders of the same shop pass. Only product attempts under way before them may still count.
    let mut attempts = Vec::new();
    for first in [2_000_000, 2_000_100] {
        let orders = (first..first + 20).map(|resource| Event { resource, sequence: 1 });
        app.feed(&app.healthy).store(of(FAILING, "orders/create", orders)).await;
        app.healthy.delivered_to(&app.backend, SOON).await;
        attempts.push(app.backend.look(|all| all.iter().filter(|one| is_product(one)).count()));
    }
    assert_eq!(attempts[0], attempts[1], "attempts of what is paused");

    // An order that is delivered matches until it is settled.
    app.main_stream_is_empty(SOON).await;
    let domain = shop::domain(FAILING);
    let dropped = app.spillway(&["queue", "drop", "--shop", &domain, "--yes", "-o", "json"]).await;
    say(&format!("lanes, drop: {}", dropped.trim()));
    let dropped: Value = serde_json::from_str(&dropped).expect("JSON");
    assert_eq!((&dropped["matched"], &dropped["dropped"]), (&many.into(), &many.into()));
    app.heal();
    app.spillway(&["resume", "--all"]).await;
    let later = (1..=20).map(|resource| Event { resource: 3_000_000 + resource, sequence: 1 });
    app.feed(&app.healthy).store(of(FAILING, "products/update", later)).await;
    app.healthy.delivered_to(&app.backend, SOON).await;
    app.main_stream_is_empty(SOON).await;
    let status: Value =
        serde_json::from_str(&app.spillway(&["status", "-o", "json"]).await).expect("JSON");
    assert_eq!(status["consumers"][0]["waiting"], 0, "{status}");
    assert_eq!(status["consumers"][0]["dropped"], many, "{status}");
    let delivered = app
        .backend
        .look(|all| all.iter().filter(|one| one.delivered() && of_failing_shop(one)).count());
    assert_eq!(delivered, 60, "none of those dropped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_over_what_lies_outside_the_main_stream() {
    let story = "takeover";
    let mut app = App::start(TIGHT).await;
    until("the first leads", SOON, async || app.downstreamer.is_leader().await).await;
    let standby = app.cell.downstreamer(&app.backend, TIGHT).await;
    app.fails(|| Behaviour::status(500), of_failing_shop);
    let others = app.feed(&app.healthy).trickle(&HEALTHY);
    app.healthy_flow().await;
    app.flood("products/update", size(3_000, 30_000)).await;
    app.set_aside().await;
    assert!(!standby.is_leader().await, "two leaders");

    let killed = Instant::now();
    app.downstreamer.kill9();
    app.backend.hung_up().await;
    let gone = app.backend.count();
    let delivers = async || {
        app.backend
            .look(|all| all[gone..].iter().any(|one| one.delivered() && !of_failing_shop(one)))
    };
    until("the standby delivers", TAKEOVER, delivers).await;
    let took_over = Instant::now();
    say(&format!("lanes, {story}: the standby delivers after {:?}", took_over - killed));
    assert!(took_over - killed <= TAKEOVER, "{:?}", took_over - killed);
    app.catches_up(story).await;
    let caught_up = Instant::now();
    sleep(Duration::from_secs(size(5, 60))).await;
    others.stop().await;
    app.expect_flow(story, &[caught_up..Instant::now()], OTHERS_P99, |_| true);
    app.heal();
    app.expect_all(story, SOON, CONCURRENCY).await;
}
