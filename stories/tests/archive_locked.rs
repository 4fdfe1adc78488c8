//! An object is damaged in a bucket that forbids to write over it: archiving and purges go on, and readers get each
//! webhook once.

use std::time::Duration;

use stories::archive::ArchiveDirectory;
use stories::cell::Cell;
use stories::client::post;
use stories::locked_bucket::LockedBucket;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(60);
const COUNT: u64 = 5;

/// Purges the shop of all webhooks, until nothing is left.
async fn purge(cell: &Cell, bucket: &LockedBucket) {
    let url = bucket.url();
    let redis_url = cell.redis_url();
    let own = [("REDIS_URL", redis_url.as_str()), ("FORGET_SETTLED_AFTER", "0s")];
    let settings = [&bucket.settings()[..], &own].concat();
    let shop = ["forget", "--shop", "story.myshopify.com", "--all", "--yes"];
    let arguments = [&shop[..], &["--archive-url", url.as_str()]].concat();
    let is_purged = async || cell.run("spillway", &arguments, &settings).await.status.success();
    until("the shop is forgotten", SOON, is_purged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_object_that_cannot_be_written_over_gets_a_successor() {
    let cell = Cell::shared();
    let bucket = LockedBucket::start(&cell.directory().join("locked")).await;
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let settings = [&bucket.settings()[..], &[("ARCHIVE_MAX_DELAY", "1s")]].concat();
    let archiver = cell.archiver(&bucket.url(), &settings);
    archiver.ready().await;
    for product in 1..=COUNT {
        let webhook = Webhook::product(product, &format!("id-{product}"), b"{}".to_vec());
        assert_eq!(post(receiver.address(), &webhook).await.status, 200);
    }
    let archived = async || redis.stream_len("{spillway}:in").await == 0;
    until("all is archived", SOON, archived).await;
    assert_eq!(bucket.refused(), 1);
    assert_eq!(archiver.metric("spillway_archive_renamed_total").await, Some(1.0));
    assert!(archiver.output().contains("a damaged object cannot be written over"));
    let archive = ArchiveDirectory::new(&bucket.archive());
    let objects = archive.objects();
    let is_successor = |name: &str| name.ends_with("_1.spwa");
    let names = objects.iter().map(|object| object.display().to_string());
    assert_eq!(names.filter(|name| is_successor(name)).count(), 1, "{objects:?}");
    // The script and the command read it.
    assert_eq!(archive.webhooks().len(), COUNT as usize);
    assert_eq!(archive.verified(&cell, &bucket.url(), &bucket.settings()).await, COUNT);
    let url = bucket.url();
    let verify = ["archive", "verify", "--archive-url", url.as_str()];
    let told = cell.run("spillway", &verify, &bucket.settings()).await.stdout;
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("is damaged, and another one was written in its place"), "{told}");

    // A purge writes objects again, the first of which is damaged, too.
    let before = objects;
    bucket.fail_next();
    purge(&cell, &bucket).await;
    assert_eq!(bucket.refused(), 2, "only the damaged one was to be written over");
    let objects = archive.objects();
    assert!(objects.iter().all(|object| !before.contains(object)), "{objects:?}");
    let names = objects.iter().map(|object| object.display().to_string());
    assert_eq!(names.filter(|name| is_successor(name)).count(), 1, "{objects:?}");
    assert_eq!(archive.webhooks().len(), 0);
    archive.verified(&cell, &bucket.url(), &bucket.settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_stops_nothing_in_a_bucket_that_denies_the_next_attempt() {
    let cell = Cell::shared();
    let bucket = LockedBucket::start_unconditional(&cell.directory().join("locked")).await;
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let settings = [&bucket.settings()[..], &[("ARCHIVE_MAX_DELAY", "1s")]].concat();
    let archiver = cell.archiver(&bucket.url(), &settings);
    archiver.ready().await;
    for product in 1..=COUNT {
        let webhook = Webhook::product(product, &format!("id-{product}"), b"{}".to_vec());
        assert_eq!(post(receiver.address(), &webhook).await.status, 200);
    }
    let archived = async || redis.stream_len("{spillway}:in").await == 0;
    until("all is archived", SOON, archived).await;
    assert_eq!(bucket.refused(), 1);
    assert_eq!(archiver.metric("spillway_archive_renamed_total").await, Some(0.0));
    let archive = ArchiveDirectory::new(&bucket.archive());
    assert_eq!(archive.verified(&cell, &bucket.url(), &bucket.settings()).await, COUNT);

    // The answer to a purge is lost, too.
    bucket.fail_next();
    purge(&cell, &bucket).await;
    assert_eq!((bucket.refused(), archive.webhooks().len()), (2, 0));
    assert!(
        archive.objects().iter().all(|object| !object.display().to_string().ends_with("_1.spwa"))
    );
}
