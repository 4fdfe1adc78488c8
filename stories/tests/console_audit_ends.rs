//! The audit of verbs that only one way has, of replays from the archive, and of changes that fail or are refused.

use std::time::Duration;

use serde_json::{Value, json};
use stories::archive::ArchiveDirectory;
use stories::cell::Cell;
use stories::console::{ConsoleClient, ConsoleServer};
use stories::console_cell::ConsoleCell;
use stories::shop;
use stories::until::until;

use crate::console_audit::{compare, fact_of, records};

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verbs_of_the_command_and_replays_from_the_archive_are_in_the_audit() {
    let cell = Cell::busy();
    let url = ArchiveDirectory::new(&cell.directory().join("archive")).url();
    let office = ConsoleCell::start(cell, &[("ARCHIVE_URL", &url)]).await;
    let archiver = office.cell.archiver(&url, &[("ARCHIVE_MAX_DELAY", "1s")]);
    archiver.ready().await;
    let ids = office.store(20, 5).await;
    office.delivered(&ids).await;
    let is_freed = async || office.redis.stream_len("{spillway}:in").await == 0;
    until("all is delivered and archived", SOON, is_freed).await;

    let redis = office.cell.redis_url();
    let settings = [
        ("REDIS_URL", redis.as_str()),
        ("USER", "anna"),
        ("ARCHIVE_URL", url.as_str()),
        ("FORGET_SETTLED_AFTER", "0s"),
        ("FORGET_PATIENCE", "3s"),
    ];
    let domain = shop::domain(20);
    let mut done = Vec::new();
    for (arguments, facts) in [
        (&["consumers", "add", "spare", "--start-at=now"][..], json!(["spare", "everything", 1])),
        (&["consumers", "add", "spare"][..], json!(["spare", "everything", 0])),
        (&["consumers", "forget", "spare"][..], json!(null)),
        (&["consumers", "forget", "spare", "--yes"][..], json!(["spare", "everything", 0])),
        (&["restore-from-archive", "--abandon"][..], json!(["", "everything", 0])),
        (&["replay", "--consumer=http", "--from=1h", "--shop", domain.as_str()][..], json!(null)),
        (&["forget", "--shop", domain.as_str(), "--all"][..], json!(null)),
    ] {
        let output = office.cell.run("spillway", arguments, &settings).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        if let Some([consumer, filter, count]) = facts.as_array().map(Vec::as_slice) {
            let words = arguments.iter().take_while(|word| **word != "spare");
            let verb = words.copied().collect::<Vec<_>>().join(" ");
            done.push(json!(["anna", "cli", verb, consumer, filter, count, false]));
        }
    }
    let sue = office.program("sue");
    compare("the command alone", &done, &records(&sue, "").await);

    // A replay from the archive by the API, and one by the command, which also ends it.
    let otto = office.program("otto");
    let (counted, made) = replayed_by_api(&otto, &domain).await;
    assert_eq!(made["phase"], "done", "{made}");
    let by_shell = ["replay", "--consumer=http", "--from=1h", "--shop", domain.as_str(), "--yes"];
    let output = office.cell.run("spillway", &by_shell, &settings).await;
    assert!(output.status.success(), "{output:?}");
    let listed = office.told(&["replay", "list", "--consumer=http", "-o", "json"]).await;
    let last: Value = serde_json::from_str(listed.lines().last().expect("a replay")).expect("JSON");
    let id = last["replay"].as_str().expect("an id");
    let output = office.cell.run("spillway", &["replay", "cancel", id], &settings).await;
    assert!(output.status.success(), "{output:?}");
    // What another process still holds may be left to the next purge: the order is made all the same.
    let forget = ["forget", "--shop", domain.as_str(), "--all", "--yes"];
    office.cell.run("spillway", &forget, &settings).await;

    let found = records(&sue, "").await;
    let new: Vec<Value> = found.iter().take(found.len() - done.len()).map(fact_of).collect();
    expect_replays(&new, &domain, id, &counted["total"]);
}

/// Replays what the archive holds of a shop: a dry run, and its confirmation, which is sent again as after a lost answer.
async fn replayed_by_api(otto: &ConsoleClient, domain: &str) -> (Value, Value) {
    const REPLAY: &str = "/api/v1/consumers/http/replay";
    let selection = json!({ "shop": domain });
    let ordered = async |body: &Value| {
        let answer = otto.post(REPLAY, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let job: Value = serde_json::from_slice(&answer.body).expect("JSON");
        job["id"].as_u64().expect("a number")
    };
    let id = ordered(&json!({ "since": "1h", "selection": selection })).await;
    let counted = otto.job_over(id).await;
    assert_eq!(counted["phase"], "counted", "{counted}");
    let filter = counted["filter"].as_str().expect("a filter");
    let (_, range) = filter.split_once(", from ").expect("a range");
    let (since, until) = range.split_once(" to ").expect("its end");
    let confirmed = |since: &str, until: Option<&str>| {
        json!({
            "since": since,
            "until": until,
            "selection": selection,
            "expected": counted["total"],
            "digest": counted["digest"],
        })
    };
    for (since, until) in [("1h", Some(until)), (since, None)] {
        let answer = otto.post(REPLAY, &confirmed(since, until)).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
    let body = confirmed(since, Some(until));
    let id = ordered(&body).await;
    assert_eq!(ordered(&body).await, id, "a retry is the same job");
    (counted.clone(), otto.job_over(id).await)
}

/// Checks the records of a shop that was forgotten, of a replay that was cancelled, and of two that were ordered.
fn expect_replays(new: &[Value], domain: &str, id: &str, count: &Value) {
    let [forgotten, cancelled, by_shell, by_api] = new else { panic!("{new:#?}") };
    let everything = format!("everything of shop {domain}");
    assert_eq!(*forgotten, json!(["anna", "cli", "forget", "", everything, 1, false]));
    let named = format!("replay {id}");
    assert_eq!(*cancelled, json!(["anna", "cli", "replay cancel", "http", named, 0, false]));
    for (fact, actor, way) in [(by_shell, "anna", "cli"), (by_api, "token:otto-program", "api")] {
        let filter = fact[4].as_str().expect("a filter");
        assert!(filter.starts_with(&format!("shop {domain}, stored from ")), "{filter}");
        assert_eq!(*fact, json!([actor, way, "replay", "http", filter, count, false]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_fails_is_recorded_with_its_reason_by_all_ways() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    // A user of Redis who may record a change, and not make it.
    let weak = ["ACL", "SETUSER", "weak", "on", ">hush", "~*", "&*", "+@all", "-hsetnx"];
    office.redis.command::<String>(&weak).await;
    let password = office.cell.directory().join("password");
    std::fs::write(&password, "hush\n").expect("write the password");
    let url = format!("{}?user=weak", office.cell.redis_url());
    let password = password.to_str().expect("a plain path");
    let access = [("REDIS_URL", url.as_str()), ("REDIS_PASSWORD_FILE", password)];
    let all = [&office.accounts.settings()[..], &access].concat();
    let console = ConsoleServer::start(&office.cell, &all).await;

    let domain = shop::domain(8);
    let body = json!({ "selection": { "shop": domain } });
    let otto = console.program(office.token("otto"));
    let answer = otto.post("/api/v1/consumers/http/pause", &body).await;
    assert!(answer.status >= 400, "{}", answer.text());
    let fields = [("consumer", "http"), ("shop", domain.as_str())];
    let answer = console.login("otto").await.submit("/lanes", "/lanes/pause", &fields).await;
    assert!(answer.status >= 400, "{}", answer.text());
    let by_shell = [&access[..], &[("USER", "anna")]].concat();
    let arguments = ["pause", "--shop", domain.as_str()];
    let output = office.cell.run("spillway", &arguments, &by_shell).await;
    assert!(!output.status.success(), "{output:?}");

    let found = records(&office.program("sue"), "").await;
    let ways = [("token:otto-program", "api"), ("otto", "console"), ("anna", "cli")];
    let filter = format!("shop {domain}");
    let expected =
        ways.map(|(actor, way)| json!([actor, way, "pause", "http", filter, null, true]));
    compare("failed changes", &expected, &found);
    for record in &found {
        assert!(record["failure"].to_string().contains("redis refused"), "{record}");
    }
    assert_eq!(office.pauses().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_fails_or_is_refused_is_never_recorded_as_made() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let (otto, sue) = (office.program("otto"), office.program("sue"));
    let body = json!({ "selection": { "shop": shop::domain(8) } });
    let answer = otto.post("/api/v1/consumers/http/resume", &body).await;
    assert!((400..500).contains(&answer.status), "nothing is paused: {}", answer.text());
    let answer = sue.post("/api/v1/consumers/http/pause", &body).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
    let answer = otto.post("/api/v1/consumers/nobody/pause", &body).await;
    assert!((400..500).contains(&answer.status), "no such consumer: {}", answer.text());
    let made = records(&sue, "").await.into_iter().filter(|record| !record["count"].is_null());
    assert_eq!(made.collect::<Vec<_>>(), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_is_made_that_the_audit_does_not_take() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let otto = office.program("otto");
    let body = json!({ "selection": { "shop": shop::domain(8) } });
    // Something else lies where the audit is kept.
    office.redis.command::<String>(&["SET", "{spillway}:audit", "x"]).await;
    let answer = otto.post("/api/v1/consumers/http/pause", &body).await;
    assert!(answer.status >= 400, "{}", answer.text());
    let output = office.cell.spillway(&["pause", "--shop", &shop::domain(8)]).await;
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(office.pauses().await, [""; 0]);
    office.redis.command::<u64>(&["DEL", "{spillway}:audit"]).await;
    let answer = otto.post("/api/v1/consumers/http/pause", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(office.pauses().await.len(), 1);
}
