//! A Redis without free memory: webhooks are refused at once, stored ones are kept, and the queue
//! empties without help.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::{CONCURRENCY, Cell};
use stories::check::check;
use stories::client::{Connection, post};
use stories::disk::SmallDisk;
use stories::ledger::{Event, Ledger, Outcome};
use stories::load::Load;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::seed::seed;
use stories::service::Service;
use stories::until::until;
use stories::webhook::Webhook;

/// Promised time limit for a refusal.
const AT_ONCE: Duration = Duration::from_millis(100);
/// Default of the receiver: a refusal on a busy machine still comes before it.
const ACK_TIMEOUT: Duration = Duration::from_secs(3);

const SMALL: [&str; 2] = ["--maxmemory", "32mb"];

/// Sends until Redis is full.
async fn fill(receiver: &Service, seed: u64) -> Arc<Ledger> {
    let ledger = Arc::new(Ledger::default());
    let load = Load {
        connections: 16,
        resources: 100,
        body_bytes: 8_000..=64_000,
        pause: Duration::ZERO,
        ..Load::steady(seed)
    };
    let running = load.start(receiver.address(), &ledger);
    until("Redis is full", Duration::from_secs(60), async || ledger.count(Outcome::Later) > 100)
        .await;
    running.stop().await;
    ledger
}

/// Checks that refusals come at once, on a machine that does nothing else.
async fn expect_quick_refusals(receiver: &mut Service) {
    let slow = expect_refusals(receiver, 10 * AT_ONCE).await;
    assert!(slow <= 2, "{slow} slow ones");
}

/// Checks that Redis is full. A webhook may still be stored if a few bytes became free. Returns the
/// number of slow answers.
async fn expect_refusals(receiver: &mut Service, slowest_max: Duration) -> usize {
    let mut connection = Connection::to(receiver.address()).await;
    let (mut refused, mut slow, mut slowest) = (0, 0, Duration::ZERO);
    for _ in 0..200 {
        let noise: String = (0..600).map(|_| format!("{:032x}", rand::random::<u128>())).collect();
        let webhook = Webhook::any().body(format!(r#"{{"a":"{noise}"}}"#));
        let began = Instant::now();
        let answer = connection.post(&webhook).await;
        slow += usize::from(began.elapsed() > AT_ONCE);
        slowest = slowest.max(began.elapsed());
        if answer.status == 200 {
            continue;
        }
        answer.expect_later("queue_full");
        refused += 1;
        if answer.headers.text("connection") == Some("close") {
            connection = Connection::to(receiver.address()).await;
        }
        if refused == 50 {
            break;
        }
    }
    say(&format!("full: {refused} refusals, the slowest answer after {slowest:?}"));
    assert_eq!(refused, 50, "Redis is not full");
    // A refusal may have to wait for its turn.
    assert!(slowest < slowest_max, "one took {slowest:?}");
    assert!(receiver.is_running());
    slow
}

async fn expect_empty(redis: &RedisServer) {
    until("the stream is empty", Duration::from_secs(20), async || {
        redis.stream_len("{spillway}:in").await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_refused_at_once_and_emptied_by_a_downstreamer_that_never_ran_before() {
    let seed = seed("full", 51);
    let mut cell = Cell::alone();
    let redis = cell.redis(&SMALL).await;
    let backend = Backend::start().await;
    let mut receiver = cell.receiver(&[]).await;
    let ledger = fill(&receiver, seed).await;
    expect_quick_refusals(&mut receiver).await;
    cell.stop_measuring();

    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    ledger.delivered_to(&backend, Duration::from_secs(60)).await;
    expect_empty(&redis).await;
    until("webhooks are taken again", Duration::from_secs(15), async || {
        post(receiver.address(), &Webhook::any()).await.status == 200
    })
    .await;
    let figures = check(&ledger, &backend.receipts_of_load(), &HashSet::new());
    figures.print("full");
    figures.expect_sound(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takeover_and_dead_letters_work_on_a_full_queue() {
    let seed = seed("full, takeover, dead letters", 52);
    let cell = Cell::busy();
    let redis = cell.redis(&SMALL).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::status(503));
    // All webhooks belong to one shop.
    let mut receiver = cell.receiver(&[("SHOP_MAX_QUEUED", "100")]).await;
    let ledger = fill(&receiver, seed).await;
    expect_refusals(&mut receiver, ACK_TIMEOUT).await;

    let mut first = cell.downstreamer(&backend, &[]).await;
    until("the first owns the queue", Duration::from_secs(20), async || first.is_leader().await)
        .await;
    let second = cell.downstreamer(&backend, &[]).await;
    until("the backend is tried", Duration::from_secs(20), async || backend.count() > 0).await;
    first.kill9();
    until("the second owns the queue", Duration::from_secs(20), async || second.is_leader().await)
        .await;
    expect_refusals(&mut receiver, ACK_TIMEOUT).await;

    let dies = |event: &Event| event.resource.is_multiple_of(10);
    backend.behave(move |receipt| match Event::of(receipt.webhook_id()) {
        Some(event) if dies(&event) => Behaviour::status(400),
        _ => Behaviour::ok(),
    });
    let stored: HashSet<Event> = ledger.stored().into_iter().collect();
    let dead: HashSet<Event> = stored.iter().copied().filter(dies).collect();
    until("the good ones are delivered", Duration::from_secs(90), async || {
        let good = stored.iter().filter(|event| !dies(event));
        good.into_iter().all(|event| backend.has_delivered(&event.webhook_id()))
    })
    .await;
    until("the others are dead letters", Duration::from_secs(60), async || {
        redis.stream_len("{spillway}:http:dead").await >= dead.len() as u64
    })
    .await;
    let output = cell.spillway(&["dead", "list", "-o", "json"]).await;
    let listed = String::from_utf8(output.stdout).unwrap();
    for event in &dead {
        let seen = backend.look(|receipts| {
            receipts.iter().any(|receipt| receipt.webhook_id() == event.webhook_id())
        });
        assert!(seen, "{event:?} is dead and was never tried");
    }
    assert!(listed.lines().count() >= dead.len(), "{} of {}", listed.lines().count(), dead.len());
    expect_empty(&redis).await;
    let figures = check(&ledger, &backend.receipts_of_load(), &dead);
    figures.print("full, takeover, dead letters");
    figures.expect_sound(CONCURRENCY);
}

#[tokio::test]
async fn an_aof_that_fills_the_disk_is_rewritten_although_webhooks_are_refused() {
    let cell = Cell::shared();
    let Some(disk) = SmallDisk::mount(cell.directory().join("disk"), 1200) else {
        say("full: only root can make a small disk below an AOF");
        return;
    };
    let redis = cell.redis(&["--dir", disk.path().to_str().expect("a path of letters")]).await;
    // Data is written and overwritten: the queue is empty, but the AOF contains all of it. Less
    // than 1 GiB is free.
    let data = "x".repeat(10 << 20);
    for _ in 0..20 {
        redis.command::<()>(&["SET", "data", &data]).await;
    }
    redis.command::<()>(&["DEL", "data"]).await;
    let receiver = cell.receiver(&[]).await;
    assert!(receiver.output().contains("too little free space for an AOF rewrite"));
    post(receiver.address(), &Webhook::any()).await.expect_stored();
}
