//! Notes of webhooks that may be missing, and the rhythm of shops and topics.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use spillway_queue::accepting::{self, AcceptedTime};
use spillway_queue::gaps::{self, GapReason, NotedGap};
use spillway_queue::rhythm::{RhythmReporter, SeenPair};
use spillway_webhook::StreamId;

use crate::server::Server;

const HOUR: u64 = 3_600_000;
const MINUTE: u64 = 60_000;
const LEAST: Duration = Duration::from_secs(3600);

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(since.as_millis()).expect("a time")
}

async fn noted(server: &Server) -> Vec<NotedGap> {
    let mut connection = server.connect().await;
    let redis = server.redis();
    let page = gaps::page(&redis, &mut connection, StreamId::ZERO, 100_000).await;
    page.expect("notes").into_iter().map(|(_, note)| note).collect()
}

/// Reports a time of a receiver. With `is_first`, its process has just started.
async fn accepts(server: &Server, from_ms: u64, to_ms: u64, is_first: bool) {
    accepts_at(server, [from_ms, to_ms], is_first, to_ms.max(now_ms())).await;
}

/// Reports a time by a receiver whose clock says `clock_ms`.
async fn accepts_at(server: &Server, [from_ms, to_ms]: [u64; 2], is_first: bool, clock_ms: u64) {
    let noted = is_first.then_some(Duration::from_secs(120));
    let times = [AcceptedTime { from_ms, to_ms }];
    let mut connection = server.connect().await;
    let reported =
        accepting::report(&server.redis(), &mut connection, &times, noted, clock_ms).await;
    reported.expect("redis takes it");
}

async fn comes(server: &Server, shop: &str, first_ms: u64, last_ms: u64, count: u64) {
    let [shop, topic] = [shop, "orders/create"].map(str::to_owned);
    let pair = SeenPair { shop, topic, first_ms, last_ms, count, longest_ms: HOUR / 10 };
    let mut reporter = RhythmReporter::new(server.redis(), LEAST);
    let reported = reporter.report(&mut server.connect().await, &[pair]).await;
    reported.expect("redis takes it");
}

fn refused(shop: &str, topic: &str, from_ms: u64) -> NotedGap {
    let [shop, topic] = [shop, topic].map(str::to_owned);
    let reason = GapReason::Refused;
    NotedGap { reason, shop, topic, from_ms, to_ms: from_ms + 1000, count: 1 }
}

#[tokio::test]
async fn a_silence_that_a_restart_divides_is_noted_and_the_time_without_a_receiver_is_none() {
    let server = Server::start(&[]).await;
    let now = now_ms();
    // The subscription of `gone` ends 10 hours ago. The receiver is away from 6 to 5 hours ago.
    accepts(&server, now - 60 * HOUR, now - 6 * HOUR, true).await;
    comes(&server, "gone", now - 50 * HOUR, now - 10 * HOUR, 100).await;
    comes(&server, "well", now - 50 * HOUR, now - 6 * HOUR - 1000, 100).await;
    accepts(&server, now - 5 * HOUR, now - 1000, true).await;
    comes(&server, "well", now - 5 * HOUR + 1000, now - 1000, 50).await;
    comes(&server, "gone", now - 1000, now - 1000, 1).await;
    let mut all = noted(&server).await;
    all.sort_by_key(|note| note.from_ms);
    let of = |note: &NotedGap| (note.reason, note.shop.clone(), note.from_ms, note.to_ms);
    let expected = [
        (GapReason::Silent, "gone".to_owned(), now - 10 * HOUR, now - 1000),
        (GapReason::Down, String::new(), now - 6 * HOUR, now - 5 * HOUR),
    ];
    assert_eq!(all.iter().map(of).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_receiver_that_starts_again_beside_another_one_is_no_hole() {
    let server = Server::start(&[]).await;
    let now = now_ms();
    accepts(&server, now - 60 * HOUR, now - 30 * HOUR, true).await;
    comes(&server, "gone", now - 60 * HOUR, now - 30 * HOUR, 100).await;
    // One is away for 29 hours. The other one reports afterwards that it was there.
    accepts(&server, now - HOUR, now - HOUR, false).await;
    accepts(&server, now - 31 * HOUR, now - 1000, false).await;
    let mut connection = server.connect().await;
    let closed = accepting::read(&server.redis(), &mut connection).await.expect("it is read");
    assert_eq!(closed.between(0, now), 0);
    // A restart takes a second, and is no gap.
    accepts(&server, now, now, true).await;
    comes(&server, "gone", now, now, 1).await;
    let all = noted(&server).await;
    assert_eq!((all.len(), all[0].reason), (1, GapReason::Silent), "{all:?}");
}

#[tokio::test]
async fn the_time_without_a_receiver_is_noted_once_and_in_a_full_redis() {
    let server = Server::start(&[]).await;
    let now = now_ms();
    accepts(&server, now - 9 * HOUR, now - 8 * HOUR, true).await;
    server.fill_to_the_brim().await;
    for _ in 0..2 {
        accepts(&server, now - HOUR, now, true).await;
    }
    let all = noted(&server).await;
    assert_eq!((all.len(), all[0].reason), (1, GapReason::Down), "{all:?}");
    assert_eq!((all[0].from_ms, all[0].to_ms), (now - 8 * HOUR, now - HOUR));
}

/// Milliseconds in which nothing could come, until some minutes from now.
async fn closed(server: &Server) -> u64 {
    let mut connection = server.connect().await;
    let closed = accepting::read(&server.redis(), &mut connection).await.expect("it is read");
    closed.between(0, now_ms() + 10 * MINUTE)
}

#[tokio::test]
async fn a_receiver_whose_clock_is_ahead_makes_no_holes_and_hides_none() {
    for ahead in [3 * MINUTE / 2, 5 * HOUR] {
        let server = Server::start(&[]).await;
        let now = now_ms();
        accepts(&server, now - 9 * HOUR, now - MINUTE / 2, true).await;
        // It goes on, with each report.
        accepts(&server, now - MINUTE / 2 + ahead, now + ahead, false).await;
        accepts(&server, now + ahead, now + ahead + 1000, false).await;
        assert_eq!(closed(&server).await, 0, "{ahead} ms ahead");
        assert!(noted(&server).await.is_empty(), "{ahead} ms ahead");
    }
    // It was away for some hours.
    let server = Server::start(&[]).await;
    let now = now_ms();
    accepts(&server, now - 9 * HOUR, now - 3 * HOUR, true).await;
    accepts(&server, now + 4 * HOUR, now + 5 * HOUR, true).await;
    let hole = closed(&server).await;
    assert!((2 * HOUR..2 * HOUR + MINUTE).contains(&hole), "{hole} ms of two hours");
    let all = noted(&server).await;
    assert_eq!((all.len(), all[0].reason), (1, GapReason::Down), "{all:?}");
}

#[tokio::test]
async fn holes_that_a_moment_divides_are_one() {
    let server = Server::start(&[]).await;
    let now = now_ms();
    accepts(&server, now - 9 * HOUR, now - 8 * HOUR, true).await;
    for hours in [6, 5, 4] {
        accepts(&server, now - hours * HOUR, now - hours * HOUR, false).await;
    }
    accepts(&server, now - 2 * HOUR, now - HOUR, false).await;
    let text: String = server.command(&["GET", "{spillway}:gaps:accepting"]).await;
    let expected = format!("{} {} {}", now - HOUR, now - 8 * HOUR, now - 2 * HOUR);
    assert_eq!(text, expected);
}

#[tokio::test]
async fn of_too_many_holes_the_oldest_are_left_out() {
    const HOLES_KEPT: u64 = 100;
    let server = Server::start(&[]).await;
    let first = now_ms() - 6 * HOUR;
    // A minute in which webhooks are accepted, and a minute in which none is.
    let time = |at: u64| {
        let from_ms = first + at * 2 * MINUTE;
        AcceptedTime { from_ms, to_ms: from_ms + MINUTE }
    };
    let hole = |at: u64| format!(" {} {}", time(at).to_ms, time(at + 1).from_ms);
    let kept = async |last: u64| {
        let text: String = server.command(&["GET", "{spillway}:gaps:accepting"]).await;
        let holes: String = (last - HOLES_KEPT..last).map(hole).collect();
        assert_eq!(text, format!("{}{holes}", time(last).to_ms));
        assert_eq!(closed(&server).await, HOLES_KEPT * MINUTE);
    };
    let times: Vec<AcceptedTime> = (0..=HOLES_KEPT).map(time).collect();
    let mut connection = server.connect().await;
    let reported =
        accepting::report(&server.redis(), &mut connection, &times, None, now_ms()).await;
    reported.expect("redis takes it");
    kept(HOLES_KEPT).await;
    for at in HOLES_KEPT + 1..HOLES_KEPT + 4 {
        accepts(&server, time(at).from_ms, time(at).to_ms, false).await;
        kept(at).await;
    }
}

#[tokio::test]
async fn notes_beyond_the_bound_are_merged_by_shop_and_topic_first() {
    let server = Server::start(&[]).await;
    let now = now_ms();
    let shops: Vec<String> = (0..50).map(|number| format!("{number}.myshopify.com")).collect();
    for shop in &shops {
        comes(&server, shop, now, now, 1).await;
    }
    let redis = server.redis();
    let mut connection = server.connect().await;
    // Another day would be another note.
    let day = now - now % (24 * HOUR);
    let notes: Vec<NotedGap> = (0..52_000)
        .map(|number| {
            let shop = &shops[usize::try_from(number % 50).expect("a shop")];
            refused(shop, "orders/create", day + number)
        })
        .collect();
    gaps::note(&redis, &mut connection, &notes).await.expect("redis takes them");
    let all = noted(&server).await;
    assert!(all.len() <= 50_500, "{}", all.len());
    assert_eq!(all.iter().map(|note| note.count).sum::<u64>(), 52_000, "none is left out");
    let named: HashSet<&str> = all.iter().map(|note| note.shop.as_str()).collect();
    assert_eq!(named.len(), 50);
    assert!(!named.contains(""), "none is of any shop");
}

#[tokio::test]
async fn an_outage_is_a_hole_by_a_clock_that_is_ahead_too() {
    let server = Server::start(&[]).await;
    let now = now_ms();
    let clock = now + 5 * HOUR;
    accepts_at(&server, [clock - 3 * HOUR, clock - HOUR], true, clock).await;
    accepts_at(&server, [clock, clock], false, clock).await;
    let closed = accepting::read(&server.redis(), &mut server.connect().await).await.unwrap();
    let hole = closed.between(now - 4 * HOUR, now + HOUR);
    assert!(hole.abs_diff(HOUR) < MINUTE, "{hole} ms of an hour: {closed:?}");
}
