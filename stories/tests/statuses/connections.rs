//! Behaviour of connections apart from complete requests and their answers.

use std::time::Duration;

use stories::cell::Cell;
use stories::client::{Connection, send};
use stories::until::until;
use stories::webhook::Webhook;
use tokio::time::timeout;

use super::shared::receiver;

/// Time limit for immediate reactions, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_client_that_never_reads_is_hung_up_on() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[("IDLE_TIMEOUT", "1s"), ("HEADER_TIMEOUT", "1s")]).await;
    let mut connection = Connection::to(receiver.address()).await;
    let requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000);
    let hung_up = async { while connection.write(&requests).await.is_ok() {} };
    assert!(timeout(SOON, hung_up).await.is_ok(), "the server keeps the connection");
}

#[tokio::test]
async fn the_beginning_of_a_request_behind_another_has_the_time_of_headers() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[("HEADER_TIMEOUT", "1s")]).await;
    let mut connection = Connection::to(receiver.address()).await;
    redis.sigstop();
    connection.write(&Webhook::any().encode()).await.unwrap();
    until("the first is in flight", SOON, async || {
        receiver.metric("spillway_in_flight_bytes").await.unwrap_or_default() > 0.0
    })
    .await;
    connection.write(b"POST / HTTP/1.1\r\nHost:").await.unwrap();
    // There is no sign that it was read. If it is read later, it is an ordinary slow request.
    tokio::time::sleep(Duration::from_millis(200)).await;
    redis.sigcont();
    connection.answer().await.expect_stored();
    connection.answer().await.expect(408, "timeout");
    connection.closed().await;
}

#[tokio::test]
async fn what_is_not_http_is_counted() {
    let receiver = receiver().await;
    let counted = async |outcome: &str| {
        let name = format!("spillway_received_total{{outcome=\"{outcome}\"}}");
        receiver.metric(&name).await.unwrap()
    };
    let (not_http, timeouts) = (counted("not_http").await, counted("timeout").await);
    assert_eq!(send(receiver.address(), b"nonsense\r\n\r\n").await.status, 400);
    let endless = [b"POST / HTTP/1.1\r\nA: ".to_vec(), vec![b'a'; 100_000]].concat();
    assert_eq!(send(receiver.address(), &endless).await.status, 431);
    let target = [b"POST /".to_vec(), vec![b'a'; 70_000], b" HTTP/1.1\r\n\r\n".to_vec()].concat();
    let status = send(receiver.address(), &target).await.status;
    assert!(status == 414 || status == 431, "{status}");
    let mut slow = Connection::to(receiver.address()).await;
    slow.write(b"POST / HTTP/1.1\r\n").await.unwrap();
    slow.answer().await.expect(408, "timeout");
    assert!(counted("not_http").await >= not_http + 3.0);
    assert!(counted("timeout").await >= timeouts + 1.0);
}
