//! The rhythm of shops and topics: its bounds, several receivers, and clocks that jump.

use std::collections::BTreeMap;
use std::time::Duration;

use spillway_queue::dead::now_ms;
use spillway_queue::gaps::{GapReason, NotedGap, page};
use spillway_queue::rhythm::{PairRhythm, RhythmReporter, SeenPair, scan};
use spillway_queue::{Connection, QueueError};
use spillway_webhook::StreamId;
use tokio::task::JoinSet;

use crate::server::Server;

const RHYTHM: &str = "{spillway}:rhythm";
const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Shortest silence that is noted.
const LEAST: Duration = Duration::from_millis(HOUR);
/// Pairs that are kept.
const KEPT: u64 = 50_000;
/// Difference of clocks that is accepted.
const AHEAD: u64 = MINUTE;
const SHOP: &str = "a.myshopify.com";
const TOPIC: &str = "orders/create";

/// Webhooks of [`SHOP`] and [`TOPIC`] that a receiver saw.
fn seen(first_ms: u64, last_ms: u64, count: u64, longest_ms: u64) -> SeenPair {
    let (shop, topic) = (SHOP.to_owned(), TOPIC.to_owned());
    SeenPair { shop, topic, first_ms, last_ms, count, longest_ms }
}

/// One webhook of another shop.
fn other(shop: &str, ms: u64) -> SeenPair {
    SeenPair { shop: shop.to_owned(), ..seen(ms, ms, 1, 0) }
}

fn reporter(server: &Server) -> RhythmReporter {
    RhythmReporter::new(server.redis(), LEAST)
}

/// Reports pairs.
async fn report(reporter: &mut RhythmReporter, connection: &mut Connection, pairs: &[SeenPair]) {
    reporter.report(connection, pairs).await.expect("redis has room");
}

/// All pairs, each named by its shop.
async fn rhythms(server: &Server, connection: &mut Connection) -> BTreeMap<String, PairRhythm> {
    let (mut cursor, mut found) = (0, BTreeMap::new());
    loop {
        let (next, some) = scan(&server.redis(), connection, cursor).await.expect("redis answers");
        found.extend(some.into_iter().map(|(shop, _, rhythm)| (shop, rhythm)));
        if next == 0 {
            return found;
        }
        cursor = next;
    }
}

async fn rhythm(server: &Server, connection: &mut Connection) -> PairRhythm {
    rhythms(server, connection).await[SHOP]
}

async fn notes(server: &Server, connection: &mut Connection) -> Vec<NotedGap> {
    let found = page(&server.redis(), connection, StreamId::ZERO, 100).await;
    found.expect("redis answers").into_iter().map(|(_, note)| note).collect()
}

/// Writes pairs that were seen last at this time.
async fn fill(server: &Server, count: u64, last_ms: u64) {
    let script = "for i = 1, tonumber(ARGV[1]) do \
                  redis.call('HSET', KEYS[1], 'shop-' .. i .. ' t/x', '5 ' .. ARGV[2] .. ' 30 5 5 9') end \
                  return 1";
    let [count, last_ms] = [count, last_ms].map(|number| number.to_string());
    let _: u64 = server.command(&["EVAL", script, "1", RHYTHM, &count, &last_ms]).await;
}

async fn pairs(server: &Server) -> u64 {
    server.command(&["HLEN", RHYTHM]).await
}

#[tokio::test]
async fn two_receivers_that_saw_the_same_pair_have_one_rhythm_in_any_order() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let now = now_ms(&mut connection).await.unwrap();
    let mut reports = [
        seen(now - 2 * HOUR, now - HOUR, 10, 5 * MINUTE),
        seen(now - 90 * MINUTE, now - 30 * MINUTE, 7, 12 * MINUTE),
        seen(now - 100 * MINUTE, now - 50 * MINUTE, 2, MINUTE),
    ];
    let expected = PairRhythm {
        first_ms: now - 2 * HOUR,
        last_ms: now - 30 * MINUTE,
        count: 19,
        longest_ms: 12 * MINUTE,
    };
    for turn in 0..3 {
        let _: u64 = server.command(&["DEL", RHYTHM]).await;
        for pair in &reports {
            report(&mut reporter(&server), &mut connection, std::slice::from_ref(pair)).await;
        }
        assert_eq!(rhythm(&server, &mut connection).await, expected, "turn {turn}");
        reports.rotate_left(1);
    }
    assert!(notes(&server, &mut connection).await.is_empty());
}

#[tokio::test]
async fn reports_at_the_same_time_are_all_counted() {
    let server = Server::start(&["--appendonly", "no"]).await;
    let mut connection = server.connect().await;
    let now = now_ms(&mut connection).await.unwrap();
    let mut receivers = JoinSet::new();
    for receiver in 0..8 {
        let (mut reporter, mut connection) = (reporter(&server), server.connect().await);
        receivers.spawn(async move {
            for number in 0..20 {
                let ms = now - HOUR + (number * 8 + receiver) * 1_000;
                let pairs = [seen(ms, ms, 1, 0), other(&format!("shop-{receiver}"), ms)];
                report(&mut reporter, &mut connection, &pairs).await;
            }
        });
    }
    receivers.join_all().await;
    let found = rhythms(&server, &mut connection).await;
    let whole = found[SHOP];
    assert_eq!(whole.count, 160);
    assert_eq!([whole.first_ms, whole.last_ms], [now - HOUR, now - HOUR + 159_000]);
    assert!(whole.longest_ms < 160_000, "{whole:?}");
    assert!((0..8).all(|receiver| found[&format!("shop-{receiver}")].count == 20), "{found:?}");
    assert!(notes(&server, &mut connection).await.is_empty());
}

#[tokio::test]
async fn more_pairs_than_one_call_takes_are_all_reported() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let now = now_ms(&mut connection).await.unwrap();
    let pairs: Vec<SeenPair> =
        (0..450).map(|number| other(&format!("shop-{number}"), now - number)).collect();
    report(&mut reporter(&server), &mut connection, &pairs).await;
    let found = rhythms(&server, &mut connection).await;
    assert_eq!(found.len(), 450);
    assert_eq!(found["shop-449"].last_ms, now - 449);
}

#[tokio::test]
async fn pairs_beyond_the_bound_have_no_rhythm_and_known_ones_go_on() {
    let server = Server::start(&["--appendonly", "no"]).await;
    let mut connection = server.connect().await;
    let now = now_ms(&mut connection).await.unwrap();
    fill(&server, KEPT, now - HOUR).await;
    let known = SeenPair { topic: "t/x".to_owned(), ..other("shop-7", now) };
    let strangers = (0..300).map(|number| other(&format!("stranger-{number}"), now));
    let reported: Vec<SeenPair> = [known].into_iter().chain(strangers).collect();
    let mut reporter = reporter(&server);
    report(&mut reporter, &mut connection, &reported).await;
    assert_eq!(pairs(&server).await, KEPT);
    let text: String = server.command(&["HGET", RHYTHM, "shop-7 t/x"]).await;
    assert!(text.starts_with(&format!("5 {now} 31 ")), "{text}");

    let _: u64 = server.command(&["HDEL", RHYTHM, "shop-1 t/x", "shop-2 t/x"]).await;
    report(&mut reporter, &mut connection, &reported).await;
    assert_eq!(pairs(&server).await, KEPT, "as many more as there is room for");
}

#[tokio::test]
async fn pairs_that_are_not_seen_for_long_make_room() {
    let server = Server::start(&["--appendonly", "no"]).await;
    let mut connection = server.connect().await;
    let now = now_ms(&mut connection).await.unwrap();
    fill(&server, 2_000, now - 31 * DAY).await;
    let _: u64 = server.command(&["HSET", RHYTHM, "shop-x t/x", "no rhythm"]).await;
    let mut reporter = reporter(&server);
    let mut reports = 0;
    let mut left = pairs(&server).await;
    while left > 1 {
        report(&mut reporter, &mut connection, &[seen(now, now, 1, 0)]).await;
        reports += 1;
        left = pairs(&server).await;
        assert!(reports < 500, "{left} are left");
    }
    assert_eq!(rhythm(&server, &mut connection).await.count, reports);
    assert!(reports >= 5, "one call sweeps a few, and not all");
}

#[tokio::test]
async fn a_value_that_cannot_be_read_is_replaced() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let now = now_ms(&mut connection).await.unwrap();
    let field = format!("{SHOP} {TOPIC}");
    for text in ["", "nothing", "1 2 3", "1 2 3 4 5 6 7"] {
        let _: u64 = server.command(&["DEL", RHYTHM]).await;
        let _: u64 = server.command(&["HSET", RHYTHM, &field, text]).await;
        report(&mut reporter(&server), &mut connection, &[seen(now, now, 3, 0)]).await;
        let expected = PairRhythm { first_ms: now, last_ms: now, count: 3, longest_ms: 0 };
        assert_eq!(rhythm(&server, &mut connection).await, expected, "{text:?}");
    }
}

#[tokio::test]
async fn times_of_a_clock_that_jumped_are_bounded_by_that_of_redis() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let before = now_ms(&mut connection).await.unwrap();
    for (first_ms, last_ms) in [
        (before + 365 * DAY, before + 366 * DAY),
        (before + 365 * DAY, 5),
        (0, 1),
        (0, u64::MAX),
        (u64::MAX, u64::MAX),
    ] {
        let _: u64 = server.command(&["DEL", RHYTHM]).await;
        let jumped = seen(first_ms, last_ms, 2, u64::MAX);
        report(&mut reporter(&server), &mut connection, &[jumped]).await;
        let found = rhythm(&server, &mut connection).await;
        let after = now_ms(&mut connection).await.unwrap();
        let range = before - 30 * DAY..=after + AHEAD;
        let times = [found.first_ms, found.last_ms];
        assert!(times.iter().all(|ms| range.contains(ms)), "{first_ms} {last_ms}: {found:?}");
        assert!(found.first_ms <= found.last_ms && found.count == 2, "{found:?}");
        assert_eq!(found.longest_ms, found.last_ms - found.first_ms, "{first_ms} {last_ms}");
    }
    assert!(notes(&server, &mut connection).await.is_empty());
}

#[tokio::test]
async fn what_a_clock_ahead_wrote_does_not_hide_a_silence_for_ever() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let before = now_ms(&mut connection).await.unwrap();
    let ahead = before + 10 * DAY;
    // As one that wrote it ten days ahead, before the clock of Redis was set back.
    let text = format!("{} {ahead} 30 {MINUTE} 5 {}", before - 2 * DAY, ahead / (7 * DAY));
    let field = format!("{SHOP} {TOPIC}");
    let _: u64 = server.command(&["HSET", RHYTHM, &field, &text]).await;
    // The sweep of a report of any other pair finds it.
    report(&mut reporter(&server), &mut connection, &[other("other.example", before)]).await;
    let found = rhythm(&server, &mut connection).await;
    let after = now_ms(&mut connection).await.unwrap();
    assert!((before..=after).contains(&found.last_ms), "{found:?}");
    assert_eq!((found.first_ms, found.count), (before - 2 * DAY, 30));
    assert!(found.is_silent(after + 2 * HOUR, HOUR), "{found:?}");
    assert!(!found.is_silent(after + HOUR / 2, HOUR), "{found:?}");
}

#[tokio::test]
async fn a_silence_that_ended_is_noted_once_whichever_receivers_report_it() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let now = now_ms(&mut connection).await.unwrap();
    let (mut one, mut two) = (reporter(&server), reporter(&server));
    let usual = seen(now - 30 * HOUR, now - 5 * HOUR, 40, 20 * MINUTE);
    report(&mut one, &mut connection, &[usual]).await;
    report(&mut one, &mut connection, &[seen(now - MINUTE, now, 3, 10_000)]).await;
    report(&mut two, &mut connection, &[seen(now - MINUTE / 2, now, 3, 10_000)]).await;
    let expected = NotedGap {
        reason: GapReason::Silent,
        shop: SHOP.to_owned(),
        topic: TOPIC.to_owned(),
        from_ms: now - 5 * HOUR,
        to_ms: now - MINUTE,
        count: 0,
    };
    assert_eq!(notes(&server, &mut connection).await, [expected]);
    // From now on, a silence of this length is usual.
    let found = rhythm(&server, &mut connection).await;
    assert_eq!((found.count, found.longest_ms), (46, 5 * HOUR - MINUTE));
}

#[tokio::test]
async fn no_silence_is_noted_of_a_pair_that_is_hardly_known_or_often_as_slow() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let now = now_ms(&mut connection).await.unwrap();
    let usual = seen(now - 30 * HOUR, now - 5 * HOUR, 40, 20 * MINUTE);
    let few = SeenPair { count: 19, ..usual.clone() };
    let short = SeenPair { first_ms: now - 28 * HOUR, ..usual.clone() };
    let slow = SeenPair { longest_ms: 3 * HOUR, ..usual.clone() };
    for (what, before, is_noted) in [
        ("it is usual", usual, true),
        ("there are too few", few, false),
        ("it is known for too short", short, false),
        ("it is often as slow", slow, false),
    ] {
        let _: u64 = server.command(&["DEL", RHYTHM, "{spillway}:gaps"]).await;
        report(&mut reporter(&server), &mut connection, &[before]).await;
        let again = [seen(now, now, 1, 0)];
        let mut reporter = reporter(&server);
        reporter.report(&mut connection, &again).await.unwrap();
        let found = notes(&server, &mut connection).await;
        let from: Vec<u64> = found.iter().map(|note| note.from_ms).collect();
        let expected = is_noted.then_some(now - 5 * HOUR);
        assert_eq!(from, Vec::from_iter(expected), "{what}");
    }
}

#[tokio::test]
async fn a_full_redis_refuses_a_report_as_full_and_takes_it_later() {
    let server = Server::start(&[]).await;
    let mut connection = server.connect().await;
    let now = now_ms(&mut connection).await.unwrap();
    let mut reporter = reporter(&server);
    let pairs = [seen(now, now, 3, 0)];
    server.fill_to_the_brim().await;
    let refused = reporter.report(&mut connection, &pairs).await.unwrap_err();
    assert!(matches!(refused, (0, QueueError::Full(_))), "{refused:?}");
    let _: String = server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    report(&mut reporter, &mut connection, &pairs).await;
    assert_eq!(rhythm(&server, &mut connection).await.count, 3);
}
