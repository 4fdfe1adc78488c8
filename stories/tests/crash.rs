//! Nothing is lost when receiver, Redis and downstreamer are killed 20 times each under load.
//!
//! Five cells run in parallel, with four kills of each process in each. The lease of a killed
//! downstreamer lasts some seconds, and in parallel the cells wait for it only once.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{CONCURRENCY, Cell};
use stories::check::{Figures, check};
use stories::in_flight::{COUNTED, Repeats, Stock};
use stories::ledger::Ledger;
use stories::load::Load;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::{chance, seed};
use stories::service::Service;
use stories::until::until;
use tokio::time::sleep;

const KILLS: usize = 4;

/// Time limit: a killed downstreamer is replaced within 10 s, and later on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_kills_of_each_process_lose_nothing() {
    let seed = seed("kills", 21);
    let _slots = stories::machine::busy();
    let began = Instant::now();
    let (first, second, third, fourth, fifth) = tokio::join!(
        one_cell(seed, 0),
        one_cell(seed, 1),
        one_cell(seed, 2),
        one_cell(seed, 3),
        one_cell(seed, 4)
    );
    let all = [first, second, third, fourth, fifth];
    say(&format!("kills: {} of each process in {:?}", all.len() * KILLS, began.elapsed()));
    for figures in &all {
        assert!(figures.delivered > 1000, "hardly any load: {figures:?}");
    }
}

async fn one_cell(seed: u64, number: u64) -> Figures {
    let cell = Cell::beside();
    let mut redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    // The backend takes some time, so that kills meet deliveries under way.
    backend.behave(|_| Behaviour::slowly(Duration::from_millis(rand::random_range(0..20))));
    let mut receiver = cell.receiver(&[]).await;
    let mut downstreamer = cell.downstreamer(&backend, COUNTED).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load {
        connections: 8,
        resources: 50,
        first_resource: 1 + 1000 * number,
        ..Load::steady(seed ^ number)
    };
    let running = load.start(receiver.address(), &ledger);
    let actor = |role| chance(seed, 1 << 32 | number << 8 | role);
    let ((), (), kills) = tokio::join!(
        kill_receiver(&mut receiver, &ledger, actor(0)),
        kill_redis(&mut redis, &ledger, actor(1)),
        kill_downstreamer(&mut downstreamer, &cell, &backend, actor(2)),
    );
    running.stop().await;
    ledger.delivered_to(&backend, Duration::from_secs(60)).await;
    let receipts = backend.receipts();
    let figures = check(&ledger, &receipts, &HashSet::new());
    figures.print(&format!("kills, cell {number}"));
    let repeats = Repeats::count(&receipts, &kills);
    let in_flight: Vec<usize> = kills.iter().map(|kill| kill.in_flight).collect();
    say(&format!("kills, cell {number}: {in_flight:?} in flight at the kills, {repeats:?}"));
    repeats.expect_in_flight(&kills);
    // A downstreamer that runs while Redis is killed repeats at most what it could not settle.
    figures.expect_sound(in_flight.iter().sum::<usize>() + KILLS * CONCURRENCY);
    figures.expect_no_late_repeat();
    figures
}

async fn kill_receiver(receiver: &mut Service, ledger: &Ledger, mut chance: StdRng) {
    for _ in 0..KILLS {
        progress("webhooks are stored", || ledger.stored_count()).await;
        pause(&mut chance).await;
        receiver.kill9();
        receiver.restart();
    }
    receiver.ready().await;
}

async fn kill_redis(redis: &mut RedisServer, ledger: &Ledger, mut chance: StdRng) {
    for _ in 0..KILLS {
        progress("webhooks are stored", || ledger.stored_count()).await;
        pause(&mut chance).await;
        redis.kill9();
        redis.restart();
        redis.ready().await;
    }
}

async fn kill_downstreamer(
    downstreamer: &mut Service,
    cell: &Cell,
    backend: &Backend,
    mut chance: StdRng,
) -> Vec<Stock> {
    let mut kills = Vec::new();
    for _ in 0..KILLS {
        progress("webhooks are delivered", || backend.delivered()).await;
        pause(&mut chance).await;
        kills.push(Stock::at_kill(downstreamer, cell, backend).await);
        downstreamer.restart();
    }
    kills
}

/// Waits until a count has grown by ten, so that the next kill hits a working process.
async fn progress(what: &str, count: impl Fn() -> usize) {
    let before = count();
    until(what, BACK_WITHIN, async || count() >= before + 10).await;
}

/// Waits for a random time before a kill.
async fn pause(chance: &mut StdRng) {
    sleep(Duration::from_millis(chance.random_range(0..2500))).await;
}
