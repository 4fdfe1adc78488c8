//! A Redis that hangs, is absent, or is still starting.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::cell::{CONCURRENCY, Cell};
use stories::check::check;
use stories::client::post;
use stories::ledger::{Attempt, Event, Ledger, Outcome};
use stories::line::Line;
use stories::load::Load;
use stories::report::say;
use stories::seed::seed;
use stories::service::Service;
use stories::until::until;
use stories::webhook::Webhook;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::time::sleep;

const STALL: Duration = Duration::from_secs(8);

/// `ACK_TIMEOUT` plus the delay of a busy machine.
const ANSWER_WITHIN: Duration = Duration::from_millis(4500);

/// Three times the 8 MiB that may be in flight, plus what a process needs in any case.
const GROWTH_MAX: u64 = 64 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_stands_still_costs_no_webhook_and_no_memory() {
    let seed = seed("stall", 61);
    let cell = Cell::busy();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let bounds = [("MAX_IN_FLIGHT", "8MiB"), ("MAX_BODY", "1MiB")];
    let mut receiver = cell.receiver(&bounds).await;
    let mut downstreamer = cell.downstreamer(&backend, &[]).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load {
        connections: 96,
        body_bytes: 50_000..=200_000,
        pause: Duration::from_millis(300),
        ..Load::steady(seed)
    };
    let running = load.start(receiver.address(), &ledger);
    until("the load flows", Duration::from_secs(20), async || ledger.stored_count() > 500).await;
    let before = receiver.resident_bytes();

    redis.sigstop();
    let stopped = Instant::now();
    let mut largest = 0;
    while stopped.elapsed() < STALL {
        largest = largest.max(receiver.resident_bytes());
        sleep(Duration::from_millis(50)).await;
    }
    let goes_on = Instant::now();
    redis.sigcont();
    let stored = ledger.stored_count();
    until("webhooks are stored again", Duration::from_secs(20), async || {
        ledger.stored_count() > stored + 500
    })
    .await;
    say(&format!("stall: 500 webhooks stored {:?} after it", goes_on.elapsed()));
    running.stop().await;
    expect_honest(&ledger, stopped, goes_on);
    say(&format!("stall: memory {} MiB, at most {} MiB", before >> 20, largest >> 20));
    assert!(largest < before + GROWTH_MAX, "{before} grew to {largest}");
    assert!(receiver.is_running() && downstreamer.is_running());

    ledger.delivered_to(&backend, Duration::from_secs(60)).await;
    let figures = check(&ledger, &backend.receipts(), &HashSet::new());
    figures.print("stall");
    figures.expect_sound(CONCURRENCY);
}

/// Fails if there was a 200 while Redis hung, or a late answer.
fn expect_honest(ledger: &Ledger, stopped: Instant, goes_on: Instant) {
    let ended = |attempt: &Attempt| attempt.began + attempt.took;
    let attempts = ledger.attempts();
    // Commands that Redis executed before it was stopped may still be answered.
    let from = stopped + Duration::from_millis(500);
    let within = |attempt: &&Attempt| from < ended(attempt) && ended(attempt) < goes_on;
    let promised = attempts.iter().filter(within);
    let promised = promised.filter(|attempt| attempt.outcome == Outcome::Stored).count();
    assert_eq!(promised, 0, "answered 200 while nothing could be stored");
    let refused = attempts.iter().filter(within).count();
    let slowest = attempts.iter().map(|attempt| attempt.took).max().unwrap_or_default();
    say(&format!("stall: {refused} attempts ended in it, the slowest after {slowest:?}"));
    assert!(refused > 0, "no load during the stall");
    assert!(slowest < ANSWER_WITHIN, "{slowest:?}");
    assert_eq!(ledger.count(Outcome::Unanswered), 0);
    assert_eq!(ledger.count(Outcome::CutInAnswer), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_absent_at_start_is_waited_for() {
    let cell = Cell::shared();
    let backend = Backend::start().await;
    let mut receiver = cell.receiver_starting(&[]);
    let mut downstreamer = cell.downstreamer_starting(&backend.url(), &[]);
    for service in [&receiver, &downstreamer] {
        service.unready("").await;
        assert_eq!(service.admin("/livez").await.expect("it lives").status, 200);
    }
    post(receiver.address(), &Webhook::any()).await.expect_later("queue_unavailable");
    assert!(receiver.is_running() && downstreamer.is_running());

    let _redis = cell.redis(&[]).await;
    receiver.ready().await;
    downstreamer.ready().await;
    expect_path_works(&receiver, &backend).await;
}

#[tokio::test]
async fn a_redis_absent_at_start_ends_those_told_not_to_wait() {
    let cell = Cell::shared();
    let impatient = [("EXIT_IF_UNAVAILABLE", "true")];
    let receiver = cell.receiver_starting(&impatient);
    let downstreamer = cell.downstreamer_starting("http://127.0.0.1:9", &impatient);
    for mut service in [receiver, downstreamer] {
        assert_eq!(service.exit(Duration::from_secs(20)).await.code(), Some(69));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_loads_a_large_file_is_waited_for() {
    let cell = Cell::busy();
    let mut redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let mut receiver = cell.receiver(&[]).await;
    redis.fill(50_000).await;
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    redis.kill9();
    redis.restart_slowly().await;

    let mut impatient = cell.receiver_starting(&[("EXIT_IF_UNAVAILABLE", "true")]);
    assert_eq!(impatient.exit(Duration::from_secs(20)).await.code(), Some(69));
    // One process starts while Redis loads, and one was running before: both wait.
    let mut downstreamer = cell.downstreamer_starting(&backend.url(), &[]);
    receiver.unready("").await;
    downstreamer.unready("").await;
    let began = Instant::now();
    post(receiver.address(), &Webhook::any()).await.expect_later("queue_unavailable");
    // At once, without waiting for `ACK_TIMEOUT`.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    redis.ready().await;
    receiver.ready().await;
    downstreamer.ready().await;
    assert!(receiver.is_running() && downstreamer.is_running());
    until("what was stored before is delivered", Duration::from_secs(20), async || {
        backend.delivered() == 1
    })
    .await;
    expect_path_works(&receiver, &backend).await;
}

async fn expect_path_works(receiver: &Service, backend: &Backend) {
    let before = backend.delivered();
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    until("a webhook is delivered", Duration::from_secs(20), async || backend.delivered() > before)
        .await;
}

/// Connections, so that each shard of the receiver has some.
const LINES: u64 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pack_that_is_held_up_is_not_stored_after_what_its_sender_sent_since() {
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let straw = Straw::before(&cell);
    let url = format!("unix://{}", straw.socket.display());
    let settings = [("REDIS_URL", url.as_str()), ("ACK_TIMEOUT", "1s")];
    let receiver = cell.receiver(&settings).await;
    let ledger = Arc::new(Ledger::default());
    let webhook =
        |event: Event| Webhook::product(event.resource, &event.webhook_id(), b"{}".to_vec());
    let mut lines: Vec<_> = (0..LINES).map(|_| Line::new(receiver.address(), &ledger)).collect();
    let all_store = async |lines: &mut Vec<Line>, sequence| {
        for (resource, line) in (2..).zip(lines) {
            let event = Event { resource, sequence };
            line.store(event, &webhook(event)).await;
        }
    };
    all_store(&mut lines, 1).await;

    straw.holds.store(true, Ordering::SeqCst);
    let (first, second) = (Event { resource: 1, sequence: 1 }, Event { resource: 1, sequence: 2 });
    let mut line = Line::new(receiver.address(), &ledger);
    assert_eq!(line.attempt(first, &webhook(first)).await, Outcome::Later);
    // Another shard takes it.
    line.store(first, &webhook(first)).await;
    line.store(second, &webhook(second)).await;
    straw.released.notify_one();
    // The shard whose pack was held up stores again: the pack has arrived, or never will.
    all_store(&mut lines, 2).await;

    let backend = Backend::start().await;
    let _downstreamer = cell.downstreamer(&backend, &[("DEDUP_WINDOW", "0")]).await;
    ledger.delivered_to(&backend, Duration::from_secs(60)).await;
    let figures = check(&ledger, &backend.receipts(), &HashSet::new());
    figures.print("stall, a pack held up");
    figures.expect_sound(0);
}

/// A unix socket before that of Redis. While `holds` is set, it holds back the second half of the
/// next pack, and what follows on its connection, until it is released.
struct Straw {
    socket: PathBuf,
    holds: Arc<AtomicBool>,
    released: Arc<Notify>,
}

impl Straw {
    fn before(cell: &Cell) -> Self {
        let socket = cell.directory().join("straw.sock");
        let listener = UnixListener::bind(&socket).expect("bind a socket");
        let redis = cell.redis_url().trim_start_matches("unix://").to_owned();
        let (holds, released) = (Arc::<AtomicBool>::default(), Arc::<Notify>::default());
        let straw = Self { socket, holds: holds.clone(), released: released.clone() };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = UnixStream::connect(&redis).await.expect("connect to Redis");
                tokio::spawn(relay(near, far, holds.clone(), released.clone()));
            }
        });
        straw
    }
}

async fn relay(near: UnixStream, far: UnixStream, holds: Arc<AtomicBool>, released: Arc<Notify>) {
    let (mut requests, mut to_near) = near.into_split();
    let (mut replies, mut to_far) = far.into_split();
    let forward = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let count = requests.read(&mut bytes).await?;
            let (start, end) = bytes[..count].split_at(count / 2);
            to_far.write_all(start).await?;
            let has_pack = bytes[..count].windows(4).any(|four| four == b"XADD");
            if has_pack && holds.swap(false, Ordering::SeqCst) {
                released.notified().await;
            }
            to_far.write_all(end).await?;
            if count == 0 {
                return std::io::Result::Ok(());
            }
        }
    };
    tokio::select! {
        _ = forward => {}
        _ = copy(&mut replies, &mut to_near) => {}
    }
}
