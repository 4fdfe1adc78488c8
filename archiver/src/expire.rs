//! Deletes objects whose newest webhook is older than ARCHIVE_KEEP, a bounded number a minute.

use std::convert::Infallible;
use std::time::Duration;

use spillway_archive::name::day_of;
use spillway_archive::{ArchiveStore, StoreError};
use spillway_process::error::chain;
use spillway_queue::leader::boottime;
use tokio::time::sleep;

use crate::access::ArchiveAccess;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Objects that one look deletes: 86,400 a day, 16 times what 2,000 webhooks a second fill. A mistake in the
/// setting deletes no whole archive before somebody notices.
const DELETED_MAX: usize = 60;

/// Deletes old objects for as long as this instance leads.
pub(crate) async fn run(access: &ArchiveAccess) -> Infallible {
    let Some(keep) = access.instance.settings.keep else { return std::future::pending().await };
    let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
    loop {
        sleep(LOOK_EVERY).await;
        // The clock of Redis: it gave the entries their ids.
        let before_ms = access.leader.now_ms().saturating_sub(keep_ms);
        match delete_before(access, before_ms).await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "objects of the archive aged out"),
            Err(error) => {
                access.instance.metrics.failed(error.kind());
                tracing::warn!(
                    error = chain(&error),
                    "old objects could not be deleted; trying again"
                );
            }
        }
    }
}

/// Deletes objects that end before this time. Returns their number.
async fn delete_before(access: &ArchiveAccess, before_ms: u64) -> Result<usize, StoreError> {
    let store = ArchiveStore::open(&access.instance.settings.url)?;
    let cell = access.leader.cell;
    let last_day = day_of(before_ms);
    let mut deleted = 0;
    for day in store.days(cell).await? {
        if day > last_day || deleted >= DELETED_MAX {
            break;
        }
        let objects = store.objects(cell, &day).await?;
        let old = objects.iter().filter(|object| object.name.last.ms < before_ms);
        for object in old.take(DELETED_MAX - deleted) {
            if !access.leader.holds(boottime()) {
                return Ok(deleted);
            }
            store.delete(&object.name).await?;
            access.instance.metrics.deleted.with_label_values(&["expired"]).inc();
            deleted += 1;
        }
    }
    Ok(deleted)
}
