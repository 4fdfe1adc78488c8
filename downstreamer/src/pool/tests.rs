//! The pool with a backend that answers, hangs up or hangs as a script says.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::{HOST, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;
use crate::access::BackendAccess;
use crate::connect::{IDLE_CONNECTION, LeaseLost, tls};

const PATIENCE: Duration = Duration::from_secs(5);
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const OK_CHUNKED: &str =
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n1\r\n!\r\n0\r\n\r\n";
const OK_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
const LAST: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
const REFUSAL: &str = "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n";
const STRAY: &str = "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n";

/// Size of a request's body that the kernel does not hold: 4 MiB to send, and 128 KiB to receive.
const LARGE_BYTES: usize = 8 << 20;

/// Step of one connection of the backend.
#[derive(Clone, Copy)]
enum Step {
    /// Receives a request and answers it.
    Answer(&'static str),
    /// Receives a request and answers it with so many bytes.
    Fill(usize),
    /// Receives a request, and answers it with half of what it announces.
    Half(usize),
    /// Receives a request, and does not answer.
    Swallow,
    /// Receives the head of a large request, writes the first text, receives the body, and writes the
    /// second one. The number is sent when it begins to receive the body, and when it has it.
    Early(&'static str, &'static str),
    /// Receives the head of a request, writes, and does not read again.
    Ignore(&'static str),
    /// Writes without a request.
    Write(&'static str),
    /// Closes the connection.
    Close,
}

/// Number in place of a connection's, for bytes that the script does not have.
const UNEXPECTED: usize = 999;

/// Receives a request whose body is `{}`.
///
/// # Errors
/// Bytes before the end of the connection.
async fn receive(stream: &mut TcpStream) -> Result<(), Vec<u8>> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n{}") {
        if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return Err(request);
        }
    }
    let request = String::from_utf8(request).unwrap();
    assert!(request.starts_with("POST /webhooks?a HTTP/1.1\r\n"), "{request}");
    Ok(())
}

/// Receives the head of a request, and not a byte more.
async fn receive_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
}

async fn play(mut stream: TcpStream, number: usize, steps: &[Step], received: mpsc::Sender<usize>) {
    for step in steps {
        if matches!(step, Step::Early(..) | Step::Ignore(_)) {
            receive_head(&mut stream).await;
        } else if !matches!(step, Step::Write(_) | Step::Close) {
            if receive(&mut stream).await.is_err() {
                return;
            }
            received.send(number).await.ok();
        }
        match step {
            Step::Answer(text) | Step::Write(text) => {
                stream.write_all(text.as_bytes()).await.unwrap();
            }
            Step::Fill(size) => {
                let head = format!("HTTP/1.1 500 No\r\ncontent-length: {size}\r\n\r\n");
                stream.write_all(head.as_bytes()).await.unwrap();
                // The pool hangs up in the middle.
                stream.write_all(&vec![b'x'; *size]).await.ok();
            }
            Step::Half(size) => {
                let head = format!("HTTP/1.1 500 No\r\ncontent-length: {}\r\n\r\n", 2 * size);
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&vec![b'x'; *size]).await.ok();
            }
            Step::Early(before, after) => {
                stream.write_all(before.as_bytes()).await.unwrap();
                // Time in which the pool reads it.
                settle().await;
                received.send(number).await.ok();
                stream.read_exact(&mut vec![0; LARGE_BYTES]).await.unwrap();
                received.send(number).await.ok();
                stream.write_all(after.as_bytes()).await.unwrap();
            }
            Step::Ignore(text) => {
                stream.write_all(text.as_bytes()).await.unwrap();
                std::future::pending::<()>().await;
            }
            Step::Swallow => {}
            Step::Close => return,
        }
    }
    if receive(&mut stream).await != Err(Vec::new()) {
        received.send(UNEXPECTED).await.ok();
    }
}

/// Backend with a script for each connection. Returns a pool of its connections, and the number of
/// the connection on which each request came.
async fn backend(
    script: &'static [&'static [Step]],
    idle_max: usize,
    lease: LeaseCheck,
) -> (BackendPool, mpsc::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pool = pool(listener.local_addr().unwrap(), idle_max, lease);
    let (sender, received) = mpsc::channel(64);
    tokio::spawn(async move {
        for (number, steps) in script.iter().enumerate() {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(play(stream, number, steps, sender.clone()));
        }
    });
    (pool, received)
}

fn pool(address: SocketAddr, idle_max: usize, lease: LeaseCheck) -> BackendPool {
    let authority: Authority = address.to_string().parse().unwrap();
    let options = ClientOptions {
        tls: tls("DOWNSTREAM_APP_URL", false, &BackendAccess::default()).unwrap(),
        server_name: None,
        takes_http2: false,
        timeout: PATIENCE,
        idle_max,
    };
    BackendPool::new(options, &Scheme::HTTP, &authority, lease)
}

fn always() -> LeaseCheck {
    Arc::new(|| true)
}

fn request(lease: LeaseCheck) -> Request<LeasedBody> {
    let mut request = Request::new(LeasedBody::new(Bytes::from_static(b"{}"), lease));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("/webhooks?a");
    request.headers_mut().insert(HOST, HeaderValue::from_static("backend.example"));
    request
}

fn large_request() -> Request<LeasedBody> {
    let mut large = request(always());
    *large.body_mut() = LeasedBody::new(vec![b'x'; LARGE_BYTES].into(), always());
    large
}

/// Makes new connections idle, in the order of their numbers.
async fn fill_idle(pool: &BackendPool, count: usize) {
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(pool.connection(Instant::now()).await.unwrap().connection);
    }
    taken.into_iter().for_each(|connection| pool.idle.put(connection));
}

/// Delivers a webhook. Returns the status and the beginning of the answer.
async fn deliver(pool: &BackendPool) -> Result<(u16, Vec<u8>), ExchangeError> {
    let exchanged = timeout(PATIENCE, pool.exchange(request(always()))).await.unwrap();
    exchanged.map(|(head, answer)| (head.status.as_u16(), answer.into_kept()))
}

async fn assert_delivered(pool: &BackendPool) {
    let (status, answer) = deliver(pool).await.unwrap();
    assert_eq!(status, 200);
    assert!(answer.starts_with(b"ok"), "{answer:?}");
}

/// Time in which the runtime notices what the backend wrote or closed.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn numbers(received: &mut mpsc::Receiver<usize>) -> Vec<usize> {
    std::iter::from_fn(|| received.try_recv().ok()).collect()
}

#[tokio::test]
async fn a_connection_is_used_again() {
    const SCRIPT: &[&[Step]] = &[&[Step::Answer(OK), Step::Answer(OK_CHUNKED), Step::Answer(OK)]];
    let (pool, mut received) = backend(SCRIPT, 8, always()).await;
    for _ in 0..3 {
        assert_delivered(&pool).await;
        assert_eq!(pool.idle.len(), 1);
    }
    assert_eq!(numbers(&mut received), [0, 0, 0]);
}

#[tokio::test]
async fn an_answer_that_says_so_is_the_last_one_of_its_connection() {
    const SCRIPT: &[&[Step]] = &[&[Step::Answer(LAST)], &[Step::Answer(OK)]];
    let (pool, mut received) = backend(SCRIPT, 8, always()).await;
    assert_delivered(&pool).await;
    assert_eq!(pool.idle.len(), 0);
    assert_delivered(&pool).await;
    assert_eq!(numbers(&mut received), [0, 1]);
}

#[tokio::test]
async fn a_connection_that_ended_while_it_was_idle_costs_no_delivery() {
    const SCRIPT: &[&[Step]] = &[
        &[Step::Answer(OK), Step::Close],
        &[Step::Answer(OK), Step::Write(STRAY)],
        &[Step::Answer(OK), Step::Write(STRAY), Step::Close],
        &[Step::Answer(OK)],
    ];
    let (pool, mut received) = backend(SCRIPT, 8, always()).await;
    for _ in 0..SCRIPT.len() {
        assert_delivered(&pool).await;
        settle().await;
    }
    assert_eq!(numbers(&mut received), [0, 1, 2, 3]);
}

#[tokio::test]
async fn a_request_that_was_sent_is_not_sent_again() {
    const SCRIPT: &[&[Step]] = &[
        &[Step::Answer(OK), Step::Swallow, Step::Close],
        &[Step::Swallow, Step::Close],
        &[
            Step::Swallow,
            Step::Write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"),
            Step::Close,
        ],
        &[Step::Answer(OK)],
    ];
    let (pool, mut received) = backend(SCRIPT, 8, always()).await;
    assert_delivered(&pool).await;
    for number in 0..3 {
        let error = deliver(&pool).await.expect_err("no whole answer");
        assert!(matches!(error, ExchangeError::Broken(_)), "{number}: {error:?}");
        assert_eq!(pool.idle.len(), 0);
    }
    assert_delivered(&pool).await;
    assert_eq!(numbers(&mut received), [0, 0, 1, 2, 3]);
}

#[tokio::test]
async fn no_byte_is_sent_once_the_lease_is_lost() {
    const SCRIPT: &[&[Step]] = &[&[Step::Answer(OK)], &[], &[Step::Answer(OK)]];
    let is_held = Arc::new(AtomicBool::new(true));
    let lease: LeaseCheck = {
        let is_held = is_held.clone();
        Arc::new(move || is_held.load(Ordering::Relaxed))
    };
    let (pool, mut received) = backend(SCRIPT, 8, lease.clone()).await;
    assert_delivered(&pool).await;
    is_held.store(false, Ordering::Relaxed);
    // The first time there is a connection, the second time there is none.
    for _ in 0..2 {
        let error = pool.exchange(request(lease.clone())).await.expect_err("the lease is lost");
        assert!(LeaseLost::is_cause_of(&error), "{error:?}");
        assert!(matches!(error, ExchangeError::Unconnected(_)), "{error:?}");
    }
    is_held.store(true, Ordering::Relaxed);
    assert_delivered(&pool).await;
    assert_eq!(numbers(&mut received), [0, 2]);
}

#[tokio::test]
async fn a_backend_that_is_not_there_is_unconnected() {
    const SCRIPT: &[&[Step]] = &[&[Step::Answer(LAST)]];
    let (pool, _) = backend(SCRIPT, 8, always()).await;
    assert_delivered(&pool).await;
    // The script has no second connection: the listener is gone.
    settle().await;
    let error = deliver(&pool).await.expect_err("nothing listens");
    assert!(matches!(error, ExchangeError::Unconnected(_)), "{error:?}");
    assert!(!LeaseLost::is_cause_of(&error));
}

#[tokio::test]
async fn a_connection_with_more_of_a_huge_answer_is_not_used_again() {
    const SCRIPT: &[&[Step]] = &[&[Step::Fill(4 << 20)], &[Step::Fill(60_000), Step::Answer(OK)]];
    let (pool, mut received) = backend(SCRIPT, 8, always()).await;
    for is_used_again in [false, true] {
        let (status, answer) = deliver(&pool).await.unwrap();
        assert_eq!(status, 500);
        assert_eq!(answer, [b'x'; 1024]);
        assert_eq!(pool.idle.len(), usize::from(is_used_again));
    }
    assert_delivered(&pool).await;
    assert_eq!(numbers(&mut received), [0, 1, 1]);
}

#[tokio::test]
async fn deliveries_at_once_have_a_connection_each() {
    const SCRIPT: &[&[Step]] = &[&[Step::Swallow] as &[Step]; 8];
    let (pool, mut received) = backend(SCRIPT, 8, always()).await;
    let pool = Arc::new(pool);
    let deliveries: Vec<_> = (0..8)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.exchange(request(always())).await.map(|_| ()) })
        })
        .collect();
    let mut numbers = Vec::new();
    while numbers.len() < 8 {
        numbers.push(timeout(PATIENCE, received.recv()).await.unwrap().unwrap());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7]);
    deliveries.iter().for_each(tokio::task::JoinHandle::abort);
    for delivery in deliveries {
        assert!(delivery.await.is_err_and(|error| error.is_cancelled()));
    }
    assert_eq!(pool.idle.len(), 0, "a connection with a request on it is dropped");
}

#[tokio::test]
async fn idle_connections_are_bounded() {
    const SCRIPT: &[&[Step]] = &[&[] as &[Step]; 3];
    let (pool, _received) = backend(SCRIPT, 2, always()).await;
    fill_idle(&pool, 3).await;
    assert_eq!(pool.idle.len(), 2);
}

#[tokio::test]
async fn a_delivery_that_waits_takes_a_connection_that_is_free_earlier() {
    const SCRIPT: &[&[Step]] = &[&[Step::Answer(OK), Step::Answer(OK)]];
    let (pool, mut received) = backend(SCRIPT, 8, always()).await;
    let first = pool.connection(Instant::now()).await.unwrap().connection;
    let returned = async {
        let waited = timeout(PATIENCE, pool.idle.returned()).await.unwrap();
        assert_eq!(pool.idle.len(), 0);
        pool.idle.put(waited);
    };
    let returning = async {
        tokio::task::yield_now().await;
        pool.idle.put(first);
    };
    tokio::join!(returned, returning);
    assert_delivered(&pool).await;
    assert_delivered(&pool).await;
    assert_eq!(numbers(&mut received), [0, 0]);
}

#[tokio::test]
async fn a_delivery_that_is_cancelled_closes_its_connection() {
    const SCRIPT: &[&[Step]] = &[&[Step::Answer(OK), Step::Swallow], &[Step::Answer(OK)]];
    let (pool, mut received) = backend(SCRIPT, 8, always()).await;
    assert_delivered(&pool).await;
    assert_eq!(received.recv().await, Some(0));
    tokio::select! {
        _ = pool.exchange(request(always())) => panic!("the backend hangs"),
        number = received.recv() => assert_eq!(number, Some(0)),
    }
    assert_eq!(pool.idle.len(), 0);
    assert_delivered(&pool).await;
    assert_eq!(received.recv().await, Some(1));
}

#[tokio::test]
async fn connections_that_the_backend_closed_are_dropped_without_a_delivery() {
    const SCRIPT: &[&[Step]] = &[&[Step::Answer(OK), Step::Close]];
    let (pool, _received) = backend(SCRIPT, 8, always()).await;
    assert_delivered(&pool).await;
    let swept = async {
        while pool.idle.len() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, swept).await.unwrap();
}

#[tokio::test]
async fn a_connection_is_not_used_after_its_idle_time() {
    const SCRIPT: &[&[Step]] = &[&[Step::Answer(OK)]];
    let (pool, _received) = backend(SCRIPT, 8, always()).await;
    assert_delivered(&pool).await;
    assert_eq!(pool.idle.len(), 1);
    tokio::time::pause();
    tokio::time::advance(IDLE_CONNECTION).await;
    assert!(pool.idle.take(Instant::now()).is_none());
    assert_eq!(pool.idle.len(), 0);
}

#[tokio::test]
async fn an_answer_that_never_ends_is_read_up_to_its_bound() {
    const SCRIPT: &[&[Step]] = &[&[Step::Half(128 << 10)], &[Step::Answer(OK)]];
    let (pool, mut received) = backend(SCRIPT, 8, always()).await;
    let (status, _) = deliver(&pool).await.unwrap();
    assert_eq!(status, 500);
    assert_delivered(&pool).await;
    assert_eq!(numbers(&mut received), [0, 1]);
}

#[tokio::test]
async fn a_request_that_is_answered_early_is_sent_to_its_end_and_is_its_connections_last() {
    const SCRIPTS: [&[&[Step]]; 2] = [
        // The backend takes what it had not read for a second request.
        &[&[Step::Early(OK, STRAY)], &[Step::Answer(OK)]],
        // The request has been sent when the answer ends.
        &[&[Step::Early(OK_HEAD, "ok")], &[Step::Answer(OK)]],
    ];
    for script in SCRIPTS {
        let (pool, mut received) = backend(script, 8, always()).await;
        let exchanged = timeout(PATIENCE, pool.exchange(large_request())).await.unwrap();
        assert_eq!(exchanged.unwrap().0.status, 200);
        assert_eq!(received.try_recv(), Ok(0), "it ended before its request was sent");
        let number = timeout(PATIENCE, received.recv()).await.unwrap();
        assert_eq!(number, Some(0), "the rest was cut off");
        settle().await;
        assert_eq!(pool.idle.len(), 0);
        assert_delivered(&pool).await;
        assert_eq!(numbers(&mut received), [1]);
    }
}

#[tokio::test]
async fn an_early_answer_counts_although_its_request_is_never_read() {
    const SCRIPT: &[&[Step]] = &[&[Step::Ignore(OK)], &[Step::Answer(OK)]];
    const REFUSED: &[&[Step]] = &[&[Step::Ignore(REFUSAL)], &[Step::Answer(OK)]];
    for (script, status) in [(SCRIPT, 200), (REFUSED, 503)] {
        let (mut pool, _received) = backend(script, 8, always()).await;
        pool.flush_until = Duration::from_secs(1);
        let began = Instant::now();
        let exchanged = timeout(PATIENCE, pool.exchange(large_request())).await.unwrap();
        assert_eq!(exchanged.unwrap().0.status, status);
        assert_eq!(began.elapsed() >= pool.flush_until, status == 200, "time for the rest");
        assert_eq!(pool.idle.len(), 0);
        assert_delivered(&pool).await;
    }
}

#[tokio::test]
async fn an_attempt_without_an_answer_drops_connections_that_were_not_used_since_it_began() {
    const SCRIPT: &[&[Step]] = &[&[], &[Step::Answer(OK), Step::Answer(OK)], &[Step::Swallow]];
    let (pool, mut received) = backend(SCRIPT, 8, always()).await;
    fill_idle(&pool, 3).await;
    let mut hanging = Box::pin(pool.exchange(request(always())));
    tokio::select! {
        _ = &mut hanging => panic!("the backend hangs"),
        number = received.recv() => assert_eq!(number, Some(2)),
    }
    assert_delivered(&pool).await;
    assert_eq!(pool.idle.len(), 2);
    drop(hanging);
    assert_eq!(pool.idle.len(), 1, "the one that was used since is kept");
    assert_delivered(&pool).await;
    assert_eq!(numbers(&mut received), [1, 1]);
}

#[tokio::test]
async fn a_connection_that_breaks_leaves_the_others() {
    const SCRIPT: &[&[Step]] = &[&[], &[], &[Step::Swallow, Step::Close]];
    let (pool, _received) = backend(SCRIPT, 8, always()).await;
    fill_idle(&pool, 3).await;
    assert!(pool.exchange(request(always())).await.is_err());
    assert_eq!(pool.idle.len(), 2);
    let is_gone = |kind| is_gone(&ExchangeError::Broken(io::Error::from(kind).into()));
    assert!(is_gone(ErrorKind::TimedOut) && !is_gone(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn a_new_connection_that_ends_before_it_takes_the_request_is_none() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let pool = pool(listener.local_addr().unwrap(), 8, always());
    let (closed, is_closed) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        drop(listener.accept());
        closed.send(()).unwrap();
    });
    // Blocks the runtime, so that it sees the end of the connection as soon as the connection.
    let closing = async { is_closed.recv_timeout(PATIENCE).unwrap() };
    let (exchanged, ()) = tokio::join!(pool.exchange(request(always())), closing);
    let error = exchanged.expect_err("the backend closes");
    assert!(matches!(error, ExchangeError::Unconnected(_)), "{error:?}");
}
