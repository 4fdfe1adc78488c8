//! Limits of size, time and number.

use std::time::{Duration, Instant};

use stories::cell::Cell;
use stories::client::{Connection, post, send};
use stories::until::until;
use stories::webhook::Webhook;

use super::shared::{BODY_BYTES_MAX, receiver};

/// Time limit for immediate reactions, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

fn body_of(bytes: usize) -> Vec<u8> {
    let mut body = vec![b' '; bytes];
    (body[0], body[bytes - 1]) = (b'{', b'}');
    body
}

#[tokio::test]
async fn a_body_of_the_largest_size_is_stored() {
    let receiver = receiver().await;
    receiver.post(&Webhook::any().body(body_of(BODY_BYTES_MAX))).await.expect_stored();
}

#[tokio::test]
async fn a_length_over_the_limit_is_413_before_the_body() {
    let receiver = receiver().await;
    let head = Webhook::any().head(BODY_BYTES_MAX + 1);
    send(receiver.address(), &head).await.expect(413, "too_large");
}

#[tokio::test]
async fn a_chunked_body_over_the_limit_is_413_while_it_comes() {
    let receiver = receiver().await;
    let webhook = Webhook::any().body(body_of(BODY_BYTES_MAX + 1));
    let request = webhook.encode_chunked(64 * 1024);
    send(receiver.address(), &request).await.expect(413, "too_large");
}

#[tokio::test]
async fn headers_that_do_not_end_are_408() {
    let receiver = receiver().await;
    let mut connection = Connection::to(receiver.address()).await;
    let began = Instant::now();
    connection.write(b"POST / HTTP/1.1\r\nHost: a\r\n").await.unwrap();
    connection.answer().await.expect(408, "timeout");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test]
async fn headers_that_trickle_are_408_too() {
    let receiver = receiver().await;
    let mut connection = Connection::to(receiver.address()).await;
    connection.write(b"POST / HTTP/1.1\r\n").await.unwrap();
    let began = Instant::now();
    // The limit counts from the first byte: a byte now and then does not extend it.
    while began.elapsed() < Duration::from_millis(1700) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if connection.write(b"A: b\r\n").await.is_err() {
            break;
        }
    }
    connection.answer().await.expect(408, "timeout");
}

#[tokio::test]
async fn a_body_that_does_not_end_is_408() {
    let receiver = receiver().await;
    let mut connection = Connection::to(receiver.address()).await;
    let began = Instant::now();
    connection.write(&Webhook::any().head(100)).await.unwrap();
    connection.write(b"{\"half\":").await.unwrap();
    connection.answer().await.expect(408, "timeout");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_new_one_welcome() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[("IDLE_TIMEOUT", "1s")]).await;
    let mut connection = Connection::to(receiver.address()).await;
    connection.post(&Webhook::any()).await.expect_stored();
    connection.closed().await;
    post(receiver.address(), &Webhook::any()).await.expect_stored();
}

#[tokio::test]
async fn a_connection_that_never_sent_a_byte_has_the_time_of_headers() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[("HEADER_TIMEOUT", "1s"), ("IDLE_TIMEOUT", "1h")]).await;
    let mut used = Connection::to(receiver.address()).await;
    used.post(&Webhook::any()).await.expect_stored();
    let mut new = Connection::to(receiver.address()).await;
    let began = Instant::now();
    new.closed().await;
    assert!(began.elapsed() > Duration::from_millis(900), "{:?}", began.elapsed());
    // A used connection may be idle for longer.
    used.post(&Webhook::any()).await.expect_stored();
}

#[tokio::test]
async fn more_bytes_in_flight_than_allowed_are_503_before_the_body() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[("MAX_BODY", "900KiB"), ("MAX_IN_FLIGHT", "1MiB")]).await;
    let slow = Webhook::any().body(body_of(900_000));
    let request = slow.encode();
    let (most, last) = request.split_at(request.len() - 1);
    let mut first = Connection::to(receiver.address()).await;
    first.write(most).await.unwrap();
    until("the first body occupies its room", SOON, async || {
        receiver.metric("spillway_in_flight_bytes").await.unwrap_or_default() > 800_000.0
    })
    .await;
    let second = Webhook::any().head(900_000);
    send(receiver.address(), &second).await.expect_later("overloaded");
    first.write(last).await.unwrap();
    first.answer().await.expect_stored();
    until("there is room again", SOON, async || {
        post(receiver.address(), &Webhook::any().body(body_of(900_000))).await.status == 200
    })
    .await;
}

#[tokio::test]
async fn an_announced_body_takes_no_room_before_it_comes() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[("MAX_BODY", "900KiB"), ("MAX_IN_FLIGHT", "1MiB")]).await;
    let mut announced = Vec::new();
    for _ in 0..16 {
        let mut connection = Connection::to(receiver.address()).await;
        connection.write(&Webhook::any().head(900_000)).await.unwrap();
        announced.push(connection);
    }
    until("all heads are read", SOON, async || {
        receiver.metric("spillway_in_flight_bytes").await.unwrap_or_default() > 16.0 * 2048.0
    })
    .await;
    post(receiver.address(), &Webhook::any().body(body_of(500_000))).await.expect_stored();
}

#[tokio::test]
async fn more_connections_than_allowed_are_503() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[("MAX_CONNECTIONS", "4")]).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut connection = Connection::to(receiver.address()).await;
        connection.post(&Webhook::any()).await.expect_stored();
        open.push(connection);
    }
    post(receiver.address(), &Webhook::any()).await.expect_later("overloaded");
    for connection in &mut open {
        connection.post(&Webhook::any()).await.expect_stored();
    }
    open.pop();
    until("the place is free", SOON, async || {
        post(receiver.address(), &Webhook::any()).await.status == 200
    })
    .await;
}

#[tokio::test]
async fn connections_leave_descriptors_for_redis_and_the_admin_port() {
    let cell = Cell::shared();
    let mut redis = cell.redis(&[]).await;
    let settings = [("HEADER_TIMEOUT", "60s"), ("MAX_CONNECTIONS", "10000")];
    let receiver = cell.receiver_with_files([256, 512], &settings);
    receiver.ready().await;
    assert_eq!(receiver.metric("process_max_fds").await, Some(512.0));
    let log = receiver.output();
    assert!(log.contains("WARN") && log.contains("max_connections=10000"), "{log}");
    let mut strangers = Vec::new();
    for _ in 0..520 {
        strangers.push(Connection::to(receiver.address()).await);
    }
    redis.kill9();
    receiver.unready("queue_unavailable").await;
    redis.restart();
    receiver.ready().await;
    assert!(!receiver.output().contains("could not be accepted"), "{}", receiver.output());
}

#[tokio::test]
async fn too_few_open_files_for_any_connections_are_a_bad_setting() {
    let cell = Cell::shared();
    let mut receiver = cell.receiver_with_files([100, 100], &[]);
    assert_eq!(receiver.exit(SOON).await.code(), Some(78));
    assert!(receiver.output().contains("MAX_CONNECTIONS"), "{}", receiver.output());
}
