//! Deletes objects whose newest webhook is older than ARCHIVE_KEEP, a bounded number a minute.

use std::convert::Infallible;
use std::time::Duration;

use spillway_archive::name::day_of;
use spillway_archive::{ArchiveStore, StoreError};
use tokio::time::sleep;

use crate::access::ArchiveAccess;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Objects that one look deletes: 86,400 a day, 16 times what 2,000 webhooks a second fill. A mistake in the
/// setting deletes no whole archive before somebody notices.
const DELETED_MAX: usize = 60;
/// Objects that one look may fail to delete before it ends: the next ones would fail, too.
const FAILED_MAX: usize = 60;

/// Result of a look.
#[derive(Debug, Default)]
struct ExpiryLook {
    deleted: usize,
    failed: usize,
    /// Text of the first failure.
    problem: Option<String>,
}

/// Deletes old objects for as long as this instance leads.
pub(crate) async fn run(access: &ArchiveAccess) -> Infallible {
    let Some(keep) = access.instance.settings.keep else { return std::future::pending().await };
    let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
    loop {
        sleep(LOOK_EVERY).await;
        // The clock of Redis: it gave the entries their ids.
        let before_ms = access.leader.now_ms().saturating_sub(keep_ms);
        let mut expiry = ExpiryLook::default();
        if let Err(error) = delete_before(access, before_ms, &mut expiry).await {
            expiry.note(access.failed(&error));
        }
        expiry.tell();
    }
}

/// Deletes objects that end before this time. One that cannot be deleted does not stop the others.
async fn delete_before(
    access: &ArchiveAccess,
    before_ms: u64,
    expiry: &mut ExpiryLook,
) -> Result<(), StoreError> {
    let store = ArchiveStore::open(&access.instance.settings.url)?;
    let cell = access.leader.cell;
    let last_day = day_of(before_ms);
    for day in store.days(cell).await?.into_iter().filter(|day| *day <= last_day) {
        let objects = store.objects(cell, &day).await?;
        for object in objects.iter().filter(|object| object.name.last.ms < before_ms) {
            if expiry.is_enough() {
                return Ok(());
            }
            access.leased().await;
            match store.delete(&object.name).await {
                Ok(()) => {
                    access.instance.metrics.deleted.with_label_values(&["expired"]).inc();
                    expiry.deleted += 1;
                }
                Err(error) => expiry.note(access.failed(&error)),
            }
        }
    }
    Ok(())
}

impl ExpiryLook {
    fn note(&mut self, problem: String) {
        self.failed += 1;
        self.problem.get_or_insert(problem);
    }

    fn is_enough(&self) -> bool {
        self.deleted >= DELETED_MAX || self.failed >= FAILED_MAX
    }

    fn tell(&self) {
        if self.deleted > 0 {
            tracing::info!(deleted = self.deleted, "objects of the archive aged out");
        }
        if let Some(error) = &self.problem {
            tracing::warn!(
                error,
                failed = self.failed,
                "old objects could not be deleted; trying again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_cannot_be_deleted_does_not_stop_the_others() {
        let mut expiry = ExpiryLook::default();
        expiry.note("first".to_owned());
        expiry.note("second".to_owned());
        assert!(!expiry.is_enough());
        assert_eq!((expiry.failed, expiry.problem.as_deref()), (2, Some("first")));
        expiry.deleted = DELETED_MAX;
        assert!(expiry.is_enough());
    }
}
