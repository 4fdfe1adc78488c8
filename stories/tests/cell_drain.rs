//! `spillway cell drain`: success only once nothing is left and nothing comes any more.

use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::client::post;
use stories::ledger::{Event, Ledger};
use stories::load::{Load, Running};
use stories::shop;
use stories::until::until;

const SOON: Duration = Duration::from_secs(60);
/// Shop without webhooks.
const NOBODY: &str = "nobody.myshopify.com";

/// Runs the command. Nothing must come for 2 s, as long as no receiver takes for an answer.
async fn drain(cell: &Cell, flags: &[&str]) -> Output {
    let fixed = ["cell", "drain", "--quiet-for", "2s", "-o", "json"];
    cell.spillway(&[&fixed[..], flags].concat()).await
}

fn expect_drained(output: &Output) -> Value {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["drained"], true, "{found}");
    found
}

/// Checks that the cell was not drained. Returns the message.
fn expect_not_drained(output: &Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["drained"], false, "{found}");
    told
}

/// Checks that the command failed without a look at what waits. Returns the message.
fn expect_refused(output: &Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(output.stdout.is_empty(), "{told}");
    told
}

/// Few webhooks of these shops, without an end.
fn trickle(shops: std::ops::Range<u64>) -> Load {
    let pause = Duration::from_millis(100);
    Load { connections: 4, resources: 8, shops: Some(shops), pause, ..Load::steady(131) }
}

async fn running(load: &Load, address: std::net::SocketAddr, ledger: &Arc<Ledger>) -> Running {
    let running = load.start(address, ledger);
    until("webhooks are stored", SOON, async || ledger.stored_count() > 10).await;
    running
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_waited_for() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    backend.employ(1);
    backend.behave(|_| Behaviour::slowly(Duration::from_millis(20)));
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load { pause: Duration::ZERO, events: Some(10), ..trickle(0..4) };
    load.start(receiver.address(), &ledger).join().await;
    let nobody = expect_not_drained(&drain(&cell, &["--timeout", "1s"]).await);
    assert!(nobody.contains("none is registered"), "{nobody}");
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    let found = expect_drained(&drain(&cell, &["--timeout", "60s"]).await);
    assert_eq!(backend.delivered(), ledger.stored_count());
    assert_eq!((&found["accepted"], &found["has_overflow_log"]), (&80.into(), &false.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_still_stores_is_noticed() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let downstreamer = cell.downstreamer(&backend, &[]).await;
    downstreamer.leads().await;
    let ledger = Arc::new(Ledger::default());
    let running = running(&trickle(0..4), receiver.address(), &ledger).await;
    expect_not_drained(&drain(&cell, &["--timeout", "5s"]).await);
    // Each of them is delivered at once, so hardly a look finds one that waits.
    let own = shop::domain(1);
    expect_not_drained(&drain(&cell, &["--timeout", "5s", "--shop", &own]).await);
    expect_not_drained(&drain(&cell, &["--timeout", "5s", "--shop", &own.to_uppercase()]).await);
    // Nothing of it waits, and nothing comes. But its name may be wrong, and the result says so.
    let found = expect_drained(&drain(&cell, &["--timeout", "60s", "--shop", NOBODY]).await);
    assert_eq!((&found["shops"], &found["unseen_shops"]), (&1.into(), &json!([NOBODY])));
    expect_drained(&drain(&cell, &["--timeout", "60s", "--so-far"]).await);
    running.stop().await;
    expect_drained(&drain(&cell, &["--timeout", "60s"]).await);
    expect_drained(&drain(&cell, &["--timeout", "60s", "--shop", &own]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_whose_webhooks_fail_can_stay() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let failing = shop::domain(0);
    let bad = failing.clone();
    backend.behave(move |receipt| match receipt.shop() == bad {
        true => Behaviour::status(500),
        false => Behaviour::ok(),
    });
    let receiver = cell.receiver(&[]).await;
    let _downstreamer = cell.downstreamer(&backend, &[("PARK_AFTER", "1s")]).await;
    for resource in 0..8 {
        let event = Event { resource, sequence: 1 };
        let webhook = shop::webhook(resource % 4, "products/update", event);
        post(receiver.address(), &webhook).await.expect_stored();
    }
    until("a lane of failing ones", SOON, async || redis.in_lanes().await > 0).await;
    let told = expect_not_drained(&drain(&cell, &["--timeout", "4s"]).await);
    assert!(told.contains("http: 2 webhooks left"), "{told}");
    expect_not_drained(&drain(&cell, &["--timeout", "4s", "--so-far"]).await);
    expect_not_drained(&drain(&cell, &["--timeout", "4s", "--shop", &failing]).await);
    let except = ["--timeout", "60s", "--except-shop", &failing];
    expect_drained(&drain(&cell, &except).await);
    expect_drained(&drain(&cell, &[&except[..], &["--so-far"]].concat()).await);
    expect_drained(&drain(&cell, &["--timeout", "60s", "--shop", &shop::domain(1)]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overflow_log_is_asked_for_and_never_taken_for_empty() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let spill = cell.directory().join("spill").display().to_string();
    let receiver = cell.receiver(&[("SPILL_DIR", &spill)]).await;
    let _downstreamer = cell.downstreamer(&backend, &[]).await;
    // Most receivers of this machine are those of other cells.
    let beside = Cell::beside();
    let _other_redis = beside.redis(&[]).await;
    let spill = beside.directory().join("spill").display().to_string();
    let other_receiver = beside.receiver(&[("SPILL_DIR", &spill)]).await;
    let other = other_receiver.admin_address().to_string();
    let wrong =
        expect_not_drained(&drain(&cell, &["--timeout", "60s", "--receiver", &other]).await);
    assert!(wrong.contains("none of them has this log"), "{wrong}");
    let nobody = ["--timeout", "60s", "--receiver", "127.0.0.1:1"];
    let told = expect_not_drained(&drain(&cell, &nobody).await);
    assert!(told.contains("overflow log") && told.contains("--receiver"), "{told}");
    let address = receiver.admin_address().to_string();
    let found = expect_drained(&drain(&cell, &["--receiver", &address]).await);
    assert_eq!((&found["has_overflow_log"], &found["overflow"]), (&true.into(), &0.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_without_a_cell_or_consumers_is_not_drained() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let told = expect_refused(&drain(&cell, &[]).await);
    assert!(told.contains("no cell") && told.contains("REDIS_URL"), "{told}");
    expect_drained(&drain(&cell, &["--allow-empty"]).await);
    let _receiver = cell.receiver(&[]).await;
    let told = expect_refused(&drain(&cell, &["--so-far"]).await);
    assert!(told.contains("no consumer") && told.contains("--allow-empty"), "{told}");
    expect_drained(&drain(&cell, &["--so-far", "--allow-empty"]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_an_overflow_log_is_waited_for() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let spill = cell.directory().join("spill").display().to_string();
    let receiver = cell.receiver(&[("SPILL_DIR", &spill)]).await;
    let downstreamer = cell.downstreamer(&backend, &[]).await;
    downstreamer.leads().await;
    // Another cell, whose overflow log is empty.
    let beside = Cell::beside();
    let _other_redis = beside.redis(&[]).await;
    let spill = beside.directory().join("spill").display().to_string();
    let other = beside.receiver(&[("SPILL_DIR", &spill)]).await;
    let own = receiver.admin_address().to_string();
    let other_address = other.admin_address().to_string();
    let alone = ["--receiver", &own];
    let both = ["--receiver", &other_address, "--receiver", &own];

    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "100kb"]).await;
    for resource in 0..20 {
        let event = Event { resource, sequence: 1 };
        let webhook = shop::webhook(resource % 4, "products/update", event);
        post(receiver.address(), &webhook).await.expect_stored();
    }
    let spilled = async || receiver.metric("spillway_spill_webhooks").await == Some(20.0);
    until("webhooks are spilled", SOON, spilled).await;
    for receivers in [&alone[..], &both] {
        let told = expect_not_drained(&drain_so_far(&cell, receivers, "5s").await);
        assert!(told.contains("20 webhooks in the overflow log"), "{told}");
    }
    assert_eq!(backend.delivered(), 0);

    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let found = expect_drained(&drain_so_far(&cell, &both, "60s").await);
    assert_eq!(backend.delivered(), 20, "what was restored is delivered");
    assert_eq!((&found["has_overflow_log"], &found["overflow"]), (&true.into(), &0.into()));
    // One that does not answer may have a log, too.
    let unknown = ["--receiver", &own, "--receiver", "127.0.0.1:1"];
    let told = expect_not_drained(&drain_so_far(&cell, &unknown, "60s").await);
    assert!(told.contains("--receiver"), "{told}");
}

async fn drain_so_far(cell: &Cell, receivers: &[&str], timeout: &str) -> Output {
    drain(cell, &[&["--so-far", "--timeout", timeout][..], receivers].concat()).await
}
