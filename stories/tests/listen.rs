//! Sockets that a receiver listens on.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use stories::cell::Cell;
use stories::client::post;
use stories::webhook::Webhook;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

const WITHIN: Duration = Duration::from_secs(20);

/// Posts a webhook over a unix socket, and returns the beginning of the answer.
async fn post_to(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).await.expect("connect to the socket");
    stream.write_all(&Webhook::any().encode()).await.expect("write a webhook");
    let mut begin = [0; "HTTP/1.1 200".len()];
    let read = timeout(WITHIN, stream.read_exact(&mut begin)).await;
    read.expect("an answer in time").expect("an answer");
    String::from_utf8_lossy(&begin).into_owned()
}

#[tokio::test]
async fn a_receiver_accepts_from_every_socket_that_it_is_passed() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let path = cell.directory().join("second.sock");
    let first = TcpListener::bind("127.0.0.1:0").unwrap();
    let second = UnixListener::bind(&path).unwrap();
    let mut receiver = cell.receiver_on_both(&first, &second, &[]);
    receiver.ready().await;
    let address = receiver.address();
    assert!(receiver.output().contains(&format!("address={address}, unix:{}", path.display())));
    for _ in 0..3 {
        assert_eq!(post_to(&path).await, "HTTP/1.1 200");
        post(address, &Webhook::any()).await.expect_stored();
    }
    // What lies in a backlog is served before the end, whichever it is.
    receiver.sigstop();
    let waiting = tokio::spawn({
        let path = path.clone();
        async move { post_to(&path).await }
    });
    tokio::task::yield_now().await;
    receiver.sigterm();
    receiver.sigcont();
    assert_eq!(waiting.await.unwrap(), "HTTP/1.1 200");
    assert_eq!(receiver.exit(WITHIN).await.code(), Some(0));
}
