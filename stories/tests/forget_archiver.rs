//! A customer is forgotten while the archiver lags: it is paused, and then its archive is away. No purge is recorded as
//! done before the archive holds all that is meant, and shows none of it.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use stories::behaviour::Behaviour;
use stories::client::post;
use stories::traces::traces;
use stories::until::{until, until_some};

use crate::forget::{ANN, OTHER_SHOP, Remembering, SHOP, SOON, of_ann, of_bob, redaction, webhook};

/// Webhooks about Ann that are archived before the archiver is paused. The others lie in the overflow log first.
const ARCHIVED_EARLY: usize = 2;

/// Posts webhooks about Ann while Redis is away, and waits until they are restored.
async fn overflow(cell: &mut Remembering) {
    cell.redis.kill9();
    for (number, (topic, body)) in of_ann()[ARCHIVED_EARLY..].iter().enumerate() {
        let late = webhook(SHOP, topic, &format!("late-{number}"), body);
        let is_stored = async || post(cell.receiver.address(), &late).await.status == 200;
        until("it is stored", SOON, is_stored).await;
    }
    let log = cell.cell.directory().join("spill");
    assert!(!traces(&log, &ANN[..1]).is_empty(), "the overflow log shows her");
    cell.redis.restart();
    cell.redis.ready().await;
    until("all is restored", SOON, async || {
        cell.receiver.metric("spillway_spilling").await == Some(0.0)
            && cell.receiver.metric("spillway_spill_webhooks").await == Some(0.0)
    })
    .await;
}

/// Runs a purge that is due, which must leave something and record nothing as done. Returns its output.
async fn unfinished(cell: &Remembering) -> String {
    let (is_done, told) = until_some("a purge is due", SOON, async || {
        let (is_done, told) = cell.spillway(&["forget", "--due"]).await;
        (!told.contains("nothing is due")).then_some((is_done, told))
    })
    .await;
    assert!(!is_done, "{told}");
    assert_eq!(cell.pending().await, 1, "the redaction stays noted");
    let records = cell.records().await;
    assert!(records.iter().all(|record| record["complete"] != true), "{records:?}");
    told
}

/// Takes the archive away. Returns the place where it is meanwhile.
fn take_away(cell: &Remembering) -> PathBuf {
    let away = cell.cell.directory().join("away");
    fs::rename(cell.archive.path(), &away).expect("take the archive away");
    // A file in its place: nothing can be made there.
    fs::write(cell.archive.path(), "").expect("write a file");
    away
}

fn bring_back(cell: &Remembering, away: PathBuf) {
    fs::remove_file(cell.archive.path()).expect("remove the file");
    fs::rename(away, cell.archive.path()).expect("bring the archive back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_is_done_only_once_all_that_an_archiver_lags_with_is_archived_and_erased() {
    let mut cell = Remembering::start(false).await;
    cell.billing.behave(|_| Behaviour::ok());
    cell.post(SHOP, "ann", of_ann()[..ARCHIVED_EARLY].to_vec()).await;
    cell.post(SHOP, "bob", of_bob()).await;
    until("all is archived", SOON, async || cell.is_main_empty().await).await;
    cell.told(&["pause", "--consumer", "archive", "--all"]).await;
    let is_paused = async || cell.consumers[2].metric("spillway_pauses").await == Some(1.0);
    until("the archiver is paused", SOON, is_paused).await;
    overflow(&mut cell).await;
    cell.post(OTHER_SHOP, "other", of_bob()).await;
    let redact = webhook(SHOP, "customers/redact", "redact", &redaction());
    assert_eq!(post(cell.receiver.address(), &redact).await.status, 200);
    until("the redaction is noted", SOON, async || cell.pending().await == 1).await;

    let told = unfinished(&cell).await;
    assert!(told.contains("main stream"), "{told}");
    assert!(cell.archived("ann-0").await.is_none(), "it is erased from what is archived");
    let away = take_away(&cell);
    cell.told(&["resume", "--consumer", "archive"]).await;
    cell.consumers[2].unready("archive_").await;
    let told = unfinished(&cell).await;
    assert!(told.contains("archive"), "{told}");
    bring_back(&cell, away);
    until("all is archived", SOON, async || cell.is_main_empty().await).await;
    assert!(cell.archived("late-1").await.is_some(), "it is archived after two purges");
    // All is settled, and the archive cannot be looked into.
    let away = take_away(&cell);
    let told = unfinished(&cell).await;
    assert!(told.contains("archive") && !told.contains("main stream"), "{told}");
    bring_back(&cell, away);

    cell.purge().await;
    cell.expect_forgotten(&ANN).await;
    cell.expect_others().await;
    let records = cell.records().await;
    let done: Vec<&Value> = records.iter().filter(|record| record["complete"] == true).collect();
    assert_eq!(done.len(), 1, "{records:?}");
    let erased = records.iter().filter_map(|record| record["purged"]["archived"].as_u64());
    assert!(erased.sum::<u64>() > of_ann().len() as u64, "with the redaction: {records:?}");
}
