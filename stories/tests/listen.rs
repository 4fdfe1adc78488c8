//! Sockets that a receiver listens on.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use stories::cell::Cell;
use stories::client::post;
use stories::port;
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
    // Connections in the backlog of each socket are served before the end.
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

#[tokio::test]
async fn a_unix_socket_has_the_mode_and_group_that_are_set() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let path = cell.directory().join("receiver.sock");
    let listen = format!("unix:{}", path.display());
    let group = std::fs::metadata(cell.directory()).unwrap().gid();
    let group_text = group.to_string();
    let settings =
        [("LISTEN", listen.as_str()), ("LISTEN_MODE", "0620"), ("LISTEN_GROUP", &group_text)];
    let mut receiver = cell.receiver(&settings).await;
    for _ in 0..2 {
        assert_eq!(post_to(&path).await, "HTTP/1.1 200");
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o7777, found.gid()), (0o620, group));
        // The socket of a killed receiver does not prevent the next start.
        receiver.kill9();
        receiver.restart();
        receiver.ready().await;
    }
}

#[tokio::test]
async fn a_file_in_the_place_of_the_socket_is_refused_and_stays() {
    let cell = Cell::shared();
    let path = cell.directory().join("precious");
    std::fs::write(&path, "precious").unwrap();
    let (listen, admin) = (format!("unix:{}", path.display()), port::free().to_string());
    let settings = [
        ("LISTEN", listen.as_str()),
        ("ADMIN_LISTEN", &admin),
        ("REDIS_URL", "unix:///nowhere/redis.sock"),
        ("SHOPIFY_CLIENT_SECRET", "secret"),
    ];
    let output = cell.run("request-receiver", &[], &settings).await;
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{errors}");
    assert!(errors.contains("LISTEN") && errors.contains("not a socket"), "{errors}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}
