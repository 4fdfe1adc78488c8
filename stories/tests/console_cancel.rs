//! Replays of dead letters that are undone before they begin, cancelled while they run, or cut off: what was not taken
//! stays a dead letter, and what was taken is delivered once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use stories::cell::Cell;
use stories::console::ConsoleClient;
use stories::console_cell::ConsoleCell;
use stories::report::say;
use stories::shop;
use stories::size::size;
use stories::until::until;

const SOON: Duration = Duration::from_secs(60);
const REPLAY: &str = "/api/v1/consumers/http/dead/replay";
/// Dead letters that a replay has taken at least before it ends.
const TAKEN_MIN: u64 = 5;

/// Number of the job that was ordered.
async fn order(client: &ConsoleClient, shop: u64, expected: u64, rate: Option<u64>) -> u64 {
    let selection = json!({ "shop": shop::domain(shop) });
    let order = json!({ "selection": selection, "expected": expected, "rate": rate });
    let answer = client.post(REPLAY, &order).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let job: Value = serde_json::from_slice(&answer.body).expect("JSON");
    job["id"].as_u64().expect("a number")
}

async fn undo(client: &ConsoleClient, id: u64) -> u16 {
    client.post(&format!("/api/v1/jobs/{id}/undo"), &json!({})).await.status
}

/// Waits until a replay runs and has taken some.
async fn runs(client: &ConsoleClient, id: u64) {
    let is_under_way = async || {
        let job = client.json(&format!("/api/v1/jobs/{id}")).await;
        job["phase"] == "running" && job["done"].as_u64() >= Some(TAKEN_MIN)
    };
    until("some dead letters are taken", SOON, is_under_way).await;
}

/// Waits until a replay waits.
async fn waits(client: &ConsoleClient, id: u64) {
    let is_waiting = async || {
        let job = client.json(&format!("/api/v1/jobs/{id}")).await;
        job["phase"].get("waiting").is_some()
    };
    until("the replay waits", SOON, is_waiting).await;
}

/// Webhook ids of all dead letters.
async fn dead(client: &ConsoleClient) -> BTreeSet<String> {
    let rows = client.rows("/api/v1/dead?", "letters", 200).await;
    let ids = rows.iter().map(|row| row["webhook_id"].as_str().expect("an id").to_owned());
    ids.collect()
}

/// Waits until the console answers again after its restart.
async fn answers(client: &ConsoleClient) {
    let answers = async || {
        let answer = client.try_get("/api/v1/status").await;
        answer.is_some_and(|answer| answer.status == 200)
    };
    until("the console answers", SOON, answers).await;
}

/// Records of replays: actor, way, filter, count and failure, the newest first.
async fn replays(client: &ConsoleClient) -> Vec<Value> {
    let records = client.rows("/api/v1/audit?", "records", 200).await;
    assert!(records.iter().all(|record| record["verb"] == "dead replay"), "{records:#?}");
    let facts = records.iter().map(|record| {
        json!([
            record["actor"],
            record["way"],
            record["filter"],
            record["count"],
            record["failure"]
        ])
    });
    facts.collect()
}

fn replay(count: Option<u64>, shop: u64) -> Value {
    json!(["token:sue-program", "api", format!("shop {}", shop::domain(shop)), count, null])
}

/// Number of times that the backend accepted each of these webhooks, without those that it never did.
fn accepted(office: &ConsoleCell, ids: &[String]) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    office.backend.look(|receipts| {
        for receipt in receipts.iter().filter(|receipt| receipt.delivered()) {
            let id = receipt.webhook_id();
            if ids.iter().any(|own| own == id) {
                *counts.entry(id.to_owned()).or_default() += 1;
            }
        }
    });
    counts
}

/// Waits until nothing waits, and compares: these webhooks were delivered once, and no other one of `all`.
async fn delivered_once(office: &ConsoleCell, all: &[String], expected: &BTreeSet<String>) {
    let expected_ids: Vec<String> = expected.iter().cloned().collect();
    office.delivered(&expected_ids).await;
    let is_quiet = async || office.consumer().await["waiting"] == 0;
    until("nothing waits", SOON, is_quiet).await;
    let once: BTreeMap<_, _> = expected.iter().map(|id| (id.clone(), 1)).collect();
    assert_eq!(accepted(office, all), once);
}

/// Those of `all` that are no dead letters any more.
fn taken_of(all: &[String], dead: &BTreeSet<String>) -> BTreeSet<String> {
    all.iter().filter(|id| !dead.contains(*id)).cloned().collect()
}

/// Buries letters of two shops, those of the first to be replayed at a tenth of them a second.
async fn start() -> (ConsoleCell, Vec<String>, Vec<String>) {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let own = office.bury(1, size(60, 200)).await;
    let others = office.bury(2, 3).await;
    office.heal();
    (office, own, others)
}

fn number(ids: &[String]) -> u64 {
    u64::try_from(ids.len()).expect("a small number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_replay_leaves_the_rest_dead_and_delivers_what_it_took_once() {
    let (office, own, others) = start().await;
    let all = number(&own);
    let [sue, pia, otto] = ["sue", "pia", "otto"].map(|name| office.program(name));
    let id = order(&sue, 1, all, Some(all / 10)).await;
    runs(&sue, id).await;
    assert_eq!(undo(&pia, id).await, 403, "another one ordered it");
    assert_eq!(undo(&office.program("vera"), id).await, 403, "a viewer");
    assert_eq!(undo(&sue, id).await, 200);
    let job = sue.job_over(id).await;
    assert_eq!((&job["phase"], &job["total"]), (&json!("cancelled"), &json!(all)), "{job}");
    let count = job["done"].as_u64().expect("a number");
    assert!((TAKEN_MIN..all).contains(&count), "{job}");
    assert_eq!(undo(&otto, id).await, 409, "it is over");

    let left = dead(&sue).await;
    assert!(others.iter().all(|id| left.contains(id)), "those of the other shop");
    let taken = taken_of(&own, &left);
    assert_eq!(taken.len() as u64, count, "what the job says");
    assert_eq!(left.len() as u64, all - count + number(&others));
    delivered_once(&office, &own, &taken).await;
    assert_eq!(replays(&sue).await, [replay(Some(count), 1)]);

    let rest = order(&sue, 1, all - count, None).await;
    let job = sue.job_over(rest).await;
    assert_eq!((&job["phase"], &job["done"]), (&json!("done"), &json!(all - count)), "{job}");
    delivered_once(&office, &own, &own.iter().cloned().collect()).await;
    assert_eq!(dead(&sue).await, others.iter().cloned().collect());
    assert_eq!(replays(&sue).await, [replay(Some(all - count), 1), replay(Some(count), 1)]);
    say(&format!("console: a replay of {all} was cancelled after {count}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_cancels_the_replay_of_another_one_on_its_page() {
    let (office, own, _) = start().await;
    let sue = office.program("sue");
    let all = number(&own);
    let id = order(&sue, 1, all, Some(all / 10)).await;
    runs(&sue, id).await;
    let page = format!("/jobs/{id}");
    let otto = office.console.login("otto").await;
    let answer = otto.submit(&page, &format!("{page}/undo"), &[]).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    let job = sue.job_over(id).await;
    assert_eq!(job["phase"], "cancelled", "{job}");
    let count = job["done"].as_u64();
    let taken = taken_of(&own, &dead(&sue).await);
    assert_eq!(Some(taken.len() as u64), count, "{job}");
    delivered_once(&office, &own, &taken).await;
    // The audit has the one who ordered it.
    assert_eq!(replays(&sue).await, [replay(count, 1)]);
    assert!(otto.page(&page).await.contains("Cancelled"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_is_undone_before_it_begins_changes_nothing_and_is_not_in_the_audit() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let own = office.bury(1, 6).await;
    let other = office.bury(2, 1).await;
    office.heal();
    let before = dead(&office.program("sue")).await;
    let [sue, pia, otto] = ["sue", "pia", "otto"].map(|name| office.program(name));
    for undoing in [&sue, &otto] {
        let id = order(&sue, 1, 6, None).await;
        waits(&sue, id).await;
        assert_eq!(undo(&pia, id).await, 403, "another one ordered it");
        assert_eq!(undo(undoing, id).await, 200);
        assert_eq!(sue.job_over(id).await["phase"], "undone");
        assert_eq!(undo(undoing, id).await, 409, "it is over");
    }
    // The same by a form, whose user is another one than the program.
    let browser = office.console.login("sue").await;
    let id = order(&sue, 1, 6, None).await;
    waits(&sue, id).await;
    assert_eq!(browser.submit("/dead", &format!("/jobs/{id}/undo"), &[]).await.status, 403);
    assert_eq!(undo(&sue, id).await, 200);
    let domain = shop::domain(1);
    let fields = [("consumer", "http"), ("shop", domain.as_str()), ("expected", "6")];
    let ordered = browser.submit("/dead", "/dead/replay", &fields).await;
    let by_form = ordered.headers.text("location").expect("a place").to_owned();
    let number = by_form.trim_start_matches("/jobs/").parse().expect("the number of a job");
    waits(&sue, number).await;
    let answer = browser.submit(&by_form, &format!("{by_form}/undo"), &[]).await;
    assert_eq!((answer.status, answer.headers.text("location")), (303, Some(by_form.as_str())));
    assert_eq!(sue.job_over(number).await["phase"], "undone");

    // One that was ordered later and is not undone: by its end, all others would have begun.
    let last = order(&sue, 2, 1, None).await;
    assert_eq!(sue.job_over(last).await["phase"], "done");
    delivered_once(&office, &own, &BTreeSet::new()).await;
    let mut expected = before;
    expected.remove(&other[0]);
    assert_eq!(dead(&sue).await, expected);
    assert_eq!(replays(&sue).await, [replay(Some(1), 2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_whose_console_is_killed_leaves_the_rest_dead_and_has_no_end_in_the_audit() {
    let (mut office, own, others) = start().await;
    let sue = office.program("sue");
    let all = number(&own);
    let id = order(&sue, 1, all, Some(all / 10)).await;
    runs(&sue, id).await;
    office.console.kill9();
    office.console.restart();
    answers(&sue).await;
    assert_eq!(sue.get(&format!("/api/v1/jobs/{id}")).await.status, 404, "jobs live in memory");

    let left = dead(&sue).await;
    let taken = taken_of(&own, &left);
    let count = taken.len() as u64;
    assert!((TAKEN_MIN..all).contains(&count), "{count} were taken");
    assert_eq!(left.len() as u64, all - count + number(&others));
    delivered_once(&office, &own, &taken).await;
    assert_eq!(replays(&sue).await, [replay(None, 1)], "its begin, without a count");

    let rest = order(&sue, 1, all - count, None).await;
    assert_eq!(sue.job_over(rest).await["phase"], "done");
    delivered_once(&office, &own, &own.iter().cloned().collect()).await;
    assert_eq!(dead(&sue).await, others.iter().cloned().collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_whose_console_is_stopped_has_its_end_in_the_audit() {
    let (mut office, own, _) = start().await;
    let sue = office.program("sue");
    let all = number(&own);
    let id = order(&sue, 1, all, Some(all / 10)).await;
    runs(&sue, id).await;
    office.console.sigterm();
    let status = office.console.exit(SOON).await;
    assert!(status.success(), "{status}: {}", office.console.output());
    office.console.restart();
    answers(&sue).await;

    let taken = taken_of(&own, &dead(&sue).await);
    let count = number(&taken.iter().cloned().collect::<Vec<_>>());
    assert!((TAKEN_MIN..all).contains(&count), "{count} were taken");
    assert_eq!(replays(&sue).await, [replay(Some(count), 1)]);
    let records = sue.rows("/api/v1/audit?", "records", 200).await;
    assert_eq!(records[0]["outcome"], "stopped", "{records:#?}");
    delivered_once(&office, &own, &taken).await;
}
