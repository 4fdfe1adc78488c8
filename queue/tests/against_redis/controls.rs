//! An operator's controls: stored, read back, carried out by settlements, also on a full Redis.

use spillway_queue::controls::{self, CarriedOut, Dropping, Filter};
use spillway_queue::history::{self, OutcomeRecord, RecordedOutcome};
use spillway_queue::settle::{ControlsProgress, Remembered, Settlement};
use spillway_queue::{QueueError, status};
use spillway_webhook::StreamId;

use crate::consumer::{TestConsumer, up_to};
use crate::server::Server;

fn shop() -> Filter {
    Filter { shop: Some("a.example".to_owned()), ..Filter::default() }
}

fn past(entry: StreamId, outcome: RecordedOutcome) -> Vec<u8> {
    let mut bytes = Vec::new();
    OutcomeRecord { key: 7, entry, index: 1, outcome, attempts: 2 }.write(&mut bytes);
    bytes
}

#[tokio::test]
async fn pauses_are_counted_by_version_and_seen_by_the_leader() {
    let server = Server::start(&[]).await;
    server.append(&[b"one"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    server.fill_to_the_brim().await;
    let (redis, all) = (http.redis.clone(), Filter::default());
    let connection = &mut http.connection;
    let ordered = controls::pause(&redis, connection, "http", &shop(), 5).await.unwrap();
    assert_eq!(ordered, (true, 1));
    assert_eq!(controls::pause(&redis, connection, "http", &shop(), 6).await.unwrap(), (false, 2));
    controls::pause(&redis, connection, "http", &all, 4).await.unwrap();
    let read = controls::read(&redis, connection, "http").await.unwrap();
    let paused: Vec<_> = read.pauses.iter().map(|pause| pause.since_ms).collect();
    assert_eq!((read.version, paused), (3, vec![4, 5]));
    assert_eq!(http.claim.bump(&mut http.connection, "ready").await.unwrap().controls, 3);
    let connection = &mut http.connection;
    let resumed = controls::resume(&redis, connection, "http", &[shop(), shop()]).await.unwrap();
    assert_eq!(resumed, (1, 4));
    let shown = status::read(&redis, connection).await.unwrap();
    assert!(shown.consumers[0].pauses.len() == 1 && shown.consumers[0].pauses[0].filter.is_empty());
    let unknown = controls::pause(&redis, connection, "nobody", &all, 1).await;
    assert!(matches!(unknown, Err(QueueError::Unregistered)));
}

#[tokio::test]
async fn a_drop_is_named_bit_by_bit_and_cleared_away_when_it_is_settled() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let replays = http.replay([1]).await;
    let (redis, mut named) = (http.redis.clone(), Dropping::default());
    named.name(ids[0], 0);
    named.replays.insert(replays[0]);
    let record = past(ids[0], RecordedOutcome::Dropped);
    controls::drop(&redis, &mut http.connection, "http", &named, &record, |_| ()).await.unwrap();
    let mut more = Dropping::default();
    more.name(ids[0], 9);
    let connection = &mut http.connection;
    let version = controls::drop(&redis, connection, "http", &more, &[], |_| ()).await.unwrap();
    assert_eq!(version, 2);
    let dropping = controls::read(&redis, &mut http.connection, "http").await.unwrap().dropping;
    assert!(dropping.is_named(ids[0], 0) && dropping.is_named(ids[0], 9));
    assert!(controls::names_exist(&redis, &mut http.connection, "http").await.unwrap());
    assert!(dropping.replays.contains(&replays[0]));

    // If the cursor passes the pack before the order is read, the names are kept.
    http.settle(&Settlement { whole: vec![ids[0]], ..Settlement::default() }).await.unwrap();
    let kept = controls::read(&redis, &mut http.connection, "http").await.unwrap().dropping;
    assert!(kept.is_named(ids[0], 0));

    let done = Settlement {
        whole: vec![ids[0]],
        replays,
        controls: ControlsProgress { known: version, done: Some(version), dropped: 3 },
        remembered: Remembered {
            history: past(ids[1], RecordedOutcome::Delivered),
            ..Remembered::default()
        },
        ..up_to(ids[0], 1, 1)
    };
    http.settle(&done).await.unwrap();
    // A settlement that is sent again after a lost reply counts nothing twice.
    http.settle_again(&done).await.unwrap();
    let connection = &mut http.connection;
    let carried_out = controls::carried_out(&redis, connection, "http").await.unwrap();
    assert_eq!(carried_out, CarriedOut { version: 2, dropped: 3, ordered: 2 });
    assert!(controls::read(&redis, connection, "http").await.unwrap().dropping.is_empty());
    assert!(!controls::names_exist(&redis, connection, "http").await.unwrap());
    let chunks = history::after(&redis, connection, "http", StreamId::ZERO).await.unwrap();
    let told: Vec<_> = chunks.iter().flat_map(|chunk| &chunk.records).collect();
    assert_eq!(told.len(), 2);
    assert_eq!(
        (told[0].outcome, told[1].outcome),
        (RecordedOutcome::Dropped, RecordedOutcome::Delivered)
    );
    let behind = history::after(&redis, connection, "http", chunks[1].id).await.unwrap();
    assert!(behind.is_empty());
}

#[tokio::test]
async fn a_drop_of_many_is_ordered_in_parts_and_the_oldest_first() {
    const ENTRIES: u64 = 25_000;
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut named = Dropping::default();
    for ms in 1..=ENTRIES {
        let entry = StreamId { ms, seq: 0 };
        named.name(entry, 0);
        named.name(entry, 3);
    }
    let (mut so_far, redis) = (Vec::new(), http.redis.clone());
    let socket = format!("unix://{}", server.path("redis.sock").display());
    let mut admin = redis::Client::open(socket).unwrap().get_connection().unwrap();
    let connection = &mut http.connection;
    // Redis takes the first part and refuses the second.
    let ordered = controls::drop(&redis, connection, "http", &named, &[], |webhooks| {
        so_far.push(webhooks);
        let mut refuse = redis::cmd("CONFIG");
        refuse.arg("SET").arg("min-replicas-to-write").arg(1).exec(&mut admin).unwrap();
    });
    assert!(ordered.await.is_err());
    assert_eq!(so_far, [20_000]);
    let dropping = controls::read(&redis, &mut http.connection, "http").await.unwrap().dropping;
    assert_eq!(dropping.main.len(), 10_000);
    assert!(dropping.main.keys().all(|entry| entry.ms <= 10_000));
}

#[tokio::test]
async fn the_front_of_each_span_is_read_without_the_rest() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two", b"three", b"four", b"five", b"six"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let (reader, connection) = (&http.reader, &mut http.connection);
    let gone = StreamId { ms: 1, seq: 1 };
    let spans = [(ids[3], ids[5], 2), (gone, gone, 1), (ids[0], ids[1], 9)];
    let found = reader.main_fronts(connection, &spans).await.unwrap();
    let packs: Vec<Vec<_>> = found
        .iter()
        .map(|front| front.iter().map(|one| (one.id, &one.pack[..])).collect())
        .collect();
    assert_eq!(packs[0], [(ids[3], &b"four"[..]), (ids[4], b"five")]);
    assert!(packs[1].is_empty());
    assert_eq!(packs[2], [(ids[0], &b"one"[..]), (ids[1], b"two")]);
}

#[tokio::test]
async fn a_drop_of_many_is_read_in_parts() {
    const ENTRIES: u64 = 100_000;
    // A read of more would block Redis for more than some milliseconds.
    const PART_MAX: u64 = 10_000;
    let server = Server::start(&[]).await;
    let http = TestConsumer::start(&server, "http").await;
    let redis = http.redis.clone();
    let mut connection = server.connect().await;
    let key = redis.keys.of("http").dropping();
    for first in (1..=ENTRIES).step_by(10_000) {
        let mut command = redis::cmd("HSET");
        command.arg(&key);
        for ms in first..first + 10_000 {
            command.arg(format!("{ms}-0")).arg(&[1_u8][..]);
        }
        command.exec_async(&mut connection).await.unwrap();
    }
    let read = controls::read(&redis, &mut connection, "http").await.unwrap();
    assert_eq!(read.dropping.main.len() as u64, ENTRIES);
    assert!((1..=ENTRIES).all(|ms| read.dropping.is_named(StreamId { ms, seq: 0 }, 0)));
    let mut info = redis::cmd("INFO");
    let stats: String = info.arg("commandstats").query_async(&mut connection).await.unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hscan:calls="));
    let calls: u64 = calls.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0);
    assert!(calls >= ENTRIES / PART_MAX, "{stats}");
}
