//! A log that cannot be written, such as a pipe whose reader ended or does not read, loses its
//! lines and nothing else.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::process::Command;
use std::time::Duration;

use rustix::fs::OFlags;
use stories::cell::{Cell, Settings};
use stories::client::post;
use stories::redis_server::RedisServer;
use stories::service::Service;
use stories::until::until;
use stories::webhook::Webhook;

const WITHIN: Duration = Duration::from_secs(20);

/// Starts a receiver whose standard error is a pipe that nobody reads.
async fn receiver_with_broken_log(cell: &Cell, settings: Settings<'_>) -> Service {
    // Path of the log of the cell's first process.
    let log = cell.directory().join("request-receiver-0.log");
    let made = Command::new("mkfifo").arg(&log).status().expect("run mkfifo");
    assert!(made.success(), "mkfifo fails");
    // Opened for writing too, because opening it only for reading waits for a writer.
    let reader = File::options().read(true).write(true).open(&log).expect("open the pipe");
    let receiver = cell.receiver(settings).await;
    drop(reader);
    // A failed test reads the log, and reading a pipe would wait for a writer.
    fs::remove_file(&log).expect("remove the pipe");
    receiver
}

/// Same as above, with a reader that has let the pipe become full. Returns the reader, too.
async fn receiver_with_log_that_hangs(cell: &Cell, settings: Settings<'_>) -> (Service, File) {
    let log = cell.directory().join("request-receiver-0.log");
    let made = Command::new("mkfifo").arg(&log).status().expect("run mkfifo");
    assert!(made.success(), "mkfifo fails");
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut pipe = File::options()
        .read(true)
        .write(true)
        .custom_flags(nonblocking)
        .open(&log)
        .expect("open it");
    let receiver = cell.receiver(settings).await;
    fs::remove_file(&log).expect("remove the pipe");
    for size in [4096, 1] {
        while pipe.write_all(&vec![b'x'; size]).is_ok() {}
    }
    let full = pipe.write(b"x").expect_err("it is full");
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    (receiver, pipe)
}

/// Same as above, with a log on a full disk.
async fn receiver_with_full_log(cell: &Cell, settings: Settings<'_>) -> Service {
    let log = cell.directory().join("request-receiver-0.log");
    symlink("/dev/full", &log).expect("link the log");
    let receiver = cell.receiver(settings).await;
    // Reading it would never end.
    fs::remove_file(&log).expect("remove the link");
    receiver
}

async fn stop(redis: &mut RedisServer) {
    redis.sigterm();
    redis.exit(WITHIN).await;
}

async fn start(redis: &mut RedisServer) {
    redis.restart();
    redis.ready().await;
}

async fn stores_again(cell: &Cell, redis: &mut RedisServer, mut receiver: Service) {
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    for _ in 0..2 {
        stop(redis).await;
        receiver.unready("queue_unavailable").await;
        post(receiver.address(), &Webhook::any()).await.expect_later("queue_unavailable");
        start(redis).await;
        receiver.ready().await;
        post(receiver.address(), &Webhook::any()).await.expect_stored();
    }
    receiver.sigterm();
    assert_eq!(receiver.exit(WITHIN).await.code(), Some(0), "{}", cell.directory().display());
}

#[tokio::test]
async fn a_receiver_whose_log_is_broken_stores_webhooks_again_once_redis_is_back() {
    let cell = Cell::shared();
    let mut redis = cell.redis(&[]).await;
    let receiver = receiver_with_broken_log(&cell, &[]).await;
    stores_again(&cell, &mut redis, receiver).await;
}

#[tokio::test]
async fn a_receiver_whose_log_nobody_reads_stores_webhooks_again_once_redis_is_back() {
    for is_spilling in [false, true] {
        let cell = Cell::shared();
        let mut redis = cell.redis(&[]).await;
        let directory = cell.directory().join("spill").display().to_string();
        let spill = [("SPILL_DIR", directory.as_str())];
        let settings = if is_spilling { &spill[..] } else { &[] };
        let (mut receiver, _reader) = receiver_with_log_that_hangs(&cell, settings).await;
        post(receiver.address(), &Webhook::any()).await.expect_stored();
        for _ in 0..2 {
            stop(&mut redis).await;
            let status = if is_spilling { 200 } else { 503 };
            until("a webhook is answered", WITHIN, async || {
                post(receiver.address(), &Webhook::any()).await.status == status
            })
            .await;
            start(&mut redis).await;
            // It may still count as ready from before.
            until("a webhook is stored", WITHIN, async || {
                post(receiver.address(), &Webhook::any()).await.status == 200
            })
            .await;
        }
        receiver.sigterm();
        assert_eq!(receiver.exit(WITHIN).await.code(), Some(0));
    }
}

#[tokio::test]
async fn a_receiver_whose_log_has_no_room_stores_webhooks_again_once_redis_is_back() {
    let cell = Cell::shared();
    let mut redis = cell.redis(&[]).await;
    let receiver = receiver_with_full_log(&cell, &[]).await;
    stores_again(&cell, &mut redis, receiver).await;
}

#[tokio::test]
async fn a_receiver_whose_log_is_broken_feeds_what_it_spilled_once_redis_is_back() {
    let cell = Cell::shared();
    let mut redis = cell.redis(&[]).await;
    let directory = cell.directory().join("spill").display().to_string();
    let receiver = receiver_with_broken_log(&cell, &[("SPILL_DIR", &directory)]).await;
    stop(&mut redis).await;
    until("a webhook is spilled", WITHIN, async || {
        post(receiver.address(), &Webhook::any()).await.status == 200
    })
    .await;
    start(&mut redis).await;
    until("what was spilled is fed", WITHIN, async || {
        receiver.metric("spillway_spilling").await == Some(0.0)
            && receiver.metric("spillway_spill_webhooks").await == Some(0.0)
    })
    .await;
    assert!(redis.stream_len("{spillway}:in").await >= 1);
}
