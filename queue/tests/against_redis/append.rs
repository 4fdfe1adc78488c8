//! Outcomes of an append under failures of Redis and of the connection.

use spillway_queue::QueueError;
use spillway_queue::append::{AppendError, Appender};
use spillway_queue::read::StreamReader;
use spillway_webhook::StreamId;

use crate::proxy::{Fault, Proxy};
use crate::server::{Server, redis_at, until};

#[tokio::test]
async fn every_webhook_of_a_pack_is_counted_as_appended() {
    let server = Server::start(&[]).await;
    let mut appender = Appender::new(server.redis());
    appender.append(b"forty", 40).await.unwrap();
    appender.append(b"two", 2).await.unwrap();
    let appended: u64 = server.command(&["HGET", "{spillway}:counts", "appended"]).await;
    assert_eq!(appended, 42);
    assert_eq!(server.command::<u64>(&["XLEN", "{spillway}:in"]).await, 2);
}

#[tokio::test]
async fn a_redis_that_fills_up_stores_no_more_until_there_is_room() {
    let server = Server::start(&["--maxmemory", "4mb"]).await;
    let mut appender = Appender::new(server.redis());
    let pack = vec![b'x'; 100_000];
    let mut stored = 0u64;
    let refused = loop {
        match appender.append(&pack, 1).await {
            Ok(_) => stored += 1,
            Err(refused) => break refused,
        }
        assert!(stored < 100, "it never fills up");
    };
    assert!(matches!(refused, AppendError::NotStored(QueueError::Full(_))), "{refused:?}");
    assert_eq!(server.command::<u64>(&["XLEN", "{spillway}:in"]).await, stored);
    assert_eq!(server.command::<u64>(&["HGET", "{spillway}:counts", "appended"]).await, stored);
    let _: u64 = server.command(&["XTRIM", "{spillway}:in", "MAXLEN", "0"]).await;
    appender.append(&pack, 1).await.unwrap();
}

#[tokio::test]
async fn a_redis_that_fills_up_amid_an_append_has_not_stored_it() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::before(&server);
    let mut appender = Appender::new(proxy.redis());
    appender.reconnect().await.unwrap();
    proxy.harm_next_request(Fault::FullBeforeExec);
    let refused = appender.append(b"pack", 1).await.unwrap_err();
    assert!(matches!(refused, AppendError::NotStored(QueueError::Full(_))), "{refused:?}");
    assert_eq!(server.command::<u64>(&["XLEN", "{spillway}:in"]).await, 0);
    let _: String = server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    appender.append(b"pack", 1).await.unwrap();
}

#[tokio::test]
async fn an_append_whose_reply_is_lost_is_unknown_and_was_stored() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::before(&server);
    let mut appender = Appender::new(proxy.redis());
    appender.reconnect().await.unwrap();
    proxy.harm_next_request(Fault::CutBeforeReply);
    let unknown = appender.append(b"pack", 1).await.unwrap_err();
    assert!(matches!(unknown, AppendError::Unknown(QueueError::Unreachable(_))), "{unknown:?}");
    assert_eq!(server.command::<u64>(&["XLEN", "{spillway}:in"]).await, 1);
    appender.append(b"next", 1).await.unwrap();
    assert_eq!(server.command::<u64>(&["XLEN", "{spillway}:in"]).await, 2);
}

#[tokio::test]
async fn an_append_that_never_reached_redis_is_as_unknown() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::before(&server);
    let mut appender = Appender::new(proxy.redis());
    appender.reconnect().await.unwrap();
    proxy.harm_next_request(Fault::CutBeforeRequest);
    let unknown = appender.append(b"pack", 1).await.unwrap_err();
    assert!(matches!(unknown, AppendError::Unknown(QueueError::Unreachable(_))), "{unknown:?}");
    assert_eq!(server.command::<u64>(&["XLEN", "{spillway}:in"]).await, 0);
    appender.append(b"next", 1).await.unwrap();
}

#[tokio::test]
async fn an_append_that_finds_no_redis_is_not_stored() {
    let mut server = Server::start(&[]).await;
    let mut nobody = Appender::new(redis_at(&server.path("nobody.sock")));
    let mut appender = Appender::new(server.redis());
    appender.append(b"pack", 1).await.unwrap();
    server.kill();
    let broke = appender.append(b"pack", 1).await.unwrap_err();
    assert!(matches!(broke, AppendError::Unknown(_)), "{broke:?}");
    for appender in [&mut nobody, &mut appender] {
        let dead = appender.append(b"pack", 1).await.unwrap_err();
        assert!(matches!(dead, AppendError::NotStored(QueueError::Unreachable(_))), "{dead:?}");
    }
}

#[tokio::test]
async fn a_redis_that_loads_its_data_is_told_apart_and_waited_for() {
    let mut server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let mut fill = redis::pipe();
    // While it loads an AOF, Redis answers clients once every 1,024 commands.
    for at in 0..8_192 {
        fill.cmd("SET").arg(at).arg("value").ignore();
    }
    let () = fill.query_async(&mut connection).await.unwrap();
    server.restart(&["--key-load-delay", "300"]);
    let mut appender = Appender::new(server.redis());
    let mut loading = None;
    until("redis says that it loads", async || {
        loading = appender.append(b"pack", 1).await.err();
        !matches!(loading, Some(AppendError::NotStored(QueueError::Unreachable(_))))
    })
    .await;
    assert!(matches!(loading, Some(AppendError::NotStored(QueueError::Loading))), "{loading:?}");
    let _: String = server.command(&["CONFIG", "SET", "key-load-delay", "0"]).await;
    until("it has loaded", async || appender.append(b"pack", 1).await.is_ok()).await;
}

#[tokio::test]
async fn a_redis_that_takes_no_writes_has_refused_them() {
    let server = Server::start(&[]).await;
    let mut appender = Appender::new(server.redis());
    let _: String = server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let refused = appender.append(b"pack", 1).await.unwrap_err();
    assert!(matches!(refused, AppendError::NotStored(QueueError::Refused(_))), "{refused:?}");
    let _: String = server.command(&["REPLICAOF", "NO", "ONE"]).await;
    appender.append(b"pack", 1).await.unwrap();
}

#[tokio::test]
async fn what_was_answered_survives_a_crash_of_redis() {
    let mut server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two"]).await;
    server.restart(&[]);
    server.ready().await;
    let reader = StreamReader::new(server.redis(), "http");
    let mut connection = server.connect().await;
    let found = reader.main_after(&mut connection, StreamId::ZERO, 1 << 20).await.unwrap();
    assert_eq!(found.iter().map(|entry| entry.id).collect::<Vec<_>>(), ids);
}

#[tokio::test]
async fn a_pack_that_is_stored_but_cannot_be_counted_is_stored() {
    let server = Server::start(&[]).await;
    let _: String = server.command(&["SET", "{spillway}:counts", "not a hash"]).await;
    let ids = server.append(&[b"pack"]).await;
    assert_eq!(server.ids("{spillway}:in").await, [ids[0].to_string()]);
}

#[tokio::test]
async fn a_stream_of_another_type_has_refused_the_pack() {
    let server = Server::start(&[]).await;
    let mut appender = Appender::new(server.redis());
    let _: String = server.command(&["SET", "{spillway}:in", "not a stream"]).await;
    let refused = appender.append(b"pack", 1).await.unwrap_err();
    assert!(matches!(refused, AppendError::NotStored(QueueError::Refused(_))), "{refused:?}");
}

#[tokio::test]
async fn an_append_without_its_transaction_is_unknown() {
    let server = Server::start(&[]).await;
    let mut appender = Appender::new(server.redis());
    let _: String = server.command(&["ACL", "SETUSER", "default", "-multi"]).await;
    let unknown = appender.append(b"pack", 1).await.unwrap_err();
    assert!(matches!(unknown, AppendError::Unknown(QueueError::Refused(_))), "{unknown:?}");
    assert_eq!(server.ids("{spillway}:in").await.len(), 1, "redis ran the command by itself");
}
