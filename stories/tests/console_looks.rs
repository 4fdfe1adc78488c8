//! The audit of those who look at personal data, its times and its CSV, and the record of a command that is stopped or fails.

use std::process::ExitStatus;
use std::time::Duration;

use serde_json::Value;
use stories::cell::Cell;
use stories::console::ConsoleClient;
use stories::console_cell::{ConsoleCell, DEAD, REFUSED};
use stories::process::Process;
use stories::until::until;

const SOON: Duration = Duration::from_secs(60);
/// Dead letters that are replayed at one per second.
const LETTERS: u64 = 10;
const LOOKS: &str = "/api/v1/audit?verb=read%20content";

async fn records(client: &ConsoleClient, path: &str) -> Vec<Value> {
    client.json(path).await["records"].as_array().expect("records").clone()
}

/// Spillway-Id of the first dead letter.
async fn first_letter(client: &ConsoleClient) -> String {
    let letters = client.json("/api/v1/dead").await;
    letters["letters"][0]["spillway_id"].as_str().expect("an id").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_read_a_body_are_in_the_audit() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    office.bury(REFUSED[0], 1).await;
    let (pia, sue) = (office.program("pia"), office.program("sue"));
    let browser = office.console.login("pia").await;
    let id = first_letter(&pia).await;
    let waiting = office.hold(8, 1).await;
    let listed = pia.json("/api/v1/webhooks?consumer=http").await;
    let waits = listed["webhooks"].as_array().expect("webhooks").iter();
    let waits = waits.filter(|one| one["webhook_id"] == waiting[0].as_str());
    let mut waits = waits.map(|one| one["spillway_id"].as_str().expect("an id").to_owned());
    let waits = waits.next().expect("it waits");
    for _ in 0..3 {
        pia.json(&format!("/api/v1/dead/{id}/content")).await;
        pia.json(&format!("/api/v1/webhooks/{waits}/content")).await;
        browser.page(&format!("/webhooks/{id}/content?consumer=http")).await;
        office.told(&["dead", "show", &id]).await;
        office.told(&["queue", "show", &waits, "--body"]).await;
    }
    let refused = sue.get(&format!("/api/v1/dead/{id}/content")).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    let found = records(&sue, LOOKS).await;
    let told = |look: &Value| {
        let [way, filter] = ["way", "filter"].map(|name| look[name].as_str().expect("a text"));
        format!("{way} {filter} {} {}", look["outcome"], look["count"])
    };
    let mut found: Vec<String> = found.iter().map(told).collect();
    found.sort_unstable();
    let mut expected: Vec<String> =
        [("api", &id), ("api", &waits), ("console", &id), ("cli", &id), ("cli", &waits)]
            .map(|(way, id)| format!("{way} webhook {id} \"done\" 1"))
            .to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for (times, expected) in [
        ("&since=1h", 5),
        ("&until=1h", 0),
        ("&since=2001-01-01T00:00:00Z&until=2101-01-01T00:00:00Z", 5),
        ("&until=2001-01-01T00:00:00Z", 0),
    ] {
        assert_eq!(records(&sue, &format!("{LOOKS}{times}")).await.len(), expected, "{times}");
    }
    let bad = sue.get("/api/v1/audit?since=yesterday").await;
    assert!(bad.status == 400 && bad.text().contains("since"), "{}", bad.text());

    let csv = sue.page("/audit.csv?verb=read%20content&since=1h").await;
    assert!(
        csv.starts_with("began,who,by,verb,consumer,filter,outcome,number,reason\r\n"),
        "{csv}"
    );
    assert_eq!(csv.lines().count(), 6, "{csv}");
    let printed = office.told(&["audit", "--csv", "--since", "2001-01-01T00:00:00Z"]).await;
    assert!(printed.contains(&format!(",read content,http,webhook {id},done,1,")), "{printed}");
    assert!(sue.page("/audit?since=1h").await.contains("read content"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_takes_no_record_keeps_nobody_from_reading() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    office.bury(REFUSED[0], 1).await;
    let pia = office.program("pia");
    let id = first_letter(&pia).await;
    // Something else lies where the audit is kept.
    office.redis.command::<String>(&["SET", "{spillway}:audit", "x"]).await;
    let content = pia.json(&format!("/api/v1/dead/{id}/content")).await;
    assert!(content["body"].as_str().is_some_and(|body| !body.is_empty()), "{content}");
    let told = async || office.console.output().contains("no record that token:pia-program reads");
    until("the log has a warning", SOON, told).await;
    let shown = office.cell.spillway(&["dead", "show", &id, "--body"]).await;
    assert!(shown.status.success() && !shown.stdout.is_empty(), "{shown:?}");
    assert!(String::from_utf8_lossy(&shown.stderr).contains("no record that"), "{shown:?}");
}

/// Starts a slow replay of [`LETTERS`] dead letters, and waits until some are taken.
async fn slow_replay(office: &ConsoleCell) -> Process {
    office.bury(REFUSED[0], LETTERS).await;
    office.heal();
    let replay = ["dead", "replay", "--consumer", "http", "--all", "--rate", "1", "--yes"];
    let replay = office.cell.spillway_starting(&replay);
    until("some are taken", SOON, async || office.dead_letters().await < LETTERS).await;
    replay
}

/// Waits for the end of a replay, and returns it with its only record.
async fn ended(office: &ConsoleCell, mut replay: Process) -> (ExitStatus, String, Value) {
    let status = replay.exit(SOON).await;
    let found = records(&office.program("sue"), "/api/v1/audit?verb=dead%20replay").await;
    let [record] = &found[..] else { panic!("{found:?}") };
    (status, replay.output(), record.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_is_stopped_says_how_many_it_took() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let replay = slow_replay(&office).await;
    replay.sigterm();
    let (status, told, record) = ended(&office, replay).await;
    let left = office.dead_letters().await;
    assert!(!status.success() && left > 0, "{status}, {left} are left: {told}");
    assert!(told.contains(&format!("{left} are left")), "{told}");
    assert_eq!(record["outcome"], "stopped", "{record}");
    assert_eq!(record["count"], LETTERS - left, "{record}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_fails_says_how_many_it_took() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let replay = slow_replay(&office).await;
    // Redis refuses the next batch.
    office.redis.command::<String>(&["SET", DEAD, "x"]).await;
    let (status, told, record) = ended(&office, replay).await;
    assert!(!status.success(), "{told}");
    assert_eq!(record["outcome"], "failed", "{record}");
    let count = record["count"].as_u64();
    assert!(count.is_some_and(|count| (1..LETTERS).contains(&count)), "{record}");
    assert!(record["failure"].as_str().is_some_and(|reason| !reason.is_empty()), "{record}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_cell_forgets_who_did_what() {
    let office = ConsoleCell::start(Cell::shared(), &[("AUDIT_KEEP", "365d")]).await;
    // The console notes its time when it first looks for old records. The next look is an hour later.
    let has_looked =
        async || office.redis.command::<u64>(&["EXISTS", "{spillway}:audit:keep"]).await == 1;
    until("the console has looked for old records", SOON, has_looked).await;
    let old = r#"{"actor":"x","way":"cli","verb":"pause","consumer":"http","filter":"a","end":{"done":1}}"#;
    let audit = "{spillway}:audit";
    let write = async |id: &str| {
        office.redis.command::<String>(&["XADD", audit, id, "r", old]).await;
    };
    // More than a year ago.
    write("1000-0").await;
    assert!(records(&office.program("sue"), "/api/v1/audit").await.is_empty());
    office.told(&["forget", "--due", "--dry-run"]).await;
    assert_eq!(office.redis.stream_len(audit).await, 1, "a dry run changes nothing");
    office.told(&["forget", "--due"]).await;
    assert_eq!(office.redis.stream_len(audit).await, 0);
    // A process that was set to a longer time keeps it for all.
    let redis = office.cell.redis_url();
    let settings = [("REDIS_URL", redis.as_str()), ("AUDIT_KEEP", "3000d")];
    let noted = office.cell.run("spillway", &["forget", "--due"], &settings).await;
    assert!(noted.status.success(), "{noted:?}");
    let two_years_ms = 2 * 365 * 24 * 3_600_000;
    let time: (u64, u64) = office.redis.command(&["TIME"]).await;
    write(&format!("{}-0", time.0 * 1000 - two_years_ms)).await;
    office.told(&["forget", "--due"]).await;
    assert_eq!(office.redis.stream_len(audit).await, 1);
    let longer = office.cell.run("spillway", &["audit", "--keep", "30d", "--yes"], &settings).await;
    assert_eq!(longer.status.code(), Some(64), "AUDIT_KEEP is longer: {longer:?}");
    let told = office.told(&["audit", "--keep", "30d"]).await;
    assert!(told.contains("dry run"), "{told}");
    office.told(&["audit", "--keep", "30d", "--yes"]).await;
    let left = records(&office.program("sue"), "/api/v1/audit").await;
    let [record] = &left[..] else { panic!("{left:?}") };
    assert_eq!((&record["verb"], &record["count"]), (&"audit --keep".into(), &1.into()));
}
