//! An object is damaged in a bucket that forbids to write over it: archiving goes on, and readers get each webhook once.

use std::time::Duration;

use stories::archive::ArchiveDirectory;
use stories::cell::Cell;
use stories::client::post;
use stories::locked_bucket::LockedBucket;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(60);
const COUNT: u64 = 5;

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
}
