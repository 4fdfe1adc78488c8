//! A Redis that is completely full: only draining can empty it, so draining must work.

use spillway_queue::append::{AppendError, Appender};
use spillway_queue::consumers::{StartAt, forget, register};
use spillway_queue::dead::{Take, list, take};
use spillway_queue::settle::{CorruptEntries, Settlement};
use spillway_queue::{QueueError, status};
use spillway_webhook::StreamId;

use crate::consumer::{TestConsumer, dead, up_to};
use crate::server::Server;

#[tokio::test]
async fn a_consumer_registers_takes_settles_and_is_forgotten_on_a_full_redis() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two", b"three"]).await;
    server.fill_to_the_brim().await;
    let mut http = TestConsumer::start(&server, "http").await;
    let confirmed = http.claim.bump(&mut http.connection, "ready").await.unwrap();
    assert!(confirmed.is_full);

    let settlement = Settlement {
        corrupt: CorruptEntries { packs: vec![ids[0]], replays: Vec::new() },
        bits: vec![(ids[2], vec![1])],
        dead: vec![dead(3, "orders/create"), dead(4, "orders/create")],
        settled_after_cursor: 1,
        ..up_to(ids[1], 2, 2)
    };
    http.settle(&settlement).await.unwrap();
    assert_eq!(server.ids("{spillway}:in").await, [ids[2].to_string()]);

    let letters =
        list(&http.redis, &mut http.connection, "http", StreamId::ZERO, 10).await.unwrap();
    let replayed = [letters[0].id, letters[1].id];
    let taken = take(&http.redis, &mut http.connection, "http", Take::Replay, &replayed).await;
    assert_eq!(taken.unwrap(), 2);
    let replays =
        http.reader.replays_after(&mut http.connection, StreamId::ZERO, 1 << 20).await.unwrap();
    let first = vec![replays[0].id];
    http.settle(&Settlement { replays: first, ..Settlement::default() }).await.unwrap();
    let status = status::read(&http.redis, &mut http.connection).await.unwrap();
    assert_eq!(status.consumers[0].parked, 1);
    assert_eq!(status.queue.limit_bytes, 1);

    register(&http.redis, &mut http.connection, Some("kafka"), StartAt::Now).await.unwrap();
    http.claim.release(&mut http.connection).await.unwrap();
    assert!(forget(&http.redis, &mut http.connection, "http").await.unwrap());
    assert!(server.ids("{spillway}:in").await.is_empty(), "the consumer left began behind them");
}

#[tokio::test]
async fn a_cell_gets_its_id_on_a_full_redis() {
    let server = Server::start(&[]).await;
    server.fill_to_the_brim().await;
    let mut connection = server.connect().await;
    let first = register(&server.redis(), &mut connection, None, StartAt::Oldest).await.unwrap();
    let again = register(&server.redis(), &mut connection, None, StartAt::Oldest).await.unwrap();
    assert_eq!(first.cell, again.cell);
}

#[tokio::test]
async fn draining_a_full_redis_makes_room_for_what_comes() {
    let server = Server::start(&["--maxmemory", "6mb"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut appender = Appender::new(server.redis());
    let pack = vec![b'x'; 200_000];
    let mut ids = Vec::new();
    let refused = loop {
        match appender.append(&pack, 1).await {
            Ok(id) => ids.push(id),
            Err(refused) => break refused,
        }
        assert!(ids.len() < 100, "it never fills up");
    };
    assert!(matches!(refused, AppendError::NotStored(QueueError::Full(_))), "{refused:?}");
    let read = http.reader.main_after(&mut http.connection, StreamId::ZERO, 400_000).await;
    assert_eq!(read.unwrap().len(), 2);
    let last = *ids.last().unwrap();
    http.settle(&up_to(last, ids.len() as u64, ids.len() as u64)).await.unwrap();
    assert!(!http.claim.bump(&mut http.connection, "ready").await.unwrap().is_full);
    appender.append(&pack, 1).await.unwrap();
}
