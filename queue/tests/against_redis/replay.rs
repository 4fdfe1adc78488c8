//! Replays of archived webhooks: steps that are applied once, owners that change, and records that end.

use spillway_queue::consumers::forget;
use spillway_queue::replay::{
    FedWebhook, RECORDS_MAX, ReplayFeed, ReplayRefusal, ReplayState, ReplayStep, cancel, list,
};
use spillway_queue::settle::Settlement;
use spillway_queue::{QueueError, redactions};
use spillway_webhook::{Position, StreamId};

use crate::consumer::{TestConsumer, webhook};
use crate::server::Server;

const REPLAYS: &str = "{spillway}:http:replays";

fn at(ms: u64) -> Position {
    Position { ms, seq: 0, index: 0 }
}

fn step(ms: &[u64], left: Vec<(String, Option<Position>)>) -> ReplayStep {
    let one = |ms: &u64| FedWebhook {
        pack: format!("pack of {ms}").into_bytes(),
        webhook: webhook(*ms),
        shop: format!("{ms}.example"),
    };
    let after = at(ms.iter().copied().max().unwrap_or(0));
    ReplayStep { after, webhooks: ms.iter().map(one).collect(), left, skipped: 2 }
}

async fn started(http: &mut TestConsumer) -> ReplayFeed {
    let mut feed = ReplayFeed::new(&http.redis, http.name);
    let started = feed.start(&mut http.connection, "{}", at(0)).await;
    started.expect("redis answers").expect("it is new");
    feed.take(&mut http.connection).await.expect("redis answers").expect("it runs");
    feed.note_redactions(&mut http.connection).await.expect("redis answers");
    feed
}

#[tokio::test]
async fn a_step_feeds_and_advances_once_and_is_taken_over_with_all_it_wrote() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut feed = started(&mut http).await;
    let left = vec![("a.example".to_owned(), Some(at(3))), ("b.example".to_owned(), Some(at(4)))];
    let first = step(&[1, 2], left);
    let ids = feed.apply(&mut http.connection, &first).await.expect("redis answers");
    let ids = ids.expect("it is ours");
    assert_eq!(ids.len(), 2);

    let second = step(&[5], vec![("b.example".to_owned(), None)]);
    let more = feed.apply(&mut http.connection, &second).await.expect("redis answers");
    let more = more.expect("it is ours");
    assert_eq!(server.ids(REPLAYS).await.len(), 3);
    let replays = http.reader.replays_after(&mut http.connection, StreamId::ZERO, 1 << 20).await;
    let replays = replays.expect("redis answers");
    assert_eq!(replays.iter().map(|one| one.webhook.entry.ms).collect::<Vec<_>>(), [1, 2, 5]);
    assert_eq!(&replays[2].pack[..], b"pack of 5");

    let settled = Settlement { replays: vec![ids[0]], ..Settlement::default() };
    http.settle(&settled).await.expect("it is settled");
    let all = [ids[0], ids[1], more[0]];
    let unsettled = feed.unsettled(&mut http.connection, &all).await.expect("redis answers");
    assert_eq!(unsettled, all[1..]);

    let mut other = ReplayFeed::of(&http.redis, "http", feed.id().to_owned());
    let taken = other.take(&mut http.connection).await.expect("redis answers");
    let (record, left) = taken.expect("it runs");
    assert_eq!((record.after, record.fed, record.skipped, record.shops_left), (at(5), 3, 4, 1));
    assert_eq!(left.into_iter().collect::<Vec<_>>(), [("a.example".to_owned(), at(3))]);
    let open = other.open(&mut http.connection).await.expect("redis answers");
    let expected = [(ids[1], "2.example".to_owned()), (more[0], "5.example".to_owned())];
    assert_eq!(open, expected);
    let refused = feed.apply(&mut http.connection, &step(&[6], Vec::new())).await;
    assert_eq!(refused.expect("redis answers"), Err(ReplayRefusal::Taken));
    let refused = feed.finish(&mut http.connection).await.expect("redis answers");
    assert_eq!(refused, Err(ReplayRefusal::Taken));
    let refused = feed.read_again(&mut http.connection).await.expect("redis answers");
    assert_eq!(refused.err(), Some(ReplayRefusal::Taken));
    let again = other.read_again(&mut http.connection).await.expect("redis answers");
    assert_eq!(again.expect("it is the owner").0.step, 2);
    other.note_redactions(&mut http.connection).await.expect("redis answers");
    let applied = other.apply(&mut http.connection, &step(&[6], Vec::new())).await;
    assert_eq!(applied.expect("redis answers").expect("it is the owner").len(), 1);
    assert_eq!(server.ids(REPLAYS).await.len(), 3);
}

#[tokio::test]
async fn a_step_whose_reply_was_lost_is_not_applied_twice() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut feed = started(&mut http).await;
    let key = format!("{{spillway}}:http:replay:{}", feed.id());
    let first = step(&[1, 2], Vec::new());
    let ids = feed.apply(&mut http.connection, &first).await.expect("redis answers").expect("ours");
    let owner: String = server.command(&["HGET", &key, "owner"]).await;
    // The same process, as it was before the step.
    let mut again = started(&mut http).await;
    let copy = format!("{{spillway}}:http:replay:{}", again.id());
    for field in ["step", "last"] {
        let value: String = server.command(&["HGET", &key, field]).await;
        let _: u64 = server.command(&["HSET", &copy, field, &value]).await;
    }
    assert_ne!(server.command::<String>(&["HGET", &copy, "owner"]).await, owner);
    let repeated = again.apply(&mut http.connection, &first).await.expect("redis answers");
    assert_eq!(repeated, Ok(ids));
    assert_eq!(server.ids(REPLAYS).await.len(), 2);
    // Redis came back without steps that it had confirmed.
    let _: u64 = server.command(&["HSET", &copy, "step", "0"]).await;
    let refused = again.apply(&mut http.connection, &step(&[3], Vec::new())).await;
    assert_eq!(refused.expect("redis answers"), Err(ReplayRefusal::Older));
    let refused = again.finish(&mut http.connection).await.expect("redis answers");
    assert_eq!(refused, Err(ReplayRefusal::Older), "not everything was fed");
    let (record, _) =
        again.read_again(&mut http.connection).await.expect("redis answers").expect("ours");
    assert_eq!(record.step, 0);
    again
        .finish(&mut http.connection)
        .await
        .expect("redis answers")
        .expect("it goes on from there");
}

#[tokio::test]
async fn a_step_is_refused_once_somebody_else_is_to_be_forgotten_or_was() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut feed = started(&mut http).await;
    let first = step(&[1], Vec::new());
    redactions::note(&http.redis, &mut http.connection, "http", webhook(7), b"pack")
        .await
        .expect("it is noted");
    let refused = feed.apply(&mut http.connection, &first).await.expect("redis answers");
    assert_eq!(refused, Err(ReplayRefusal::Redacted));
    assert!(server.ids(REPLAYS).await.is_empty());
    feed.note_redactions(&mut http.connection).await.expect("redis answers");
    feed.apply(&mut http.connection, &first).await.expect("redis answers").expect("it is known");
    redactions::record(&http.redis, &mut http.connection, "{}", Some(&[webhook(7).to_string()]))
        .await
        .expect("it is recorded");
    let mut again = started(&mut http).await;
    let refused = feed.apply(&mut http.connection, &step(&[2], Vec::new())).await;
    assert_eq!(refused.expect("redis answers"), Err(ReplayRefusal::Redacted));
    again.apply(&mut http.connection, &first).await.expect("redis answers").expect("it is known");
}

#[tokio::test]
async fn records_that_ended_make_room_and_only_replays_that_run_are_too_many() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut ended = Vec::new();
    for _ in 0..RECORDS_MAX {
        let mut feed = started(&mut http).await;
        feed.finish(&mut http.connection).await.expect("redis answers").expect("ours");
        ended.push(feed.id().to_owned());
    }
    for _ in 0..RECORDS_MAX {
        started(&mut http).await;
    }
    let records = list(&http.redis, &mut http.connection, "http").await.expect("redis answers");
    assert_eq!(records.len(), RECORDS_MAX);
    assert!(records.iter().all(|record| record.state == ReplayState::Running));
    let key = format!("{{spillway}}:http:replay:{}", ended[0]);
    assert_eq!(server.command::<u64>(&["EXISTS", &key]).await, 0);
    let mut feed = ReplayFeed::new(&http.redis, http.name);
    let refused = feed.start(&mut http.connection, "{}", at(0)).await.expect("redis answers");
    assert_eq!(refused, Err(ReplayRefusal::Many));
}

#[tokio::test]
async fn a_consumer_that_is_gone_gets_no_replay() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut feed = started(&mut http).await;
    let stream = "{spillway}:in";
    let _: u64 = server.command(&["XGROUP", "DESTROY", stream, "http"]).await;
    let refused = feed.apply(&mut http.connection, &step(&[1], Vec::new())).await;
    assert_eq!(refused.expect("redis answers"), Err(ReplayRefusal::Unregistered));
    let mut feed = ReplayFeed::new(&http.redis, http.name);
    let refused = feed.start(&mut http.connection, "{}", at(0)).await.expect("redis answers");
    assert_eq!(refused, Err(ReplayRefusal::Unregistered));
}

#[tokio::test]
async fn a_full_redis_refuses_a_step_and_takes_it_later() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut feed = started(&mut http).await;
    server.fill_to_the_brim().await;
    let refused = feed.apply(&mut http.connection, &step(&[1], Vec::new())).await;
    assert!(matches!(refused, Err(QueueError::Full(_))), "{refused:?}");
    let _: String = server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let applied = feed.apply(&mut http.connection, &step(&[1], Vec::new())).await;
    assert_eq!(applied.expect("redis answers").expect("ours").len(), 1);
}

#[tokio::test]
async fn records_are_listed_end_expire_and_go_with_their_consumer() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut done = started(&mut http).await;
    let mut cancelled = started(&mut http).await;
    let running = started(&mut http).await;
    done.finish(&mut http.connection).await.expect("redis answers").expect("ours");
    done.finish(&mut http.connection).await.expect("redis answers").expect("again");
    let id = cancelled.id().to_owned();
    let before = cancel(&http.redis, &mut http.connection, "http", &id).await;
    assert_eq!(before.expect("redis answers"), Some(ReplayState::Running));
    let refused = cancelled.apply(&mut http.connection, &step(&[1], Vec::new())).await;
    assert_eq!(refused.expect("redis answers"), Err(ReplayRefusal::Cancelled));
    let unknown = cancel(&http.redis, &mut http.connection, "http", "00000000").await;
    assert_eq!(unknown.expect("redis answers"), None);

    let records = list(&http.redis, &mut http.connection, "http").await.expect("redis answers");
    for (id, state) in [
        (done.id(), ReplayState::Done),
        (id.as_str(), ReplayState::Cancelled),
        (running.id(), ReplayState::Running),
    ] {
        let record = records.iter().find(|record| record.id == id).expect("it is listed");
        assert_eq!(record.state, state);
        let key = format!("{{spillway}}:http:replay:{id}");
        let expires: i64 = server.command(&["TTL", &key]).await;
        assert_eq!(expires > 0, state != ReplayState::Running, "{state:?}");
    }
    forget(&http.redis, &mut http.connection, "http").await.expect("redis answers");
    let left: Vec<String> = server.command(&["KEYS", "*replay*"]).await;
    assert_eq!(left, [""; 0]);
}
