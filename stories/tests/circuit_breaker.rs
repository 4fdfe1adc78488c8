//! The circuit breaker of the backend: a bad deploy refuses everything, and nothing is given up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{Cell, Settings};
use stories::feed::{Feed, Trickle};
use stories::ledger::{Event, Ledger};
use stories::load::Running;
use stories::measure::rate;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use tokio::time::sleep;

const DEAD: &str = "{spillway}:http:dead";
const SOON: Duration = Duration::from_secs(60);

/// Webhooks per second of ten shops together.
const PER_SECOND: f64 = 200.0;
const SHOPS: Trickle = Trickle {
    shops: 1..11,
    topics: &["products/update", "orders/create"],
    every: Duration::from_millis(100),
    first_resource: 1,
};

/// Promised limits: a probe every 10 s, and the full rate within 20 s.
const PROBE_EVERY: Duration = Duration::from_secs(10);
const FULL_WITHIN: Duration = Duration::from_secs(20);

struct App {
    downstreamer: Service,
    backend: Backend,
    ledger: Arc<Ledger>,
    feed: Feed,
    redis: RedisServer,
    _receiver: Service,
    _cell: Cell,
}

impl App {
    /// Starts a backend that works, and ten shops that send to it.
    async fn start(settings: Settings<'_>) -> (Self, Running) {
        let cell = Cell::busy();
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        backend.behave(|_| Behaviour::slowly(Duration::from_millis(10)));
        let receiver = cell.receiver(&[]).await;
        let downstreamer = cell.downstreamer(&backend, settings).await;
        let ledger = Arc::new(Ledger::default());
        let feed = Feed::to(receiver.address(), &ledger);
        let shops = feed.trickle(&SHOPS);
        let app =
            Self { downstreamer, backend, ledger, feed, redis, _receiver: receiver, _cell: cell };
        until("it flows", SOON, async || app.backend.delivered() >= 300).await;
        (app, shops)
    }

    /// Answers everything with this status from now on, and waits until the circuit breaker opens.
    async fn deploy(&self, status: u16) -> Instant {
        self.backend.behave(move |_| Behaviour::status(status));
        let deployed = Instant::now();
        self.downstreamer.unready("backend_refuses").await;
        let (on, tried) = (
            Instant::now(),
            self.backend.look(|receipts| {
                receipts.iter().filter(|receipt| receipt.status == Some(status)).count()
            }),
        );
        say(&format!(
            "circuit breaker: {status} for {:?} and {tried} refusals, then it holds",
            on - deployed
        ));
        on
    }

    /// Number of webhooks that the backend was sent in this time.
    fn arrived(&self, from: Instant, until: Instant) -> usize {
        let within = |at: Instant| from <= at && at < until;
        self.backend.look(|all| all.iter().filter(|one| within(one.arrived)).count())
    }

    async fn dead(&self) -> u64 {
        self.redis.stream_len(DEAD).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_deploy_that_answers_404_costs_nothing_but_time() {
    // Without the circuit breaker, each of them would be a dead letter after two seconds.
    let (app, shops) = App::start(&[("RETRY_REFUSED_FOR", "2s")]).await;
    let on = app.deploy(404).await;
    // Deliveries under way when the circuit breaker opened have ended by then.
    let quiet = on + Duration::from_secs(1);
    let watched = Duration::from_secs(size(16, 600));
    sleep((quiet + watched).saturating_duration_since(Instant::now())).await;
    let probes = app.arrived(quiet, quiet + watched);
    assert!(app.downstreamer.admin("/readyz").await.unwrap().text().contains("backend_refuses"));
    assert_eq!(app.dead().await, 0, "dead letters");

    app.backend.behave(|_| Behaviour::slowly(Duration::from_millis(10)));
    let fixed = Instant::now();
    until("it is ready again", FULL_WITHIN, async || app.downstreamer.is_ready().await).await;
    let ready = fixed.elapsed();
    until("it flows at full rate", FULL_WITHIN.saturating_sub(ready), async || {
        let now = Instant::now();
        let second = now - Duration::from_secs(1);
        rate(app.arrived(second, now), &(second..now)) >= PER_SECOND
    })
    .await;
    say(&format!(
        "circuit breaker: {probes} probes in {watched:?}; ready {ready:?} after the end, at full rate \
         {:?} after it",
        fixed.elapsed()
    ));
    shops.stop().await;
    app.ledger.delivered_to(&app.backend, SOON).await;
    let probes_max = watched.div_duration_f64(PROBE_EVERY).ceil() as usize;
    assert!(probes <= probes_max, "{probes} in {watched:?}");
    assert!(probes >= 1, "it was never probed");
    assert_eq!(app.dead().await, 0, "dead letters");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_deploy_that_answers_400_gives_up_no_more_than_it_takes_to_see_it() {
    let (app, shops) = App::start(&[]).await;
    let _on = app.deploy(400).await;
    // Deliveries under way when the circuit breaker opened have ended by then.
    sleep(Duration::from_secs(1)).await;
    let dead = app.dead().await;
    sleep(Duration::from_secs(5)).await;
    let later = app.dead().await;
    say(&format!("circuit breaker: {dead} dead letters until it held, {later} five seconds later"));
    assert_eq!(later, dead, "dead letters while it held");
    // More than half of a hundred outcomes, plus the deliveries under way.
    assert!(dead <= 100 + 64, "{dead} dead letters");
    app.backend.behave(|_| Behaviour::ok());
    until("it is ready again", FULL_WITHIN, async || app.downstreamer.is_ready().await).await;
    shops.stop().await;
    let stored = app.ledger.stored_count();
    until("all others are delivered", SOON, async || {
        app.backend.delivered() as u64 + app.dead().await >= stored as u64
    })
    .await;
    assert_eq!(app.dead().await, dead, "dead letters after it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_data_of_one_shop_opens_nothing() {
    const BAD_SHOP: u64 = 99;
    const BAD: u64 = 2000;
    let (app, shops) = App::start(&[]).await;
    app.backend.behave(|receipt| {
        let is_bad = receipt.shop() == shop::domain(BAD_SHOP);
        if is_bad { Behaviour::status(400) } else { Behaviour::slowly(Duration::from_millis(10)) }
    });
    let bad = (1..=BAD).map(|number| {
        let event = Event { resource: 1_000_000 + number, sequence: 1 };
        (event, shop::webhook(BAD_SHOP, "products/update", event))
    });
    let (others, began) = (app.backend.delivered(), Instant::now());
    let bad: Vec<_> = bad.collect();
    let storing = app.feed.store(bad);
    let mut never_ready = 0;
    let judged = async {
        until("all of the bad shop's are dead letters", SOON, async || {
            let answer = app.downstreamer.admin("/readyz").await;
            never_ready += usize::from(answer.is_none_or(|answer| answer.status != 200));
            app.dead().await == BAD
        })
        .await;
    };
    tokio::join!(storing, judged);
    let took = began.elapsed();
    let flowed = (app.backend.delivered() - others) as f64 / took.as_secs_f64();
    say(&format!(
        "circuit breaker: {BAD} bad ones of one shop are dead after {took:?}; the others {flowed:.0}/s"
    ));
    assert_eq!(never_ready, 0, "times it was not ready");
    shops.stop().await;
    until("the others are delivered", SOON, async || {
        app.backend.delivered() as u64 + BAD >= app.ledger.stored_count() as u64
    })
    .await;
    assert_eq!(app.dead().await, BAD);
}
