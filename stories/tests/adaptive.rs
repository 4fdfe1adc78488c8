//! The concurrency of deliveries adapts to what the backend can handle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{Cell, Settings};
use stories::feed::Feed;
use stories::ledger::{Event, Ledger};
use stories::measure::{delivered_in, percentile, rate};
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::until::until;
use tokio::time::sleep_until;

const WORK: Duration = Duration::from_millis(50);
const WARM_UP: Duration = Duration::from_secs(3);
const WINDOW: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_secs(20);

/// Settings of an operator who sets nothing.
const DEFAULT: Settings<'static> = &[("MAX_CONCURRENCY", "")];

/// A queue of webhooks, each about a different resource.
struct Queue {
    backend: Backend,
    _receiver: Service,
    _redis: RedisServer,
    cell: Cell,
}

/// Deliveries in a window.
struct Came {
    per_second: f64,
    /// Median time of a request in the backend, including the backend's own queue.
    p50: Duration,
}

impl Queue {
    async fn of(webhooks: u64) -> Self {
        let cell = Cell::alone();
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        backend.behave(|_| Behaviour::slowly(WORK));
        let receiver = cell.receiver(&[]).await;
        let ledger = Arc::new(Ledger::default());
        let events = (1..=webhooks).map(|resource| Event { resource, sequence: 1 });
        let items = events.map(|event| (event, shop::webhook(1, "products/update", event)));
        Feed::to(receiver.address(), &ledger).store(items.collect()).await;
        Self { backend, _receiver: receiver, _redis: redis, cell }
    }

    /// Drains the queue for some seconds. Returns the deliveries of the last of them.
    async fn drain(&self, settings: Settings<'_>, warm_up: Duration) -> Came {
        let before = self.backend.count();
        let mut downstreamer = self.cell.downstreamer(&self.backend, settings).await;
        until("it is at work", SOON, async || self.backend.count() > before).await;
        let window = Instant::now() + warm_up..Instant::now() + warm_up + WINDOW;
        sleep_until(window.end.into()).await;
        downstreamer.sigterm();
        downstreamer.exit(SOON).await;
        let receipts = self.backend.receipts();
        let took: Vec<Duration> = delivered_in(&receipts, &window)
            .filter_map(|receipt| Some(receipt.answered? - receipt.arrived))
            .collect();
        Came { per_second: rate(took.len(), &window), p50: percentile(&took, 0.5) }
    }
}

async fn a_backend_of(workers: usize) {
    let most = workers as f64 / WORK.as_secs_f64();
    let seconds = (WARM_UP + WINDOW + Duration::from_secs(2)).as_secs_f64();
    let queue = Queue::of((most * seconds) as u64).await;
    queue.backend.employ(workers);
    let came = queue.drain(DEFAULT, WARM_UP).await;
    say(&format!(
        "adaptive: {workers} workers, {most:.0}/s at most: {:.0}/s, {:.3} of it; p50 {:?}",
        came.per_second,
        came.per_second / most,
        came.p50
    ));
    assert!(came.per_second >= 0.85 * most, "{:.0}/s", came.per_second);
    assert!(came.p50 <= WORK.mul_f64(1.5), "{:?}", came.p50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_of_four_workers_is_busy_and_not_queued_at() {
    a_backend_of(4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_of_thirty_two_workers_is_busy_and_not_queued_at() {
    a_backend_of(32).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_are_twenty_times_as_fast_as_one_after_the_other() {
    let queue = Queue::of(14_000).await;
    let one = queue.drain(&[("MAX_CONCURRENCY", "1")], Duration::ZERO).await.per_second;
    let many = queue.drain(DEFAULT, WARM_UP).await.per_second;
    let gain = many / one;
    say(&format!("adaptive: one at a time {one:.1}/s, by default {many:.0}/s, {gain:.1} ×"));
    assert!(gain >= 20.0, "{gain:.1}");
    let at_once = queue.backend.in_flight_max();
    assert!(at_once <= 64, "{at_once} at once by default");
}
