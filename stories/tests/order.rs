//! Order within a resource, and independence between resources.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::RngExt;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{CONCURRENCY, Cell};
use stories::check::check;
use stories::ledger::{Event, Ledger};
use stories::load::Load;
use stories::receipt::Receipt;
use stories::report::say;
use stories::seed::{chance, seed};
use stories::until::until;

/// Fails this share of the requests, in every way that a backend can.
fn failing(share: f64, seed: u64) -> impl Fn(&Receipt) -> Behaviour + Send + Sync + 'static {
    let chance = Mutex::new(chance(seed, 1 << 32));
    move |_| {
        let mut chance = chance.lock().expect("no plan panicked");
        if !chance.random_bool(share) {
            return Behaviour::ok();
        }
        match chance.random_range(0..5) {
            0 => Behaviour::status(500),
            1 => Behaviour::status(429),
            2 => Behaviour::Reset,
            3 => Behaviour::CutShort,
            _ => Behaviour::Hang,
        }
    }
}

fn resource_of(receipt: &Receipt) -> u64 {
    Event::of(receipt.webhook_id()).expect("an event of ours").resource
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_resources_stay_in_order_while_a_tenth_of_all_deliveries_fails() {
    resources_stay_in_order(seed("order", 11), 50, "cores").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_resources_stay_in_order_on_a_thread_for_each_core() {
    resources_stay_in_order(seed("order on a thread for each core", 14), 15, "cores").await;
}

/// Delivers so many events of each of 200 resources while a tenth of all deliveries fails.
async fn resources_stay_in_order(seed: u64, events: u16, threads: &str) {
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(failing(0.1, seed));
    let receiver = cell.receiver(&[]).await;
    let settings = [("DELIVERY_TIMEOUT", "1s"), ("DELIVERY_THREADS", threads)];
    let _downstreamer = cell.downstreamer(&backend, &settings).await;

    let ledger = Arc::new(Ledger::default());
    let pause = Duration::ZERO;
    let load = Load { connections: 64, events: Some(events.into()), pause, ..Load::steady(seed) };
    load.start(receiver.address(), &ledger).join().await;
    assert_eq!(ledger.stored_count(), 200 * usize::from(events));
    ledger.delivered_to(&backend, Duration::from_secs(120)).await;

    let receipts = backend.receipts();
    let figures = check(&ledger, &receipts, &HashSet::new());
    figures.print("order");
    figures.expect_sound(0);
    expect_one_at_a_time(&receipts);
    assert!(backend.in_flight_max() <= CONCURRENCY, "{}", backend.in_flight_max());
    let failed = receipts.iter().filter(|receipt| !receipt.delivered()).count();
    assert!(failed > 15 * usize::from(events), "only {failed} deliveries failed");
}

/// Fails if two deliveries of one resource overlapped: the next must arrive after the last was
/// answered.
fn expect_one_at_a_time(receipts: &[Receipt]) {
    let mut answered: HashMap<u64, Instant> = HashMap::new();
    for receipt in receipts {
        let resource = resource_of(receipt);
        if let Some(last) = answered.get(&resource) {
            let early = last.saturating_duration_since(receipt.arrived);
            assert!(early.is_zero(), "overlap of {early:?} in {resource}");
        }
        if let Some(at) = receipt.answered {
            answered.insert(resource, at);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resources_that_fail_for_good_take_no_place_from_the_others() {
    let seed = seed("failing resources", 12);
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    // More failing resources than concurrent deliveries: 1 to 30 fail, 31 to 200 do not.
    backend.behave(|receipt| match resource_of(receipt) {
        1..=30 => Behaviour::status(500),
        _ => Behaviour::ok(),
    });
    let receiver = cell.receiver(&[]).await;
    let few = [("MAX_CONCURRENCY", "8"), ("RETRY_LONGEST", "2s")];
    let _downstreamer = cell.downstreamer(&backend, &few).await;
    let ledger = Arc::new(Ledger::default());
    let pause = Duration::ZERO;
    let load = Load { events: Some(10), pause, ..Load::steady(seed) };
    let began = Instant::now();
    load.start(receiver.address(), &ledger).join().await;
    until("the 1,700 others are delivered", Duration::from_secs(30), async || {
        backend.delivered() == 1700
    })
    .await;
    say(&format!("failing resources: the others took {:?}", began.elapsed()));
    backend.behave(|_| Behaviour::ok());
    ledger.delivered_to(&backend, Duration::from_secs(30)).await;
    let figures = check(&ledger, &backend.receipts(), &HashSet::new());
    figures.print("failing resources");
    figures.expect_sound(0);
    assert!(backend.in_flight_max() <= 8, "{}", backend.in_flight_max());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resource_that_fails_for_good_does_not_hold_the_memory_of_the_queue() {
    let seed = seed("parked", 13);
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|receipt| match resource_of(receipt) {
        1 => Behaviour::status(500),
        _ => Behaviour::ok(),
    });
    let receiver = cell.receiver(&[]).await;
    let mut downstreamer = cell.downstreamer(&backend, &[("PARK_AFTER", "3s")]).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load { events: Some(50), ..Load::steady(seed) };
    load.start(receiver.address(), &ledger).join().await;
    until("the others are delivered", Duration::from_secs(30), async || {
        backend.delivered() == 199 * 50
    })
    .await;
    until("the failing resource is set aside", Duration::from_secs(20), async || {
        redis.stream_len("{spillway}:in").await <= 1 && redis.in_lanes().await > 0
    })
    .await;
    assert!(!backend.look(|receipts| {
        receipts.iter().any(|receipt| resource_of(receipt) == 1 && receipt.delivered())
    }));

    // A crash with webhooks in a lane: they are still older than new webhooks.
    downstreamer.kill9();
    downstreamer.restart();
    let more = Load { resources: 1, connections: 1, ..load };
    let more_ledger = Arc::new(Ledger::default());
    backend.behave(|_| Behaviour::ok());
    ledger.delivered_to(&backend, Duration::from_secs(40)).await;
    more.start_after(50, receiver.address(), &more_ledger).join().await;
    until("everything is let go", Duration::from_secs(20), async || {
        redis.stream_len("{spillway}:in").await <= 1 && redis.in_lanes().await == 0
    })
    .await;
    more_ledger.delivered_to(&backend, Duration::from_secs(20)).await;
    ledger.absorb(&more_ledger);
    let figures = check(&ledger, &backend.receipts(), &HashSet::new());
    figures.print("parked");
    figures.expect_sound(CONCURRENCY);
    figures.expect_no_late_repeat();
}
