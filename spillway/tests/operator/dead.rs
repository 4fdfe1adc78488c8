//! Tests of `spillway dead`.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use spillway_queue::read::StreamReader;
use spillway_webhook::StreamId;

use crate::cell::{Cell, Letter, product, webhook_id};

fn ids(listed: &str) -> Vec<String> {
    let text = |line: &str| {
        let letter: serde_json::Value = serde_json::from_str(line).unwrap();
        letter["spillway_id"].as_str().unwrap().to_owned()
    };
    listed.lines().map(text).collect()
}

/// Four products of two shops, given up in another order than they were accepted.
async fn four() -> (Cell, Vec<String>) {
    let cell = Cell::start().await;
    let ids = cell.give_up(&[1, 2, 3, 4].map(product), &[2, 0, 3, 1]).await;
    (cell, ids.iter().map(ToString::to_string).collect())
}

#[tokio::test]
async fn they_are_listed_by_every_filter() {
    let (cell, all) = four().await;
    let listed = |filter: &[&str]| {
        let mut found = ids(&cell.told(&[&["dead", "list", "-o", "json"], filter].concat()));
        found.sort();
        found
    };
    assert_eq!(listed(&[]), all);
    assert_eq!(listed(&["--shop", "shop-1.myshopify.com"]), [all[0].clone(), all[2].clone()]);
    assert_eq!(listed(&["--resource", "product/2"]), [all[1].clone()]);
    assert_eq!(listed(&["--webhook-id", &webhook_id(&product(3))]), [all[2].clone()]);
    assert_eq!(listed(&[&all[3]]), [all[3].clone()]);
    assert_eq!(listed(&["--topic", "products/*"]), all);
    assert_eq!(listed(&["--topic", "orders/*"]), Vec::<String>::new());
    assert_eq!(listed(&["--since", "1h"]), all);
    assert_eq!(listed(&["--until", "1h"]), Vec::<String>::new());
    assert_eq!(listed(&["--consumer", "kafka"]), Vec::<String>::new());
    let first = cell.told(&["dead", "list", "-o", "json", &all[0]]);
    let letter: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&letter["status"], &letter["attempts"]), (&422.into(), &3.into()));
    assert_eq!(
        (&letter["reason"], &letter["topic"]),
        (&"refused".into(), &"products/update".into())
    );
    let dead_at = letter["dead_at"].as_str().unwrap();
    assert!(spillway_webhook::freshness::millis(dead_at.as_bytes()).is_some(), "{dead_at}");
}

#[tokio::test]
async fn the_table_has_a_line_each_and_a_limit() {
    let (cell, all) = four().await;
    let table = cell.told(&["dead", "list"]);
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(table.contains(&all[1]) && table.contains("shop-0.myshopify.com"), "{table}");
    let short = cell.told(&["dead", "list", "--limit", "1"]);
    assert!(short.contains("and 3 more"), "{short}");
}

#[tokio::test]
async fn one_is_shown_as_it_was_received_and_harmless_to_the_terminal() {
    let (cell, all) = four().await;
    let shown = cell.told(&["dead", "show", &all[0]]);
    for part in ["refused", "422", "no such \u{fffd}[31mproduct", "POST /hooks?x=1", "delivery-1"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains('\x1b'), "{shown}");
    let body = cell.spillway(&["dead", "show", &all[0], "--body"]);
    assert_eq!(body.stdout, product(1).body);
    let (status, told) = cell.refused(&["dead", "show", "delivery-1"]);
    assert!(status == 64 && told.contains("use --webhook-id"), "{told}");
    assert_eq!(cell.told(&["dead", "show", "--webhook-id", "delivery-1"]), shown);
    let (status, told) = cell.refused(&["dead", "list", "--consumer", "htpt"]);
    assert!(status == 1 && told.contains("no consumer is named htpt"), "{told}");
    // As `--app "$APP"` gives it if the variable is not set.
    assert_eq!(cell.refused(&["dead", "drop", "--app", "", "--yes"]).0, 64);
    let elsewhere = all[0].replace(&all[0][..8], "00000000");
    let (status, told) = cell.refused(&["explain", &elsewhere]);
    assert!(status == 1 && told.contains("is of another cell"), "{told}");
    let other = all[0].replace("-00000", "-00009");
    assert_eq!(cell.refused(&["dead", "show", &other]).0, 1);
}

#[tokio::test]
async fn the_reason_names_the_status_that_made_it_a_dead_letter() {
    let cell = Cell::start().await;
    let ids = cell.give_up_for("status", &[product(1)], &[0]).await;
    let table = cell.told(&["dead", "list"]);
    assert!(table.contains("  status 422  "), "{table}");
    let shown = cell.told(&["dead", "show", &ids[0].to_string()]);
    assert!(shown.contains("status 422"), "{shown}");
    let explained = cell.told(&["explain", &webhook_id(&product(1))]);
    assert!(explained.contains("is a dead letter: status 422, 3 attempts"), "{explained}");
}

#[tokio::test]
async fn they_are_replayed_in_the_order_accepted() {
    let (cell, all) = four().await;
    assert_eq!(cell.refused(&["dead", "replay"]).0, 64);
    let told = cell.told(&["dead", "replay", "--all"]);
    let expected = "4 dead letters would be replayed\ndry run: nothing was changed; add --yes to \
                    replay them\n";
    assert_eq!(told, expected);
    let told = cell.told(&["dead", "replay", "--all", "--rate", "1000", "--yes"]);
    assert_eq!(told, "replayed 4 dead letters\n");
    assert_eq!(cell.told(&["dead", "list"]), "there are no dead letters\n");
    let orders = ["dead", "list", "--topic", "orders/*"];
    assert_eq!(cell.told(&orders), "no dead letter matches\n");
    let (code, told) = cell.refused(&["dead", "replay", &all[0], "--yes"]);
    assert!(code == 1 && told.contains("http has no dead letter"), "{told}");
    let (redis, mut connection) = cell.connect().await;
    let reader = StreamReader::new(redis, "http");
    let replays = reader.replays_after(&mut connection, StreamId::ZERO, 1 << 20).await.unwrap();
    let order: Vec<_> = replays.iter().map(|replay| replay.webhook.to_string()).collect();
    assert_eq!(order, all);
}

#[tokio::test]
async fn more_than_a_page_and_a_batch_are_replayed_in_order() {
    let cell = Cell::start().await;
    let letters: Vec<_> = (0..150).map(product).collect();
    let died: Vec<_> = (0..150).rev().collect();
    let all = cell.give_up(&letters, &died).await;
    assert_eq!(cell.told(&["dead", "replay", "--all", "--yes"]), "replayed 150 dead letters\n");
    let (redis, mut connection) = cell.connect().await;
    let reader = StreamReader::new(redis, "http");
    let mut order = Vec::new();
    let mut after = StreamId::ZERO;
    loop {
        let page = reader.replays_after(&mut connection, after, 1 << 20).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.id;
        order.extend(page.iter().map(|replay| replay.webhook));
    }
    assert_eq!(order, all);
}

#[tokio::test]
async fn they_are_dropped_only_with_a_yes() {
    let (cell, all) = four().await;
    assert_eq!(cell.refused(&["dead", "drop", "--yes"]).0, 64);
    let told = cell.told(&["dead", "drop", "--all"]);
    assert!(told.starts_with("4 dead letters would be dropped"), "{told}");
    assert!(told.ends_with("dry run: nothing was changed; add --yes to drop them\n"), "{told}");
    assert_eq!(cell.told(&["dead", "drop", &all[2], "--yes"]), "dropped 1 dead letter\n");
    assert_eq!(cell.told(&["dead", "drop", &all[2], "--yes"]), "no dead letter matches\n");
    assert_eq!(cell.told(&["dead", "drop", "--all", "--yes"]), "dropped 3 dead letters\n");
    let status: serde_json::Value =
        serde_json::from_str(&cell.told(&["status", "-o", "json"])).unwrap();
    assert_eq!(status["consumers"][0]["dead_bytes"], 0);
}

#[tokio::test]
async fn compliance_topics_are_dropped_only_by_force() {
    let cell = Cell::start().await;
    let redact = Letter { topic: "customers/redact", ..product(5) };
    cell.give_up(&[redact, product(6)], &[0, 1]).await;
    assert_eq!(cell.told(&["dead", "drop", "--all", "--yes"]), "dropped 1 dead letter\n");
    let told = cell.told(&["dead", "drop", "--all", "--yes"]);
    assert_eq!(told, "no other dead letter matches\n");
    let told = cell.told(&["dead", "drop", "--all", "--yes", "--force"]);
    assert_eq!(told, "dropped 1 dead letter\n");
}

#[tokio::test]
async fn every_dead_letter_of_an_id_is_taken() {
    let cell = Cell::start().await;
    let letters: Vec<_> = (0..40).map(product).collect();
    // One is given up a second time, more than a page later.
    let died: Vec<_> = (0..40).chain([0]).collect();
    let first = cell.give_up(&letters, &died).await[0].to_string();
    assert_eq!(cell.told(&["dead", "drop", &first, "--yes"]), "dropped 2 dead letters\n");
    assert_eq!(ids(&cell.told(&["dead", "list", "-o", "json"])).len(), 39);
}

#[tokio::test]
async fn a_replay_that_is_interrupted_records_its_end_and_ends_by_the_signal() {
    let cell = Cell::start().await;
    let letters: Vec<_> = (0..30).map(product).collect();
    let died: Vec<_> = (0..30).collect();
    cell.give_up(&letters, &died).await;
    let left = || ids(&cell.told(&["dead", "list", "-o", "json"])).len();
    for signal in [Signal::INT, Signal::TERM] {
        let before = left();
        let mut replay = cell.starting(&["dead", "replay", "--all", "--rate", "1", "--yes"]);
        while left() == before {
            assert!(replay.try_wait().unwrap().is_none(), "it has taken nothing");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        kill_process(Pid::from_child(&replay), signal).unwrap();
        let ended = replay.wait_with_output().unwrap();
        assert_eq!(ended.status.signal(), Some(signal.as_raw()), "{ended:?}");
        let told = String::from_utf8(ended.stderr).unwrap();
        assert!(told.contains("stopped: replayed") && told.contains("are left"), "{told}");
        let audit = cell.told(&["audit", "-o", "json"]);
        let last: serde_json::Value = serde_json::from_str(audit.lines().next().unwrap()).unwrap();
        let outcome = (&last["verb"], &last["outcome"], &last["count"]);
        let taken = before - left();
        assert_eq!(outcome, (&"dead replay".into(), &"stopped".into(), &taken.into()), "{last}");
    }
}
