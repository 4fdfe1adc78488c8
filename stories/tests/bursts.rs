//! Hundreds of senders reach their timeout in the same moment, because the overflow disk or Redis
//! hangs for about as long as an answer may take. Whatever is answered 200 is stored.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use stories::backend::Backend;
use stories::cell::{CONCURRENCY, Cell};
use stories::check::check;
use stories::ledger::{Ledger, Outcome};
use stories::load::Load;
use stories::report::say;
use stories::seed::{chance, seed};
use stories::service::Service;
use stories::sick_disk::{Health, SickDisk};
use stories::size::size;
use stories::until::until;
use tokio::time::sleep;

const SENDERS: u64 = 660;
const ROUNDS: u32 = 8;
const ROUND: [(&str, &str); 2] = [("ACK_TIMEOUT", "1s"), ("SHOP_MAX_QUEUED", "100")];
/// Stalls of about the timeout, in milliseconds.
const ABOUT_MS: RangeInclusive<u64> = 950..=1_050;
const SOON: Duration = Duration::from_secs(60);

fn spill(cell: &Cell) -> PathBuf {
    cell.directory().join("spill")
}

/// Stalls something repeatedly, each time for a random time in `lasts_ms`, while hundreds send.
/// Returns their ledger.
async fn stalled(
    name: &str,
    receiver: &Service,
    number: u64,
    lasts_ms: RangeInclusive<u64>,
    stall: impl Fn(bool),
) -> Arc<Ledger> {
    let seed = seed(name, number);
    let mut chance = chance(seed, 0);
    let ledger = Arc::new(Ledger::default());
    let load = Load {
        connections: SENDERS,
        resources: SENDERS,
        pause: Duration::from_millis(400),
        ..Load::steady(seed)
    };
    let running = load.start(receiver.address(), &ledger);
    for _ in 0..size(1, 4) * ROUNDS {
        let before = ledger.stored_count();
        let more = size(SENDERS / 2, 2 * SENDERS) as usize;
        until("webhooks are stored", SOON, async || ledger.stored_count() >= before + more).await;
        let ends = Instant::now() + Duration::from_millis(chance.random_range(lasts_ms.clone()));
        stall(true);
        sleep(ends.saturating_duration_since(Instant::now())).await;
        stall(false);
    }
    running.stop().await;
    let attempts = ledger.attempts();
    let slowest = attempts.iter().map(|attempt| attempt.took).max().unwrap_or_default();
    say(&format!(
        "{name}: {} stored, {} refused, {} without an answer; the slowest answer came after {slowest:?}",
        ledger.stored_count(),
        ledger.count(Outcome::Later),
        ledger.count(Outcome::Unanswered),
    ));
    ledger
}

fn expect_refusals(ledger: &Ledger) {
    assert!(ledger.count(Outcome::Later) > 0, "no stall was long enough for anybody");
}

async fn all_is_delivered(name: &str, cell: &Cell, ledger: &Ledger) {
    let backend = Backend::start().await;
    let _downstreamer = cell.downstreamer(&backend, &[("DEDUP_WINDOW", "0")]).await;
    ledger.delivered_to(&backend, 2 * SOON).await;
    let figures = check(ledger, &backend.receipts(), &HashSet::new());
    figures.print(name);
    figures.expect_sound(CONCURRENCY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spill_disk_that_stalls_for_as_long_as_an_answer_may_take_loses_nothing() {
    let name = "bursts, the spill's disk";
    let cell = Cell::busy();
    let disk = SickDisk::new(cell.directory(), &spill(&cell));
    let environment = disk.environment();
    let directory = spill(&cell).display().to_string();
    let mut settings = vec![("SPILL_DIR", directory.as_str())];
    settings.extend(ROUND);
    settings.extend(environment.iter().map(|(key, value)| (*key, value.as_str())));
    let mut redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&settings).await;
    redis.kill9();
    let stall = |is_stalled| disk.is(if is_stalled { Health::Stalls } else { Health::Well });
    let ledger = stalled(name, &receiver, 191, ABOUT_MS, stall).await;
    expect_refusals(&ledger);
    redis.restart();
    all_is_delivered(name, &cell, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_stands_still_for_as_long_as_an_answer_may_take_loses_nothing() {
    let name = "bursts, Redis";
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&ROUND).await;
    let stall = |is_stalled| if is_stalled { redis.sigstop() } else { redis.sigcont() };
    let ledger = stalled(name, &receiver, 192, ABOUT_MS, stall).await;
    expect_refusals(&ledger);
    all_is_delivered(name, &cell, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_stands_still_before_a_log_loses_nothing() {
    let name = "bursts, Redis before a log";
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let directory = spill(&cell).display().to_string();
    let settings = [&ROUND[..], &[("SPILL_DIR", directory.as_str())]].concat();
    let receiver = cell.receiver(&settings).await;
    let stall = |is_stalled| if is_stalled { redis.sigstop() } else { redis.sigcont() };
    // Batches go to the overflow log instead, because some stalls are shorter than the timeouts.
    let ledger = stalled(name, &receiver, 193, 400..=1_100, stall).await;
    until("all is fed", SOON, async || {
        receiver.metric("spillway_spilling").await == Some(0.0)
            && receiver.metric("spillway_spill_webhooks").await == Some(0.0)
    })
    .await;
    all_is_delivered(name, &cell, &ledger).await;
}
