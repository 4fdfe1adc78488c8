//! Tests of `spillway top`, `queue`, `pause`, `resume`, `explain` and `status --check` on a queue
//! without a leader.

use serde_json::Value;

use crate::cell::{Cell, Letter, product, webhook_id};

fn json(cell: &Cell, arguments: &[&str]) -> Value {
    serde_json::from_str(&cell.told(arguments)).unwrap()
}

fn lines(cell: &Cell, arguments: &[&str]) -> Vec<Value> {
    let told = cell.told(arguments);
    told.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Products 1 to 6 of two shops, and a redaction.
async fn seven() -> Cell {
    let cell = Cell::start().await;
    let mut letters: Vec<Letter> = (1..=6).map(product).collect();
    letters.push(Letter { topic: "customers/redact", ..product(7) });
    cell.store(&letters).await;
    cell
}

#[tokio::test]
async fn what_waits_is_counted_by_shop_topic_and_resource() {
    let cell = seven().await;
    let top = json(&cell, &["top", "-o", "json"]);
    assert_eq!((&top["waiting"], &top["exact"]), (&7.into(), &true.into()));
    let first = &top["rows"][0];
    assert_eq!(first["name"], "shop-1.myshopify.com");
    assert_eq!((&first["waiting"], &first["may_be_off_by"]), (&4.into(), &0.into()));
    let topics = json(&cell, &["top", "--by", "topic", "-o", "json"]);
    assert_eq!(topics["rows"][0]["name"], "products/update");
    assert_eq!(topics["rows"][1]["waiting"], 1);
    let shop = ["top", "--by", "resource", "--shop", "shop-0.myshopify.com", "-o", "json"];
    assert_eq!(json(&cell, &shop)["rows"].as_array().unwrap().len(), 1);
    let text = cell.told(&["top"]);
    assert!(text.contains("7 waiting webhooks") && text.contains("57.1 %"), "{text}");
    let (code, told) = cell.refused(&["top", "--consumer", "kafka"]);
    assert_eq!(code, 1);
    assert!(told.contains("no consumer is named kafka; there is http"), "{told}");
}

#[tokio::test]
async fn what_waits_is_listed_by_every_filter_and_shown() {
    let cell = seven().await;
    let listed =
        |filter: &[&str]| lines(&cell, &[&["queue", "list", "-o", "json"], filter].concat());
    assert_eq!(listed(&[]).len(), 7);
    assert_eq!(listed(&["--shop", "shop-0.myshopify.com"]).len(), 3);
    assert_eq!(listed(&["--topic", "customers/*"]).len(), 1);
    let one = listed(&["--webhook-id", &webhook_id(&product(3))]);
    assert_eq!(one.len(), 1);
    let id = one[0]["spillway_id"].as_str().unwrap();
    assert_eq!(listed(&["--webhook-id", id]), one);
    assert_eq!(
        cell.told(&["queue", "list", "--shop", "nobody.example"]),
        "no waiting webhook matches\n"
    );
    let table = cell.told(&["queue", "list", "--limit", "2"]);
    assert!(table.lines().count() == 4 && table.contains("and more"), "{table}");
    assert!(!table.contains("BYTES"), "{table}");
    let wide = cell.told(&["queue", "list", "-n", "2", "-s", "shop-1.myshopify.com", "-o", "wide"]);
    assert!(wide.contains("APP") && wide.contains("BYTES"), "{wide}");
    assert!(cell.told(&["top", "-o", "wide"]).contains("NEWEST AT"));
    let shown = cell.told(&["queue", "show", id]);
    assert!(shown.contains("POST /hooks?x=1") && shown.contains("delivery-3"), "{shown}");
    assert_eq!(cell.spillway(&["queue", "show", id, "--body"]).stdout, product(3).body);
    let (code, told) = cell.refused(&["queue", "show", "delivery-3"]);
    assert!(code == 64 && told.contains("use --webhook-id"), "{told}");
    assert_eq!(cell.told(&["queue", "show", "--webhook-id", "delivery-3"]), shown);
    assert_eq!(cell.refused(&["queue", "show"]).0, 64);
    let other = id.replace("-00000", "-00009");
    assert_eq!(cell.refused(&["queue", "show", &other]).0, 1);
}

#[tokio::test]
async fn a_drop_is_ordered_only_with_a_yes_and_a_redaction_only_by_force() {
    let cell = seven().await;
    assert_eq!(cell.refused(&["queue", "drop", "--yes"]).0, 64, "without a filter");
    let output = cell.spillway(&["queue", "drop", "--shop", "shop-1.myshopify.com"]);
    let told = String::from_utf8(output.stdout).unwrap();
    let expected = "3 webhooks would be dropped for http, for good\ndry run: nothing was changed; \
                    add --yes to drop them\n";
    assert_eq!((output.status.code(), told.as_str()), (Some(0), expected));
    assert!(String::from_utf8(output.stderr).unwrap().contains("legal"));
    let unchanged = json(&cell, &["queue", "drop", "--all", "-o", "json"]);
    assert_eq!((&unchanged["dry_run"], &unchanged["not_yet"]), (&true.into(), &0.into()));
    assert_eq!(lines(&cell, &["queue", "list", "-o", "json"]).len(), 7, "nothing was changed");
    let drop = ["queue", "drop", "--shop", "shop-1.myshopify.com", "--yes", "--no-wait"];
    let told = cell.told(&drop);
    assert!(told.contains("3 more") && told.contains("it has no leader"), "{told}");
    // Webhooks that are ordered to be dropped no longer wait and are not ordered again.
    assert_eq!(lines(&cell, &["queue", "list", "-o", "json"]).len(), 4);
    assert_eq!(cell.told(&drop), "no waiting webhook matches\n");
    let all = ["queue", "drop", "--all", "--yes", "--force", "--no-wait", "-o", "json"];
    assert_eq!(json(&cell, &all)["matched"], 4);
    let explained = cell.told(&["explain", &webhook_id(&product(1))]);
    assert!(explained.contains("an operator ordered that it be dropped"), "{explained}");
}

#[tokio::test]
async fn what_waits_is_seen_and_dropped_before_any_consumer_was_started() {
    let cell = Cell::start().await;
    assert!(cell.told(&["top"]).starts_with("0 waiting webhooks for http"), "an empty Redis");
    assert_eq!(cell.told(&["queue", "list"]), "no webhook waits\n");
    let entries = cell.store_alone(&[product(1), product(2), product(3)]).await;
    let top = json(&cell, &["top", "-o", "json"]);
    assert_eq!((&top["waiting"], &top["registered"]), (&3.into(), &false.into()));
    assert!(cell.told(&["top"]).contains("which was not started yet"));
    assert_eq!(lines(&cell, &["queue", "list", "-o", "json"]).len(), 3);
    let explained = json(&cell, &["explain", &webhook_id(&product(2)), "-o", "json"]);
    assert_eq!(explained["consumers"][0]["facts"][0]["state"], "waiting");
    let (code, told) = {
        let output = cell.spillway(&["explain", "nothing"]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert!(code == Some(1) && told.contains("no consumer was started yet"), "{told}");
    // Another consumer may begin elsewhere.
    assert_eq!(cell.refused(&["top", "--consumer", "kafka"]).0, 1);

    let first = webhook_id(&product(1));
    let told = cell.told(&["queue", "drop", "--webhook-id", &first, "--yes", "--no-wait"]);
    assert!(told.contains("1 more") && told.contains("it has no leader"), "{told}");
    // The drop registered the downstreamer's consumer, at the oldest entry.
    let status = json(&cell, &["status", "-o", "json"]);
    assert_eq!(status["consumers"][0]["waiting"], entries.len());
    assert_eq!(lines(&cell, &["queue", "list", "-o", "json"]).len(), 2);
}

#[tokio::test]
async fn pauses_are_shown_and_ended_one_by_one() {
    let cell = seven().await;
    let shop = ["--shop", "shop-1.myshopify.com"];
    assert!(cell.told(&[&["pause"], &shop[..]].concat()).contains("shop shop-1.myshopify.com"));
    assert!(cell.told(&[&["pause"], &shop[..]].concat()).contains("was already paused"));
    cell.told(&["pause", "--all"]);
    let status = json(&cell, &["status", "-o", "json"]);
    assert_eq!(status["consumers"][0]["pauses"].as_array().unwrap().len(), 2);
    assert!(cell.told(&["status"]).contains("\nhttp: paused since 2"));
    assert!(cell.told(&["top"]).contains("paused since"));
    let explained = cell.told(&["explain", &webhook_id(&product(1))]);
    assert!(explained.contains(" and everything"), "{explained}");
    assert!(cell.told(&["resume"]).contains("everything (1 pause)"));
    let (code, told) = cell.refused(&["resume"]);
    assert!(code == 1 && told.contains("not paused as a whole; paused: shop shop-1"), "{told}");
    assert!(cell.told(&["resume", "--all"]).contains("1 pause"));
    let (code, told) = cell.refused(&["resume", "--all"]);
    assert_eq!((code, told.as_str()), (1, "spillway: nothing is paused for http\n"));
    assert_eq!(cell.refused(&["pause", "--all", "--consumer", "nobody"]).0, 1);
    assert_eq!(cell.refused(&["pause", "--consumer", "kafka", "--shop", "x"]).0, 64);
    cell.told(&["consumers", "add", "billing"]);
    let (code, told) = cell.refused(&["pause", "--consumer", "billing", "--topic", "orders/*"]);
    assert!(code == 64 && told.contains("what kind it is"), "{told}");
    // Whatever of these is meant, it is named.
    for verb in [&["pause", "--all"][..], &["resume"], &["queue", "drop", "--all"]] {
        let (code, told) = cell.refused(verb);
        assert!(code == 64 && told.contains("--consumer: billing, http"), "{verb:?}: {told}");
    }
    cell.told(&["pause", "--consumer", "billing", "--all"]);
    cell.told(&["queue", "list"]);
    cell.told(&["consumers", "forget", "billing", "--yes"]);
    let (code, told) = cell.refused(&["pause"]);
    assert!(code == 64 && told.contains("or --all to pause everything for http"), "{told}");
    assert!(!cell.told(&["status"]).contains("paused since"));
}

#[tokio::test]
async fn a_filter_that_can_match_nothing_is_a_wrong_use_of_every_verb() {
    let cell = seven().await;
    for verb in [&["pause"][..], &["resume"], &["top"], &["queue", "list"], &["dead", "list"]] {
        for bad in [["--topic", "order"], ["--resource", "product"], ["--shop", "notashop"]] {
            let (code, told) = cell.refused(&[verb, &bad].concat());
            assert!(code == 64 && told.contains("such as"), "{verb:?} {bad:?}: {told}");
        }
    }
    assert!(!cell.told(&["status"]).contains("paused since"));
}

#[tokio::test]
async fn one_webhook_is_explained_where_it_waits_or_died() {
    let cell = seven().await;
    let explained = json(&cell, &["explain", &webhook_id(&product(3)), "-o", "json"]);
    let fact = &explained["consumers"][0]["facts"][0];
    assert_eq!((&fact["state"], &fact["topic"]), (&"waiting".into(), &"products/update".into()));
    let by_id = json(&cell, &["explain", fact["spillway_id"].as_str().unwrap(), "-o", "json"]);
    assert_eq!(&by_id["consumers"][0]["facts"][0]["spillway_id"], &fact["spillway_id"]);
    assert_eq!(cell.spillway(&["explain", "nothing"]).status.code(), Some(1));
    let dead = Cell::start().await;
    dead.give_up(&[product(8)], &[0]).await;
    let told = dead.told(&["explain", &webhook_id(&product(8))]);
    assert!(told.contains("is a dead letter: refused, last status 422, 3 attempts"), "{told}");
}

#[tokio::test]
async fn monitoring_is_told_by_exit_code() {
    let cell = seven().await;
    let check = |arguments: &[&str]| {
        let output = cell.spillway(&[&["status", "--check"], arguments].concat());
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, told) = check(&[]);
    assert_eq!(code, 2);
    assert!(told.starts_with("SPILLWAY CRITICAL: http has no live leader"), "{told}");
    let (code, told) = check(&["--redis-url", "unix:///nonexistent.sock", "-o", "json"]);
    assert_eq!(code, 2);
    assert!(told.contains("critical") && told.contains("unreachable"), "{told}");
    assert_eq!(cell.refused(&["status", "--check", "--redis-url", "http://x"]).0, 78);
    assert_eq!(cell.refused(&["status", "--watch", "--every", "1ms"]).0, 64);
}
