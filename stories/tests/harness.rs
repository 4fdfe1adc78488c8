//! Tests of the stories' own tools without the binaries: a check that cannot fail proves nothing.

use std::collections::HashSet;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::check::{Figures, check};
use stories::client::{self, Connection};
use stories::ledger::{Attempt, Event, Ledger, Outcome};
use stories::load::Load;
use stories::port;
use stories::receipt::{Receipt, RequestHead, hash};
use stories::webhook::Webhook;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_was_told_survives_a_kill() {
    let cell = Cell::shared();
    let mut redis = cell.redis(&[]).await;
    redis.command::<String>(&["SET", "kept", "yes"]).await;
    redis.kill9();
    assert!(redis.try_command::<String>(&["PING"]).await.is_err());
    redis.restart();
    redis.ready().await;
    assert_eq!(redis.command::<String>(&["GET", "kept"]).await, "yes");
    let policy: Vec<String> = redis.command(&["CONFIG", "GET", "maxmemory-policy"]).await;
    assert_eq!(policy[1], "noeviction");
    let fsync: Vec<String> = redis.command(&["CONFIG", "GET", "appendfsync"]).await;
    assert_eq!(fsync[1], "always");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_redis_answers_once_it_goes_on() {
    let cell = Cell::shared();
    let redis = cell.redis(&["--maxmemory", "32mb"]).await;
    let mut connection = redis.connection().await.unwrap();
    redis.sigstop();
    let mut command = redis::cmd("CONFIG");
    let pending = command.arg("GET").arg("maxmemory").query_async::<Vec<String>>(&mut connection);
    let mut pending = std::pin::pin!(pending);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut pending).await.is_err());
    redis.sigcont();
    assert_eq!(pending.await.unwrap()[1], (32 * 1024 * 1024).to_string());
    assert!(redis.resident_bytes() > 1024 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_loads_slowly_says_so() {
    let cell = Cell::shared();
    let mut redis = cell.redis(&[]).await;
    redis.fill(15_000).await;
    redis.kill9();
    let began = Instant::now();
    redis.restart_slowly().await;
    assert!(redis.try_command::<String>(&["PING"]).await.is_err());
    redis.ready().await;
    assert!(began.elapsed() > Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(redis.command::<u64>(&["DBSIZE"]).await, 15_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_backend_does_as_it_is_told_and_records_it() {
    let backend = Backend::start().await;
    let refusal = || Behaviour::status(429).header("Retry-After", "7");
    backend.behave(move |receipt| match receipt.target.as_str() {
        "/ok?" => Behaviour::slowly(Duration::from_millis(30)),
        "/refuse" => refusal(),
        "/reset" => Behaviour::Reset,
        "/cut" => Behaviour::CutShort,
        _ => Behaviour::Hang,
    });
    let webhook = |target| Webhook::any().header("Spillway-Id", "s-1").to(target);
    let mut connection = Connection::to(backend.address()).await;
    assert_eq!(
        connection.post(&webhook("/ok?").header("a", "1").header("A", "2")).await.status,
        200
    );
    let refused = connection.post(&webhook("/refuse")).await;
    assert_eq!((refused.status, refused.headers.text("retry-after")), (429, Some("7")));
    assert!(connection.exchange(&webhook("/reset").encode()).await.is_err());
    let mut connection = Connection::to(backend.address()).await;
    assert!(connection.exchange(&webhook("/cut").encode()).await.is_err());
    assert!(connection.answer_begun());
    let hung = webhook("/hang").encode();
    let hang = client::send(backend.address(), &hung);
    assert!(tokio::time::timeout(Duration::from_millis(100), hang).await.is_err());
    stories::until::until("the hang is noticed", Duration::from_secs(20), async || {
        backend.look(|receipts| receipts.last().is_some_and(|last| last.abandoned))
    })
    .await;
    let receipts = backend.receipts();
    let statuses: Vec<_> = receipts.iter().map(|receipt| receipt.status).collect();
    assert_eq!(statuses, [Some(200), Some(429), None, None, None]);
    assert!(receipts[0].answered.unwrap() - receipts[0].arrived >= Duration::from_millis(30));
    assert_eq!(receipts[0].headers.all("a"), [b"1", b"2"]);
    assert_eq!((backend.delivered(), backend.in_flight_max()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_reaches_a_server_in_order_and_the_ledger_agrees() {
    // The backend replaces the receiver: the load must recover from all its 503s and resets.
    let server = Backend::start().await;
    server.behave(|_| match rand::random_range(0..20) {
        0 => Behaviour::status(503),
        1 => Behaviour::Reset,
        2 => Behaviour::CutShort,
        _ => Behaviour::ok(),
    });
    let ledger = Arc::new(Ledger::default());
    let pause = Duration::ZERO;
    let load = Load { connections: 8, resources: 20, events: Some(10), pause, ..Load::steady(7) };
    load.start(server.address(), &ledger).join().await;
    assert_eq!(ledger.stored_count(), 200);
    assert!(ledger.count(Outcome::Later) > 0 && ledger.count(Outcome::CutInAnswer) > 0);
    ledger.delivered_to(&server, Duration::from_secs(10)).await;
    let mut receipts = server.receipts();
    for receipt in &mut receipts {
        receipt.headers.0.push(("Spillway-Id".to_owned(), receipt.webhook_id().into()));
    }
    let figures = check(&ledger, &receipts, &HashSet::new());
    figures.print("a load without Spillway");
    figures.expect_sound(0);
}

#[test]
fn the_check_finds_nothing_in_a_sound_run() {
    let figures = figures(&[(1, "a", 200), (2, "b", 500), (2, "b", 200), (3, "c", 200)]);
    figures.expect_sound(0);
    assert_eq!((figures.delivered, figures.receipts), (3, 4));
}

#[test]
fn the_check_finds_what_is_lost() {
    assert_eq!(figures(&[(1, "a", 200), (2, "b", 200), (3, "c", 500)]).lost, 1);
}

#[test]
fn the_check_finds_what_was_never_sent() {
    let all = [(1, "a", 200), (2, "b", 200), (3, "c", 200), (4, "d", 200)];
    assert_eq!(figures(&all).invented, 1);
}

#[test]
fn the_check_finds_a_copy_too_many() {
    let all = [(1, "a", 200), (1, "A", 200), (2, "b", 200), (3, "c", 200)];
    assert_eq!(figures(&all).invented, 1);
}

#[test]
fn the_check_finds_an_event_that_overtook_even_where_it_failed() {
    let all = [(1, "a", 200), (3, "c", 500), (2, "b", 200), (3, "c", 200)];
    assert_eq!(figures(&all).disordered, 1);
}

#[test]
fn the_check_counts_repeats_and_the_late_ones() {
    let all = [(1, "a", 200), (1, "a", 200), (2, "b", 200), (3, "c", 200), (2, "b", 200)];
    let figures = figures(&all);
    assert_eq!((figures.repeats, figures.late_repeats, figures.disordered), (2, 1, 0));
}

/// Checks three promised events of one resource against these arrivals: sequence, Spillway-Id,
/// status.
fn figures(arrived: &[(u64, &str, u16)]) -> Figures {
    let ledger = Ledger::default();
    for sequence in 1..=3 {
        let event = Event { resource: 9, sequence };
        let took = Duration::ZERO;
        let attempt = Attempt { began: Instant::now(), took, outcome: Outcome::Stored };
        ledger.note(event, hash(b"{}"), attempt);
    }
    let receipt = |&(sequence, copy, status): &(u64, &str, u16)| {
        let id = Event { resource: 9, sequence }.webhook_id();
        let webhook = Webhook::product(9, &id, b"{}".to_vec()).header("Spillway-Id", copy);
        let mut receipt = Receipt::new(&RequestHead::parse(&webhook.head(2)), Bytes::from("{}"));
        receipt.status = Some(status);
        receipt
    };
    let receipts: Vec<Receipt> = arrived.iter().map(receipt).collect();
    check(&ledger, &receipts, &HashSet::new())
}

#[tokio::test]
async fn a_port_that_was_just_in_use_is_listened_on() {
    let address = port::free();
    let listener = TcpListener::bind(address).unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    // The side that closes first keeps the port for a minute.
    drop(listener.accept().unwrap());
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    drop((client, listener));
    port::listen(address, 1).unwrap();
}
