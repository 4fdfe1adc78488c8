//! A kill of the downstreamer repeats only what was in flight, which is counted at that moment.
//!
//! Five cells run in parallel, with four kills in each. The lease of a killed downstreamer lasts
//! some seconds, and in parallel the cells wait for it only once.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{CONCURRENCY, Cell};
use stories::check::check;
use stories::in_flight::{COUNTED, Repeats, Stock};
use stories::ledger::Ledger;
use stories::load::Load;
use stories::report::say;
use stories::seed::{chance, seed};
use stories::until::until;
use tokio::time::sleep;

const KILLS: usize = 4;

/// Deliveries that may wait for settlement while others are under way.
const UNSETTLED_MAX: usize = 256;

/// Time limit: a killed downstreamer is replaced within 10 s, and later on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_kills_of_the_downstreamer_repeat_no_more_than_was_in_flight() {
    let seed = seed("in flight", 22);
    let _slots = stories::machine::busy();
    let began = Instant::now();
    let (first, second, third, fourth, fifth) = tokio::join!(
        one_cell(seed, 0),
        one_cell(seed, 1),
        one_cell(seed, 2),
        one_cell(seed, 3),
        one_cell(seed, 4)
    );
    let all = [first, second, third, fourth, fifth].concat();
    let (in_flight, repeated): (Vec<usize>, Vec<usize>) = all.into_iter().unzip();
    let sum: usize = in_flight.iter().sum();
    let max = in_flight.iter().max().expect("a kill");
    say(&format!(
        "in flight: {} kills in {:?}: {sum} in flight, at most {max} at once; {} repeated",
        in_flight.len(),
        began.elapsed(),
        repeated.iter().sum::<usize>(),
    ));
    assert!(sum > in_flight.len(), "the kills met nothing at work");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_amid_a_backlog_of_many_resources_repeats_little_of_it() {
    let seed = seed("in flight, backlog", 23);
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    // One event per resource, so that no resource waits for another delivery.
    let pause = Duration::ZERO;
    let load = Load { resources: 10_000, events: Some(1), pause, ..Load::steady(seed) };
    load.start(receiver.address(), &ledger).join().await;
    let mut downstreamer = cell.downstreamer(&backend, COUNTED).await;
    let half = async || backend.delivered() >= 5000;
    until("half of it is delivered", Duration::from_secs(60), half).await;
    let stock = Stock::at_kill(&mut downstreamer, &cell, &backend).await;
    downstreamer.restart();
    ledger.delivered_to(&backend, Duration::from_secs(60)).await;

    let receipts = backend.receipts();
    let figures = check(&ledger, &receipts, &HashSet::new());
    figures.print("in flight, backlog");
    figures.expect_sound(stock.in_flight);
    let repeats = Repeats::count(&receipts, &[stock]);
    say(&format!("in flight, backlog: {stock:?}, {repeats:?}"));
    repeats.expect_in_flight(&[stock]);
    assert_eq!(repeats.unprovoked, 0, "repeated by the same process");
    assert!(stock.received < receipts.len() - 1000, "killed too late: {stock:?}");
    assert!(stock.in_flight <= CONCURRENCY + UNSETTLED_MAX, "{stock:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_while_redis_stands_still_repeats_no_more_than_the_bound() {
    let seed = seed("in flight, stall", 24);
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::slowly(Duration::from_millis(rand::random_range(0..20))));
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    let pause = Duration::ZERO;
    let load = Load { resources: 10_000, events: Some(1), pause, ..Load::steady(seed) };
    load.start(receiver.address(), &ledger).join().await;
    let mut downstreamer = cell.downstreamer(&backend, COUNTED).await;
    let begun = async || backend.delivered() >= 300;
    until("it is at work", Duration::from_secs(60), begun).await;
    redis.sigstop();
    // By then it has delivered everything that it may deliver without Redis.
    sleep(Duration::from_secs(3)).await;
    downstreamer.kill9();
    redis.sigcont();
    let stock = Stock::at_kill(&mut downstreamer, &cell, &backend).await;
    downstreamer.restart();
    ledger.delivered_to(&backend, Duration::from_secs(60)).await;

    let receipts = backend.receipts();
    let figures = check(&ledger, &receipts, &HashSet::new());
    figures.print("in flight, stall");
    figures.expect_sound(stock.in_flight);
    say(&format!("in flight, stall: {stock:?}"));
    assert!(stock.in_flight <= CONCURRENCY + UNSETTLED_MAX, "{stock:?}");
}

/// For each kill, the number of webhooks in flight and of repeats.
async fn one_cell(seed: u64, number: u64) -> Vec<(usize, usize)> {
    let cell = Cell::beside();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    // The backend takes some time, so that kills meet deliveries under way.
    backend.behave(|_| Behaviour::slowly(Duration::from_millis(rand::random_range(0..20))));
    let receiver = cell.receiver(&[]).await;
    let mut downstreamer = cell.downstreamer(&backend, COUNTED).await;
    let ledger = Arc::new(Ledger::default());
    let first_resource = 1 + 1000 * number;
    let load = Load { connections: 8, first_resource, ..Load::steady(seed ^ number) };
    let running = load.start(receiver.address(), &ledger);
    let mut chance = chance(seed, 1 << 32 | number);
    let mut kills = Vec::new();
    for _ in 0..KILLS {
        works_again(&backend).await;
        // Sometimes it is still catching up after the last kill, and sometimes it has finished.
        sleep(Duration::from_millis(chance.random_range(0..1500))).await;
        kills.push(Stock::at_kill(&mut downstreamer, &cell, &backend).await);
        downstreamer.restart();
    }
    works_again(&backend).await;
    running.stop().await;
    ledger.delivered_to(&backend, Duration::from_secs(60)).await;

    let receipts = backend.receipts();
    let figures = check(&ledger, &receipts, &HashSet::new());
    figures.print(&format!("in flight, cell {number}"));
    figures.expect_sound(kills.iter().map(|kill| kill.in_flight).sum());
    figures.expect_no_late_repeat();
    let repeats = Repeats::count(&receipts, &kills);
    let in_flight: Vec<usize> = kills.iter().map(|kill| kill.in_flight).collect();
    let after = &repeats.after_kill;
    say(&format!("in flight, cell {number}: at the kills {in_flight:?}, repeated {after:?}"));
    repeats.expect_in_flight(&kills);
    assert_eq!(repeats.unprovoked, 0, "repeated by the same process");
    in_flight.into_iter().zip(repeats.after_kill).collect()
}

/// Waits for new deliveries, so that the next kill hits a working process.
async fn works_again(backend: &Backend) {
    let before = backend.delivered();
    let more = async || backend.delivered() >= before + 10;
    until("webhooks are delivered", BACK_WITHIN, more).await;
}
