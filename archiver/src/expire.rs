//! Deletes objects whose newest webhook is older than ARCHIVE_KEEP, a bounded number a minute.

use std::convert::Infallible;
use std::time::Duration;

use spillway_archive::name::day_of;
use spillway_archive::{ArchiveStore, ListedObject, ObjectName, StoreError};
use spillway_process::clock::wall_clock_ms;
use tokio::time::sleep;

use crate::access::ArchiveAccess;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Objects that one look deletes: 86,400 a day, 16 times what 2,000 webhooks a second fill. A mistake in the
/// setting deletes no whole archive before somebody notices.
const DELETED_MAX: usize = 60;
/// Objects that one look may fail to delete before it ends. The next look goes on after them.
const FAILED_MAX: usize = 60;

/// Result of a look.
#[derive(Debug, Default)]
struct ExpiryLook {
    /// Object after which it begins: the one at which the look before ended. `None`: with the oldest.
    after: Option<ObjectName>,
    deleted: usize,
    failed: usize,
    /// Text of the first failure.
    problem: Option<String>,
    /// Last object that was tried.
    tried: Option<ObjectName>,
}

/// Deletes old objects for as long as this instance leads.
pub(crate) async fn run(access: &ArchiveAccess) -> Infallible {
    let Some(keep) = access.instance.settings.keep else { return std::future::pending().await };
    let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
    let mut after = None;
    loop {
        sleep(LOOK_EVERY).await;
        // The clock of Redis gave the entries their ids. One that is wrong by a year must not delete an archive.
        let now_ms = access.leader.now_ms().min(wall_clock_ms());
        let before_ms = now_ms.saturating_sub(keep_ms);
        let mut expiry = ExpiryLook { after, ..ExpiryLook::default() };
        if let Err(error) = delete_before(access, before_ms, &mut expiry).await {
            expiry.note(access.failed(&error));
        }
        expiry.tell();
        after = expiry.next_after();
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
    let first_day = expiry.after.map(|name| name.day()).unwrap_or_default();
    let days = first_day..=day_of(before_ms);
    let delete = async |name: &ObjectName| {
        access.leased().await;
        store.delete(name).await.map_err(|error| access.failed(&error))?;
        access.instance.metrics.deleted.with_label_values(&["expired"]).inc();
        Ok::<_, String>(())
    };
    let list = async |day: &str| {
        let listed = store.objects(cell, day).await;
        let mut objects = listed.map_err(|error| access.failed(&error))?;
        objects.retain(|object| object.name.last.ms < before_ms);
        Ok::<_, String>(objects)
    };
    let days = store.days(cell).await?.into_iter().filter(|day| days.contains(day));
    expiry.delete_days(days, &list, &delete).await;
    Ok(())
}

impl ExpiryLook {
    /// Deletes objects of these days, until that is enough. A day that cannot be listed does not stop the others.
    async fn delete_days(
        &mut self,
        days: impl Iterator<Item = String>,
        list: &impl AsyncFn(&str) -> Result<Vec<ListedObject>, String>,
        delete: &impl AsyncFn(&ObjectName) -> Result<(), String>,
    ) {
        for day in days {
            match list(&day).await {
                Ok(objects) => self.delete_each(&objects, delete).await,
                Err(problem) => self.note(problem),
            }
            if self.is_enough() {
                return;
            }
        }
    }

    /// Deletes objects, which are sorted, until that is enough.
    async fn delete_each(
        &mut self,
        objects: &[ListedObject],
        delete: &impl AsyncFn(&ObjectName) -> Result<(), String>,
    ) {
        let after = self.after;
        let names = objects.iter().map(|object| object.name);
        for name in names.filter(|name| after.is_none_or(|after| *name > after)) {
            if self.is_enough() {
                return;
            }
            self.tried = Some(name);
            match delete(&name).await {
                Ok(()) => self.deleted += 1,
                Err(problem) => self.note(problem),
            }
        }
    }

    /// Object after which the next look begins: those that are kept by the store do not stop it. After the newest
    /// one, it begins with the oldest again.
    fn next_after(&self) -> Option<ObjectName> {
        self.tried.filter(|_| self.is_enough())
    }

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
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use spillway_webhook::StreamId;

    use super::*;

    /// Objects of one day, each given by its entry.
    fn objects(entries: impl IntoIterator<Item = u64>) -> Vec<ListedObject> {
        let object = |ms| {
            let entry = StreamId { ms, seq: 0 };
            let name = ObjectName {
                cell: 1,
                first: entry,
                last: entry,
                webhooks: 1,
                tag: 0,
                generation: 0,
            };
            ListedObject { name, bytes: 100, written_ms: 0 }
        };
        entries.into_iter().map(object).collect()
    }

    #[tokio::test]
    async fn any_number_that_the_store_keeps_does_not_stop_the_others() {
        const KEPT: u64 = 150;
        let left: RefCell<BTreeSet<u64>> = RefCell::new((0..KEPT + 5).collect());
        let delete = async |name: &ObjectName| {
            let entry = name.first.ms;
            if entry < KEPT {
                return Err(format!("{entry} is locked"));
            }
            left.borrow_mut().remove(&entry);
            Ok(())
        };
        let mut after = None;
        for _ in 0..3 {
            let mut expiry = ExpiryLook { after, ..ExpiryLook::default() };
            let listed = objects(left.borrow().iter().copied());
            expiry.delete_each(&listed, &delete).await;
            assert!(expiry.failed <= FAILED_MAX);
            after = expiry.next_after();
        }
        assert_eq!(left.borrow().len(), 150, "those that can be deleted are");
        assert_eq!(after, None, "the next look begins with the oldest");
    }

    #[tokio::test]
    async fn a_day_that_cannot_be_listed_does_not_stop_the_others() {
        let list = async |day: &str| match day {
            "2" => Err("input/output error".to_owned()),
            _ => Ok(objects([1, 2])),
        };
        let delete = async |_: &ObjectName| Ok::<_, String>(());
        let mut expiry = ExpiryLook::default();
        expiry.delete_days(["1", "2", "3"].map(str::to_owned).into_iter(), &list, &delete).await;
        assert_eq!((expiry.deleted, expiry.failed), (4, 1));
    }

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
