//! The archive for an operator: what is in it, with and without a key, and damage that is found.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use stories::archive::ArchiveDirectory;
use stories::backend::Backend;
use stories::cell::{Cell, Settings};
use stories::client::post;
use stories::redis_server::RedisServer;
use stories::service::Service;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(60);
const OLD_KEY: &str = "old AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
const NEW_KEY: &str = "new ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=\n";
/// The shortest delay: an object is written soon.
const SOON_WRITTEN: (&str, &str) = ("ARCHIVE_MAX_DELAY", "1s");

/// A cell that archives.
struct Archiving {
    archive: ArchiveDirectory,
    redis: RedisServer,
    receiver: Service,
    archiver: Service,
    cell: Cell,
}

impl Archiving {
    async fn start(settings: Settings<'_>) -> Self {
        let cell = Cell::shared();
        let archive = ArchiveDirectory::new(&cell.directory().join("archive"));
        let redis = cell.redis(&[]).await;
        let receiver = cell.receiver(&[]).await;
        let archiver = cell.archiver(&archive.url(), &[settings, &[SOON_WRITTEN]].concat());
        archiver.ready().await;
        Self { archive, redis, receiver, archiver, cell }
    }

    /// Posts webhooks about these products, and waits until they are archived.
    async fn post(&self, products: std::ops::Range<u64>) {
        for product in products {
            let body = format!("{{\"id\":{product},\"title\":\"hush\"}}");
            let webhook = Webhook::product(product, &format!("id-{product}"), body.into_bytes());
            assert_eq!(post(self.receiver.address(), &webhook).await.status, 200);
        }
        let archived = async || self.redis.stream_len("{spillway}:in").await == 0;
        until("all is archived", SOON, archived).await;
    }

    /// Findings of `spillway doctor`.
    async fn doctor(&self, arguments: &[&str]) -> String {
        let arguments = [&["doctor"], arguments].concat();
        let output = self.cell.spillway(&arguments).await;
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `spillway archive`. Returns whether it succeeded, and both of its outputs.
    async fn spillway(&self, arguments: &[&str], settings: Settings<'_>) -> (bool, String) {
        let url = self.archive.url();
        let arguments = [&["archive", "--archive-url", &url], arguments].concat();
        let output = self.cell.run("spillway", &arguments, settings).await;
        let told = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&told).into_owned())
    }

    async fn told(&self, arguments: &[&str]) -> String {
        let (is_good, told) = self.spillway(arguments, &[]).await;
        assert!(is_good, "{arguments:?}: {told}");
        told
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_listed_and_shown_and_damage_is_found() {
    let archiving = Archiving::start(&[]).await;
    archiving.post(1..20).await;
    let listed = archiving.told(&["list", "-o", "json"]).await;
    let objects: Vec<Value> =
        listed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let webhooks = objects.iter().filter_map(|object| object["webhooks"].as_u64()).sum::<u64>();
    assert_eq!(webhooks, 19, "{listed}");
    let name = objects[0]["object"].as_str().expect("a name");
    let other_shop = ["list", "--shop", "another.myshopify.com"];
    assert!(archiving.told(&other_shop).await.contains("no object matches"));
    assert!(archiving.told(&["list", "--topic", "products/*"]).await.contains(name));
    assert!(archiving.told(&["list", "--to", "1h"]).await.contains("no object matches"));
    let shown = archiving.told(&["show", name]).await;
    assert!(shown.contains("story.myshopify.com") && shown.contains("products/update"), "{shown}");
    let webhook = archiving.told(&["show", "--webhook-id", "id-7", "-o", "json"]).await;
    let webhook: Value = serde_json::from_str(&webhook).expect("JSON");
    assert_eq!(webhook["body"], "{\"id\":7,\"title\":\"hush\"}");
    assert_eq!(webhook["resource"], "product/7");
    let id = webhook["spillway_id"].as_str().expect("an id");
    let body = archiving.told(&["show", "--webhook-id", id, "--body"]).await;
    assert_eq!(body, "{\"id\":7,\"title\":\"hush\"}");
    let (is_found, told) = archiving.spillway(&["show", "--webhook-id", "id-99"], &[]).await;
    assert!(!is_found && told.contains("holds no webhook id-99"), "{told}");
    let read = archiving.archive.webhooks();
    let seventh = read.iter().find(|one| one["webhook_id"] == "id-7").expect("it is there");
    for field in ["spillway_id", "received_at", "shop", "topic", "target", "headers", "body"] {
        assert_eq!(seventh[field], webhook[field], "{field}");
    }

    assert!(archiving.told(&["verify"]).await.contains("19 webhooks"));
    let file = archiving.archive.path().join(name);
    let mut bytes = fs::read(&file).expect("an object");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).expect("damage it");
    let (is_good, told) = archiving.spillway(&["verify"], &[]).await;
    assert!(!is_good && told.contains(name), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_between_objects_is_found() {
    let archiving = Archiving::start(&[]).await;
    for first in [1, 11, 21] {
        archiving.post(first..first + 10).await;
    }
    let mut objects = archiving.archive.objects();
    objects.sort();
    assert!(objects.len() >= 3, "{objects:?}");
    assert!(archiving.told(&["verify"]).await.contains("30 webhooks"));
    fs::remove_file(&objects[1]).expect("remove an object");
    let (is_good, told) = archiving.spillway(&["verify"], &[]).await;
    assert!(!is_good && told.contains("are in no object"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_archive_is_read_with_old_and_new_keys_and_not_without() {
    let directory = tempfile::tempdir().expect("make a directory");
    let file = directory.path().join("archive-keys");
    fs::write(&file, OLD_KEY).expect("write a key");
    let keys = [("ARCHIVE_KEY_FILE", file.to_str().expect("a path of letters"))];
    let archiving = Archiving::start(&keys).await;
    archiving.post(1..5).await;
    fs::write(&file, format!("{NEW_KEY}{OLD_KEY}")).expect("write keys");
    archiving.archiver.sighup();
    let read_again =
        async || archiving.archiver.output().contains("keys of the archive read again");
    until("the keys are read again", SOON, read_again).await;
    archiving.post(5..9).await;
    for object in archiving.archive.objects() {
        let bytes = fs::read(&object).expect("an object");
        let shows = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(!shows("hush") && !shows("myshopify"), "{}", object.display());
    }
    let url = archiving.archive.url();
    assert_eq!(archiving.archive.verified(&archiving.cell, &url, &keys).await, 8);
    let show = ["show", "--webhook-id", "id-2", "--body"];
    assert!(archiving.spillway(&show, &keys).await.1.contains("hush"));
    let (is_good, told) = archiving.spillway(&["verify"], &[]).await;
    assert!(!is_good && told.contains("ARCHIVE_KEY_FILE does not hold"), "{told}");
    fs::write(&file, NEW_KEY).expect("write a key");
    let (is_good, told) = archiving.spillway(&["verify"], &keys).await;
    assert!(!is_good && told.contains("\"old\""), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_key_is_missing_an_operator_is_obeyed_and_the_process_stops() {
    let directory = tempfile::tempdir().expect("make a directory");
    let file = directory.path().join("archive-keys");
    fs::write(&file, OLD_KEY).expect("write a key");
    let keys = [("ARCHIVE_KEY_FILE", file.to_str().expect("a path of letters"))];
    let mut archiving = Archiving::start(&keys).await;
    // Another consumer keeps in the queue what is archived.
    let added = archiving.cell.spillway(&["consumers", "add", "billing"]).await;
    assert!(added.status.success(), "{added:?}");
    for product in 1..4 {
        let webhook = Webhook::product(product, &format!("id-{product}"), b"{}".to_vec());
        assert_eq!(post(archiving.receiver.address(), &webhook).await.status, 200);
    }
    let archived = async || archiving.archiver.metric("spillway_archived_total").await == Some(3.0);
    until("all is archived", SOON, archived).await;
    let objects = archiving.archive.objects().len();
    archiving.archiver.sigterm();
    assert!(archiving.archiver.exit(SOON).await.success());

    // It begins again, and may not write what it cannot read twice.
    let forgotten = archiving.cell.spillway(&["consumers", "forget", "archive", "--yes"]).await;
    assert!(forgotten.status.success(), "{forgotten:?}");
    fs::write(&file, NEW_KEY).expect("write a key");
    archiving.archiver.restart();
    archiving.archiver.unready("archive_no_key").await;
    let paused = archiving.cell.spillway(&["pause", "--consumer", "archive", "--all"]).await;
    assert!(paused.status.success(), "{paused:?}");
    let pauses = async || archiving.archiver.metric("spillway_pauses").await == Some(1.0);
    until("it is paused", SOON, pauses).await;
    archiving.archiver.sigterm();
    assert!(archiving.archiver.exit(SOON).await.success());
    assert!(!archiving.archiver.output().contains("out of time"), "it stops at once");

    let resumed = archiving.cell.spillway(&["resume", "--consumer", "archive"]).await;
    assert!(resumed.status.success(), "{resumed:?}");
    fs::write(&file, format!("{NEW_KEY}{OLD_KEY}")).expect("write keys");
    archiving.archiver.restart();
    archiving.archiver.ready().await;
    let webhook = Webhook::product(4, "id-4", b"{}".to_vec());
    assert_eq!(post(archiving.receiver.address(), &webhook).await.status, 200);
    let archived = async || archiving.archiver.metric("spillway_archived_total").await == Some(1.0);
    until("what is new is archived", SOON, archived).await;
    assert_eq!(archiving.archive.objects().len(), objects + 1, "nothing is written twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_is_away_keeps_everything_in_the_queue() {
    let archiving = Archiving::start(&[]).await;
    let path = archiving.archive.path();
    let away = archiving.cell.directory().join("away");
    fs::rename(path, &away).expect("take the archive away");
    // A file in its place: nothing can be made there.
    fs::write(path, "").expect("write a file");
    for product in 1..4 {
        let webhook = Webhook::product(product, &format!("id-{product}"), b"{}".to_vec());
        assert_eq!(post(archiving.receiver.address(), &webhook).await.status, 200);
    }
    archiving.archiver.unready("archive_").await;
    assert!(archiving.archiver.metric("spillway_archive_failures_total").await > Some(0.0));
    assert!(archiving.redis.stream_len("{spillway}:in").await > 0);
    fs::remove_file(path).expect("remove the file");
    fs::rename(&away, path).expect("bring the archive back");
    archiving.archiver.ready().await;
    archiving.post(4..5).await;
    assert_eq!(archiving.archive.webhooks().len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_archive_takes_nothing_until_it_is_resumed() {
    let archiving = Archiving::start(&[]).await;
    let paused = archiving.cell.spillway(&["pause", "--consumer", "archive", "--all"]).await;
    assert!(paused.status.success(), "{paused:?}");
    let pauses = async || archiving.archiver.metric("spillway_pauses").await == Some(1.0);
    until("it is paused", SOON, pauses).await;
    let webhook = Webhook::product(1, "id-1", b"{}".to_vec());
    assert_eq!(post(archiving.receiver.address(), &webhook).await.status, 200);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(archiving.archive.objects().len(), 0);
    let resumed = archiving.cell.spillway(&["resume", "--consumer", "archive"]).await;
    assert!(resumed.status.success(), "{resumed:?}");
    archiving.post(2..3).await;
    assert_eq!(archiving.archive.webhooks().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_the_archive_keeps_is_unmatched_and_commands_mean_the_other_consumer() {
    let archiving = Archiving::start(&[]).await;
    let backend = Backend::start().await;
    let orders = [("CONSUMER", "billing"), ("ONLY_TOPICS", "orders/*")];
    let downstreamer = archiving.cell.downstreamer(&backend, &orders).await;
    downstreamer.leads().await;
    let mut product = 0;
    // The first ones may come before the consumers know each other.
    until("an archived webhook is counted as unmatched", SOON, async || {
        product += 1;
        let webhook = Webhook::product(product, &format!("id-{product}"), b"{}".to_vec());
        assert_eq!(post(archiving.receiver.address(), &webhook).await.status, 200);
        downstreamer.metric("spillway_unmatched_webhooks_total").await > Some(0.0)
    })
    .await;
    assert_eq!(backend.delivered(), 0);
    let top = archiving.cell.spillway(&["top"]).await;
    let told = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(top.status.success() && told.contains("for billing"), "{told}");
    let told = archiving.doctor(&[]).await;
    assert!(told.contains("together they may leave webhooks out"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_shows_the_lag_of_the_archive_and_its_checkpoint() {
    let archiving = Archiving::start(&[]).await;
    archiving.post(1..2).await;
    let url = archiving.archive.url();
    let with_archive = ["--archive-url", url.as_str()];
    let expected = "ok       the checkpoint of the consumers in the archive is ";
    let is_there = async || archiving.doctor(&with_archive).await.contains(expected);
    until("there is a checkpoint", SOON, is_there).await;
    let told = archiving.doctor(&[]).await;
    assert!(told.contains("ok       the archive lags by "), "{told}");
    assert!(told.contains("the checkpoint in the archive is not looked at"), "{told}");
    let nowhere = ["--archive-url", "file:///nonexistent/archive"];
    let told = archiving.doctor(&nowhere).await;
    assert!(told.contains("problem  the archive cannot be opened"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_place_gets_no_checkpoint_before_its_first_object() {
    let mut archiving = Archiving::start(&[]).await;
    archiving.post(1..4).await;
    archiving.archiver.sigterm();
    assert!(archiving.archiver.exit(SOON).await.success());
    let archive = ArchiveDirectory::new(&archiving.cell.directory().join("other"));
    archiving.archiver = archiving.cell.archiver(&archive.url(), &[SOON_WRITTEN]);
    let warned = async || archiving.archiver.output().contains("is it the right place?");
    until("it says that nothing is there", SOON, warned).await;
    let entries = || fs::read_dir(archive.path()).expect("a directory").count();
    assert_eq!(entries(), 0, "a purge would take a checkpoint for the archive");
    archiving.post(4..5).await;
    let cell: String = archiving.redis.command(&["GET", "{spillway}:cell"]).await;
    let checkpoint = archive.path().join(cell).join("consumers.json");
    until("the checkpoint is written", SOON, async || checkpoint.exists()).await;
    assert_eq!((archive.objects().len(), archiving.archive.webhooks().len()), (1, 3));
}
