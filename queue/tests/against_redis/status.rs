//! Status for operators.

use spillway_queue::consumers::{StartAt, register};
use spillway_queue::settle::Settlement;
use spillway_queue::status::{CellStatus, read};

use crate::consumer::{TestConsumer, dead, up_to};
use crate::server::Server;

async fn status(server: &Server) -> CellStatus {
    read(&server.redis(), &mut server.connect().await).await.expect("redis answers")
}

#[tokio::test]
async fn an_empty_redis_has_an_empty_status() {
    let server = Server::start(&["--maxmemory", "100mb"]).await;
    let status = status(&server).await;
    assert_eq!((status.queue.packs, status.queue.webhooks, status.queue.accepted), (0, 0, 0));
    assert_eq!(status.queue.limit_bytes, 100 << 20);
    assert!(status.queue.bytes > 0);
    assert!(status.consumers.is_empty());
}

#[tokio::test]
async fn a_consumer_that_never_ran_is_seen_with_all_that_waits_for_it() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    server.append(&[b"one", b"two"]).await;
    register(&server.redis(), &mut connection, Some("http"), StartAt::Oldest).await.unwrap();
    let status = status(&server).await;
    assert_eq!((status.queue.packs, status.queue.webhooks, status.queue.accepted), (2, 2, 2));
    let [http] = &status.consumers[..] else { panic!("{status:?}") };
    assert_eq!((&http.name[..], &http.cursor[..], http.waiting), ("http", "0-0", 2));
    assert_eq!((&http.leader, http.last_seen.ago_seconds, http.last_seen.at_ms), (&None, None, 0));
    assert!(http.oldest_age_seconds.is_some_and(|age| age < 60.0), "{http:?}");
    assert_eq!((http.parked, http.dead.letters, http.dead.bytes), (0, 0, 0));
}

#[tokio::test]
async fn replays_and_dead_letters_are_seen_beside_the_main_stream() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two", b"three"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let hour_ago = ids[0].ms - 3_600_000;
    http.replay([hour_ago, hour_ago + 1]).await;
    let dead = vec![dead(2, "orders/create")];
    http.settle(&Settlement { dead, ..up_to(ids[2], 3, 3) }).await.unwrap();
    let status = status(&server).await;
    assert_eq!((status.queue.packs, status.queue.webhooks, status.queue.accepted), (0, 0, 3));
    let [http_status] = &status.consumers[..] else { panic!("{status:?}") };
    assert_eq!((http_status.waiting, http_status.parked), (2, 2));
    assert_eq!(http_status.dead.letters, 1);
    assert!(http_status.dead.bytes > 0);
    assert_eq!(http_status.cursor, ids[2].to_string());
    let leader = http_status.leader.as_ref().expect("it leads");
    assert_eq!(leader.token, http.claim.token());
    let instance = leader.instance.as_ref().expect("it says where it runs");
    assert_eq!((instance.pid, &instance.state[..]), (std::process::id(), "starting"));
    assert_eq!(leader.to_string(), format!("{}:{}", instance.host, instance.pid));
    http.claim.bump(&mut http.connection, "ready; 2 lanes wait").await.unwrap();
    let bumped = self::status(&server).await.consumers[0].leader.clone().expect("it leads");
    assert_eq!(bumped.instance.expect("it runs").state, "ready; 2 lanes wait");
    let age = http_status.oldest_age_seconds.unwrap();
    assert!((3_600.0..3_660.0).contains(&age), "{age}");
    assert!(http_status.last_seen.ago_seconds.is_some_and(|seen| seen < 60.0), "{http_status:?}");
}

#[tokio::test]
async fn nothing_that_waits_has_no_age() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    http.pass(ids[0]).await;
    let status = status(&server).await;
    assert_eq!(status.consumers[0].oldest_age_seconds, None);
    assert_eq!(status.consumers[0].waiting, 0);
}
