//! SIGTERM under load: requests that were begun are answered, and promises are kept.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::check::check;
use stories::client::Connection;
use stories::ledger::{Ledger, Outcome};
use stories::load::Load;
use stories::report::say;
use stories::seed::seed;
use stories::until::until;
use stories::webhook::Webhook;

/// Default of the receiver.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_told_to_end_answers_what_it_was_sent() {
    let seed = seed("receiver shutdown", 41);
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let mut receiver = cell.receiver(&[]).await;
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load { pause: Duration::from_millis(2), ..Load::steady(seed) };
    let running = load.start(receiver.address(), &ledger);
    until("the load flows", Duration::from_secs(30), async || ledger.stored_count() > 2000).await;

    // Half of each body has arrived when the signal comes.
    let mut halves = Vec::new();
    for _ in 0..8 {
        let request = Webhook::any().body(format!("{{\"a\":\"{}\"}}", "b".repeat(5000))).encode();
        let mut connection = Connection::to(receiver.address()).await;
        let (first, rest) = request.split_at(request.len() - 2000);
        connection.write(first).await.unwrap();
        halves.push((connection, rest.to_vec()));
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let told = Instant::now();
    receiver.sigterm();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for (connection, rest) in &mut halves {
        connection.write(rest).await.expect("a body begun is still read");
        connection.answer().await.expect_stored();
    }
    let status = receiver.exit(SHUTDOWN_TIMEOUT).await;
    assert_eq!(status.code(), Some(0));
    say(&format!("receiver shutdown: took {:?}", told.elapsed()));
    running.stop().await;

    assert_eq!(ledger.count(Outcome::CutInAnswer), 0, "an answer was cut");
    // A request sent well before the signal and not answered was cut in the middle. A request sent
    // on an idle connection while it was being closed was not begun, and can be sent again.
    let cut = |attempt: &&stories::ledger::Attempt| {
        attempt.outcome == Outcome::Unanswered && attempt.began + Duration::from_millis(50) < told
    };
    let cut = ledger.attempts().iter().filter(cut).count();
    assert_eq!(cut, 0, "requests were cut in the middle");
    ledger.delivered_to(&backend, Duration::from_secs(30)).await;
    let figures = check(&ledger, &backend.receipts_of_load(), &HashSet::new());
    figures.print("receiver shutdown");
    figures.expect_sound(0);
}

#[tokio::test]
async fn a_sender_that_stalls_is_cut_off_at_the_one_deadline() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let settings = [("BODY_TIMEOUT", "60s"), ("ACK_TIMEOUT", "60s"), ("SHUTDOWN_TIMEOUT", "2s")];
    let mut receiver = cell.receiver(&settings).await;
    let mut stalled = Connection::to(receiver.address()).await;
    stalled.write(&Webhook::any().head(100)).await.unwrap();
    // Another request waits for a Redis that does not answer.
    redis.sigstop();
    let mut waiting = Connection::to(receiver.address()).await;
    waiting.write(&Webhook::any().encode()).await.unwrap();
    until("both are in flight", Duration::from_secs(20), async || {
        receiver.metric("spillway_in_flight_bytes").await.unwrap_or_default() > 2.0 * 2048.0
    })
    .await;
    let told = Instant::now();
    receiver.sigterm();
    receiver.unready("stopping").await;
    let status = receiver.exit(Duration::from_secs(6)).await;
    assert_eq!(status.code(), Some(0));
    say(&format!("receiver shutdown with stalled senders: took {:?}", told.elapsed()));
    stalled.closed().await;
    waiting.closed().await;
    redis.sigcont();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downstreamer_told_to_end_settles_what_it_delivers() {
    let seed = seed("downstreamer shutdown", 42);
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::slowly(Duration::from_millis(rand::random_range(100..900))));
    let receiver = cell.receiver(&[]).await;
    let mut downstreamer = cell.downstreamer(&backend, &[]).await;
    let ledger = Arc::new(Ledger::default());
    let running = Load { events: Some(5), ..Load::steady(seed) }.start(receiver.address(), &ledger);
    for round in 1..=2 {
        let before = backend.count();
        until("deliveries are under way", Duration::from_secs(30), async || {
            backend.count() > before + 100
        })
        .await;
        let told = Instant::now();
        downstreamer.sigterm();
        let status = downstreamer.exit(SHUTDOWN_TIMEOUT).await;
        assert_eq!(status.code(), Some(0));
        say(&format!("downstreamer shutdown {round}: took {:?}", told.elapsed()));
        downstreamer.restart();
    }
    running.join().await;
    ledger.delivered_to(&backend, Duration::from_secs(60)).await;
    let receipts = backend.receipts();
    let cut = receipts.iter().filter(|receipt| receipt.abandoned).count();
    assert_eq!(cut, 0, "deliveries were cut in the middle");
    let figures = check(&ledger, &receipts, &HashSet::new());
    figures.print("downstreamer shutdown");
    // A stop is not a crash: nothing is delivered twice.
    figures.expect_sound(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_hangs_does_not_hold_up_the_end() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::Hang);
    let receiver = cell.receiver(&[]).await;
    let settings = [("DELIVERY_TIMEOUT", "60s"), ("SHUTDOWN_TIMEOUT", "2s")];
    let mut downstreamer = cell.downstreamer(&backend, &settings).await;
    stories::client::post(receiver.address(), &Webhook::any()).await.expect_stored();
    until("the delivery hangs", Duration::from_secs(20), async || backend.count() == 1).await;
    downstreamer.sigterm();
    downstreamer.exit(Duration::from_secs(5)).await;
    // Another process continues with it.
    backend.behave(|_| Behaviour::ok());
    downstreamer.restart();
    until("it is delivered", Duration::from_secs(20), async || backend.delivered() == 1).await;
}
