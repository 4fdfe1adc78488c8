//! Redis is away, full or hangs, and a receiver with its own disk still accepts webhooks. None is
//! refused, lost or repeated, they stay in order, and they return to Redis without help.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::distr::{Alphanumeric, SampleString};
use stories::backend::Backend;
use stories::cell::Cell;
use stories::check::check;
use stories::client::post;
use stories::ledger::{Ledger, Outcome};
use stories::load::Load;
use stories::redis_server::{RedisServer, socket_in};
use stories::report::say;
use stories::seed::seed;
use stories::service::Service;
use stories::size::size;
use stories::until::until;
use stories::way::{Trouble, Way};
use stories::webhook::Webhook;
use tokio::time::sleep;

/// `ACK_TIMEOUT` plus the delay of a busy machine.
const ANSWER_WITHIN: Duration = Duration::from_millis(4500);
const SOON: Duration = Duration::from_secs(60);
/// Deduplication is off, so that duplicates are visible.
const EACH: [(&str, &str); 1] = [("DEDUP_WINDOW", "0")];

fn directory(cell: &Cell) -> String {
    cell.directory().join("spill").to_str().expect("a path of letters").to_owned()
}

async fn spilling(receiver: &Service) -> bool {
    receiver.metric("spillway_spilling").await == Some(1.0)
}

/// Waits until everything is restored and webhooks go to Redis again.
async fn direct(receiver: &Service, within: Duration) {
    until("webhooks go to Redis directly", within, async || {
        receiver.metric("spillway_spilling").await == Some(0.0)
            && receiver.metric("spillway_spill_webhooks").await == Some(0.0)
    })
    .await;
}

async fn more_are_stored(ledger: &Ledger, more: usize) {
    let before = ledger.stored_count();
    until("webhooks are stored", SOON, async || ledger.stored_count() >= before + more).await;
}

/// Checks that each pack is in the stream once.
async fn expect_no_pack_twice(redis: &RedisServer) {
    type Entry = (String, Vec<(String, Vec<u8>)>);
    let entries: Vec<Entry> = redis.command(&["XRANGE", "{spillway}:in", "-", "+"]).await;
    let packs: HashSet<&[u8]> = entries.iter().map(|(_, fields)| fields[0].1.as_slice()).collect();
    assert_eq!(packs.len(), entries.len(), "a pack is there twice");
    say(&format!("spill: {} packs in the stream, none twice", entries.len()));
}

/// Checks that everything answered 200 arrives in order and once.
async fn expect_delivered(cell: &Cell, ledger: &Ledger, story: &str) {
    let backend = Backend::start().await;
    let _downstreamer = cell.downstreamer(&backend, &EACH).await;
    ledger.delivered_to(&backend, Duration::from_secs(120)).await;
    let figures = check(ledger, &backend.receipts(), &HashSet::new());
    figures.print(story);
    figures.expect_sound(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_away_refuses_only_what_was_on_its_way_to_it() {
    let seed = seed("spill, away", 71);
    let cell = Cell::busy();
    let mut redis = cell.redis(&[]).await;
    let spill = directory(&cell);
    let receiver = cell.receiver(&[("SPILL_DIR", &spill)]).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load::steady(seed);
    let running = load.start(receiver.address(), &ledger);
    more_are_stored(&ledger, 500).await;

    redis.kill9();
    let killed = Instant::now();
    until("webhooks are spilled", SOON, async || spilling(&receiver).await).await;
    until("readiness tells", SOON, async || {
        let answer = receiver.admin("/readyz").await.expect("it answers");
        answer.status == 200 && answer.text().contains("spilling: queue_unavailable")
    })
    .await;
    sleep(size(Duration::from_secs(4), Duration::from_secs(300))).await;
    let away = killed.elapsed();
    let waiting = receiver.metric("spillway_spill_webhooks").await.unwrap_or_default();
    redis.restart();
    redis.ready().await;
    let back = Instant::now();
    direct(&receiver, size(SOON, Duration::from_secs(120))).await;
    say(&format!(
        "spill: away for {away:?}, {waiting} waited, direct again {:?} after",
        back.elapsed()
    ));
    more_are_stored(&ledger, 200).await;
    running.stop().await;

    // At most the requests that each connection had under way.
    let refused = ledger.count(Outcome::Later);
    say(&format!("spill: {refused} refused of {}", ledger.attempts().len()));
    assert!(refused as u64 <= load.connections, "{refused} were refused");
    assert_eq!(ledger.count(Outcome::Unanswered) + ledger.count(Outcome::CutInAnswer), 0);
    let slowest = ledger.attempts().iter().map(|attempt| attempt.took).max().unwrap_or_default();
    assert!(slowest < ANSWER_WITHIN, "{slowest:?}");
    assert!(waiting > 500.0, "hardly any load: {waiting}");
    assert_eq!(receiver.metric("spillway_spill_errors_total").await, Some(0.0));
    expect_no_pack_twice(&redis).await;
    expect_delivered(&cell, &ledger, "spill, away").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_costs_what_was_on_its_way_to_it() {
    let seed = seed("spill, hang", 72);
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let spill = directory(&cell);
    let receiver = cell.receiver(&[("SPILL_DIR", &spill)]).await;
    let ledger = Arc::new(Ledger::default());
    // Without a pause there is always something on its way to the disk.
    let pause = size(Duration::ZERO, Duration::from_millis(2));
    let load = Load { pause, ..Load::steady(seed) };
    let running = load.start(receiver.address(), &ledger);
    more_are_stored(&ledger, 500).await;

    redis.sigstop();
    until("webhooks are spilled", SOON, async || spilling(&receiver).await).await;
    let before = ledger.stored_count();
    sleep(size(Duration::from_secs(6), Duration::from_secs(300))).await;
    let stored = ledger.stored_count() - before;
    redis.sigcont();
    direct(&receiver, size(SOON, Duration::from_secs(120))).await;
    more_are_stored(&ledger, 200).await;
    running.stop().await;

    let refused = ledger.count(Outcome::Later);
    say(&format!("spill: {stored} stored while redis hung, {refused} refused"));
    assert!(stored > 1000, "hardly any load: {stored}");
    assert!(refused as u64 <= load.connections, "{refused} were refused");
    assert_eq!(ledger.count(Outcome::Unanswered) + ledger.count(Outcome::CutInAnswer), 0);
    expect_no_pack_twice(&redis).await;
    expect_delivered(&cell, &ledger, "spill, hang").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_full_refuses_nothing() {
    let seed = seed("spill, full", 73);
    let cell = Cell::busy();
    let redis = cell.redis(&["--maxmemory", "24mb"]).await;
    let spill = directory(&cell);
    let receiver = cell.receiver(&[("SPILL_DIR", &spill)]).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load {
        connections: 16,
        resources: 100,
        body_bytes: 8_000..=64_000,
        pause: Duration::from_millis(size(10, 20)),
        ..Load::steady(seed)
    };
    let running = load.start(receiver.address(), &ledger);
    until("Redis is full", SOON, async || spilling(&receiver).await).await;
    until("readiness tells", SOON, async || {
        let answer = receiver.admin("/readyz").await.expect("it answers");
        answer.status == 200 && answer.text().contains("spilling: queue_full")
    })
    .await;
    sleep(size(Duration::from_secs(2), Duration::from_secs(30))).await;
    running.stop().await;
    let waiting = receiver.metric("spillway_spill_webhooks").await.unwrap_or_default();
    say(&format!("spill: {waiting} wait on disk behind a full redis"));
    assert!(waiting > 100.0, "{waiting}");
    assert_eq!(ledger.count(Outcome::Later), 0, "refused");

    let backend = Backend::start().await;
    let _downstreamer = cell.downstreamer(&backend, &EACH).await;
    ledger.delivered_to(&backend, Duration::from_secs(120)).await;
    direct(&receiver, SOON).await;
    let figures = check(&ledger, &backend.receipts(), &HashSet::new());
    figures.print("spill, full");
    figures.expect_sound(0);
    drop(redis);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_killed_while_it_spills_and_while_it_feeds_repeats_and_loses_nothing() {
    let seed = seed("spill, kills", 74);
    let cell = Cell::busy();
    let mut redis = cell.redis(&[]).await;
    let spill = directory(&cell);
    let mut receiver = cell.receiver(&[("SPILL_DIR", &spill)]).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load { body_bytes: 1_000..=20_000, ..Load::steady(seed) };
    let running = load.start(receiver.address(), &ledger);
    more_are_stored(&ledger, 300).await;
    let mut caught = 0;
    for round in 0..size(3, 20) {
        redis.kill9();
        more_are_stored(&ledger, 500).await;
        receiver.kill9();
        receiver.restart();
        more_are_stored(&ledger, 1000).await;
        redis.restart();
        redis.ready().await;
        // While it restores: soon after Redis is back, at a different time in each round.
        sleep(Duration::from_millis(150 + 70 * (round % 5))).await;
        caught += usize::from(spilling(&receiver).await);
        receiver.kill9();
        receiver.restart();
        direct(&receiver, SOON).await;
    }
    running.stop().await;
    say(&format!("spill: {caught} kills met a receiver that fed"));
    expect_no_pack_twice(&redis).await;
    expect_delivered(&cell, &ledger, "spill, kills").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_killed_while_it_is_fed_repeats_and_loses_nothing() {
    let seed = seed("spill, redis killed while fed", 75);
    let cell = Cell::busy();
    let mut redis = cell.redis(&[]).await;
    let spill = directory(&cell);
    let receiver = cell.receiver(&[("SPILL_DIR", &spill)]).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load { body_bytes: 1_000..=20_000, ..Load::steady(seed) };
    let running = load.start(receiver.address(), &ledger);
    for _ in 0..size(4, 30) {
        more_are_stored(&ledger, 300).await;
        redis.kill9();
        more_are_stored(&ledger, 600).await;
        redis.restart();
        redis.ready().await;
        let before = redis.stream_len("{spillway}:in").await;
        until("it is fed", SOON, async || redis.stream_len("{spillway}:in").await > before).await;
    }
    direct(&receiver, SOON).await;
    running.stop().await;
    assert_eq!(receiver.metric("spillway_spill_errors_total").await, Some(0.0));
    expect_no_pack_twice(&redis).await;
    expect_delivered(&cell, &ledger, "spill, redis killed while fed").await;
}

/// Restoring ends under load, even if two calls take longer than batches are held for a local
/// Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spill_comes_to_its_end_under_load_though_redis_is_far_away_or_load_never_pauses() {
    let seed = seed("spill, to its end", 76);
    for (delay, pause) in [(200, 30), (0, 0)] {
        let cell = Cell::busy();
        let mut redis = cell.redis(&[]).await;
        let spill = directory(&cell);
        let way = Way::to_redis(&socket_in(cell.directory()), "way");
        if delay > 0 {
            way.suffers(Trouble::Delays(Duration::from_millis(delay)));
        }
        let url = way.url();
        let settings =
            [("REDIS_URL", url.as_str()), ("SPILL_DIR", &spill), ("SHOP_MAX_QUEUED", "100")];
        let receiver = cell.receiver(&settings).await;
        let ledger = Arc::new(Ledger::default());
        let pause = Duration::from_millis(pause);
        let running = Load { pause, ..Load::steady(seed) }.start(receiver.address(), &ledger);
        more_are_stored(&ledger, 300).await;
        redis.kill9();
        more_are_stored(&ledger, 600).await;
        redis.restart();
        redis.ready().await;
        let began = Instant::now();
        direct(&receiver, 3 * SOON).await;
        say(&format!(
            "spill, Redis {delay} ms away, {pause:?} between: direct after {:?}",
            began.elapsed()
        ));
        running.stop().await;
        expect_no_pack_twice(&redis).await;
        expect_delivered(&cell, &ledger, "spill, to its end").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_redis_is_fed_nothing_before_it_is_known_to_keep_it() {
    let cell = Cell::shared();
    let spill = directory(&cell);
    let way = Way::to_redis(&socket_in(cell.directory()), "way");
    way.suffers(Trouble::Crawls(400 << 10));
    let url = way.url();
    let receiver = cell.receiver(&[("REDIS_URL", url.as_str()), ("SPILL_DIR", &spill)]).await;
    for _ in 0..400 {
        let body =
            format!("{{\"a\":\"{}\"}}", Alphanumeric.sample_string(&mut rand::rng(), 10_000));
        post(receiver.address(), &Webhook::any().body(body)).await.expect_stored();
    }
    let mut redis = cell.redis(&[]).await;
    until("it is fed", SOON, async || redis.stream_len("{spillway}:in").await > 5).await;
    redis.kill9();
    fs::remove_dir_all(cell.directory().join("appendonlydir")).expect("remove the data");
    // Another Redis, in memory only.
    let other = cell.redis(&["--appendonly", "no"]).await;
    until("it is found out", SOON, async || {
        let answer = receiver.admin("/readyz").await;
        answer.is_some_and(|answer| answer.text().contains("queue_refused"))
    })
    .await;
    assert_eq!(other.stream_len("{spillway}:in").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_at_the_end_of_a_slow_way_is_fed_all_the_same() {
    let cell = Cell::shared();
    let spill = directory(&cell);
    // One large webhook takes longer than the initial timeout, and so do all together.
    let way = Way::to_redis(&socket_in(cell.directory()), "way");
    way.suffers(Trouble::Crawls(80 << 10));
    let url = way.url();
    let settings = [("REDIS_URL", url.as_str()), ("SPILL_DIR", &spill), ("MAX_BODY", "2MiB")];
    let receiver = cell.receiver(&settings).await;
    for number in 0..41 {
        let bytes: usize = if number == 20 { 700_000 } else { 4_000 };
        let body = format!("{{\"a\":\"{}\"}}", Alphanumeric.sample_string(&mut rand::rng(), bytes));
        post(receiver.address(), &Webhook::any().body(body)).await.expect_stored();
    }
    let redis = cell.redis(&[]).await;
    direct(&receiver, Duration::from_secs(90)).await;
    let counted: u64 = redis.command(&["HGET", "{spillway}:counts", "appended"]).await;
    assert_eq!(counted, 41);
    assert!(receiver.output().contains("redis did not answer in time"), "{}", receiver.output());
    expect_no_pack_twice(&redis).await;
    assert_eq!(receiver.metric("spillway_spill_errors_total").await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_starts_without_redis_and_stops_and_what_it_took_is_fed_by_the_next() {
    let cell = Cell::shared();
    let spill = directory(&cell);
    let mut receiver = cell.receiver_starting(&[("SPILL_DIR", &spill)]);
    receiver.ready().await;
    for _ in 0..20 {
        post(receiver.address(), &Webhook::any()).await.expect_stored();
    }
    assert_eq!(receiver.metric("spillway_spill_webhooks").await, Some(20.0));
    receiver.sigterm();
    assert_eq!(receiver.exit(SOON).await.code(), Some(0));
    assert!(receiver.output().contains("spilled webhooks wait on disk for the next start"));

    let redis = cell.redis(&[]).await;
    receiver.restart();
    direct(&receiver, SOON).await;
    let counted: u64 = redis.command(&["HGET", "{spillway}:counts", "appended"]).await;
    assert_eq!(counted, 20);
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    assert_eq!(receiver.metric("spillway_spilled_total").await, Some(0.0));
    let left = std::fs::read_dir(Path::new(&spill)).unwrap().count();
    assert!(left <= 3, "a lock, an id and one segment: {left}");
    // After a clean end, any other receiver can start at once.
    receiver.sigterm();
    assert_eq!(receiver.exit(SOON).await.code(), Some(0));
    let claim: Option<String> = redis.command(&["GET", "{spillway}:spill:claim"]).await;
    assert_eq!(claim, None);
}

#[tokio::test]
async fn what_a_killed_process_left_on_its_way_does_not_arrive_behind_what_is_fed() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let way = Way::to_redis(&socket_in(cell.directory()), "way");
    let (url, spill) = (way.url(), directory(&cell));
    let mut killed = cell.receiver(&[("SPILL_DIR", &spill), ("REDIS_URL", &url)]).await;
    direct(&killed, SOON).await;
    way.suffers(Trouble::HoldsAppends);
    let held = post(killed.address(), &Webhook::any()).await;
    assert_eq!(held.status, 503, "nobody knows whether it was stored");
    post(killed.address(), &Webhook::any()).await.expect_stored();
    killed.kill9();

    // The next one starts while Redis does not answer, so it learns only later that it may restore.
    redis.sigstop();
    let next = cell.receiver(&[("SPILL_DIR", &spill)]).await;
    post(next.address(), &Webhook::any()).await.expect_stored();
    redis.sigcont();
    direct(&next, SOON).await;
    let stored = redis.stream_len("{spillway}:in").await;
    way.suffers(Trouble::None);
    for _ in 0..20 {
        post(next.address(), &Webhook::any()).await.expect_stored();
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(redis.stream_len("{spillway}:in").await, stored + 20);
}
