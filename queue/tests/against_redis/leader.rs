//! Leader election.

use spillway_queue::QueueError;
use spillway_queue::consumers::{ConsumerKind, StartAt, register};
use spillway_queue::leader::Candidacy;
use spillway_queue::settle::Settlement;
use spillway_queue::status::{self, ConsumerStatus};
use spillway_webhook::ConsumerFilter;

use crate::consumer::{TestConsumer, dead};
use crate::server::Server;

#[tokio::test]
async fn of_two_that_take_an_empty_seat_exactly_one_has_it() {
    let server = Server::start(&[]).await;
    for seat in ["http", "kafka", "a", "b", "c"] {
        let (a, b) = (Candidacy::new(server.redis(), seat), Candidacy::new(server.redis(), seat));
        assert_ne!(a.token(), b.token());
        let (mut left, mut right) = (server.connect().await, server.connect().await);
        assert_eq!(a.look(&mut left).await.unwrap(), "");
        let taken = tokio::join!(a.take(&mut left, ""), b.take(&mut right, ""));
        let leader = a.look(&mut left).await.unwrap();
        match taken {
            (Ok(_), Err(QueueError::Fenced)) => assert_eq!(leader, format!("{}:1", a.token())),
            (Err(QueueError::Fenced), Ok(_)) => assert_eq!(leader, format!("{}:1", b.token())),
            both => panic!("{both:?}"),
        }
    }
}

#[tokio::test]
async fn a_seat_is_taken_only_from_the_leader_that_was_seen() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let (a, b) = (Candidacy::new(server.redis(), "http"), Candidacy::new(server.redis(), "http"));
    a.take(&mut connection, "").await.unwrap();
    let seen = b.look(&mut connection).await.unwrap();
    a.bump(&mut connection, "ready").await.unwrap();
    let moved = b.look(&mut connection).await.unwrap();
    assert_eq!(moved, format!("{}:2", a.token()));
    assert!(matches!(b.take(&mut connection, &seen).await, Err(QueueError::Fenced)));
    b.take(&mut connection, &moved).await.unwrap();
    assert!(matches!(a.bump(&mut connection, "ready").await, Err(QueueError::Fenced)));
    assert!(matches!(a.release(&mut connection).await, Err(QueueError::Fenced)));
    assert_eq!(b.look(&mut connection).await.unwrap(), format!("{}:1", b.token()));
}

#[tokio::test]
async fn a_seat_that_is_given_up_is_free_at_once() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let (a, b) = (Candidacy::new(server.redis(), "http"), Candidacy::new(server.redis(), "http"));
    let taken = a.take(&mut connection, "").await.unwrap();
    // Redis and the test use the same clock.
    let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    assert!(since_epoch.abs_diff(taken.now_ms) < 60_000, "{taken:?}");
    a.release(&mut connection).await.unwrap();
    assert!(matches!(a.bump(&mut connection, "ready").await, Err(QueueError::Fenced)));
    assert_eq!(b.look(&mut connection).await.unwrap(), "");
    b.take(&mut connection, "").await.unwrap();
}

#[tokio::test]
async fn a_leader_learns_what_its_dead_letters_hold_and_whether_redis_is_full() {
    let server = Server::start(&["--maxmemory", "100mb"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let before = http.claim.bump(&mut http.connection, "ready").await.unwrap();
    assert_eq!((before.dead_bytes, before.is_full), (0, false));
    let given_up = vec![dead(1, "orders/create"), dead(2, "products/update")];
    let about: u64 = given_up.iter().map(spillway_queue::settle::Dead::size_bytes).sum();
    http.settle(&Settlement { dead: given_up, ..Settlement::default() }).await.unwrap();
    server.fill_to_the_brim().await;
    let after = http.claim.bump(&mut http.connection, "ready").await.unwrap();
    assert!(after.is_full);
    assert!(after.dead_bytes > 0 && after.dead_bytes.abs_diff(about) < 100, "{after:?}");
    let _: String = server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(!http.claim.bump(&mut http.connection, "ready").await.unwrap().is_full);
}

async fn only_consumer(server: &Server) -> ConsumerStatus {
    let mut connection = server.connect().await;
    let status = status::read(&server.redis(), &mut connection).await.expect("a status");
    let [consumer] = &status.consumers[..] else { panic!("{status:?}") };
    consumer.clone()
}

#[tokio::test]
async fn kind_and_filter_are_published_outlive_the_leader_and_keep_the_other_program_away() {
    let server = Server::start(&[]).await;
    let (redis, mut connection) = (server.redis(), server.connect().await);
    register(&redis, &mut connection, Some("audit"), StartAt::Oldest).await.unwrap();
    let before = only_consumer(&server).await;
    assert_eq!((before.notes.kind, &before.notes.filter, before.is_kafka()), (None, &None, false));
    let filter = ConsumerFilter::from_json(r#"{"topics":{"only":["orders/*"]}}"#).unwrap();
    let new = |kind, filter: &ConsumerFilter| {
        Candidacy::new(redis.clone(), "audit").publishing(kind, filter)
    };
    let first = new(ConsumerKind::KafkaProducer, &filter);
    first.take(&mut connection, "").await.unwrap();
    first.bump(&mut connection, "ready").await.unwrap();
    first.release(&mut connection).await.unwrap();
    let stopped = only_consumer(&server).await;
    assert_eq!((stopped.notes.filter.as_ref(), stopped.is_kafka()), (Some(&filter), true));
    assert!(stopped.leader.is_none());
    let other = new(ConsumerKind::Downstreamer, &filter).take(&mut connection, "").await;
    assert!(matches!(other, Err(QueueError::Refused(_))), "{other:?}");
    assert!(only_consumer(&server).await.leader.is_none());
    // A standby is refused in the same way while the consumer has a leader.
    let leader = new(ConsumerKind::KafkaProducer, &filter);
    leader.take(&mut connection, "").await.unwrap();
    let other = new(ConsumerKind::Downstreamer, &filter).check(&mut connection).await;
    assert!(matches!(other, Err(QueueError::Refused(_))), "{other:?}");
    new(ConsumerKind::KafkaProducer, &filter).check(&mut connection).await.unwrap();
    leader.release(&mut connection).await.unwrap();
    // Another filter replaces the first one.
    let all = ConsumerFilter::default();
    new(ConsumerKind::KafkaProducer, &all).take(&mut connection, "").await.unwrap();
    let led = only_consumer(&server).await;
    assert_eq!(led.notes.filter, Some(all));
    assert!(led.leader.is_some_and(|leader| leader.instance.is_some()));
}
