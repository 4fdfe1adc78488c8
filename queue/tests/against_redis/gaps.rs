//! Notes of gaps: their bounds, several receivers, and runs of Redis.

use std::collections::BTreeSet;

use spillway_queue::Connection;
use spillway_queue::dead::now_ms;
use spillway_queue::gaps::{GapReason, NotedGap, note, note_run, page, read_run};
use spillway_webhook::StreamId;
use tokio::task::JoinSet;

use crate::server::Server;

const GAPS: &str = "{spillway}:gaps";
const RUN: &str = "{spillway}:gaps:run";
const RHYTHM: &str = "{spillway}:rhythm";
const DAY_MS: u64 = 24 * 3_600_000;
/// Notes that are kept; the oldest of more are merged.
const KEPT: u64 = 50_000;
/// Notes that are kept if nothing merges them.
const MAX: u64 = 55_000;
/// Records of one node of a stream, which is removed as a whole.
const NODE: u64 = 100;
/// A time as the clock has it.
const BASE_MS: u64 = 1_767_268_800_000;
const SHOP: &str = "known.myshopify.com";
const TOPIC: &str = "orders/create";

/// Refusals of a shop and topic in a range after [`BASE_MS`].
fn refused(shop: &str, topic: &str, range: [u64; 2], count: u64) -> NotedGap {
    NotedGap {
        reason: GapReason::Refused,
        shop: shop.to_owned(),
        topic: topic.to_owned(),
        from_ms: BASE_MS + range[0],
        to_ms: BASE_MS + range[1],
        count,
    }
}

fn of(reason: GapReason, note: NotedGap) -> NotedGap {
    NotedGap { reason, count: 0, ..note }
}

/// Makes the pair of [`SHOP`] and [`TOPIC`] one that sent webhooks before.
async fn know(server: &Server) {
    let field = format!("{SHOP} {TOPIC}");
    let _: u64 = server.command(&["HSET", RHYTHM, &field, "1 2 3 4 5 6"]).await;
}

/// Writes notes of refusals of some shops, as notes that were written at this time.
async fn fill(server: &Server, ms: u64, first: u64, count: u64, shops: u64) {
    let script = r#"for i = 1, tonumber(ARGV[3]) do
        local range = '"from_ms":' .. i .. ',"to_ms":' .. (i + 1)
        local note = '{"reason":"refused","shop":"' .. i % ARGV[4] .. '.example","topic":"t/x",' .. range .. ',"count":1}'
        redis.call('XADD', KEYS[1], ARGV[1] .. '-' .. (ARGV[2] + i), 'g', note)
    end
    return 1"#;
    let [ms, first, count, shops] = [ms, first, count, shops].map(|number| number.to_string());
    let _: u64 = server.command(&["EVAL", script, "1", GAPS, &ms, &first, &count, &shops]).await;
}

/// Notes that were written after `after`, at most 100.
async fn after(server: &Server, connection: &mut Connection, after: StreamId) -> Vec<NotedGap> {
    let found = page(&server.redis(), connection, after, 100).await.expect("redis answers");
    found.into_iter().map(|(_, note)| note).collect()
}

async fn length(server: &Server) -> u64 {
    server.command(&["XLEN", GAPS]).await
}

#[tokio::test]
async fn refusals_of_strangers_are_one_note_of_any_shop() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    know(&server).await;
    let known = refused(SHOP, TOPIC, [100, 200], 2);
    let lost = of(GapReason::Lost, refused("", "", [10, 20], 0));
    let silent = of(GapReason::Silent, refused("quiet.example", TOPIC, [1, 900], 0));
    let any = refused("", TOPIC, [40, 50], 4);
    let notes = [
        refused("stranger.example", TOPIC, [50, 60], 1),
        known.clone(),
        refused(SHOP, "products/update", [5, 6], 3),
        lost.clone(),
        refused("other.example", TOPIC, [300, 400], 5),
        silent.clone(),
        any.clone(),
    ];
    note(&server.redis(), &mut connection, &notes).await.unwrap();
    let merged = refused("", "", [5, 400], 9);
    let expected = [known, lost, silent, any, merged];
    assert_eq!(after(&server, &mut connection, StreamId::ZERO).await, expected);
}

#[tokio::test]
async fn many_strangers_take_a_note_for_each_call() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let notes: Vec<NotedGap> = (0..10_000)
        .map(|number| refused(&format!("{number}.example"), TOPIC, [number, number + 1], 1))
        .collect();
    note(&server.redis(), &mut connection, &notes).await.unwrap();
    let found = after(&server, &mut connection, StreamId::ZERO).await;
    assert_eq!(found.len(), 20);
    assert_eq!(found.iter().map(|note| note.count).sum::<u64>(), 10_000);
    let ranges = found.iter().map(|note| (note.from_ms - BASE_MS, note.to_ms - BASE_MS));
    // Calls have 500 notes each, whose ranges follow each other.
    let expected = (0..20).map(|call| (call * 500, (call + 1) * 500));
    assert!(ranges.eq(expected), "{found:?}");
    note(&server.redis(), &mut connection, &[]).await.unwrap();
    assert_eq!(length(&server).await, 20);
}

#[tokio::test]
async fn the_oldest_notes_beyond_the_bound_are_merged_and_their_time_stays() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    know(&server).await;
    let old = now_ms(&mut connection).await.unwrap() - 3_600_000;
    for (seq, text) in [
        (1, r#"{"reason":"silent","shop":"a","topic":"t","from_ms":1,"to_ms":9,"count":0}"#),
        (2, "no note"),
        (3, r#"{"reason":"lost","shop":"","topic":"","from_ms":7,"to_ms":8,"count":0}"#),
    ] {
        let _: String = server.command(&["XADD", GAPS, &format!("{old}-{seq}"), "g", text]).await;
    }
    fill(&server, old, 3, KEPT - 3, 1).await;
    assert_eq!(length(&server).await, KEPT);
    let three = [1, 2, 3].map(|ms| refused(SHOP, TOPIC, [ms, ms + 1], 1));
    note(&server.redis(), &mut connection, &three).await.unwrap();

    // Three too many and 500 more, so that it is not done for every note: three of these are above. One can't be read.
    assert_eq!(length(&server).await, KEPT - 503 + 3 + 3);
    let oldest = page(&server.redis(), &mut connection, StreamId::ZERO, 1).await.unwrap();
    assert_eq!(oldest[0].1.from_ms, 501);
    let new = after(&server, &mut connection, StreamId { ms: old, seq: KEPT }).await;
    let (merged, rest) = new.split_at(3);
    assert_eq!(rest, three);
    let merged: BTreeSet<_> = merged
        .iter()
        .map(|note| {
            let pair = (&note.shop[..], &note.topic[..]);
            (note.reason, pair, note.from_ms, note.to_ms, note.count)
        })
        .collect();
    // Each shop and topic keeps its own, also a silence.
    let expected = [
        (GapReason::Refused, ("0.example", "t/x"), 1, 501, 500),
        (GapReason::Lost, ("", ""), 7, 8, 0),
        (GapReason::Silent, ("a", "t"), 1, 9, 0),
    ];
    assert_eq!(merged, BTreeSet::from(expected));
}

#[tokio::test]
async fn the_oldest_notes_of_too_many_shops_are_merged_to_one_of_any_shop() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    know(&server).await;
    let old = now_ms(&mut connection).await.unwrap() - 3_600_000;
    fill(&server, old, 0, KEPT, KEPT).await;
    let one = refused(SHOP, TOPIC, [1, 2], 1);
    note(&server.redis(), &mut connection, std::slice::from_ref(&one)).await.unwrap();

    // One too many and 2,000 more: no two of them are of the same shop.
    assert_eq!(length(&server).await, KEPT - 2_001 + 1 + 1);
    let new = after(&server, &mut connection, StreamId { ms: old, seq: KEPT }).await;
    assert_eq!((new.len(), &new[1]), (2, &one));
    let any = &new[0];
    assert_eq!((any.reason, &any.shop[..], &any.topic[..]), (GapReason::Refused, "", ""));
    assert_eq!((any.from_ms, any.to_ms, any.count), (1, 2_002, 2_001));
}

#[tokio::test]
async fn notes_go_after_thirty_days() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    know(&server).await;
    let now = now_ms(&mut connection).await.unwrap();
    fill(&server, now - 31 * DAY_MS, 0, 500, 1).await;
    fill(&server, now - 29 * DAY_MS, 0, 5, 1).await;
    note(&server.redis(), &mut connection, &[refused(SHOP, TOPIC, [1, 2], 1)]).await.unwrap();
    let left = length(&server).await;
    assert!((6..6 + NODE).contains(&left), "{left} are left");
}

#[tokio::test]
async fn a_refusal_is_noted_on_a_full_redis() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    know(&server).await;
    server.fill_to_the_brim().await;
    let one = refused(SHOP, TOPIC, [1, 2], 1);
    note(&server.redis(), &mut connection, std::slice::from_ref(&one)).await.unwrap();
    let run = read_run(&server.redis(), &mut connection).await.unwrap();
    let lost = of(GapReason::Lost, refused("", "", [3, 4], 0));
    note_run(&server.redis(), &mut connection, &run, Some(&lost)).await.unwrap();
    assert_eq!(after(&server, &mut connection, StreamId::ZERO).await, [one, lost]);
}

#[tokio::test]
async fn a_failure_writes_nothing_of_its_call() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let _: String = server.command(&["SET", GAPS, "x"]).await;
    let notes = vec![refused("a.example", TOPIC, [1, 2], 1); 1_200];
    let failed = note(&server.redis(), &mut connection, &notes).await.unwrap_err();
    assert_eq!(failed.0, 0, "{failed:?}");
    let _: u64 = server.command(&["DEL", GAPS]).await;
    note(&server.redis(), &mut connection, &notes).await.unwrap();
    assert_eq!(length(&server).await, 3);
}

#[tokio::test]
async fn notes_of_two_receivers_at_once_are_all_there() {
    let server = Server::start(&["--appendonly", "no"]).await;
    know(&server).await;
    let mut receivers = JoinSet::new();
    for receiver in 0..2 {
        let (redis, mut connection) = (server.redis(), server.connect().await);
        receivers.spawn(async move {
            for call in 0..20 {
                let number = receiver * 20 + call;
                let of_known = refused(SHOP, TOPIC, [number, number + 1], 1);
                let of_stranger = refused("stranger.example", TOPIC, [number, number + 1], 1);
                let notes = [of_known, of_stranger];
                note(&redis, &mut connection, &notes).await.expect("redis answers");
            }
        });
    }
    receivers.join_all().await;
    let mut connection = server.connect().await;
    let found = after(&server, &mut connection, StreamId::ZERO).await;
    for shop in [SHOP, ""] {
        let own = found.iter().filter(|note| note.shop == shop);
        let times: BTreeSet<u64> = own.map(|note| note.from_ms - BASE_MS).collect();
        assert_eq!(times, (0..40).collect(), "shop {shop:?}");
    }
    assert_eq!(found.len(), 80);
}

#[tokio::test]
async fn a_run_of_redis_is_noted_with_what_it_lost() {
    let mut server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let first = read_run(&server.redis(), &mut connection).await.unwrap();
    assert_eq!((&first.before[..], first.newest), ("", StreamId::ZERO));
    note_run(&server.redis(), &mut connection, &first, None).await.unwrap();
    let again = read_run(&server.redis(), &mut connection).await.unwrap();
    assert_eq!((&again.before, &again.current), (&first.current, &first.current));
    assert_eq!(length(&server).await, 0);

    let stored = server.append(&[b"one"]).await;
    server.restart(&[]);
    server.ready().await;
    let lost = [10, 20].map(|ms| of(GapReason::Lost, refused("", "", [ms, ms + 1], 0)));
    let (mut one, mut two) = (server.connect().await, server.connect().await);
    let found = [
        read_run(&server.redis(), &mut one).await.unwrap(),
        read_run(&server.redis(), &mut two).await.unwrap(),
    ];
    for run in &found {
        assert_eq!((&run.before, run.newest), (&first.current, stored[0]));
        assert_ne!(run.current, first.current);
    }
    // Each receiver may have lost something else.
    note_run(&server.redis(), &mut one, &found[0], Some(&lost[0])).await.unwrap();
    note_run(&server.redis(), &mut two, &found[1], Some(&lost[1])).await.unwrap();
    assert_eq!(after(&server, &mut one, StreamId::ZERO).await, lost);
    let noted = read_run(&server.redis(), &mut one).await.unwrap();
    assert_eq!((&noted.before, &noted.current), (&found[0].current, &found[0].current));
}

#[tokio::test]
async fn a_run_that_is_over_or_that_another_one_noted_is_not_noted() {
    let mut server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let old = read_run(&server.redis(), &mut connection).await.unwrap();
    server.restart(&[]);
    server.ready().await;
    let mut connection = server.connect().await;
    note_run(&server.redis(), &mut connection, &old, None).await.unwrap();
    let run = read_run(&server.redis(), &mut connection).await.unwrap();
    assert_eq!(run.before, "", "the loss of the next one would not be found");
    assert_ne!(run.current, old.current);

    // A failover to a Redis with older data: what was noted there is another run than the one that was read.
    let _: String = server.command(&["SET", RUN, "0123456789abcdef"]).await;
    note_run(&server.redis(), &mut connection, &run, None).await.unwrap();
    let found = read_run(&server.redis(), &mut connection).await.unwrap();
    assert_eq!(found.before, "0123456789abcdef");
}

#[tokio::test]
async fn losses_alone_do_not_fill_redis() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let now = now_ms(&mut connection).await.unwrap();
    fill(&server, now - DAY_MS, 0, MAX + 1_000, 1).await;
    let run = read_run(&server.redis(), &mut connection).await.unwrap();
    let lost = of(GapReason::Lost, refused("", "", [3, 4], 0));
    note_run(&server.redis(), &mut connection, &run, Some(&lost)).await.unwrap();
    let left = length(&server).await;
    assert!((MAX..=MAX + NODE).contains(&left), "{left} are left");
}
