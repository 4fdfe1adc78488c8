//! Intake against a real Redis that comes back with other data than was read.

#[allow(dead_code, reason = "the queue's own tests use the rest")]
#[path = "../../queue/tests/against_redis/server.rs"]
mod server;

use std::time::{Duration, Instant};

use server::Server;
use spillway_consumer::intake::{self, IntakeEvent, Streams};
use spillway_queue::consumers::{StartAt, register};
use spillway_webhook::StreamId;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// The part of a result that a test compares.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Main(StreamId),
    Replay(StreamId),
    OlderData,
    Other,
}

fn seen(found: IntakeEvent) -> Seen {
    match found {
        IntakeEvent::Main(entry) => Seen::Main(entry.id),
        IntakeEvent::OlderData => Seen::OlderData,
        IntakeEvent::Replay(replay) => Seen::Replay(replay.id),
        IntakeEvent::ReplaysLoaded | IntakeEvent::CaughtUp => Seen::Other,
    }
}

/// Returns the next relevant result; `None` when there are no more.
async fn next(finds: &mut Receiver<Seen>) -> Option<Seen> {
    loop {
        match timeout(Duration::from_secs(20), finds.recv()).await.expect("a find in time") {
            Some(Seen::Other) => {}
            found => return found,
        }
    }
}

async fn read_ahead(server: &Server) -> Receiver<Seen> {
    let mut connection = server.connect().await;
    let registered =
        register(&server.redis(), &mut connection, Some("http"), StartAt::Oldest).await;
    registered.expect("redis answers");
    intake::start(&server.redis(), "http", StreamId::ZERO, seen)
}

async fn cut_connections(server: &Server) {
    let _: u64 = server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
}

#[tokio::test]
async fn appends_that_were_lost_are_noticed_at_the_reconnect() {
    let server = Server::start(&[]).await;
    let first = server.append_as("100-0").await;
    let mut finds = read_ahead(&server).await;
    assert_eq!(next(&mut finds).await, Some(Seen::Main(first)));
    let older = server.dump("{spillway}:in").await;
    let second = server.append_as("110-0").await;
    assert_eq!(next(&mut finds).await, Some(Seen::Main(second)));
    server.restore("{spillway}:in", &older).await;
    cut_connections(&server).await;
    assert_eq!(next(&mut finds).await, Some(Seen::OlderData));
    assert_eq!(next(&mut finds).await, None);
}

#[tokio::test]
async fn lost_appends_are_noticed_although_others_came_after_them() {
    let server = Server::start(&[]).await;
    let mut finds = read_ahead(&server).await;
    server.append_as("100-0").await;
    assert!(next(&mut finds).await.is_some());
    let older = server.dump("{spillway}:in").await;
    let second = server.append_as("110-0").await;
    assert_eq!(next(&mut finds).await, Some(Seen::Main(second)));
    server.restore("{spillway}:in", &older).await;
    // Ids from a slower clock: the first of them would never be read.
    server.append_as("105-0").await;
    cut_connections(&server).await;
    assert_eq!(next(&mut finds).await, Some(Seen::OlderData));
}

#[tokio::test]
async fn packs_that_come_one_after_the_other_are_read_together() {
    const PACKS: usize = 400;
    let server = Server::start(&[]).await;
    let mut finds = read_ahead(&server).await;
    let first = server.append_as("100-0").await;
    assert_eq!(next(&mut finds).await, Some(Seen::Main(first)));
    let began = Instant::now();
    let reading = async {
        let mut found = Vec::new();
        while found.len() < PACKS {
            found.push(next(&mut finds).await.expect("the intake goes on"));
        }
        found
    };
    let packs = [b"pack".as_slice(); PACKS];
    let (ids, found) = tokio::join!(server.append(&packs), reading);
    assert_eq!(found, ids.into_iter().map(Seen::Main).collect::<Vec<_>>());
    let stats: String = server.command(&["INFO", "commandstats"]).await;
    let of_waits = stats.split("cmdstat_xread:calls=").nth(1).expect("the intake has waited");
    let waits: u128 = of_waits.split(',').next().and_then(|calls| calls.parse().ok()).unwrap();
    // One in 2 ms, and those before the packs.
    assert!(waits <= began.elapsed().as_millis() / 2 + 4, "{waits} in {:?}", began.elapsed());
}

async fn add_replay(server: &Server, id: &str) -> Seen {
    let fields = ["p", "x", "id", "00000000-100-0-0"];
    let add = [&["XADD", "{spillway}:http:replays", id], &fields[..]].concat();
    let id: String = server.command(&add).await;
    Seen::Replay(id.parse().expect("an id"))
}

#[tokio::test]
async fn lost_replays_are_noticed_although_others_came_after_them() {
    const REPLAYS: &str = "{spillway}:http:replays";
    for streams in [Streams::Replays, Streams::Both] {
        // Ids from a slower clock, and then from one that has caught up: neither would be read in full.
        for later in [&["105-0"][..], &["105-0", "120-0"][..]] {
            let server = Server::start(&[]).await;
            drop(read_ahead(&server).await);
            let cursor = (streams, StreamId::ZERO);
            let mut finds = intake::start_with(&server.redis(), "http", cursor, seen);
            let first = add_replay(&server, "100-0").await;
            assert_eq!(next(&mut finds).await, Some(first));
            let older = server.dump(REPLAYS).await;
            let second = add_replay(&server, "110-0").await;
            assert_eq!(next(&mut finds).await, Some(second));
            server.restore(REPLAYS, &older).await;
            add_replay(&server, later[0]).await;
            cut_connections(&server).await;
            for id in &later[1..] {
                add_replay(&server, id).await;
            }
            assert_eq!(next(&mut finds).await, Some(Seen::OlderData), "{streams:?} {later:?}");
            assert_eq!(next(&mut finds).await, None);
            // The next start reads what is there.
            let mut finds = intake::start_with(&server.redis(), "http", cursor, seen);
            for id in [&["100-0"], later].concat() {
                let replay = Seen::Replay(id.parse().expect("an id"));
                assert_eq!(next(&mut finds).await, Some(replay), "{streams:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_reconnect_after_the_last_replay_was_settled_reads_on() {
    let server = Server::start(&[]).await;
    drop(read_ahead(&server).await);
    let cursor = (Streams::Replays, StreamId::ZERO);
    let mut finds = intake::start_with(&server.redis(), "http", cursor, seen);
    let first = add_replay(&server, "100-0").await;
    assert_eq!(next(&mut finds).await, Some(first));
    let _: u64 = server.command(&["XDEL", "{spillway}:http:replays", "100-0"]).await;
    cut_connections(&server).await;
    let second = add_replay(&server, "110-0").await;
    assert_eq!(next(&mut finds).await, Some(second));
}

#[tokio::test]
async fn a_reconnect_to_the_same_data_reads_on() {
    let server = Server::start(&[]).await;
    let mut finds = read_ahead(&server).await;
    let first = server.append_as("100-0").await;
    assert_eq!(next(&mut finds).await, Some(Seen::Main(first)));
    cut_connections(&server).await;
    let second = server.append_as("110-0").await;
    assert_eq!(next(&mut finds).await, Some(Seen::Main(second)));
}

#[tokio::test]
async fn large_entries_and_small_ones_are_read_in_order() {
    let server = Server::start(&[]).await;
    let large = vec![b'x'; 100_000];
    let packs = (0..40).map(|at| if at % 15 < 10 { &large[..] } else { b"small" });
    let ids = server.append(&packs.collect::<Vec<&[u8]>>()).await;
    let mut finds = read_ahead(&server).await;
    for id in ids {
        assert_eq!(next(&mut finds).await, Some(Seen::Main(id)));
    }
}

#[tokio::test]
async fn replays_that_are_not_taken_do_not_keep_the_main_stream_from_being_read() {
    let server = Server::start(&[]).await;
    let entry = server.append_as("100-0").await;
    for _ in 0..100 {
        let fields = ["p", "x", "id", "00000000-100-0-0"];
        let add = [&["XADD", "{spillway}:http:replays", "*"], &fields[..]].concat();
        let _: String = server.command(&add).await;
    }
    let mut connection = server.connect().await;
    let registered =
        register(&server.redis(), &mut connection, Some("http"), StartAt::Oldest).await;
    registered.expect("redis answers");
    let start =
        |streams| intake::start_with(&server.redis(), "http", (streams, StreamId::ZERO), seen);
    let (_replays, mut main) = (start(Streams::Replays), start(Streams::Main));
    assert_eq!(next(&mut main).await, Some(Seen::Main(entry)));
}

#[tokio::test]
async fn each_replay_and_each_entry_is_read_as_it_comes_and_not_at_the_next_look() {
    const ROUNDS: u64 = 20;
    for streams in [Streams::Replays, Streams::Both] {
        let server = Server::start(&[]).await;
        let mut connection = server.connect().await;
        let registered =
            register(&server.redis(), &mut connection, Some("http"), StartAt::Oldest).await;
        registered.expect("redis answers");
        let cursor = (streams, StreamId::ZERO);
        let mut finds = intake::start_with(&server.redis(), "http", cursor, seen);
        let began = Instant::now();
        for round in 1..=ROUNDS {
            let fields = ["p", "x", "id", "00000000-100-0-0"];
            let add = [&["XADD", "{spillway}:http:replays", "*"], &fields[..]].concat();
            let id: String = server.command(&add).await;
            let replay = Seen::Replay(id.parse().expect("an id"));
            assert_eq!(next(&mut finds).await, Some(replay), "{streams:?}");
            if streams == Streams::Both {
                let entry = server.append_as(&format!("{round}-0")).await;
                assert_eq!(next(&mut finds).await, Some(Seen::Main(entry)));
            }
        }
        // A look once a second would take a second for each.
        assert!(began.elapsed() < Duration::from_secs(ROUNDS) / 2, "{streams:?}");
    }
}
