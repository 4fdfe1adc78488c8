//! The archive: objects that hold webhooks of somebody who is meant are replaced by objects without them.
//!
//! Only objects up to the archiver's cursor are touched. The archiver looks at packs of objects after its cursor, to
//! find out what is archived already: without one of them, it would write the pack again.

use spillway_archive::erase::{self, EraseError, MeantWebhooks};
use spillway_archive::{ArchiveObject, ListedObject, ObjectTail, StoreError};
use spillway_process::error::chain;
use spillway_webhook::StreamId;

use super::order::PurgeOrders;
use super::report::PurgeReport;
use crate::archive::OpenArchive;
use crate::out::{Progress, count, printable};

/// Search of one cell's objects.
pub(super) struct ArchivePurge<'a> {
    /// The archive.
    pub archive: &'a OpenArchive,
    /// Id of the cell.
    pub cell: u32,
    /// Cursor of the archiver; `None` if there is none.
    pub cursor: Option<StreamId>,
    /// Who is meant.
    pub orders: &'a PurgeOrders,
}

impl ArchivePurge<'_> {
    /// Erases the webhooks. What fails is reported, and left to the next purge.
    pub(super) async fn run(&self, report: &mut PurgeReport) {
        if let Err(error) = self.days(report).await {
            let problem = chain(&error);
            report.pending.push(format!("the archive: {}", printable(problem.as_bytes())));
        }
    }

    async fn days(&self, report: &mut PurgeReport) -> Result<(), EraseError> {
        let store = &self.archive.store;
        let last = self.orders.last();
        let mut progress = Progress::new();
        let mut later = 0;
        let mut looked_at = 0u64;
        for day in store.days(self.cell).await? {
            for object in store.objects(self.cell, &day).await? {
                if object.name.first > last {
                    continue;
                }
                if self.cursor.is_some_and(|cursor| object.name.last > cursor) {
                    later += 1;
                    continue;
                }
                looked_at += 1;
                progress.tell(|| format!("looked at {}, at {day}", count(looked_at, "object")));
                self.one(&object, report).await?;
            }
        }
        if later > 0 {
            report.pending.push(format!(
                "{} of the archive that the archiver has not settled yet",
                count(later, "object"),
            ));
        }
        Ok(())
    }

    /// Erases the webhooks of one object. One that is damaged or has no key is reported.
    async fn one(&self, object: &ListedObject, report: &mut PurgeReport) -> Result<(), EraseError> {
        match self.replaced(object, report).await {
            // It aged out meanwhile.
            Err(EraseError::Store(StoreError::Missing(_))) => Ok(()),
            Err(
                error @ (EraseError::Store(StoreError::Bad(..) | StoreError::NoKey(..))
                | EraseError::Unequal(_)),
            ) => {
                report.pending.push(printable(chain(&error).as_bytes()));
                Ok(())
            }
            ended => ended,
        }
    }

    async fn replaced(
        &self,
        listed: &ListedObject,
        report: &mut PurgeReport,
    ) -> Result<(), EraseError> {
        let OpenArchive { store, keys } = self.archive;
        let name = &listed.name;
        if !self.may_hold(&store.tail(listed, keys).await?) {
            return Ok(());
        }
        let object = store.object(name, keys).await?;
        let meant = self.find(&object).map_err(|error| StoreError::Bad(Box::new(*name), error))?;
        report.counts.corrupt += meant.corrupt;
        if meant.count() == 0 {
            return Ok(());
        }
        if !report.is_dry_run {
            let new = erase::without(&object, name, keys, &meant)?;
            erase::replace(store, keys, name, &new).await?;
        }
        report.counts.archived += meant.count();
        report.counts.objects += 1;
        Ok(())
    }

    fn find(&self, object: &ArchiveObject) -> Result<MeantWebhooks, spillway_archive::BadObject> {
        MeantWebhooks::find(
            object,
            |id, view| self.orders.is_meant(id.entry, id.index, view),
            |bytes| self.orders.is_shown_by(bytes),
        )
    }

    /// True if an object may hold something. Its index does not say what is in packs that cannot be decoded.
    fn may_hold(&self, tail: &ObjectTail) -> bool {
        let index = &tail.index;
        index.corrupt_packs() > 0 || index.shops.may_hold(|shop| self.orders.may_mean(shop))
    }
}
