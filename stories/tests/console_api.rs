//! The console's API: pages of lists, jobs, errors, and a client that is made from its document alone.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use stories::answer::Answer;
use stories::cell::Cell;
use stories::client::post;
use stories::console::{ConsoleClient, percent, tool};
use stories::console_cell::ConsoleCell;
use stories::report::say;
use stories::shop;
use stories::size::size;
use stories::until::{until, until_some};
use stories::webhook::Webhook;

use crate::console_routes::routes;

const SOON: Duration = Duration::from_secs(60);
const DEAD: &str = "/api/v1/consumers/http/dead";

fn texts(rows: &[Value], key: &str) -> Vec<String> {
    rows.iter().map(|row| row[key].as_str().expect("a text").to_owned()).collect()
}

fn parsed(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_slice(&answer.body).expect("JSON")
}

fn ids(rows: &[Value]) -> BTreeSet<String> {
    texts(rows, "webhook_id").into_iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_a_list_hold_every_row_once() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let sue = office.program("sue");
    let dead = [office.bury(1, 25).await, office.bury(2, 12).await].concat();
    let waiting = office.hold(7, 33).await;
    for limit in [1, 7, 200] {
        let rows = sue.rows("/api/v1/dead?", "letters", limit).await;
        assert_eq!(rows.len(), dead.len(), "dead letters by {limit}");
        assert_eq!(ids(&rows), dead.iter().cloned().collect(), "dead letters by {limit}");
        let rows = sue.rows("/api/v1/webhooks?", "webhooks", limit).await;
        assert_eq!(rows.len(), waiting.len(), "waiting webhooks by {limit}");
        assert_eq!(ids(&rows), waiting.iter().cloned().collect(), "waiting webhooks by {limit}");
    }
    let of_two = format!("/api/v1/dead?shop={}&", shop::domain(2));
    let rows = sue.rows(&of_two, "letters", 5).await;
    assert_eq!((rows.len(), ids(&rows).len()), (12, 12));
    assert!(texts(&rows, "shop").iter().all(|shop| *shop == shop::domain(2)));
    let none = sue.rows("/api/v1/dead?topic=orders/*&", "letters", 5).await;
    assert_eq!(none, Vec::<Value>::new());

    let listed = office.told(&["dead", "list", "-o", "json"]).await;
    let listed: Vec<Value> =
        listed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let rows = sue.rows("/api/v1/dead?", "letters", 10).await;
    assert_eq!(texts(&rows, "spillway_id"), texts(&listed, "spillway_id"), "the command's order");

    // The state of the cell is read once a second.
    let counts = async || {
        let status = sue.json("/api/v1/status").await;
        status["consumers"][0]["dead_letters"] == 37
    };
    until("the dead letters are counted", SOON, counts).await;
    let paused = async || {
        let lanes = sue.json("/api/v1/lanes").await;
        let own = lanes["lanes"].as_array().expect("lanes").iter();
        own.filter(|lane| lane["shop"] == shop::domain(7).as_str())
            .any(|lane| lane["waiting"] == 33 && lane["reason"].to_string().contains("paused"))
    };
    // It is in a lane after PARK_AFTER, a minute.
    until("the lane of the paused shop is shown with its reason", 3 * SOON, paused).await;
    let top = async || {
        let top = sue.json("/api/v1/top?by=shop").await;
        top["rows"][0]["name"] == shop::domain(7).as_str() && top["rows"][0]["waiting"] == 33
    };
    until("the shop with most waiting webhooks is shown", SOON, top).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_webhook_is_followed_from_its_id_to_its_content() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let (sue, pia) = (office.program("sue"), office.program("pia"));
    let dead = office.bury(1, 1).await.remove(0);
    let waiting = office.hold(7, 1).await.remove(0);
    let delivered = office.store(20, 1).await;
    office.delivered(&delivered).await;
    let story = async |id: &str| {
        let mut after = String::new();
        let mut states = Vec::new();
        loop {
            let story = sue.json(&format!("/api/v1/webhooks/{id}{after}")).await;
            for consumer in story["consumers"].as_array().expect("consumers") {
                states.extend(texts(consumer["facts"].as_array().expect("facts"), "state"));
            }
            match story["next"].as_str() {
                Some(next) => after = format!("?after={}", percent(next)),
                None => return states.join(" "),
            }
        }
    };
    for (id, expected) in [(&dead, "dead"), (&waiting, "wait"), (&delivered[0], "delivered")] {
        let is_shown = async || story(id).await.contains(expected);
        until(&format!("{expected} is among the facts"), SOON, is_shown).await;
    }
    let letters = sue.json("/api/v1/dead").await;
    let letter = &letters["letters"][0];
    let id = letter["spillway_id"].as_str().expect("an id");
    assert_eq!((&letter["webhook_id"], &letter["status"]), (&dead.as_str().into(), &422.into()));
    let one = sue.json(&format!("/api/v1/dead/{}", percent(id))).await;
    assert_eq!(&one, letter);
    let content = pia.json(&format!("/api/v1/dead/{}/content", percent(id))).await;
    let body = content["body"].as_str().expect("a body");
    assert!(body.contains("\"sequence\":1") && content["is_exact"] == true, "{content}");
    let headers = content["headers"].as_array().expect("headers");
    let topic = headers.iter().find(|header| {
        let name = header["name"].as_str().expect("a name");
        name.eq_ignore_ascii_case("X-Shopify-Topic")
    });
    assert_eq!(topic.expect("the topic")["value"], "products/update");
    let list = sue.json("/api/v1/webhooks").await;
    assert_eq!(list["webhooks"][0]["webhook_id"], waiting.as_str(), "{list}");
    let stored = list["webhooks"][0]["spillway_id"].as_str().expect("an id");
    let content = pia.json(&format!("/api/v1/webhooks/{stored}/content")).await;
    assert!(content["body"].as_str().expect("a body").contains("\"fill\""), "{content}");
    for path in [format!("/api/v1/dead/{id}"), format!("/api/v1/webhooks/{waiting}")] {
        let text = sue.page(&path).await;
        assert!(!text.contains("\\\"fill\\\"") && !text.contains("\"body\""), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_counts_a_wrong_number_changes_nothing_and_a_replay_can_be_undone() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let (sue, otto) = (office.program("sue"), office.program("otto"));
    let dead = office.bury(1, 5).await;
    office.bury(2, 4).await;
    office.heal();
    let tried = office.backend.count();
    let selection = json!({ "shop": shop::domain(1) });
    let order = async |client: &ConsoleClient, verb: &str, expected: Option<u64>| {
        let request = json!({ "selection": selection, "expected": expected });
        client.post(&format!("{DEAD}/{verb}"), &request).await
    };
    let job = |answer: &Answer| parsed(answer)["id"].as_u64().expect("a number");

    let counted = sue.job_over(job(&order(&sue, "replay", None).await)).await;
    assert_eq!((&counted["phase"], &counted["total"]), (&"counted".into(), &5.into()));
    assert!(counted["digest"].is_string(), "{counted}");
    for (expected, digest) in [(4, &counted["digest"]), (5, &json!("other webhooks"))] {
        let request = json!({ "selection": selection, "expected": expected, "digest": digest });
        let wrong = sue.post(&format!("{DEAD}/replay"), &request).await;
        if wrong.status == 200 {
            let failed = sue.job_over(job(&wrong)).await;
            assert!(failed["phase"].get("failed").is_some(), "{failed}");
        } else {
            assert_eq!(wrong.status, 409, "{}", wrong.text());
        }
    }
    let undone = job(&order(&sue, "replay", Some(5)).await);
    let waits = async || {
        let job = sue.json(&format!("/api/v1/jobs/{undone}")).await;
        job["phase"].get("waiting").is_some()
    };
    until("the replay waits", SOON, waits).await;
    let answer = sue.post(&format!("/api/v1/jobs/{undone}/undo"), &json!({})).await;
    assert_eq!(parsed(&answer)["phase"], "undone");
    assert_eq!((office.dead_letters().await, office.backend.count()), (9, tried));
    let refused = order(&sue, "drop", None).await;
    assert_eq!(refused.status, 403, "support drops nothing: {}", refused.text());

    let done = sue.job_over(job(&order(&sue, "replay", Some(5)).await)).await;
    assert_eq!((&done["phase"], &done["done"]), (&"done".into(), &5.into()), "{done}");
    office.delivered(&dead).await;
    let again = sue.post(&format!("/api/v1/jobs/{}/undo", done["id"]), &json!({})).await;
    assert_eq!(again.status, 409, "{}", again.text());

    let selection = json!({ "selection": { "all": true }, "expected": 4 });
    let answer = otto.post(&format!("{DEAD}/drop"), &selection).await;
    let dropped = otto.job_over(job(&answer)).await;
    assert_eq!((&dropped["phase"], &dropped["done"]), (&"done".into(), &4.into()), "{dropped}");
    assert_eq!(office.dead_letters().await, 0);
    let nothing = otto.post(&format!("{DEAD}/drop"), &json!({ "selection": {} })).await;
    assert_eq!(nothing.status, 400, "neither a filter nor all: {}", nothing.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_chosen_by_their_ids_and_by_nothing_else() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let (sue, otto) = (office.program("sue"), office.program("otto"));
    office.bury(1, 5).await;
    office.heal();
    let letters = sue.rows("/api/v1/dead?", "letters", 200).await;
    let (names, webhooks) = (texts(&letters, "spillway_id"), texts(&letters, "webhook_id"));
    let order = async |client: &ConsoleClient, verb: &str, ids: &Value, counted: &Value| {
        let request = json!({
            "selection": { "ids": ids },
            "expected": counted["total"],
            "digest": counted["digest"],
        });
        client.post(&format!("{DEAD}/{verb}"), &request).await
    };
    let job = |answer: &Answer| parsed(answer)["id"].as_u64().expect("a number");
    let over = async |client: &ConsoleClient, answer: &Answer| client.job_over(job(answer)).await;

    // One id twice, and one that no dead letter has.
    let none = "a1b2c3d4-1767268800000-0000000000-00000";
    let ids = json!([names[3], names[1], names[3], none]);
    let counted = over(&sue, &order(&sue, "replay", &ids, &Value::Null).await).await;
    assert_eq!((&counted["phase"], &counted["total"]), (&"counted".into(), &2.into()));
    let other = json!([names[0], names[1]]);
    let wrong = order(&sue, "replay", &other, &counted).await;
    if wrong.status == 200 {
        let failed = over(&sue, &wrong).await;
        assert!(failed["phase"].get("failed").is_some(), "as many others: {failed}");
    } else {
        assert_eq!(wrong.status, 409, "{}", wrong.text());
    }
    assert_eq!(office.dead_letters().await, 5);
    let done = over(&sue, &order(&sue, "replay", &ids, &counted).await).await;
    assert_eq!((&done["phase"], &done["done"]), (&"done".into(), &2.into()), "{done}");
    office.delivered(&[webhooks[1].clone(), webhooks[3].clone()]).await;

    let ids = json!([names[0], names[1]]);
    let counted = over(&otto, &order(&otto, "drop", &ids, &Value::Null).await).await;
    assert_eq!(counted["total"], 1, "the other one is no dead letter any more: {counted}");
    let done = over(&otto, &order(&otto, "drop", &ids, &counted).await).await;
    assert_eq!((&done["phase"], &done["done"]), (&"done".into(), &1.into()), "{done}");
    let left = sue.rows("/api/v1/dead?", "letters", 200).await;
    assert_eq!(texts(&left, "spillway_id"), [names[2].as_str(), names[4].as_str()]);

    let many: Vec<String> =
        (0..201).map(|seq| format!("a1b2c3d4-1767268800000-{seq:010}-00000")).collect();
    for (ids, told) in [
        (json!(many), "at most 200"),
        (json!(many[..200]), ""),
        (json!([]), "ids is empty"),
        (json!([names[2], ""]), "ids is empty"),
        (json!(["'\"><script>"]), "no Spillway-Id"),
    ] {
        let answer = order(&sue, "replay", &ids, &Value::Null).await;
        assert_eq!(answer.status, if told.is_empty() { 200 } else { 400 }, "{}", answer.text());
        assert!(answer.text().contains(told), "{}", answer.text());
    }
    for path in ["drop", "pause"] {
        let request = json!({ "selection": { "ids": [names[2]] } });
        let answer = otto.post(&format!("/api/v1/consumers/http/{path}"), &request).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
    }
    let command = ["dead", "replay", names[2].as_str(), names[4].as_str(), none];
    assert!(office.told(&command).await.contains("2 dead letters would be replayed"));
    office.told(&[&command[..], &["--yes"]].concat()).await;
    office.delivered(&[webhooks[2].clone(), webhooks[4].clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compliance_webhooks_are_dropped_by_an_admin_alone() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let domain = shop::domain(1);
    let webhook = Webhook::any().with("X-Shopify-Shop-Domain", &domain).topic("customers/redact");
    post(office.receiver.address(), &webhook).await.expect_stored();
    until("it is a dead letter", SOON, async || office.dead_letters().await == 1).await;
    let selection = json!({ "shop": domain });
    let request = |force: bool, expected: Option<u64>| json!({ "selection": selection, "force": force, "expected": expected });
    let path = format!("{DEAD}/drop");
    let (otto, ada) = (office.program("otto"), office.program("ada"));
    let refused = otto.post(&path, &request(true, Some(1))).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    let counted = parsed(&otto.post(&path, &request(false, None)).await);
    let counted = otto.job_over(counted["id"].as_u64().expect("a number")).await;
    assert_eq!(counted["kept"], 1, "{counted}");
    assert_eq!(office.dead_letters().await, 1);
    let dropped = parsed(&ada.post(&path, &request(true, Some(1))).await);
    ada.job_over(dropped["id"].as_u64().expect("a number")).await;
    assert_eq!(office.dead_letters().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_problems_and_an_unchanged_list_is_not_sent_again() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    office.bury(1, 2).await;
    let ada = office.program("ada");
    let problem = |what: &str, answer: &Answer, status: u16| {
        assert_eq!(answer.status, status, "{what}: {}", answer.text());
        let media_type = answer.headers.text("content-type");
        assert_eq!(media_type, Some("application/problem+json"), "{what}");
        let problem: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(problem["status"], status, "{what}: {problem}");
        for key in ["code", "title", "detail"] {
            assert!(problem[key].as_str().is_some_and(|text| !text.is_empty()), "{what}: {key}");
        }
    };
    for (path, status) in [
        ("/api/v1/nothing", 404),
        ("/api/v1/dead/no-such-letter", 404),
        ("/api/v1/jobs/999999", 404),
        ("/api/v1/dead?limit=many", 400),
        ("/api/v1/dead?limit=-1", 400),
        ("/api/v1/dead?since=yesterday", 400),
        ("/api/v1/dead?after=nowhere", 400),
        ("/api/v1/webhooks?after=nowhere", 400),
        ("/api/v1/lanes?consumer=no-such-consumer", 404),
        ("/api/v1/top?by=colour", 400),
    ] {
        let answer = ada.get(path).await;
        // An unknown consumer may be either.
        let status = if answer.status == 400 && path.contains("consumer=") { 400 } else { status };
        problem(path, &answer, status);
    }
    problem("DELETE", &ada.send("DELETE", "/api/v1/dead", "", b"").await, 405);
    let nobody = office.console.nobody().get("/api/v1/dead").await;
    problem("nobody", &nobody, 401);
    for body in [&b"{"[..], b"[]", b"{\"selection\":{\"shops\":\"a\"}}", b"\xff"] {
        let answer = ada.send("POST", &format!("{DEAD}/replay"), "application/json", body).await;
        assert!(matches!(answer.status, 400 | 422), "{body:?}: {}", answer.text());
        problem("a body that is not understood", &answer, answer.status);
    }
    let text = ada.send("POST", &format!("{DEAD}/replay"), "text/plain", b"{}").await;
    assert!(matches!(text.status, 400 | 415), "{}", text.text());
    let large = vec![b' '; 100 << 10];
    let answer = ada.send("POST", &format!("{DEAD}/replay"), "application/json", &large).await;
    assert!(matches!(answer.status, 400 | 413 | 422), "{}", answer.text());

    // The number of all dead letters, which is in the list, is read once a second.
    let same = async || {
        let first = ada.get("/api/v1/dead").await;
        let tag = first.headers.text("etag").expect("a list has an ETag").to_owned();
        let known = ada.clone().header("If-None-Match", &tag);
        let same = known.get("/api/v1/dead").await;
        (same.status == 304 && same.body.is_empty()).then_some((known, tag))
    };
    let (known, tag) = until_some("the same list is not sent again", SOON, same).await;
    office.bury(1, 1).await;
    let other = known.get("/api/v1/dead").await;
    assert_eq!(other.status, 200);
    assert_ne!(other.headers.text("etag"), Some(tag.as_str()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_made_from_the_document_alone_finds_nothing_that_it_does_not_promise() {
    // One who may everything, and sees bodies too.
    let people = [("zoe", "admin", true)];
    let office = ConsoleCell::start_for(Cell::busy(), &[], &people).await;
    office.bury(1, 20).await;
    office.hold(7, 20).await;
    let document = office.console.url() + "api/v1/openapi.json";
    let bearer = format!("Authorization: Bearer {}", office.token("zoe"));
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,\
                  response_schema_conformance,response_headers_conformance,ignored_auth";
    let examples = size("8", "300");
    let phases = size("fuzzing", "examples,coverage,fuzzing");
    let mut command = Command::new(tool("browser/bin/schemathesis"));
    command
        .args(["run", &document, "--header", &bearer, "--checks", checks])
        .args(["--phases", phases, "--max-examples", examples])
        .args(["--seed", "23", "--no-color", "--continue-on-failure", "--warnings", "off"])
        .args(["--request-timeout", "20", "--no-shrink"])
        .current_dir(office.cell.directory());
    let run = move || command.output().expect("run schemathesis");
    let output = tokio::task::spawn_blocking(run).await.expect("it was run");
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{errors}");
    // All but the document itself.
    let all = routes().iter().filter(|route| route.is_api()).count() - 1;
    for expected in [format!("Selected: {all}/{all}"), format!("Tested: {all}")] {
        assert!(told.contains(&expected), "no {expected:?} in {told}");
    }
    let tested = told.lines().filter(|line| line.contains("perations") || line.contains("cases"));
    say(&format!("console: schemathesis: {}", tested.collect::<Vec<_>>().join("; ")));
    let status = office.program("vera").get("/api/v1/status").await;
    assert_eq!(status.status, 200, "the console works on");
}
