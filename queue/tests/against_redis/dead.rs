//! Dead letters: listed, replayed, dropped, aged out.

use std::time::Duration;

use spillway_queue::dead::{AgedOut, DeadLetter, Take, age_out, list, now_ms, take};
use spillway_queue::settle::{Dead, Settlement};
use spillway_webhook::StreamId;

use crate::consumer::{TestConsumer, dead, webhook};
use crate::server::Server;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A consumer that has given up these webhooks.
async fn having_given_up(server: &Server, dead: Vec<Dead>) -> (TestConsumer, Vec<DeadLetter>) {
    let mut http = TestConsumer::start(server, "http").await;
    http.settle(&Settlement { dead, ..Settlement::default() }).await.expect("they are given up");
    let letters = all(&mut http).await;
    (http, letters)
}

async fn all(http: &mut TestConsumer) -> Vec<DeadLetter> {
    let found = list(&http.redis, &mut http.connection, http.name, StreamId::ZERO, 1_000).await;
    found.expect("they can be listed")
}

async fn bytes(server: &Server) -> u64 {
    server.command(&["GET", "{spillway}:http:dead:bytes"]).await
}

#[tokio::test]
async fn dead_letters_are_listed_page_by_page_as_they_were_given_up() {
    let server = Server::start(&[]).await;
    let given_up = (1..=5).map(|ms| dead(ms, "orders/create")).collect();
    let (mut http, letters) = having_given_up(&server, given_up).await;
    let first = &letters[0];
    assert_eq!((first.webhook, &first.pack[..]), (webhook(1), &b"pack of 1"[..]));
    let labels = [&first.shop, &first.topic, &first.resource, &first.webhook_id];
    assert_eq!(labels, ["a.myshopify.com", "orders/create", "product/1", "b54557e4"]);
    assert_eq!((&first.reason[..], first.status, first.attempts), ("refused", 404, 9));
    assert_eq!(&first.answer[..], b"no such route");

    let (mut after, mut pages) = (StreamId::ZERO, Vec::new());
    loop {
        let page = list(&http.redis, &mut http.connection, "http", after, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.id;
        pages.push(page.iter().map(|letter| letter.webhook.entry.ms).collect::<Vec<_>>());
    }
    assert_eq!(pages, [vec![1, 2], vec![3, 4], vec![5]]);
}

#[tokio::test]
async fn dropped_dead_letters_are_gone_with_their_bytes() {
    let server = Server::start(&[]).await;
    let given_up = vec![dead(1, "orders/create"), dead(2, "orders/create")];
    let (mut http, letters) = having_given_up(&server, given_up).await;
    let before = bytes(&server).await;
    let ids = [letters[0].id, letters[0].id, StreamId { ms: 1, seq: 1 }];
    let taken = take(&http.redis, &mut http.connection, "http", Take::Drop, &ids).await;
    assert_eq!(taken.unwrap(), 1);
    assert_eq!(all(&mut http).await.len(), 1);
    assert_eq!(bytes(&server).await, before / 2);
    let rest = [letters[1].id];
    take(&http.redis, &mut http.connection, "http", Take::Drop, &rest).await.unwrap();
    assert_eq!(bytes(&server).await, 0);
    assert!(server.ids("{spillway}:http:replays").await.is_empty());
}

#[tokio::test]
async fn replayed_dead_letters_are_read_in_the_order_given() {
    let server = Server::start(&[]).await;
    let given_up = (1..=3).map(|ms| dead(ms, "orders/create")).collect();
    let (mut http, letters) = having_given_up(&server, given_up).await;
    let ids = [letters[2].id, letters[0].id, letters[1].id];
    let taken = take(&http.redis, &mut http.connection, "http", Take::Replay, &ids).await;
    assert_eq!(taken.unwrap(), 3);
    assert!(all(&mut http).await.is_empty());
    assert_eq!(bytes(&server).await, 0);
    let replays =
        http.reader.replays_after(&mut http.connection, StreamId::ZERO, 1 << 20).await.unwrap();
    let order: Vec<_> = replays.iter().map(|replay| replay.webhook.entry.ms).collect();
    assert_eq!(order, [3, 1, 2]);
    assert_eq!(&replays[0].pack[..], b"pack of 3");
}

#[tokio::test]
async fn many_and_large_dead_letters_are_taken_in_the_order_given() {
    let server = Server::start(&[]).await;
    let large = |ms| Dead { pack: vec![b'x'; 3 << 20], ..dead(ms, "orders/create") };
    let given_up = (1..=10).map(large).chain((11..=200).map(|ms| dead(ms, "orders/create")));
    let (mut http, letters) = having_given_up(&server, given_up.collect()).await;
    let ids: Vec<_> = letters.iter().rev().map(|letter| letter.id).collect();
    let _: String = server.command(&["CONFIG", "RESETSTAT"]).await;
    let taken = take(&http.redis, &mut http.connection, "http", Take::Replay, &ids).await;
    assert_eq!(taken.unwrap(), 200);
    assert_eq!((all(&mut http).await.len(), bytes(&server).await), (0, 0));
    // One call finds the script missing. Three take 64 letters each, and three take the other large
    // ones, at most three at a time.
    let calls: String = server.command(&["INFO", "commandstats"]).await;
    assert!(calls.contains("cmdstat_evalsha:calls=7,"), "{calls}");
    let replays: Vec<(String, Vec<Vec<u8>>)> =
        server.command(&["XRANGE", "{spillway}:http:replays", "-", "+"]).await;
    let order: Vec<_> = replays.iter().map(|(_, fields)| fields[3].clone()).collect();
    let expected: Vec<_> = (1..=200).rev().map(|ms| webhook(ms).to_string().into_bytes()).collect();
    assert_eq!(order, expected);
}

async fn aged(http: &mut TestConsumer, keep: Duration, now_ms: u64) -> AgedOut {
    let aged = age_out(&http.redis, &mut http.connection, "http", keep, now_ms).await;
    aged.expect("redis answers")
}

#[tokio::test]
async fn old_dead_letters_are_dropped_but_never_those_the_law_asks_for() {
    let server = Server::start(&[]).await;
    let topics = ["orders/create", "customers/redact", "shop/redact", "customers/data_request"];
    let given_up = (0..60).map(|at| dead(at, topics[at as usize % 4])).collect();
    let (mut http, letters) = having_given_up(&server, given_up).await;
    let now_ms = letters.last().unwrap().id.ms;
    assert_eq!(aged(&mut http, DAY, now_ms).await, AgedOut { dropped: 0, is_bounded: false });
    let later_ms = now_ms + 2 * u64::try_from(DAY.as_millis()).unwrap();
    assert_eq!(aged(&mut http, DAY, later_ms).await, AgedOut { dropped: 15, is_bounded: false });
    let kept = all(&mut http).await;
    assert_eq!(kept.len(), 60 - 15);
    assert!(kept.iter().all(|letter| letter.topic != "orders/create"));
}

#[tokio::test]
async fn a_clock_that_jumps_ahead_by_a_month_costs_a_few_dead_letters() {
    let server = Server::start(&[]).await;
    let given_up = (0..2_000).map(|at| dead(at, "orders/create")).collect();
    let (mut http, _) = having_given_up(&server, given_up).await;
    let now_ms = now_ms(&mut http.connection).await.unwrap();
    let later_ms = now_ms + 31 * u64::try_from(DAY.as_millis()).unwrap();
    let few = AgedOut { dropped: 17, is_bounded: true };
    assert_eq!(aged(&mut http, 30 * DAY, later_ms).await, few);
    assert_eq!(aged(&mut http, 30 * DAY, later_ms).await, few);
    assert_eq!(server.command::<u64>(&["XLEN", "{spillway}:http:dead"]).await, 2_000 - 2 * 17);
    assert_eq!(aged(&mut http, 30 * DAY, now_ms).await.dropped, 0);
}

#[tokio::test]
async fn a_dead_letter_is_old_only_past_the_whole_time() {
    let server = Server::start(&[]).await;
    let (mut http, letters) = having_given_up(&server, vec![dead(1, "orders/create")]).await;
    let given_up_ms = letters[0].id.ms;
    for (passed_ms, dropped) in [(0, 0), (1_000, 0), (1_001, 1)] {
        let now_ms = given_up_ms + passed_ms;
        let aged = aged(&mut http, Duration::from_secs(1), now_ms).await;
        assert_eq!(aged.dropped, dropped, "after {passed_ms} ms");
    }
    // A clock before the epoch's first days must not wrap around.
    assert_eq!(aged(&mut http, DAY, 5).await.dropped, 0);
}
