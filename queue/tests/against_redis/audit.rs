//! The audit: begin and end of a change, the bounds of its records, and a Redis that is full or older.

use std::time::Duration;

use spillway_queue::audit::{Audit, AuditEnd, AuditRecord, AuditWay, AuditedChange};
use spillway_queue::dead::now_ms;
use spillway_queue::{Connection, QueueError};
use spillway_webhook::StreamId;
use tokio::task::JoinSet;

use crate::server::Server;

const AUDIT: &str = "{spillway}:audit";
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
const DAY: Duration = Duration::from_millis(DAY_MS);
const YEAR: Duration = Duration::from_millis(365 * DAY_MS);
/// Records that are kept, beside those of the last day.
const KEPT: u64 = 100_000;
/// Records beyond which no change begins.
const MAX: u64 = 300_000;
/// Records of one node of a stream, which is removed as a whole.
const NODE: u64 = 100;
/// Redis without a log, for tests with very many records.
const FAST: [&str; 2] = ["--appendonly", "no"];

/// The audit as a process has it, with a connection of its own.
async fn open(server: &Server, keep: Duration) -> (Audit, Connection) {
    (Audit::new(server.redis(), keep), server.connect().await)
}

fn change(actor: &str) -> AuditedChange {
    AuditedChange {
        actor: actor.to_owned(),
        way: AuditWay::Cli,
        verb: "dead replay".to_owned(),
        consumer: "http".to_owned(),
        filter: "shop a.myshopify.com".to_owned(),
    }
}

/// Writes records of this time, as a script of many changes does.
async fn fill(server: &Server, ms: u64, count: u64) {
    let script = "for i = 1, tonumber(ARGV[1]) do \
                  redis.call('XADD', KEYS[1], ARGV[2] .. '-' .. i, 'r', ARGV[3]) end return 1";
    let record =
        r#"{"actor":"x","way":"cli","verb":"pause","consumer":"http","filter":"a","end":null}"#;
    let [count, ms] = [count, ms].map(|number| number.to_string());
    let _: u64 = server.command(&["EVAL", script, "1", AUDIT, &count, &ms, record]).await;
}

async fn length(server: &Server) -> u64 {
    server.command(&["XLEN", AUDIT]).await
}

/// All records, the newest first, in pages of this size.
async fn records(audit: &Audit, connection: &mut Connection, size: usize) -> Vec<AuditRecord> {
    let (mut before, mut found) = (None, Vec::new());
    loop {
        let page = audit.page(connection, before, size).await.expect("redis answers");
        assert!(page.len() <= size);
        let Some(last) = page.last() else { return found };
        before = Some(last.id);
        found.extend(page);
    }
}

/// Actor and end of all records, the newest first.
async fn told(audit: &Audit, connection: &mut Connection) -> Vec<(String, Option<AuditEnd>)> {
    let records = records(audit, connection, 100).await.into_iter();
    records.map(|record| (record.change.actor, record.end)).collect()
}

#[tokio::test]
async fn the_end_of_a_change_replaces_its_begin() {
    let server = Server::start(&[]).await;
    let (audit, mut connection) = open(&server, YEAR).await;
    let one = audit.begin(&mut connection, &change("mia")).await.unwrap();
    let two = audit.begin(&mut connection, &change("leo")).await.unwrap();
    let begun = records(&audit, &mut connection, 10).await;
    let begun: Vec<_> = begun.iter().map(|found| (found.id, found.began_ms, &found.end)).collect();
    assert_eq!(begun, [(two, two.ms, &None), (one, one.ms, &None)]);
    let before_all = audit.page(&mut connection, Some(StreamId::ZERO), 10).await;
    assert!(before_all.expect("an empty page").is_empty());

    audit.end(&mut connection, one, change("mia"), AuditEnd::Done(3)).await.unwrap();
    let failed = AuditEnd::Failed("redis is away".to_owned());
    audit.end(&mut connection, two, change("leo"), failed.clone()).await.unwrap();
    let ended = records(&audit, &mut connection, 10).await;
    let [leo, mia] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!((&leo.change, leo.began_ms, &leo.end), (&change("leo"), two.ms, &Some(failed)));
    let done = Some(AuditEnd::Done(3));
    assert_eq!((&mia.change, mia.began_ms, &mia.end), (&change("mia"), one.ms, &done));
    assert!(mia.id > two && leo.id > mia.id, "{ended:?}");
}

#[tokio::test]
async fn an_end_that_is_sent_again_is_recorded_once() {
    let server = Server::start(&[]).await;
    let (audit, mut connection) = open(&server, YEAR).await;
    // Changes that differ in nothing, perhaps not even in their time.
    let mut begun = Vec::new();
    for _ in 0..5 {
        begun.push(audit.begin(&mut connection, &change("mia")).await.unwrap());
    }
    for begun in begun {
        for _ in 0..3 {
            audit.end(&mut connection, begun, change("mia"), AuditEnd::Done(1)).await.unwrap();
        }
    }
    let expected = vec![("mia".to_owned(), Some(AuditEnd::Done(1))); 5];
    assert_eq!(told(&audit, &mut connection).await, expected);
}

#[tokio::test]
async fn changes_of_many_at_once_are_each_recorded_once() {
    let server = Server::start(&FAST).await;
    let mut tasks = JoinSet::new();
    for actor in 0..20 {
        let (audit, mut connection) = open(&server, YEAR).await;
        tasks.spawn(async move {
            let change = change(&format!("actor-{actor:02}"));
            for count in 0..10 {
                let begun = audit.begin(&mut connection, &change).await.expect("there is room");
                let end = AuditEnd::Done(count);
                audit.end(&mut connection, begun, change.clone(), end).await.expect("it ends");
            }
        });
    }
    tasks.join_all().await;
    let (audit, mut connection) = open(&server, YEAR).await;
    for size in [7, 200, 1_000] {
        let found = records(&audit, &mut connection, size).await;
        assert!(found.is_sorted_by(|newer, older| newer.id > older.id), "pages of {size}");
        let mut told: Vec<_> =
            found.into_iter().map(|found| (found.change.actor, found.end)).collect();
        told.sort_by_key(|(actor, end)| (actor.clone(), format!("{end:?}")));
        let all = (0..20).flat_map(|actor| {
            (0..10).map(move |count| (format!("actor-{actor:02}"), Some(AuditEnd::Done(count))))
        });
        assert_eq!(told, all.collect::<Vec<_>>(), "pages of {size}");
    }
}

#[tokio::test]
async fn the_oldest_beyond_the_number_go_once_they_are_a_day_old() {
    let server = Server::start(&FAST).await;
    let (audit, mut connection) = open(&server, YEAR).await;
    let now = now_ms(&mut connection).await.unwrap();
    fill(&server, now - 2 * DAY_MS, KEPT + 150).await;
    // Each change removes 100 at most, so none of them takes long.
    for expected in [KEPT + 51, KEPT + 1, KEPT + 1] {
        audit.begin(&mut connection, &change("mia")).await.unwrap();
        assert_eq!(length(&server).await, expected);
    }

    let _: u64 = server.command(&["DEL", AUDIT]).await;
    fill(&server, now - 2 * DAY_MS, 5).await;
    fill(&server, now - HOUR_MS, KEPT + 5).await;
    for expected in [KEPT + 6, KEPT + 7] {
        audit.begin(&mut connection, &change("mia")).await.unwrap();
        assert_eq!(length(&server).await, expected, "those of the last day stay");
    }
}

#[tokio::test]
async fn beyond_the_bound_of_a_day_no_change_begins_and_those_begun_end() {
    let server = Server::start(&FAST).await;
    let (audit, mut connection) = open(&server, YEAR).await;
    let begun = audit.begin(&mut connection, &change("mia")).await.unwrap();
    fill(&server, now_ms(&mut connection).await.unwrap(), MAX - 1).await;
    for _ in 0..2 {
        let refused = audit.begin(&mut connection, &change("leo")).await.unwrap_err();
        assert!(matches!(refused, QueueError::AuditFull), "{refused:?}");
        assert!(!refused.is_passing(), "a retry at once is in vain");
    }
    assert_eq!(length(&server).await, MAX, "a refusal removes nothing");
    audit.end(&mut connection, begun, change("mia"), AuditEnd::Done(7)).await.unwrap();
    let newest = audit.page(&mut connection, None, 1).await.unwrap();
    assert_eq!(newest[0].end, Some(AuditEnd::Done(7)));
    assert_eq!(length(&server).await, MAX);

    let _: u64 = server.command(&["XTRIM", AUDIT, "MAXLEN", "=", &(MAX - 1).to_string()]).await;
    audit.begin(&mut connection, &change("leo")).await.unwrap();
    let refused = audit.begin(&mut connection, &change("leo")).await.unwrap_err();
    assert!(matches!(refused, QueueError::AuditFull), "{refused:?}");
}

#[tokio::test]
async fn a_bound_that_only_old_records_reach_refuses_nothing() {
    let server = Server::start(&FAST).await;
    let (audit, mut connection) = open(&server, YEAR).await;
    let now = now_ms(&mut connection).await.unwrap();
    fill(&server, now - DAY_MS - HOUR_MS, MAX).await;
    for made in 1..=3 {
        audit.begin(&mut connection, &change("mia")).await.unwrap();
        assert_eq!(length(&server).await, MAX - made * 100 + made);
    }
}

#[tokio::test]
async fn records_older_than_the_time_to_keep_them_go() {
    let server = Server::start(&[]).await;
    let (for_a_year, mut connection) = open(&server, YEAR).await;
    let now = now_ms(&mut connection).await.unwrap();
    fill(&server, now - 3 * DAY_MS, 1_000).await;
    fill(&server, now - DAY_MS / 2, 50).await;
    for_a_year.begin(&mut connection, &change("mia")).await.unwrap();
    assert_eq!(length(&server).await, 1_051);
    let (for_a_day, mut connection) = open(&server, DAY).await;
    for_a_day.begin(&mut connection, &change("leo")).await.unwrap();
    let left = length(&server).await;
    assert!((52..52 + NODE).contains(&left), "{left} are left");
    let newest = for_a_day.page(&mut connection, None, 2).await.unwrap();
    let newest: Vec<_> = newest.iter().map(|found| &found.change.actor[..]).collect();
    assert_eq!(newest, ["leo", "mia"]);
}

#[tokio::test]
async fn a_change_is_recorded_on_a_full_redis() {
    let server = Server::start(&[]).await;
    let (audit, mut connection) = open(&server, YEAR).await;
    server.fill_to_the_brim().await;
    let begun = audit.begin(&mut connection, &change("mia")).await.unwrap();
    audit.end(&mut connection, begun, change("mia"), AuditEnd::Done(2)).await.unwrap();
    let expected = [("mia".to_owned(), Some(AuditEnd::Done(2)))];
    assert_eq!(told(&audit, &mut connection).await, expected);
}

#[tokio::test]
async fn no_change_begins_where_something_else_lies() {
    let server = Server::start(&[]).await;
    let (audit, mut connection) = open(&server, YEAR).await;
    let _: String = server.command(&["SET", AUDIT, "x"]).await;
    let refused = audit.begin(&mut connection, &change("mia")).await.unwrap_err();
    assert!(!matches!(refused, QueueError::AuditFull), "{refused:?}");
    let begun = StreamId { ms: 5, seq: 0 };
    let refused = audit.end(&mut connection, begun, change("mia"), AuditEnd::Done(1)).await;
    assert!(refused.is_err());
    assert_eq!(server.command::<String>(&["GET", AUDIT]).await, "x");
    let _: u64 = server.command(&["DEL", AUDIT]).await;
    audit.begin(&mut connection, &change("mia")).await.unwrap();
}

#[tokio::test]
async fn a_redis_that_is_killed_keeps_what_began() {
    let mut server = Server::start(&[]).await;
    let (audit, mut connection) = open(&server, YEAR).await;
    let begun = audit.begin(&mut connection, &change("mia")).await.unwrap();
    server.kill();
    let unknown = audit.end(&mut connection, begun, change("mia"), AuditEnd::Done(1)).await;
    assert!(unknown.is_err_and(|error| error.is_passing()), "a retry may succeed");
    server.restart(&[]);
    server.ready().await;
    let mut connection = server.connect().await;
    assert_eq!(told(&audit, &mut connection).await, [("mia".to_owned(), None)]);
    audit.end(&mut connection, begun, change("mia"), AuditEnd::Done(1)).await.unwrap();
    let expected = [("mia".to_owned(), Some(AuditEnd::Done(1)))];
    assert_eq!(told(&audit, &mut connection).await, expected);
}

#[tokio::test]
async fn an_older_redis_shows_a_change_without_its_end_and_takes_later_ends() {
    let server = Server::start(&[]).await;
    let (audit, mut connection) = open(&server, YEAR).await;
    let kept = audit.begin(&mut connection, &change("kept")).await.unwrap();
    let copy = server.dump(AUDIT).await;
    audit.end(&mut connection, kept, change("kept"), AuditEnd::Done(1)).await.unwrap();
    let lost = audit.begin(&mut connection, &change("lost")).await.unwrap();
    server.restore(AUDIT, &copy).await;
    assert_eq!(told(&audit, &mut connection).await, [("kept".to_owned(), None)]);

    audit.end(&mut connection, lost, change("lost"), AuditEnd::Done(2)).await.unwrap();
    let newest = audit.page(&mut connection, None, 1).await.unwrap();
    assert_eq!((&newest[0].change.actor[..], newest[0].began_ms), ("lost", lost.ms));
    audit.end(&mut connection, kept, change("kept"), AuditEnd::Done(1)).await.unwrap();
    let [first, second] = [("kept", 1), ("lost", 2)]
        .map(|(actor, count)| (actor.to_owned(), Some(AuditEnd::Done(count))));
    assert_eq!(told(&audit, &mut connection).await, [first, second]);
}

#[tokio::test]
async fn a_clock_that_was_set_back_loses_no_record() {
    let server = Server::start(&[]).await;
    let (audit, mut connection) = open(&server, DAY).await;
    let ahead = now_ms(&mut connection).await.unwrap() + HOUR_MS;
    fill(&server, ahead, 1).await;
    let begun = audit.begin(&mut connection, &change("mia")).await.unwrap();
    assert_eq!(begun, StreamId { ms: ahead, seq: 2 });
    audit.end(&mut connection, begun, change("mia"), AuditEnd::Done(1)).await.unwrap();
    let expected = [("mia".to_owned(), Some(AuditEnd::Done(1))), ("x".to_owned(), None)];
    assert_eq!(told(&audit, &mut connection).await, expected);
}
