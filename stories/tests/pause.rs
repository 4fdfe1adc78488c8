//! `Spillway-Pause`: response header that pauses part of the delivery.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{Cell, Settings};
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::measure::{delivered_in, rate};
use stories::receipt::Receipt;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::until::until;
use tokio::time::sleep_until;

const SOON: Duration = Duration::from_secs(60);

/// The harness otherwise limits a pause to half a second.
const PATIENT: Settings<'static> = &[("RETRY_LONGEST", "10s")];
const RETRY_AFTER: &str = "2";
/// Period after the answer in which nothing may arrive. Deliveries under way when the answer came
/// arrive before its start. The pause holds up to two seconds, and a delivery may take a little
/// longer.
const QUIET: Range<Duration> = Duration::from_millis(700)..Duration::from_millis(1950);

struct App {
    backend: Backend,
    ledger: Arc<Ledger>,
    feed: Feed,
    _downstreamer: Service,
    _receiver: Service,
    _redis: RedisServer,
    _cell: Cell,
}

impl App {
    /// Starts a backend with 16 workers, and webhooks that wait for it.
    async fn with_backlog(cell: Cell, shops: Range<u64>, webhooks_each: u64) -> Self {
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        backend.employ(16);
        backend.behave(|_| work());
        let receiver = cell.receiver(&[]).await;
        let ledger = Arc::new(Ledger::default());
        let feed = Feed::to(receiver.address(), &ledger);
        let resources = (1..=webhooks_each)
            .flat_map(|number| shops.clone().map(move |shop| (shop, shop * 100_000 + number)));
        let backlog = resources.map(|(shop, resource)| {
            let event = Event { resource, sequence: 1 };
            (event, shop::webhook(shop, "products/update", event))
        });
        feed.store(backlog.collect()).await;
        let downstreamer = cell.downstreamer(&backend, PATIENT).await;
        let (_receiver, _redis, _cell) = (receiver, redis, cell);
        Self { backend, ledger, feed, _downstreamer: downstreamer, _receiver, _redis, _cell }
    }

    /// Waits until `more` webhooks are delivered.
    async fn at_work(&self, more: usize) {
        let before = self.backend.delivered();
        until("it is at work", SOON, async || self.backend.delivered() >= before + more).await;
    }

    /// Time at which the first of these was answered 429.
    async fn refused_at(&self, since: Instant, meant: impl Fn(&Receipt) -> bool) -> Instant {
        let first = || {
            self.backend.look(|all| {
                let mut refused = all.iter().filter(|one| one.status == Some(429) && meant(one));
                refused.find_map(|one| one.answered.filter(|at| *at >= since))
            })
        };
        until("a pause is asked for", SOON, async || first().is_some()).await;
        first().expect("just seen")
    }

    /// Number of these that arrived while the pause held.
    async fn arrived_in_pause(&self, refused: Instant, meant: impl Fn(&Receipt) -> bool) -> usize {
        let quiet = refused + QUIET.start..refused + QUIET.end;
        sleep_until(quiet.end.into()).await;
        self.backend
            .look(|all| all.iter().filter(|one| quiet.contains(&one.arrived) && meant(one)).count())
    }
}

fn work() -> Behaviour {
    Behaviour::slowly(Duration::from_millis(20))
}

fn pause(what: Option<&str>) -> Behaviour {
    let behaviour = Behaviour::status(429).header("Retry-After", RETRY_AFTER);
    match what {
        Some(what) => behaviour.header("Spillway-Pause", what),
        None => behaviour,
    }
}

fn of_shop(shop: u64) -> impl Fn(&Receipt) -> bool + Clone {
    let domain = shop::domain(shop);
    move |receipt| receipt.shop() == domain
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_paused_costs_the_others_nothing() {
    const PAUSED: u64 = 1;
    const WINDOW: Duration = Duration::from_secs(4);
    // At 800 per second, more than four windows need.
    let app = App::with_backlog(Cell::alone(), 1..10, 1900).await;
    app.at_work(800).await;
    let mut rates = Vec::new();
    for round in 0..4 {
        let is_paused = round % 2 == 1;
        let began = Instant::now();
        if is_paused {
            let paused = of_shop(PAUSED);
            app.backend.behave(
                move |receipt| {
                    if paused(receipt) { pause(Some("shop")) } else { work() }
                },
            );
            let refused = app.refused_at(began, of_shop(PAUSED)).await;
            let arrived = app.arrived_in_pause(refused, of_shop(PAUSED)).await;
            assert_eq!(arrived, 0, "of the paused shop");
        }
        let window = began..began + WINDOW;
        sleep_until(window.end.into()).await;
        app.backend.behave(|_| work());
        let of_others = app
            .backend
            .look(|all| delivered_in(all, &window).filter(|one| !of_shop(PAUSED)(one)).count());
        rates.push(rate(of_others, &window));
    }
    let [free, paused] = [0, 1].map(|first| (rates[first] + rates[first + 2]) / 2.0);
    say(&format!(
        "pause: the others {rates:.0?}/s, every second time with a shop paused: {:.3} of it",
        paused / free
    ));
    let waiting = app.ledger.stored_count() - app.backend.delivered();
    assert!(waiting > 0, "it ran dry");
    assert!(paused >= 0.95 * free, "{paused:.0}/s instead of {free:.0}/s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resource_that_is_paused_waits_alone() {
    let app = App::with_backlog(Cell::busy(), 1..2, 4000).await;
    // One webhook amid the backlog, and a later event of the same resource.
    let paused = Event { resource: 101_500, sequence: 1 };
    let later = Event { sequence: 2, ..paused };
    app.feed.store_in_turn(vec![(later, shop::webhook(1, "products/update", later))]).await;
    let is_paused = move |receipt: &Receipt| receipt.webhook_id() == paused.webhook_id();
    let began = Instant::now();
    app.backend.behave(move |receipt| {
        let is_paused = is_paused(receipt) && receipt.attempt() == 1;
        if is_paused { pause(Some("resource")) } else { work() }
    });
    let refused = app.refused_at(began, is_paused).await;
    let of_resource = move |receipt: &Receipt| receipt.event().resource == paused.resource;
    let delivered = app.backend.delivered();
    let arrived = app.arrived_in_pause(refused, of_resource).await;
    let flowed = app.backend.delivered() - delivered;
    say(&format!("pause: {flowed} others of its shop while a resource was paused"));
    assert_eq!(arrived, 0, "of the paused resource");
    // 800 per second are possible on a machine with nothing else to do, for two seconds.
    assert!(flowed > 200, "the others wait too: {flowed}");
    app.ledger.delivered_to(&app.backend, SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_waits_where_all_is_asked_for_or_nothing_is_said() {
    let app = App::with_backlog(Cell::busy(), 1..6, 1200).await;
    for what in [Some("all"), None] {
        app.at_work(200).await;
        let began = Instant::now();
        app.backend.behave(move |_| pause(what));
        let refused = app.refused_at(began, |_| true).await;
        app.backend.behave(|_| work());
        let arrived = app.arrived_in_pause(refused, |_| true).await;
        say(&format!("pause: {arrived} arrived while {what:?} was paused"));
        assert_eq!(arrived, 0, "{what:?}");
    }
    app.at_work(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_of_many_single_resources_do_not_stop_delivery() {
    let app = App::with_backlog(Cell::busy(), 1..6, 300).await;
    app.at_work(100).await;
    app.backend.behave(
        |receipt| {
            if receipt.attempt() == 1 { pause(Some("resource")) } else { work() }
        },
    );
    let began = Instant::now();
    app.ledger.delivered_to(&app.backend, SOON).await;
    say(&format!(
        "pause: each resource was paused once, all was delivered {:?} later",
        began.elapsed()
    ));
}
