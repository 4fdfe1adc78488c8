//! Registering and removing consumers.

use spillway_queue::consumers::{Registered, StartAt, forget, register};
use spillway_queue::lane::{ChunkId, LaneChanges};
use spillway_queue::read::StreamReader;
use spillway_queue::settle::Settlement;
use spillway_queue::{QueueError, Redis};
use spillway_webhook::{Changes, Position, StoredRetry, StreamId};

use crate::consumer::{TestConsumer, dead};
use crate::server::Server;

async fn registered(server: &Server, consumer: Option<&str>, start_at: StartAt) -> Registered {
    let mut connection = server.connect().await;
    register(&server.redis(), &mut connection, consumer, start_at).await.expect("it is registered")
}

async fn cursor(server: &Server, consumer: &str) -> StreamId {
    let mut connection = server.connect().await;
    let progress = StreamReader::new(server.redis(), consumer).progress(&mut connection).await;
    progress.expect("it is registered").cursor
}

#[tokio::test]
async fn a_cell_has_one_id_for_good() {
    let mut server = Server::start(&[]).await;
    let first = registered(&server, None, StartAt::Oldest).await;
    assert!(!first.is_new);
    let second = registered(&server, Some("http"), StartAt::Oldest).await;
    assert_eq!(second, Registered { cell: first.cell, is_new: true });
    assert!(!registered(&server, Some("http"), StartAt::Now).await.is_new);
    server.restart(&[]);
    server.ready().await;
    assert_eq!(registered(&server, None, StartAt::Oldest).await.cell, first.cell);
}

#[tokio::test]
async fn a_new_consumer_starts_at_the_oldest_entry_or_now() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two"]).await;
    registered(&server, Some("http"), StartAt::Oldest).await;
    registered(&server, Some("kafka"), StartAt::Now).await;
    assert_eq!(cursor(&server, "http").await, StreamId::ZERO);
    assert_eq!(cursor(&server, "kafka").await, ids[1]);
    // Registering again does not move its cursor.
    registered(&server, Some("http"), StartAt::Now).await;
    assert_eq!(cursor(&server, "http").await, StreamId::ZERO);
}

#[tokio::test]
async fn a_consumer_that_registers_before_anything_came_gets_it_all() {
    let server = Server::start(&[]).await;
    registered(&server, Some("http"), StartAt::Now).await;
    server.append(&[b"one"]).await;
    let reader = StreamReader::new(server.redis(), "http");
    let mut connection = server.connect().await;
    let from = reader.progress(&mut connection).await.unwrap().cursor;
    assert_eq!(reader.main_after(&mut connection, from, 1).await.unwrap().len(), 1);
}

#[tokio::test]
async fn registrations_at_once_agree_on_the_cell_and_only_one_is_new() {
    let server = Server::start(&[]).await;
    let one = || registered(&server, Some("http"), StartAt::Oldest);
    let (a, b, c, d) = tokio::join!(one(), one(), one(), one());
    let all = [a, b, c, d];
    assert!(all.iter().all(|found| found.cell == a.cell));
    assert_eq!(all.iter().filter(|found| found.is_new).count(), 1);
}

#[tokio::test]
async fn a_queue_under_the_default_prefix_of_before_is_not_left_behind() {
    let server = Server::start(&[]).await;
    let (redis, mut connection) = (server.redis(), server.connect().await);
    let _: String = server.command(&["SET", "spillway:cell", "0000002a"]).await;
    let refused = register(&redis, &mut connection, Some("http"), StartAt::Oldest).await;
    assert!(matches!(refused, Err(QueueError::OlderPrefix)), "{refused:?}");
    assert_eq!(server.command::<Vec<String>>(&["KEYS", "*"]).await, ["spillway:cell"]);

    // An older prefix that is set is accepted, and so are a queue under both prefixes and the older
    // queue of another user.
    let url = format!("unix://{}", server.path("redis.sock").display());
    let older = Redis::new(&url, "spillway:").unwrap();
    let found = register(&older, &mut connection, Some("http"), StartAt::Oldest).await.unwrap();
    assert_eq!(found.cell, 0x2a);
    let _: String = server.command(&["RENAME", "spillway:cell", "{spillway}:cell"]).await;
    let found = register(&redis, &mut connection, Some("http"), StartAt::Oldest).await.unwrap();
    assert_eq!(found.cell, 0x2a);
    let _: String = server.command(&["SET", "spillway:cell", "0000002b"]).await;
    let found = register(&redis, &mut connection, Some("http"), StartAt::Oldest).await.unwrap();
    assert_eq!(found.cell, 0x2a);
}

#[tokio::test]
async fn a_forgotten_consumer_leaves_nothing_behind_and_may_come_again() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    http.replay([1]).await;
    let settlement = Settlement {
        bits: vec![(ids[0], vec![1])],
        dead: vec![dead(2, "orders/create")],
        lanes: lanes_of_one(),
        ..Settlement::default()
    };
    http.settle(&settlement).await.unwrap();
    assert!(forget(&server.redis(), &mut http.connection, "http").await.unwrap());
    assert!(!forget(&server.redis(), &mut http.connection, "http").await.unwrap());

    let mut keys: Vec<String> = server.command(&["KEYS", "*"]).await;
    keys.sort();
    assert_eq!(keys, ["{spillway}:cell", "{spillway}:counts", "{spillway}:in"]);
    let counts: Vec<String> = server.command(&["HKEYS", "{spillway}:counts"]).await;
    assert!(counts.iter().all(|count| !count.ends_with(":http")), "{counts:?}");
    let progress = http.reader.progress(&mut http.connection).await;
    assert!(matches!(progress, Err(QueueError::Unregistered)), "{progress:?}");
    let late = http.settle(&settlement).await;
    assert!(matches!(late, Err(QueueError::Fenced)), "{late:?}");
    assert!(registered(&server, Some("http"), StartAt::Oldest).await.is_new);
}

/// One example of each record of a lane.
fn lanes_of_one() -> LaneChanges {
    let chunk = ChunkId { lane: 1, number: 1 };
    LaneChanges {
        chunks: Changes::write([(chunk, b"chunk".to_vec())]),
        chunk_bits: vec![(chunk, vec![1])],
        rows: Changes::write([crate::lanes::row(1, 1)]),
        barriers: Changes::write([(Position::default(), 1)]),
        leads: Changes::write([(1, Position::default())]),
        retries: Changes::write([(Position::default(), StoredRetry::default())]),
        main_retries: Changes::write([(Position::default(), StoredRetry::default())]),
        waiting: 1,
        oldest_ms: 1,
        ..LaneChanges::default()
    }
}
