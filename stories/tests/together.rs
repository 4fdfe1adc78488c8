//! A flood, failures, kills, takeovers and coalescing together. No resource receives an old state
//! after a new one, and each receives its newest.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{CONCURRENCY, Cell};
use stories::feed::Feed;
use stories::latest::check_latest;
use stories::ledger::{Event, Ledger};
use stories::load::Load;
use stories::report::say;
use stories::seed::{chance, seed};
use stories::shop;
use stories::until::until;

const SOON: Duration = Duration::from_secs(60);

/// Resources of the load are 1 to 50. Those of the flood follow.
const LOADED: u64 = 50;
const FLOOD: std::ops::RangeInclusive<u64> = 10_001..=20_000;

/// Deliveries that may wait for settlement while others are under way.
const UNSETTLED_MAX: usize = 256;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_holds_through_flood_kills_takeover_and_coalescing() {
    let seed = seed("together", 41);
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.employ(32);
    backend.behave(move |receipt| {
        let mut chance = chance(seed, receipt.arrived.elapsed().as_nanos() as u64);
        match chance.random_range(0..50) {
            0 => Behaviour::status(500),
            1 => Behaviour::Reset,
            _ => Behaviour::slowly(Duration::from_millis(chance.random_range(0..30))),
        }
    });
    let receiver = cell.receiver(&[]).await;
    let topics = [("COALESCE_TOPICS", "products/update")];
    let mut pair =
        [cell.downstreamer(&backend, &topics).await, cell.downstreamer(&backend, &topics).await];
    let ledger = Arc::new(Ledger::default());
    let load = Load {
        connections: 16,
        resources: LOADED,
        pause: Duration::from_millis(10),
        ..Load::steady(seed)
    };
    let running = load.start(receiver.address(), &ledger);
    let flood = FLOOD.map(|resource| Event { resource, sequence: 1 });
    let flood = flood.map(|event| (event, shop::webhook(9, "orders/create", event))).collect();
    let feed = Feed { connections: 8, ..Feed::to(receiver.address(), &ledger) };
    let flooding = tokio::spawn(async move { feed.store(flood).await });

    let mut in_flight_max = 0;
    for kill in 0..2 {
        progress(&backend, 500).await;
        let leader = if pair[0].is_leader().await { 0 } else { 1 };
        pair[leader].kill9();
        pair[leader].restart();
        say(&format!("together: {} delivered at kill {kill}", backend.delivered()));
        in_flight_max += CONCURRENCY + UNSETTLED_MAX;
    }
    progress(&backend, 500).await;
    flooding.await.expect("the flood is stored");
    running.stop().await;
    until("everything is settled", SOON, async || {
        redis.stream_len("{spillway}:in").await + redis.in_lanes().await == 0
    })
    .await;

    let receipts = backend.receipts();
    let is_flood = |event: Event| FLOOD.contains(&event.resource);
    let flooded = check_latest(&ledger, &receipts, is_flood);
    flooded.print("together, the flood");
    let loaded = check_latest(&ledger, &receipts, |event| !is_flood(event));
    loaded.print("together, the load");
    flooded.expect_sound(in_flight_max);
    loaded.expect_sound(in_flight_max);
    assert_eq!(flooded.stood_for, flooded.stored, "orders were coalesced");
    assert!(loaded.stood_for >= loaded.stored, "some stand for nothing: {loaded:?}");
    assert!(loaded.delivered < loaded.stored, "nothing was coalesced: {loaded:?}");
    assert!(backend.in_flight_max() <= 2 * CONCURRENCY, "{}", backend.in_flight_max());
}

/// Waits until `more` webhooks are delivered, by any process.
async fn progress(backend: &Backend, more: usize) {
    let before = backend.delivered();
    until("webhooks are delivered", SOON, async || backend.delivered() >= before + more).await;
}
