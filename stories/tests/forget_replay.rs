//! A shop is forgotten while `spillway replay` delivers its archived webhooks again, and those of another shop. Once the
//! purge is done, nothing of the shop is delivered, and the other shop gets each webhook once and in order.

use std::collections::{BTreeMap, BTreeSet};

use stories::cell::Cell;
use stories::client::post;
use stories::ledger::Event;
use stories::process::Process;
use stories::report::say;
use stories::shop;
use stories::size::size;
use stories::until::until;

use crate::replay::{Replaying, SHOPS, SOON, is_replay};

/// Number of the shop that is forgotten, and of one that is not.
const FORGOTTEN: u64 = 2;
const KEPT: u64 = 3;

fn shop_of(event: Event) -> u64 {
    1 + event.resource % SHOPS
}

/// Events of a shop, in their order.
fn of_shop(events: impl IntoIterator<Item = Event>, shop: u64) -> Vec<Event> {
    events.into_iter().filter(|event| shop_of(*event) == shop).collect()
}

/// Begins a replay of a shop in the window that takes about ten seconds.
fn replay_of(story: &Replaying, shop: u64) -> Process {
    let url = story.archive.url();
    let domain = shop::domain(shop);
    let rate = size("8", "40");
    let of_shop = story.of_window(&["--shop", domain.as_str(), "--yes", "--rate", rate]);
    story.cell.spillway_starting(&story.arguments(&url, &of_shop))
}

/// Checks that no event came twice, and that those of a resource came in order.
fn expect_in_order(events: &[Event]) {
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for event in events {
        let before = last.insert(event.resource, event.sequence);
        assert!(before < Some(event.sequence), "{event:?} came after {before:?}");
    }
}

async fn pending(story: &Replaying) -> u64 {
    story.redis.command(&["HLEN", "{spillway}:redactions"]).await
}

/// Posts the redaction of the shop, and waits until it is noted.
async fn redact(story: &Replaying) {
    let event = Event { resource: 900, sequence: 1 };
    let body = format!("{{\"shop_domain\":\"{}\"}}", shop::domain(FORGOTTEN));
    let webhook = shop::webhook(FORGOTTEN, "shop/redact", event).body(body);
    assert_eq!(post(story.receiver.address(), &webhook).await.status, 200);
    until("the redaction is noted", SOON, async || pending(story).await == 1).await;
}

/// Runs the purge until it is done. It may not be done while a replay runs. Returns how often one held it up.
async fn purge(story: &Replaying) -> u64 {
    let (redis, archive) = (story.cell.redis_url(), story.archive.url());
    let settings = [
        ("REDIS_URL", redis.as_str()),
        ("ARCHIVE_URL", archive.as_str()),
        ("REDACT_WITHIN", "1s"),
        ("FORGET_SETTLED_AFTER", "0s"),
        ("FORGET_PATIENCE", "3s"),
    ];
    let mut held_up = 0;
    until("everything is purged", SOON, async || {
        let output = story.cell.run("spillway", &["forget", "--due"], &settings).await;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        // One that still runs was running while the purge worked.
        let is_fed = story.records().await.iter().any(|record| record["state"] == "running");
        let is_done = pending(story).await == 0;
        assert!(!(is_fed && is_done), "it is done while a replay may deliver the shop: {told}");
        held_up += u64::from(told.contains("which delivers archived webhooks again"));
        is_done
    })
    .await;
    held_up
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_waits_for_replays_and_after_it_nothing_of_the_shop_is_delivered() {
    let story = Replaying::start(Cell::busy(), size(8, 40)).await;
    let mut replays = [FORGOTTEN, KEPT].map(|shop| replay_of(&story, shop));
    until("both are fed", SOON, async || {
        let replayed = story.replayed();
        [FORGOTTEN, KEPT].iter().all(|shop| replayed.iter().any(|one| shop_of(*one) == *shop))
    })
    .await;
    redact(&story).await;
    let held_up = purge(&story).await;
    let done = story.backend.count();
    for replay in &mut replays {
        assert!(replay.exit(SOON).await.success(), "{}", replay.output());
    }
    assert!(held_up > 0, "the purge met no replay");

    // What is erased is not replayed again.
    let domain = shop::domain(FORGOTTEN);
    story.told(&story.of_window(&["--shop", domain.as_str(), "--yes"])).await;
    story.settled().await;
    let late = story.backend.look(|receipts| {
        let of_shop = receipts[done..].iter().filter(|one| one.shop() == domain);
        of_shop.filter(|one| is_replay(one)).count()
    });
    assert_eq!(late, 0, "delivered after the purge was done");
    let [forgotten, kept] = [FORGOTTEN, KEPT].map(|shop| of_shop(story.replayed(), shop));
    let [all_forgotten, all_kept] =
        [FORGOTTEN, KEPT].map(|shop| of_shop(story.window.iter().copied(), shop));
    expect_in_order(&forgotten);
    expect_in_order(&kept);
    assert!(forgotten.len() < all_forgotten.len(), "the replay was over before the redaction");
    let kept_once: BTreeSet<Event> = kept.iter().copied().collect();
    assert_eq!(kept_once, all_kept.into_iter().collect(), "of the shop that is not forgotten");
    assert_eq!(kept.len(), kept_once.len());
    say(&format!(
        "forget beside replays: {} of {} webhooks of the shop before the redaction, 0 after the purge; {} of another \
         shop, each once; {held_up} purges waited for a replay",
        forgotten.len(),
        all_forgotten.len(),
        kept.len()
    ));
}
