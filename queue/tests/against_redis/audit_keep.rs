//! The audit: records go exactly when they are old, by the longest time that was set; looks at personal data are recorded.

use std::time::Duration;

use spillway_queue::Connection;
use spillway_queue::audit::{Audit, AuditEnd, AuditWay, AuditedChange};
use spillway_queue::dead::now_ms;

use crate::proxy::{Fault, Proxy};
use crate::server::Server;

const AUDIT: &str = "{spillway}:audit";
const DAY_MS: u64 = 24 * 3_600_000;
/// Records beyond which no look is recorded.
const LOOKS_MAX: u64 = 200_000;

fn days(days: u64) -> Duration {
    Duration::from_millis(days * DAY_MS)
}

async fn open(server: &Server, keep: Duration) -> (Audit, Connection) {
    (Audit::new(server.redis(), keep), server.connect().await)
}

fn change(actor: &str, filter: &str) -> AuditedChange {
    AuditedChange {
        actor: actor.to_owned(),
        way: AuditWay::Api,
        verb: "read content".to_owned(),
        consumer: String::new(),
        filter: filter.to_owned(),
    }
}

/// Writes records of this time.
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

async fn shown(audit: &Audit, connection: &mut Connection) -> usize {
    audit.page(connection, None, 10_000).await.expect("redis answers").len()
}

#[tokio::test]
async fn an_end_whose_answer_is_lost_is_recorded_once() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::before(&server);
    let audit = Audit::new(proxy.redis(), days(30));
    let mut connection = proxy.redis().connect(Some(days(1))).await.unwrap();
    let meant = change("mia", "one");
    let begun = audit.begin(&mut connection, &meant).await.unwrap();
    // The script is known by now, so the next request is the end itself.
    proxy.harm_next_request(Fault::CutBeforeReply);
    let end = || AuditEnd::FailedAfter { done: 60_000, reason: "redis".to_owned() };
    let lost = audit.end(&mut connection, begun, meant.clone(), end()).await;
    assert!(lost.is_err(), "the answer is lost");
    let mut connection = proxy.redis().connect(Some(days(1))).await.unwrap();
    audit.end(&mut connection, begun, meant, end()).await.unwrap();
    let found = audit.page(&mut connection, None, 10).await.unwrap();
    let ends: Vec<_> = found.into_iter().map(|found| found.end).collect();
    assert_eq!(ends, [Some(end())]);
}

#[tokio::test]
async fn old_records_are_neither_shown_nor_left_on_a_quiet_cell() {
    let server = Server::start(&[]).await;
    let (audit, mut connection) = open(&server, days(2)).await;
    let now = now_ms(&mut connection).await.unwrap();
    // Fewer than a node of the stream has, and some thousands.
    for count in [3, 2_500] {
        fill(&server, now - 3 * DAY_MS, count).await;
        fill(&server, now - DAY_MS, 4).await;
        assert_eq!(length(&server).await, count + 4);
        assert_eq!(shown(&audit, &mut connection).await, 4, "nobody deleted them yet");
        assert_eq!(audit.trim(&mut connection).await.unwrap(), count);
        assert_eq!(length(&server).await, 4, "those that are not old stay");
        assert_eq!(audit.trim(&mut connection).await.unwrap(), 0);
        let _: u64 = server.command(&["DEL", AUDIT]).await;
    }
}

#[tokio::test]
async fn a_process_with_a_shorter_time_deletes_nothing_that_another_keeps() {
    let server = Server::start(&[]).await;
    let (by_default, mut connection) = open(&server, days(2)).await;
    let now = now_ms(&mut connection).await.unwrap();
    fill(&server, now - 5 * DAY_MS, 10).await;
    let for_a_week = Audit::new(server.redis(), days(7)).with_set_keep();
    let for_three_days = Audit::new(server.redis(), days(3)).with_set_keep();
    assert_eq!(for_a_week.trim(&mut connection).await.unwrap(), 0);
    for shorter in [&by_default, &for_three_days] {
        shorter.begin(&mut connection, &change("mia", "one")).await.unwrap();
        assert_eq!(shorter.trim(&mut connection).await.unwrap(), 0);
        assert_eq!(shorter.kept(&mut connection).await.unwrap(), days(7));
    }
    assert_eq!(shown(&by_default, &mut connection).await, 12);
    assert_eq!(for_three_days.set_keep(&mut connection).await.unwrap(), 10);
    assert_eq!(by_default.kept(&mut connection).await.unwrap(), days(3));
    assert_eq!(shown(&by_default, &mut connection).await, 2);
}

#[tokio::test]
async fn a_look_is_recorded_once_for_each_who_and_each_webhook() {
    let server = Server::start(&[]).await;
    let (audit, mut connection) = open(&server, days(30)).await;
    server.fill_to_the_brim().await;
    for _ in 0..3 {
        for (actor, webhook) in [("mia", "one"), ("mia", "two"), ("leo", "one")] {
            assert!(audit.note_look(&mut connection, &change(actor, webhook)).await.unwrap());
        }
    }
    let found = audit.page(&mut connection, None, 10).await.unwrap();
    let found: Vec<_> =
        found.iter().rev().map(|look| (&look.change.actor[..], &look.change.filter[..])).collect();
    assert_eq!(found, [("mia", "one"), ("mia", "two"), ("leo", "one")]);
    let _: u64 = server.command(&["DEL", AUDIT]).await;
    let now = now_ms(&mut connection).await.unwrap();
    let old = r#"{"actor":"mia","way":"api","verb":"read content","consumer":"","filter":"one","began_ms":null,"end":{"done":1}}"#;
    let _: String = server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let id = (now - 11 * 60_000).to_string();
    let _: String = server.command(&["XADD", AUDIT, &id, "r", old]).await;
    for _ in 0..2 {
        assert!(audit.note_look(&mut connection, &change("mia", "one")).await.unwrap());
        assert_eq!(length(&server).await, 2, "the other one was eleven minutes ago");
    }
}

#[tokio::test]
async fn looks_of_a_day_keep_nobody_from_a_change() {
    let server = Server::start(&["--appendonly", "no"]).await;
    let (audit, mut connection) = open(&server, days(30)).await;
    fill(&server, now_ms(&mut connection).await.unwrap(), LOOKS_MAX).await;
    assert!(!audit.note_look(&mut connection, &change("mia", "one")).await.unwrap());
    assert_eq!(length(&server).await, LOOKS_MAX);
    audit.begin(&mut connection, &change("mia", "one")).await.unwrap();
}
