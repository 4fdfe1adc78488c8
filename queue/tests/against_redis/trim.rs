//! An entry is freed when the cursors of all consumers have reached it, and the counts agree.

use spillway_queue::consumers::forget;
use spillway_queue::lane::LaneChanges;
use spillway_queue::settle::Settlement;
use spillway_queue::status;

use crate::consumer::{TestConsumer, up_to};
use crate::server::Server;

/// Webhooks in the queue, and those that wait for each consumer in the order of their names.
async fn waiting(server: &Server) -> (u64, Vec<u64>) {
    let mut connection = server.connect().await;
    let status = status::read(&server.redis(), &mut connection).await.expect("redis answers");
    let mut consumers = status.consumers;
    consumers.sort_by(|a, b| a.name.cmp(&b.name));
    (status.queue.webhooks, consumers.iter().map(|consumer| consumer.waiting).collect())
}

#[tokio::test]
async fn an_entry_is_freed_when_the_slower_consumer_is_past_it() {
    let server = Server::start(&[]).await;
    let nine = server.append_as("5-9").await;
    let ten = server.append_as("5-10").await;
    let eleven = server.append_as("5-11").await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut kafka = TestConsumer::start(&server, "kafka").await;
    http.settle(&up_to(eleven, 3, 3)).await.unwrap();
    assert_eq!(server.ids("{spillway}:in").await, ["5-9", "5-10", "5-11"]);
    kafka.pass(nine).await;
    assert_eq!(server.ids("{spillway}:in").await, ["5-10", "5-11"]);
    kafka.pass(ten).await;
    assert_eq!(server.ids("{spillway}:in").await, ["5-11"]);
    kafka.pass(eleven).await;
    assert!(server.ids("{spillway}:in").await.is_empty());
}

#[tokio::test]
async fn an_entry_is_freed_when_the_consumer_that_held_it_is_forgotten() {
    let server = Server::start(&[]).await;
    let nine = server.append_as("5-9").await;
    let ten = server.append_as("5-10").await;
    server.append_as("5-11").await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut kafka = TestConsumer::start(&server, "kafka").await;
    kafka.pass(nine).await;
    http.settle(&up_to(ten, 2, 2)).await.unwrap();
    assert_eq!(waiting(&server).await, (2, vec![1, 2]));
    assert!(forget(&server.redis(), &mut kafka.connection, "kafka").await.unwrap());
    assert_eq!(server.ids("{spillway}:in").await, ["5-11"]);
    assert_eq!(waiting(&server).await, (1, vec![1]));
    // No consumer is left, so nothing is freed.
    assert!(forget(&server.redis(), &mut http.connection, "http").await.unwrap());
    assert_eq!(server.ids("{spillway}:in").await, ["5-11"]);
}

#[tokio::test]
async fn forgetting_a_consumer_keeps_what_the_slower_of_the_others_needs() {
    let server = Server::start(&[]).await;
    let nine = server.append_as("5-9").await;
    let ten = server.append_as("5-10").await;
    let mut slow = TestConsumer::start(&server, "a").await;
    let mut fast = TestConsumer::start(&server, "b").await;
    let mut idle = TestConsumer::start(&server, "c").await;
    slow.pass(nine).await;
    fast.settle(&up_to(ten, 2, 2)).await.unwrap();
    assert_eq!(server.ids("{spillway}:in").await, ["5-9", "5-10"]);
    assert!(forget(&server.redis(), &mut idle.connection, "c").await.unwrap());
    assert_eq!(server.ids("{spillway}:in").await, ["5-10"]);
    assert_eq!(waiting(&server).await, (1, vec![1, 0]));
}

#[tokio::test]
async fn the_counts_of_what_waits_add_up() {
    let server = Server::start(&[]).await;
    let mut appender = spillway_queue::append::Appender::new(server.redis());
    let mut ids = Vec::new();
    for count in [10, 20, 30] {
        ids.push(appender.append(b"pack", count).await.unwrap());
    }
    let mut http = TestConsumer::start(&server, "http").await;
    let mut kafka = TestConsumer::start(&server, "kafka").await;
    assert_eq!(waiting(&server).await, (60, vec![60, 60]));

    let bits = vec![(ids[1], vec![0b1111])];
    http.settle(&Settlement { bits, settled_after_cursor: 4, ..up_to(ids[0], 1, 10) })
        .await
        .unwrap();
    assert_eq!(waiting(&server).await, (60, vec![46, 60]));
    kafka.settle(&up_to(ids[1], 2, 30)).await.unwrap();
    assert_eq!(waiting(&server).await, (50, vec![46, 30]));

    // A webhook that moves into a lane is settled in the main stream and waits beside it.
    let lanes = LaneChanges { waiting: 1, oldest_ms: 1, ..LaneChanges::default() };
    http.settle(&Settlement { lanes, settled_after_cursor: 5, ..Settlement::default() })
        .await
        .unwrap();
    assert_eq!(waiting(&server).await, (50, vec![46, 30]));
    http.settle(&Settlement { settled_after_cursor: 5, ..Settlement::default() }).await.unwrap();
    assert_eq!(waiting(&server).await, (50, vec![45, 30]));

    http.settle(&up_to(ids[2], 2, 50)).await.unwrap();
    kafka.settle(&up_to(ids[2], 1, 30)).await.unwrap();
    assert_eq!(waiting(&server).await, (0, vec![0, 0]));
    // A consumer that registers now has nothing to catch up with.
    TestConsumer::start(&server, "late").await;
    assert_eq!(waiting(&server).await, (0, vec![0, 0, 0]));
    appender.append(b"pack", 5).await.unwrap();
    assert_eq!(waiting(&server).await, (5, vec![5, 5, 5]));
}

#[tokio::test]
async fn redis_knows_how_many_entries_each_consumer_has_read() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two", b"three"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    http.pass(ids[0]).await;
    http.pass(ids[1]).await;
    let _late = TestConsumer::start(&server, "late").await;
    let groups: Vec<std::collections::HashMap<String, redis::Value>> =
        server.command(&["XINFO", "GROUPS", "{spillway}:in"]).await;
    for group in groups {
        assert_eq!(group["entries-read"], redis::Value::Int(2), "{group:?}");
        assert_eq!(group["lag"], redis::Value::Int(1), "{group:?}");
    }
}
