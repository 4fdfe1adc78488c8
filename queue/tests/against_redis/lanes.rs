//! Lanes: stored and deleted by settlements, and read back.

use std::time::Duration;

use spillway_queue::QueueError;
use spillway_queue::lane::{ChunkId, KeyScheme, LaneChanges, LaneRow, StoredChunk};
use spillway_queue::settle::Settlement;
use spillway_queue::status;
use spillway_webhook::{Changes, Position, Spans, StoredRetry};

use crate::consumer::{TestConsumer, up_to};
use crate::server::Server;

const FIRST: ChunkId = ChunkId { lane: 7, number: 1 };
const SECOND: ChunkId = ChunkId { lane: 7, number: 2 };

fn at(ms: u64) -> Position {
    Position { ms, seq: 1, index: 2 }
}

/// Row of a lane.
pub(crate) fn row(lane: u64, waiting: u64) -> LaneRow {
    LaneRow {
        lane,
        shop: "a.myshopify.com".to_owned(),
        kind: "product".to_owned(),
        scheme: KeyScheme::Shop,
        first_chunk: 1,
        last_chunk: 2,
        waiting,
        first: at(1),
        last: at(9),
        failing: Spans::one(7, Duration::from_millis(5)),
        tripped: true,
        suspect: true,
    }
}

/// Retry state after a number of attempts and milliseconds.
fn tried(attempts: u32, ms: u64) -> StoredRetry {
    StoredRetry { attempts, spent: Duration::from_millis(ms), ..StoredRetry::default() }
}

/// Settlement that changes the lanes only.
fn of(lanes: LaneChanges) -> Settlement {
    Settlement { lanes, ..Settlement::default() }
}

fn written() -> LaneChanges {
    LaneChanges {
        chunks: Changes::write([(FIRST, b"\x00one".to_vec()), (SECOND, b"two".to_vec())]),
        chunk_bits: vec![(SECOND, vec![0b10, 255])],
        rows: Changes::write([row(7, 30), row(u64::MAX, 12)]),
        barriers: Changes::write([(at(3), u64::MAX), (at(4), 8)]),
        leads: Changes::write([(1, at(5)), (2, at(6))]),
        retries: Changes::write([(at(3), tried(4, 1_500))]),
        main_retries: Changes::write([(at(9), tried(2, 700))]),
        waiting: 42,
        oldest_ms: 1,
        ..LaneChanges::default()
    }
}

fn deleted() -> LaneChanges {
    LaneChanges {
        chunks: Changes::delete([FIRST, SECOND]),
        rows: Changes::delete([7, u64::MAX]),
        barriers: Changes::delete([at(3), at(4)]),
        leads: Changes::delete([1, 2]),
        retries: Changes::delete([at(3)]),
        main_retries: Changes::delete([at(9)]),
        ..LaneChanges::default()
    }
}

fn stored(bytes: &'static [u8], bits: &[u8]) -> Option<StoredChunk> {
    Some(StoredChunk { bytes: bytes.into(), bits: bits.to_vec() })
}

#[tokio::test]
async fn a_corrupt_chunk_is_set_aside_and_the_last_one_takes_its_retry_states_along() {
    let server = Server::start(&[]).await;
    let mut consumer = TestConsumer::start(&server, "http").await;
    consumer.settle(&of(written())).await.unwrap();
    let lanes = LaneChanges { corrupt: vec![SECOND], waiting: 30, ..LaneChanges::default() };
    consumer.settle(&of(lanes)).await.unwrap();
    let kept: String =
        server.command(&["GET", "{spillway}:corrupt:chunk:0000000000000007:2"]).await;
    assert_eq!(kept, "two");
    let chunks: Vec<String> = server.command(&["HKEYS", "{spillway}:http:chunks"]).await;
    assert_eq!(chunks, [FIRST.to_string()]);
    let left: u64 = server.command(&["HLEN", "{spillway}:http:retries"]).await;
    assert_eq!(left, 1);
    // A chunk that does not exist is no error.
    let lanes = LaneChanges { corrupt: vec![SECOND, FIRST], ..LaneChanges::default() };
    consumer.settle(&of(lanes)).await.unwrap();
    for key in ["chunks", "chunks:done", "retries"] {
        let is_there: u64 = server.command(&["EXISTS", &format!("{{spillway}}:http:{key}")]).await;
        assert_eq!(is_there, 0, "{key}");
    }
    // Retry states of the main stream are not affected.
    let left: u64 = server.command(&["HLEN", "{spillway}:http:retries:main"]).await;
    assert_eq!(left, 1);
}

#[tokio::test]
async fn an_unreadable_retry_state_is_skipped_and_an_unreadable_row_is_named() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    http.settle(&of(written())).await.unwrap();
    let _: u64 =
        server.command(&["HSET", "{spillway}:http:retries", &at(4).to_string(), "many:5"]).await;
    let (reader, connection) = (&http.reader, &mut http.connection);
    let retries = reader.retries(connection, &[at(4), at(3)]).await.unwrap();
    assert_eq!(retries, [None, Some(tried(4, 1_500))]);
    let at_four = at(4).to_string();
    let _: u64 = server.command(&["HSET", "{spillway}:http:retries:main", &at_four, "4:"]).await;
    let retries = reader.main_retries(connection).await.unwrap();
    assert_eq!(retries, [(at(4), StoredRetry::default()), (at(9), tried(2, 700))]);
    // More positions than one command takes: each answer belongs to its position.
    let many: Vec<Position> =
        (0..2_500).map(|ms| at(if ms % 1_000 == 3 { 3 } else { 9 })).collect();
    let retries = reader.retries(connection, &many).await.unwrap();
    let known = (0..retries.len()).filter(|index| retries[*index].is_some());
    assert_eq!((retries.len(), known.collect::<Vec<_>>()), (2_500, vec![3, 1_003, 2_003]));
    let lane = "0000000000000007";
    let _: u64 = server.command(&["HSET", "{spillway}:http:lanes", lane, "{"]).await;
    let error = reader.lane_rows(connection).await.unwrap_err().to_string();
    assert!(
        error.contains(&format!("the row of lane {lane} in {{spillway}}:http:lanes")),
        "{error}"
    );
    assert!(error.contains(&format!("{lane}:* of {{spillway}}:http:chunks and ")), "{error}");
}

/// All stored keys with their values, which a repeated settlement must not change.
async fn dump(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = server.command(&["KEYS", "*"]).await;
    keys.sort();
    let mut found = Vec::new();
    for key in keys {
        let value: Option<Vec<u8>> = server.command(&["DUMP", &key]).await;
        found.push(format!("{key} {value:?}"));
    }
    found
}

async fn expect_written(http: &mut TestConsumer) {
    let (reader, connection) = (&http.reader, &mut http.connection);
    let none = ChunkId { lane: 8, number: 1 };
    let chunks = reader.chunks(connection, &[SECOND, none, FIRST]).await.expect("redis answers");
    assert_eq!(chunks, [stored(b"two", &[0b10, 255]), None, stored(b"\x00one", &[])]);
    assert_eq!(reader.chunks(connection, &[]).await.expect("redis answers"), []);
    let rows = reader.lane_rows(connection).await.expect("redis answers");
    assert_eq!(rows, [row(7, 30), row(u64::MAX, 12)]);
    let barriers = reader.barriers(connection).await.expect("redis answers");
    assert_eq!(barriers, [(at(3), u64::MAX), (at(4), 8)]);
    assert_eq!(reader.leads(connection).await.expect("redis answers"), [(1, at(5)), (2, at(6))]);
    let retries = reader.retries(connection, &[at(4), at(3)]).await.expect("redis answers");
    assert_eq!(retries, [None, Some(tried(4, 1_500))]);
    assert_eq!(reader.retries(connection, &[]).await.expect("redis answers"), []);
    let retries = reader.main_retries(connection).await.expect("redis answers");
    assert_eq!(retries, [(at(9), tried(2, 700))]);
}

#[tokio::test]
async fn what_a_settlement_writes_is_read_back_and_what_it_deletes_is_gone() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    http.settle(&Settlement::default()).await.unwrap();
    let mut before: Vec<String> = server.command(&["KEYS", "*"]).await;
    http.settle(&of(written())).await.unwrap();
    expect_written(&mut http).await;
    http.settle(&of(deleted())).await.unwrap();
    let mut after: Vec<String> = server.command(&["KEYS", "*"]).await;
    before.sort();
    after.sort();
    assert_eq!(after, before);
    let (reader, connection) = (&http.reader, &mut http.connection);
    assert_eq!(reader.chunks(connection, &[FIRST]).await.unwrap(), [None]);
    assert_eq!(reader.lane_rows(connection).await.unwrap(), []);
}

#[tokio::test]
async fn a_row_and_bits_are_replaced_and_what_is_set_and_deleted_is_gone() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    http.settle(&of(written())).await.unwrap();
    let changes = LaneChanges {
        chunk_bits: vec![(FIRST, vec![1]), (SECOND, vec![3])],
        chunks: Changes::delete([FIRST]),
        rows: Changes::write([row(7, 29)]),
        barriers: Changes { written: vec![(at(4), 9)], deleted: vec![at(3)] },
        waiting: 41,
        ..LaneChanges::default()
    };
    http.settle(&of(changes)).await.unwrap();
    let (reader, connection) = (&http.reader, &mut http.connection);
    let chunks = reader.chunks(connection, &[FIRST, SECOND]).await.unwrap();
    assert_eq!(chunks, [None, stored(b"two", &[3])]);
    assert_eq!(server.command::<u64>(&["HLEN", "{spillway}:http:chunks:done"]).await, 1);
    assert_eq!(reader.lane_rows(connection).await.unwrap()[0].waiting, 29);
    assert_eq!(reader.barriers(connection).await.unwrap(), [(at(4), 9)]);
}

#[tokio::test]
async fn a_settlement_of_lanes_that_is_sent_again_changes_nothing() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    http.settle(&of(written())).await.unwrap();
    let before = dump(&server).await;
    http.settle_again(&of(deleted())).await.unwrap();
    assert_eq!(dump(&server).await, before);
    expect_written(&mut http).await;
}

#[tokio::test]
async fn lanes_of_a_leader_of_the_past_are_fenced() {
    let server = Server::start(&[]).await;
    let mut late = TestConsumer::start(&server, "http").await;
    late.settle(&of(written())).await.unwrap();
    let _new = TestConsumer::own(&server, "http").await;
    let before = dump(&server).await;
    let fenced = late.settle(&of(deleted())).await;
    assert!(matches!(fenced, Err(QueueError::Fenced)), "{fenced:?}");
    assert_eq!(dump(&server).await, before);
}

#[tokio::test]
async fn lanes_are_written_and_deleted_on_a_full_redis() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    server.fill_to_the_brim().await;
    http.settle(&Settlement { lanes: written(), ..up_to(ids[0], 1, 1) }).await.unwrap();
    assert!(server.ids("{spillway}:in").await.is_empty());
    expect_written(&mut http).await;
    http.settle(&of(deleted())).await.unwrap();
    assert_eq!(http.reader.lane_rows(&mut http.connection).await.unwrap(), []);
}

#[tokio::test]
async fn what_waits_in_lanes_is_in_the_status() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two", b"three"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let oldest_ms = ids[0].ms - 3_600_000;
    let lanes = LaneChanges { waiting: 2, oldest_ms, ..LaneChanges::default() };
    http.replay([ids[0].ms]).await;
    http.settle(&Settlement { lanes, ..up_to(ids[2], 3, 3) }).await.unwrap();
    let seen = status::read(&http.redis, &mut http.connection).await.unwrap();
    assert_eq!((seen.consumers[0].parked, seen.consumers[0].waiting), (3, 3));
    let age = seen.consumers[0].oldest_age_seconds.unwrap();
    assert!((3_600.0..3_660.0).contains(&age), "{age}");

    http.settle(&Settlement::default()).await.unwrap();
    let seen = status::read(&http.redis, &mut http.connection).await.unwrap();
    assert_eq!(seen.consumers[0].parked, 1);
    assert!(seen.consumers[0].oldest_age_seconds.unwrap() < 60.0);
}

#[tokio::test]
async fn thousands_of_lanes_are_read_in_parts() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let changes = LaneChanges {
        rows: Changes::write((0..5_000).map(|lane| row(lane, lane))),
        barriers: Changes::write((0..5_000).map(|ms| (at(ms), ms))),
        leads: Changes::write((0..5_000).map(|ms| (ms, at(ms)))),
        ..LaneChanges::default()
    };
    http.settle(&of(changes)).await.unwrap();
    let (reader, connection) = (&http.reader, &mut http.connection);
    let rows = reader.lane_rows(connection).await.unwrap();
    assert_eq!(rows, (0..5_000).map(|lane| row(lane, lane)).collect::<Vec<_>>());
    assert_eq!(reader.barriers(connection).await.unwrap().len(), 5_000);
    assert_eq!(reader.leads(connection).await.unwrap().len(), 5_000);

    // All except the first and the last are deleted, while the same settlement writes a lane.
    let changes = LaneChanges {
        rows: Changes::delete(1..4_999),
        barriers: Changes::delete((1..4_999).map(at)),
        leads: Changes { deleted: (1..4_999).collect(), ..Changes::write([(9_999, at(9_999))]) },
        ..LaneChanges::default()
    };
    http.settle(&of(changes)).await.unwrap();
    let (reader, connection) = (&http.reader, &mut http.connection);
    assert_eq!(reader.lane_rows(connection).await.unwrap(), [row(0, 0), row(4_999, 4_999)]);
    assert_eq!(reader.barriers(connection).await.unwrap(), [(at(0), 0), (at(4_999), 4_999)]);
    let leads = [0, 4_999, 9_999].map(|ms| (ms, at(ms)));
    assert_eq!(reader.leads(connection).await.unwrap(), leads);
}

#[test]
fn changes_of_lanes_make_a_settlement_not_empty() {
    assert!(of(LaneChanges::default()).is_empty());
    assert!(!of(deleted()).is_empty());
    let retries = Changes::delete([at(1)]);
    assert!(!of(LaneChanges { retries, ..LaneChanges::default() }).is_empty());
}
