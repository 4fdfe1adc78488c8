//! Restoring a queue from an archive: nothing of it is seen before it is complete, and each entry is written once.

use spillway_queue::QueueError;
use spillway_queue::checkpoint::read_state;
use spillway_queue::consumers::{ConsumerKind, StartAt, cell, forget, register};
use spillway_queue::gaps::{self, GapReason, NotedGap};
use spillway_queue::lane::{KeyScheme, LaneChanges, LaneRow};
use spillway_queue::rebuild::{
    Rebuild, RebuiltConsumer, RebuiltEntry, RebuiltNote, RebuiltQueue, abandon, hold, release,
};
use spillway_queue::redactions;
use spillway_queue::settle::Settlement;
use spillway_queue::status;
use spillway_webhook::{Changes, Position, Spans, StreamId, WebhookId};

use crate::consumer::{TestConsumer, up_to};
use crate::server::Server;

const NAMES: [&str; 2] = ["http", "archive"];

const fn id(ms: u64) -> StreamId {
    StreamId { ms, seq: 0 }
}

fn entry(ms: u64, bits: &[(&str, u8)]) -> RebuiltEntry {
    let bits = bits.iter().map(|(name, bits)| ((*name).to_owned(), vec![*bits]));
    RebuiltEntry { id: id(ms), pack: format!("pack {ms}").into_bytes(), bits: bits.collect() }
}

/// Three entries of two webhooks each. The consumer `http` begins after the first one.
fn queue() -> RebuiltQueue {
    let http = RebuiltConsumer {
        name: "http".to_owned(),
        kind: Some(ConsumerKind::Downstreamer),
        cursor: id(5),
        entries: 1,
        through: 102,
        open: 1,
    };
    let archive = RebuiltConsumer {
        name: "archive".to_owned(),
        kind: Some(ConsumerKind::Archiver),
        cursor: id(9),
        entries: 3,
        through: 106,
        open: 0,
    };
    RebuiltQueue {
        cell: 0xa1b2_c3d4,
        entries: 3,
        last: id(9),
        appended: 106,
        trimmed: 100,
        consumers: vec![http, archive],
        notes: Vec::new(),
        lost: Vec::new(),
    }
}

async fn rebuild(server: &Server, plan: &str) -> Rebuild {
    let held = hold(&server.redis(), &mut server.connect().await).await.expect("held");
    Rebuild::new(server.redis(), plan.to_owned(), &held)
}

#[tokio::test]
async fn a_queue_is_seen_once_it_is_complete_and_nobody_registers_before() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let rebuild = rebuild(&server, "one").await;
    let names = NAMES.map(str::to_owned);
    assert_eq!(rebuild.begin(&mut connection, &names).await.expect("it begins"), 0);
    let refused = register(&server.redis(), &mut connection, Some("http"), StartAt::Oldest).await;
    assert!(matches!(refused, Err(QueueError::Restoring)), "{refused:?}");
    let first = [entry(5, &[]), entry(7, &[("http", 0b10)])];
    assert_eq!(rebuild.add(&mut connection, 0, &first).await.expect("written"), 2);
    let again = rebuild.add(&mut connection, 0, &first).await;
    assert!(matches!(again, Err(QueueError::OutOfStep)), "{again:?}");
    // Killed, and started again.
    assert_eq!(rebuild.begin(&mut connection, &names).await.expect("it goes on"), 2);
    rebuild.add(&mut connection, 2, &[entry(8, &[])]).await.expect("written");
    assert_eq!(server.command::<u64>(&["XLEN", "{spillway}:in"]).await, 0);
    rebuild.finish(&mut connection, &queue()).await.expect("it is complete");

    assert_eq!(server.ids("{spillway}:in").await, ["5-0", "7-0", "8-0"]);
    assert_eq!(cell(&server.redis(), &mut connection).await.expect("a cell"), Some(0xa1b2_c3d4));
    let keys: Vec<String> = server.command(&["KEYS", "*rebuild*"]).await;
    assert_eq!(keys, [""; 0]);
    let known = status::read(&server.redis(), &mut connection).await.expect("a status");
    let waiting =
        |name: &str| known.consumers.iter().find(|one| one.name == name).map(|one| one.waiting);
    assert_eq!((waiting("http"), waiting("archive")), (Some(3), Some(0)));
    let registered =
        register(&server.redis(), &mut connection, Some("http"), StartAt::Oldest).await;
    assert!(!registered.expect("it is open").is_new);
    let mut http = TestConsumer::own(&server, "http").await;
    let progress = http.progress().await;
    assert_eq!((progress.cursor, progress.through), (id(5), 102));
    assert_eq!(progress.done.get(&id(7)), Some(&vec![0b10]));
    http.settle(&up_to(id(8), 2, 4)).await.expect("it is the first settlement");
    assert!(server.append(&[b"new"]).await[0] > id(9));
}

#[tokio::test]
async fn another_plan_begins_again_and_an_abandoned_one_leaves_nothing() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let names = NAMES.map(str::to_owned);
    let one = rebuild(&server, "one").await;
    one.begin(&mut connection, &names).await.expect("it begins");
    one.add(&mut connection, 0, &[entry(5, &[("http", 1)])]).await.expect("written");
    let other = rebuild(&server, "other").await;
    assert_eq!(other.begin(&mut connection, &names).await.expect("it begins"), 0);
    let late = one.add(&mut connection, 1, &[entry(6, &[])]).await;
    assert!(matches!(late, Err(QueueError::OutOfStep)), "{late:?}");
    other.add(&mut connection, 0, &[entry(4, &[("http", 1)])]).await.expect("written");
    assert!(abandon(&server.redis(), &mut connection).await.expect("removed"));
    assert!(!abandon(&server.redis(), &mut connection).await.expect("there is none"));
    assert_eq!(server.command::<u64>(&["DBSIZE"]).await, 0);
    assert!(other.finish(&mut connection, &queue()).await.is_err());
}

#[tokio::test]
async fn nobody_registers_while_a_restoration_is_planned() {
    let server = Server::start(&[]).await;
    let (redis, mut connection) = (server.redis(), server.connect().await);
    let held = hold(&redis, &mut connection).await.expect("held");
    assert!(held.is_new);
    assert!(!hold(&redis, &mut connection).await.expect("it is held already").is_new);
    let refused = register(&redis, &mut connection, None, StartAt::Oldest).await;
    assert!(matches!(refused, Err(QueueError::Restoring)), "{refused:?}");
    assert!(release(&redis, &mut connection, &held).await.expect("released"));
    assert_eq!(server.command::<u64>(&["DBSIZE"]).await, 0);
    // What was begun is not released.
    let held = hold(&redis, &mut connection).await.expect("held");
    let rebuild = rebuild(&server, "one").await;
    rebuild.begin(&mut connection, &NAMES.map(str::to_owned)).await.expect("it begins");
    rebuild.add(&mut connection, 0, &[entry(5, &[])]).await.expect("written");
    assert!(!release(&redis, &mut connection, &held).await.expect("redis answers"));
    assert!(!hold(&redis, &mut connection).await.expect("redis answers").is_new);
    let names = NAMES.map(str::to_owned);
    assert_eq!(rebuild.begin(&mut connection, &names).await.expect("it goes on"), 1);
    assert!(abandon(&redis, &mut connection).await.expect("removed"));
    server.append(&[b"new"]).await;
    let refused = hold(&redis, &mut connection).await;
    assert!(matches!(refused, Err(QueueError::NotEmpty)), "{refused:?}");
}

#[tokio::test]
async fn a_queue_with_webhooks_is_never_replaced() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let names = NAMES.map(str::to_owned);
    let rebuild = rebuild(&server, "one").await;
    rebuild.begin(&mut connection, &names).await.expect("it begins");
    // A receiver that runs on appends without being asked.
    let kept = server.append(&[b"new"]).await;
    for refused in [
        rebuild.begin(&mut connection, &names).await.map(|_| ()),
        rebuild.add(&mut connection, 0, &[entry(5, &[])]).await.map(|_| ()),
        rebuild.finish(&mut connection, &RebuiltQueue { entries: 0, ..queue() }).await,
    ] {
        assert!(matches!(refused, Err(QueueError::NotEmpty)), "{refused:?}");
    }
    assert_eq!(server.ids("{spillway}:in").await, [kept[0].to_string()]);
}

#[tokio::test]
async fn a_plan_is_carried_out_only_under_the_mark_with_which_it_was_made() {
    let server = Server::start(&[]).await;
    let (redis, mut connection) = (server.redis(), server.connect().await);
    let names = NAMES.map(str::to_owned);
    let held = hold(&redis, &mut connection).await.expect("held");
    let late = Rebuild::new(redis.clone(), "one".to_owned(), &held);
    assert!(abandon(&redis, &mut connection).await.expect("removed"));
    let refused = late.begin(&mut connection, &names).await;
    assert!(matches!(refused, Err(QueueError::NotPlanned)), "{refused:?}");
    assert_eq!(server.command::<u64>(&["DBSIZE"]).await, 0, "nothing was begun");
    // Processes worked meanwhile, and another restoration was begun, even with the same plan.
    let other = rebuild(&server, "one").await;
    other.begin(&mut connection, &names).await.expect("it begins");
    other.add(&mut connection, 0, &[entry(5, &[])]).await.expect("written");
    let one = RebuiltQueue { entries: 1, ..queue() };
    for refused in [
        late.begin(&mut connection, &names).await.map(|_| ()),
        late.add(&mut connection, 1, &[entry(6, &[])]).await.map(|_| ()),
        late.finish(&mut connection, &one).await,
    ] {
        assert!(matches!(refused, Err(QueueError::NotPlanned)), "{refused:?}");
    }
    assert!(!release(&redis, &mut connection, &held).await.expect("redis answers"));
    other.finish(&mut connection, &one).await.expect("it is complete");
}

#[tokio::test]
async fn redactions_are_noted_with_the_restored_queue_or_not_at_all() {
    let server = Server::start(&[]).await;
    let (redis, mut connection) = (server.redis(), server.connect().await);
    let names = NAMES.map(str::to_owned);
    let note = |ms| RebuiltNote {
        webhook: WebhookId { cell: 0xa1b2_c3d4, entry: id(ms), index: 1 },
        consumer: "restored".to_owned(),
        pack: format!("pack {ms}").into_bytes(),
    };
    let queue = RebuiltQueue { entries: 1, notes: vec![note(3), note(4)], ..queue() };
    let held = hold(&redis, &mut connection).await.expect("held");
    let late = Rebuild::new(redis.clone(), "one".to_owned(), &held);
    late.begin(&mut connection, &names).await.expect("it begins");
    late.add(&mut connection, 0, &[entry(5, &[])]).await.expect("written");
    assert!(abandon(&redis, &mut connection).await.expect("removed"));
    let refused = late.finish(&mut connection, &queue).await;
    assert!(matches!(refused, Err(QueueError::NotPlanned)), "{refused:?}");
    assert_eq!(server.command::<u64>(&["DBSIZE"]).await, 0, "nothing was changed");

    let rebuild = rebuild(&server, "one").await;
    rebuild.begin(&mut connection, &names).await.expect("it begins");
    rebuild.add(&mut connection, 0, &[entry(5, &[])]).await.expect("written");
    rebuild.finish(&mut connection, &queue).await.expect("it is complete");
    let pending = redactions::pending(&redis, &mut connection).await.expect("they are read");
    let mut noted: Vec<_> = pending
        .noted
        .iter()
        .map(|one| (one.webhook.entry, &*one.consumer, &one.pack[..]))
        .collect();
    noted.sort_unstable();
    assert_eq!(noted, [(id(3), "restored", &b"pack 3"[..]), (id(4), "restored", &b"pack 4"[..])]);
    let known = status::read(&redis, &mut connection).await.expect("a status");
    assert_eq!(known.consumers.len(), 2, "consumers follow the notes");
}

#[tokio::test]
async fn what_is_lost_is_noted_with_the_restored_queue_or_not_at_all() {
    let server = Server::start(&[]).await;
    let (redis, mut connection) = (server.redis(), server.connect().await);
    let names = NAMES.map(str::to_owned);
    let lost = |from_ms| NotedGap {
        reason: GapReason::Lost,
        shop: String::new(),
        topic: String::new(),
        from_ms,
        to_ms: from_ms + 1,
        count: 0,
    };
    let note = RebuiltNote {
        webhook: WebhookId { cell: 0xa1b2_c3d4, entry: id(3), index: 0 },
        consumer: "restored".to_owned(),
        pack: b"pack".to_vec(),
    };
    let lost = vec![lost(3), lost(9)];
    let queue = RebuiltQueue { entries: 1, notes: vec![note], lost: lost.clone(), ..queue() };
    let rebuild = rebuild(&server, "one").await;
    rebuild.begin(&mut connection, &names).await.expect("it begins");
    let early = rebuild.finish(&mut connection, &queue).await;
    assert!(matches!(early, Err(QueueError::OutOfStep)), "{early:?}");
    assert_eq!(server.command::<u64>(&["XLEN", "{spillway}:gaps"]).await, 0);
    rebuild.add(&mut connection, 0, &[entry(5, &[])]).await.expect("written");
    rebuild.finish(&mut connection, &queue).await.expect("it is complete");
    let noted = gaps::page(&redis, &mut connection, StreamId::ZERO, 10).await.expect("notes");
    assert_eq!(noted.into_iter().map(|(_, note)| note).collect::<Vec<_>>(), lost);
    let pending = redactions::pending(&redis, &mut connection).await.expect("they are read");
    assert_eq!(pending.noted.len(), 1);
}

#[tokio::test]
async fn no_consumer_is_forgotten_during_a_restoration() {
    let server = Server::start(&[]).await;
    TestConsumer::start(&server, "http").await;
    let (redis, mut connection) = (server.redis(), server.connect().await);
    hold(&redis, &mut connection).await.expect("held");
    let refused = forget(&redis, &mut connection, "http").await;
    assert!(matches!(refused, Err(QueueError::Restoring)), "{refused:?}");
    let known = status::read(&redis, &mut connection).await.expect("a status");
    assert_eq!(known.consumers.len(), 1);
    assert!(abandon(&redis, &mut connection).await.expect("removed"));
    assert!(forget(&redis, &mut connection, "http").await.expect("it is forgotten"));
}

#[tokio::test]
async fn lanes_and_replays_of_the_queue_before_are_never_replaced() {
    const REPLAYS: &str = "{spillway}:http:replays";
    let server = Server::start(&[]).await;
    TestConsumer::start(&server, "http").await;
    let (redis, mut connection) = (server.redis(), server.connect().await);
    let names = NAMES.map(str::to_owned);
    let lanes = |count| ["HSET", "{spillway}:counts", "lanes:http", count];
    let _: u64 = server.command(&lanes("1")).await;
    let refused = hold(&redis, &mut connection).await;
    assert!(matches!(refused, Err(QueueError::NotEmpty)), "{refused:?}");
    let _: u64 = server.command(&lanes("0")).await;
    let rebuild = rebuild(&server, "one").await;
    // An operator replays a dead letter: that needs no registration.
    let replay = ["XADD", REPLAYS, "1-0", "p", "x", "id", "00000000-100-0-0"];
    let _: String = server.command(&replay).await;
    let refused = rebuild.begin(&mut connection, &names).await;
    assert!(matches!(refused, Err(QueueError::NotEmpty)), "{refused:?}");
    let _: u64 = server.command(&["XDEL", REPLAYS, "1-0"]).await;
    rebuild.begin(&mut connection, &names).await.expect("it begins");
    let entries = [entry(5, &[]), entry(7, &[]), entry(8, &[])];
    rebuild.add(&mut connection, 0, &entries).await.expect("written");
    let replay = ["XADD", REPLAYS, "2-0", "p", "x", "id", "00000000-100-0-0"];
    let _: String = server.command(&replay).await;
    let refused = rebuild.finish(&mut connection, &queue()).await;
    assert!(matches!(refused, Err(QueueError::NotEmpty)), "{refused:?}");
    let _: u64 = server.command(&["XDEL", REPLAYS, "2-0"]).await;
    let _: u64 = server.command(&lanes("1")).await;
    let refused = rebuild.finish(&mut connection, &queue()).await;
    assert!(matches!(refused, Err(QueueError::NotEmpty)), "{refused:?}");
    let _: u64 = server.command(&lanes("0")).await;
    // A consumer that the plan does not know would lose its cursor.
    let _: u64 = server.command(&["HSET", "{spillway}:consumers", "new", "0"]).await;
    let refused = rebuild.finish(&mut connection, &queue()).await;
    assert!(matches!(refused, Err(QueueError::NotPlanned)), "{refused:?}");
    let _: u64 = server.command(&["HDEL", "{spillway}:consumers", "new"]).await;
    rebuild.finish(&mut connection, &queue()).await.expect("it is complete");
    assert_eq!(server.ids("{spillway}:in").await, ["5-0", "7-0", "8-0"]);
}

#[tokio::test]
async fn a_leader_of_the_queue_before_settles_nothing_in_the_restored_one() {
    let server = Server::start(&[]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let mut connection = server.connect().await;
    let rebuild = rebuild(&server, "one").await;
    rebuild.begin(&mut connection, &NAMES.map(str::to_owned)).await.expect("it begins");
    let entries = [entry(5, &[]), entry(7, &[]), entry(8, &[])];
    rebuild.add(&mut connection, 0, &entries).await.expect("written");
    rebuild.finish(&mut connection, &queue()).await.expect("it is complete");
    let settled = http.settle(&up_to(id(8), 3, 6)).await;
    assert!(matches!(settled, Err(QueueError::Unregistered)), "{settled:?}");
}

#[tokio::test]
async fn the_state_of_consumers_holds_cursors_lanes_and_a_bounded_number_of_bits() {
    let server = Server::start(&[]).await;
    let ids = server.append(&[b"one", b"two", b"three"]).await;
    let mut http = TestConsumer::start(&server, "http").await;
    let row = LaneRow {
        lane: 7,
        shop: "a.example".to_owned(),
        kind: "order".to_owned(),
        scheme: KeyScheme::Kind,
        first_chunk: 1,
        last_chunk: 1,
        waiting: 1,
        first: Position::new(ids[0], 0),
        last: Position::new(ids[0], 0),
        failing: Spans::default(),
        tripped: false,
        suspect: false,
    };
    let rows = Changes { written: vec![row.clone()], deleted: Vec::new() };
    let lanes = LaneChanges { rows, waiting: 1, ..LaneChanges::default() };
    let bits = vec![(ids[1], vec![1]), (ids[2], vec![1])];
    http.settle(&Settlement { lanes, bits, ..up_to(ids[0], 1, 1) }).await.expect("settled");
    let mut connection = server.connect().await;
    let state = read_state(&server.redis(), &mut connection, 2, 9).await.expect("a state");
    assert_eq!((state.last, state.appended), (ids[2], 3));
    let own = &state.consumers[0];
    assert_eq!((&*own.name, own.progress.cursor, own.progress.done.len()), ("http", ids[0], 2));
    assert_eq!((own.lanes.known, own.lanes.unreadable), (1, 0));
    assert_eq!(own.lanes.rows, [row]);
    let state = read_state(&server.redis(), &mut connection, 1, 9).await.expect("a state");
    assert_eq!(state.consumers[0].progress.done.len(), 0, "they are repeated");
}

#[tokio::test]
async fn cursor_and_bits_of_a_checkpoint_are_those_of_one_moment() {
    const ENTRIES: u64 = 400;
    let server = Server::start(&[]).await;
    let mut ids = Vec::new();
    for _ in 0..ENTRIES {
        ids.extend(server.append(&[b"one"]).await);
    }
    let mut http = TestConsumer::start(&server, "http").await;
    // Every second entry goes ahead by a bit, and then the cursor passes both.
    let bits: Vec<_> = ids.iter().skip(1).step_by(2).map(|id| (*id, vec![1])).collect();
    let first = Settlement { bits, ..Settlement::default() };
    http.settle(&first).await.expect("settled");
    let redis = server.redis();
    let reading = async {
        let mut connection = server.connect().await;
        let mut seen = Vec::new();
        for _ in 0..100 {
            let state = read_state(&redis, &mut connection, ENTRIES, 9).await.expect("a state");
            let progress = &state.consumers[0].progress;
            seen.push((progress.cursor, progress.done.clone()));
        }
        seen
    };
    let settling = async {
        for pair in ids.chunks_exact(2) {
            let passed = Settlement { whole: vec![pair[1]], ..up_to(pair[1], 2, 2) };
            http.settle(&passed).await.expect("settled");
        }
    };
    let (seen, ()) = tokio::join!(reading, settling);
    for (cursor, done) in seen {
        let all = ids.iter().skip(1).step_by(2).filter(|id| **id > cursor);
        let is_whole = all.clone().all(|id| done.contains_key(id)) && all.count() == done.len();
        assert!(is_whole || done.is_empty(), "{cursor}: {} bits", done.len());
    }
}

#[tokio::test]
async fn of_many_lanes_the_oldest_are_read_and_one_unreadable_row_stops_nothing() {
    let server = Server::start(&[]).await;
    let id = server.append(&[b"one"]).await[0];
    let mut http = TestConsumer::start(&server, "http").await;
    let row = |lane: u64| LaneRow {
        lane,
        shop: "a.example".to_owned(),
        kind: "order".to_owned(),
        scheme: KeyScheme::Kind,
        first_chunk: 1,
        last_chunk: 1,
        waiting: 1,
        first: Position { ms: 9_000 - lane, seq: 0, index: 0 },
        last: Position { ms: 9_000, seq: 0, index: 0 },
        failing: Spans::default(),
        tripped: false,
        suspect: false,
    };
    let rows = Changes { written: (0..3_000).map(row).collect(), deleted: Vec::new() };
    let lanes = LaneChanges { rows, waiting: 3_000, ..LaneChanges::default() };
    http.settle(&Settlement { lanes, ..up_to(id, 1, 1) }).await.expect("settled");
    let _: u64 = server.command(&["HSET", "{spillway}:http:lanes", "00000000000000ff", "x"]).await;
    let mut connection = server.connect().await;
    let state = read_state(&server.redis(), &mut connection, 9, 2).await.expect("a state");
    let lanes = &state.consumers[0].lanes;
    assert_eq!(lanes.unreadable, 1);
    let oldest: Vec<u64> = lanes.rows.iter().map(|row| row.lane).collect();
    assert_eq!(oldest, [2_999, 2_998]);
}
