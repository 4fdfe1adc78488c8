//! One failing shop cannot fill Redis for all: above its share, its own webhooks are refused, and
//! no others.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{CONCURRENCY, Cell};
use stories::check::check;
use stories::client::post;
use stories::feed::{Feed, Trickle};
use stories::ledger::{Event, Ledger, Outcome};
use stories::line::Line;
use stories::measure::{percentile, waits};
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::Webhook;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// The shop that fails; the healthy shops have other numbers.
const FAILING: u64 = 0;
/// Ten healthy shops, together 20 webhooks per second.
const HEALTHY: Trickle = Trickle {
    shops: 1..11,
    topics: &["products/update", "orders/create"],
    every: Duration::from_secs(1),
    first_resource: 1_000_000,
};
/// Webhooks per second of the failing shop, and the number of its connections.
const RATE: u32 = 500;
const CONNECTIONS: u32 = 10;
/// Time limit until it reaches its share.
const SOON: Duration = Duration::from_secs(120);
const P99_MAX: Duration = Duration::from_secs(1);
/// Largest part of `maxmemory` in use; the rest stays free for the others.
const USED_MAX: f64 = 0.6;

const OVER: &str = "spillway_shops_over_share";

/// The senders of the failing shop.
struct Flood {
    stop: Arc<AtomicBool>,
    senders: JoinSet<()>,
}

impl Flood {
    /// Starts the senders. Each webhook is sent once, about a different product, with a body that
    /// compresses poorly.
    fn start(receiver: &Service, ledger: &Arc<Ledger>, body_bytes: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let next = Arc::new(AtomicU64::new(1));
        let mut senders = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let mut line = Line::new(receiver.address(), ledger);
            let (stop, next) = (Arc::clone(&stop), Arc::clone(&next));
            senders.spawn(async move {
                let mut ticks = interval(Duration::from_secs(1) * CONNECTIONS / RATE);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while !stop.load(Ordering::Relaxed) {
                    ticks.tick().await;
                    let resource = next.fetch_add(1, Ordering::Relaxed);
                    let event = Event { resource, sequence: 1 };
                    line.attempt(event, &of_failing_shop(event, body_bytes)).await;
                }
            });
        }
        Self { stop, senders }
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.senders.join_all().await;
    }
}

fn of_failing_shop(event: Event, body_bytes: usize) -> Webhook {
    let words = (0..body_bytes / 32).map(|_| format!("{:032x}", rand::random::<u128>()));
    let (id, noise) = (event.resource, words.collect::<String>());
    shop::webhook(FAILING, "products/update", event)
        .body(format!("{{\"id\":{id},\"noise\":\"{noise}\"}}"))
}

/// A webhook that is not part of the load.
fn single(shop: u64, topic: &str) -> Webhook {
    let id = format!("{:032x}", rand::random::<u128>());
    let event = Event { resource: rand::random_range(1..1_000_000_000), sequence: 1 };
    shop::webhook(shop, topic, event).with("X-Shopify-Webhook-Id", id)
}

async fn used(receiver: &Service) -> f64 {
    let used = receiver.metric("spillway_queue_bytes").await.expect("a metric");
    used / receiver.metric("spillway_queue_limit_bytes").await.expect("a metric")
}

async fn is_over(receiver: &Service, count: f64, within: Duration) {
    let what = format!("{count} shops are over their share");
    until(&what, within, async || receiver.metric(OVER).await == Some(count)).await;
}

/// Checks the answers while the failing shop exceeds its share.
async fn expect_only_its_own_refused(receiver: &Service) {
    let send = async |webhook: &Webhook| post(receiver.address(), webhook).await;
    let refused = single(FAILING, "products/update");
    send(&refused).await.expect_later("shop_queue_full");
    let event = shop::event(FAILING, "prices", Event { resource: 1, sequence: 1 });
    send(&event).await.expect_later("shop_queue_full");
    // An unauthenticated sender gets no such information.
    send(&refused.signed_with("a guess")).await.expect(401, "bad_signature");
    for topic in ["customers/redact", "customers/data_request", "orders/create"] {
        send(&single(FAILING, topic)).await.expect_stored();
    }
    send(&single(1, "products/update")).await.expect_stored();
}

/// Fails unless all healthy webhooks were accepted at once and delivered in time.
fn expect_flow(healthy: &Ledger, backend: &Backend, began: Instant) {
    let later = healthy.attempts().len() - healthy.count(Outcome::Stored);
    let window = began..Instant::now();
    let waits = waits(healthy, &backend.receipts(), &window, |_| true);
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|part| percentile(&waits.all, part));
    say(&format!(
        "shop share: {} webhooks of healthy shops in {:?}, {later} not taken, {} not delivered; \
         p50 {p50:?}, p99 {p99:?}, at most {max:?}",
        waits.all.len(),
        began.elapsed(),
        waits.undelivered
    ));
    assert_eq!(later, 0, "healthy shops are refused");
    assert!(p99 < P99_MAX, "p99 of healthy shops: {p99:?}");
}

async fn is_drained(redis: &RedisServer) {
    until("everything is delivered", 2 * SOON, async || {
        redis.stream_len("{spillway}:in").await == 0 && redis.in_lanes().await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_shop_past_its_share_is_refused_and_no_other() {
    let cell = Cell::measured();
    let redis = cell.redis(&["--maxmemory", size("64mb", "256mb")]).await;
    let backend = Backend::start().await;
    let works = || Behaviour::slowly(Duration::from_millis(5));
    let failing_shop = shop::domain(FAILING);
    backend.behave(move |receipt| match receipt.shop() {
        shop if shop == failing_shop => Behaviour::status(500),
        _ => works(),
    });
    let receiver = cell.receiver(&[]).await;
    let downstreamer = cell.downstreamer(&backend, &[("PARK_AFTER", "1s")]).await;
    downstreamer.ready().await;
    let healthy: Arc<Ledger> = Arc::default();
    let failing: Arc<Ledger> = Arc::default();
    let began = Instant::now();
    let trickle = Feed::to(receiver.address(), &healthy).trickle(&HEALTHY);
    let flood = Flood::start(&receiver, &failing, size(6_000, 24_000));

    is_over(&receiver, 1.0, SOON).await;
    let stored = failing.stored_count();
    say(&format!(
        "shop share: over after {:?} and {stored} webhooks, redis at {:.0} %",
        began.elapsed(),
        used(&receiver).await * 100.0
    ));
    expect_only_its_own_refused(&receiver).await;
    sleep(size(Duration::from_secs(15), Duration::from_secs(120))).await;
    expect_only_its_own_refused(&receiver).await;
    let part = used(&receiver).await;
    say(&format!(
        "shop share: {} more webhooks taken, {} refused, redis at {:.0} %",
        failing.stored_count() - stored,
        failing.count(Outcome::Later),
        part * 100.0
    ));
    assert!(part < USED_MAX, "redis is filled to {part}");
    expect_flow(&healthy, &backend, began);

    flood.stop().await;
    backend.behave(move |_| works());
    is_drained(&redis).await;
    is_over(&receiver, 0.0, Duration::from_secs(10)).await;
    post(receiver.address(), &single(FAILING, "products/update")).await.expect_stored();
    trickle.stop().await;
    healthy.delivered_to(&backend, SOON).await;
    failing.delivered_to(&backend, SOON).await;
    expect_flow(&healthy, &backend, began);
    healthy.absorb(&failing);
    let figures = check(&healthy, &backend.receipts_of_load(), &HashSet::new());
    figures.print("shop share");
    figures.expect_sound(CONCURRENCY);
}
