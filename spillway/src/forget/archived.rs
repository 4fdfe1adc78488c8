//! The archive: objects that hold webhooks of somebody who is meant are replaced by objects without them.
//!
//! Only objects up to the archiver's cursor are touched, and only some minutes after they were written. The archiver
//! looks at packs of objects after its cursor, to find out what is archived already: without one of them, it would
//! write the pack again. And a leader that lost its lease may still put an object again that was there before.

use std::time::Duration;

use spillway_archive::checkpoint;
use spillway_archive::erase::{self, EraseError, MeantWebhooks};
use spillway_archive::{ArchiveObject, ListedObject, ObjectTail, StoreError};
use spillway_process::error::chain;
use spillway_webhook::StreamId;
use spillway_webhook::redaction::is_redaction;

use super::finished::{DayBounds, FinishedDays};
use super::order::PurgeOrders;
use super::report::PurgeReport;
use crate::archive::OpenArchive;
use crate::out::{Progress, count, printable};

/// Pauses before an object is tried again that the archive did not give or take.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(15)];
/// Objects in a row that failed in spite of that: the archive is away, and the next purge goes on.
const FAILED_MAX: u64 = 5;
/// Times that a day is listed again because objects of it were gone.
const LISTS_MAX: u32 = 10;
/// A cell whose objects are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SearchedCell {
    /// Id of the cell.
    pub cell: u32,
    /// Cursor of the archiver; `None` if there is none.
    pub cursor: Option<StreamId>,
    /// True if the operator named the cell.
    pub is_named: bool,
}

/// Search of an archive.
pub(super) struct ArchivePurge<'a> {
    /// The archive.
    pub archive: &'a OpenArchive,
    /// Orders, which say who is meant.
    pub orders: &'a PurgeOrders,
    /// Redis' clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Time after its writing from which an object is touched.
    pub settled_after: Duration,
    /// Days that are finished; `None` in a dry run.
    pub finished: Option<FinishedDays>,
    /// Objects that are left to the next purge.
    pub left: LeftObjects,
}

/// Objects that are left to the next purge, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LeftObjects {
    /// After the archiver's cursor.
    later: u64,
    /// Written a moment ago.
    fresh: u64,
    /// The archive did not give or take them.
    failed: u64,
    /// Failures since the last object that did not fail.
    failed_in_a_row: u64,
    /// Damaged, or without a key.
    bad: u64,
    /// Days whose objects changed all the time.
    changing: u64,
}

impl LeftObjects {
    fn total(self) -> u64 {
        let Self { later, fresh, failed, failed_in_a_row: _, bad, changing } = self;
        later + fresh + failed + bad + changing
    }

    fn tell(self, report: &mut PurgeReport) {
        for (number, why) in [
            (self.later, "that the archiver has not settled yet"),
            (self.fresh, "that was written only minutes ago"),
            (self.failed, "that the archive did not give or take"),
        ] {
            if number > 0 {
                let objects = count(number, "object");
                report.pending.push(format!("{objects} of the archive {why}"));
            }
        }
        if self.changing > 0 {
            let days = count(self.changing, "day");
            report.pending.push(format!("{days} of the archive, whose objects changed meanwhile"));
        }
    }
}

impl SearchedCell {
    /// True if an archive without anything of the cell is not the right one, or not the right cell.
    fn must_be_there(self) -> bool {
        self.is_named || self.cursor.is_some_and(|cursor| cursor > StreamId::ZERO)
    }

    fn nothing_there(self) -> String {
        let cell = self.cell;
        match self.is_named {
            true => format!(
                "the archive holds nothing of cell {cell:08x}, which FORGET_CELLS or --forget-cells names: correct its \
                 id, or leave it out"
            ),
            false => format!(
                "the archive holds nothing of cell {cell:08x}, of which something was archived: is it the right \
                 place, and is its directory mounted?"
            ),
        }
    }
}

impl ArchivePurge<'_> {
    /// Erases the webhooks from the objects of these cells. What fails is reported, and left to the next purge.
    pub(super) async fn run(&mut self, cells: &[SearchedCell], report: &mut PurgeReport) {
        for cell in cells {
            if let Err(error) = self.days(*cell, report).await {
                let problem = chain(&error);
                report.pending.push(format!("the archive: {}", printable(problem.as_bytes())));
                break;
            }
        }
        self.left.tell(report);
    }

    /// Cells of the archive that are not searched, and hold webhooks of a shop that is meant.
    ///
    /// # Errors
    /// [`StoreError`]
    pub(super) async fn others(&self, searched: &[SearchedCell]) -> Result<Vec<u32>, StoreError> {
        let mut found = Vec::new();
        for cell in self.archive.store.cells().await? {
            if !searched.iter().any(|one| one.cell == cell) && self.finds_shop(cell).await? {
                found.push(cell);
            }
        }
        Ok(found)
    }

    async fn finds_shop(&self, cell: u32) -> Result<bool, StoreError> {
        let OpenArchive { store, keys } = self.archive;
        for day in store.days(cell).await? {
            for object in store.objects(cell, &day).await? {
                // The key of another cell need not be here.
                if let Ok(tail) = store.tail(&object, keys).await
                    && tail.index.shops.may_hold(|shop| self.orders.is_named(shop))
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    async fn days(
        &mut self,
        cell: SearchedCell,
        report: &mut PurgeReport,
    ) -> Result<(), EraseError> {
        let bounds = DayBounds::new(cell.cursor, self.now_ms);
        if cell.must_be_there()
            && checkpoint::holds_nothing_of(&self.archive.store, cell.cell).await?
        {
            report.pending.push(cell.nothing_there());
            return Ok(());
        }
        let mut progress = Progress::new();
        let mut looked_at = 0u64;
        let mut is_whole = true;
        for day in self.archive.store.days(cell.cell).await? {
            let has = |finished: &FinishedDays| finished.has(cell.cell, &day);
            if bounds.is_settled(&day) && self.finished.as_ref().is_some_and(has) {
                continue;
            }
            let before = self.left.total();
            let mut lists = 1;
            while self.day(cell, &day, &mut looked_at, &mut progress, report).await? {
                lists += 1;
                if lists > LISTS_MAX {
                    self.left.changing += 1;
                    break;
                }
            }
            is_whole &= self.left.total() == before;
            if let Some(finished) = &mut self.finished
                && is_whole
                && bounds.may_finish(&day)
            {
                finished.add(cell.cell, &day).await;
            }
        }
        Ok(())
    }

    /// Looks at the objects of one day. Returns true if one was gone: another one may have taken its place.
    async fn day(
        &mut self,
        cell: SearchedCell,
        day: &str,
        looked_at: &mut u64,
        progress: &mut Progress,
        report: &mut PurgeReport,
    ) -> Result<bool, EraseError> {
        let mut is_changed = false;
        for object in self.archive.store.objects(cell.cell, day).await? {
            *looked_at += 1;
            progress.tell(|| format!("looked at {}, at {day}", count(*looked_at, "object")));
            is_changed |= self.erase_from(cell, &object, report).await?;
        }
        Ok(is_changed)
    }

    /// Erases the webhooks of one object. Returns true if it is gone. One that is damaged or has no key is reported;
    /// one that the archive does not give or take is tried again, and left.
    async fn erase_from(
        &mut self,
        cell: SearchedCell,
        object: &ListedObject,
        report: &mut PurgeReport,
    ) -> Result<bool, EraseError> {
        let mut pauses = PAUSES.iter();
        loop {
            let error = match self.replaced(cell, object, report).await {
                Ok(()) => {
                    self.left.failed_in_a_row = 0;
                    return Ok(false);
                }
                Err(error) => error,
            };
            match error {
                // It aged out meanwhile, or was replaced.
                EraseError::Store(StoreError::Missing(_)) => return Ok(true),
                EraseError::Store(StoreError::Bad(..) | StoreError::NoKey(..))
                | EraseError::Unequal(_) => {
                    self.left.bad += 1;
                    report.pending.push(printable(chain(&error).as_bytes()));
                    return Ok(false);
                }
                EraseError::Store(StoreError::Unavailable(_) | StoreError::Denied(_)) => {
                    if let Some(pause) = pauses.next() {
                        tokio::time::sleep(*pause).await;
                        continue;
                    }
                    self.left.failed += 1;
                    self.left.failed_in_a_row += 1;
                    if self.left.failed_in_a_row >= FAILED_MAX {
                        return Err(error);
                    }
                    return Ok(false);
                }
                error => return Err(error),
            }
        }
    }

    async fn replaced(
        &mut self,
        cell: SearchedCell,
        listed: &ListedObject,
        report: &mut PurgeReport,
    ) -> Result<(), EraseError> {
        let OpenArchive { store, keys } = self.archive;
        let name = &listed.name;
        let tail = store.tail(listed, keys).await?;
        if !self.may_hold(&tail, name.first > self.orders.last()) {
            return Ok(());
        }
        if cell.cursor.is_some_and(|cursor| name.last > cursor) {
            self.left.later += 1;
            return Ok(());
        }
        let object = store.object(name, keys).await?;
        let meant = self.find(&object).map_err(|error| StoreError::Bad(Box::new(*name), error))?;
        if meant.count() > 0 && !report.is_dry_run {
            if is_fresh(listed, self.settled_after, self.now_ms) {
                self.left.fresh += 1;
                return Ok(());
            }
            let new = erase::without(&object, name, keys, &meant)?;
            erase::replace(store, keys, name, &new).await?;
        }
        report.counts.corrupt += meant.corrupt;
        report.counts.archived += meant.count();
        report.counts.objects += u64::from(meant.count() > 0);
        Ok(())
    }

    fn find(&self, object: &ArchiveObject) -> Result<MeantWebhooks, spillway_archive::BadObject> {
        MeantWebhooks::find(
            object,
            |id, view| self.orders.is_meant(id.entry, id.index, view),
            |bytes| self.orders.is_shown_by(bytes),
        )
    }

    /// True if an object may hold something. Its index does not say what is in packs that cannot be decoded. After the
    /// last order, only the redaction itself may be there again.
    fn may_hold(&self, tail: &ObjectTail, is_after: bool) -> bool {
        let index = &tail.index;
        if is_after && !index.topics.may_hold(is_redaction) {
            return false;
        }
        index.corrupt_packs() > 0 || index.shops.may_hold(|shop| self.orders.may_mean(shop))
    }
}

/// True if another process may still put this object: one whose request takes that long.
fn is_fresh(listed: &ListedObject, settled_after: Duration, now_ms: u64) -> bool {
    let after_ms = u64::try_from(settled_after.as_millis()).unwrap_or(u64::MAX);
    let written_ms = listed.name.last.ms.max(listed.written_ms);
    after_ms > 0 && written_ms.saturating_add(after_ms) > now_ms
}

#[cfg(test)]
mod tests {
    use spillway_archive::{Checkpoint, ObjectName};
    use spillway_webhook::Redaction;

    use super::*;
    use crate::forget::order::PurgeOrder;
    use crate::testing::{SHOP, TestArchive, customer_pack};

    #[tokio::test]
    async fn what_the_archiver_has_not_settled_is_left_and_is_erased_once_it_has() {
        let archived = TestArchive::new();
        let entry = |ms| StreamId { ms, seq: 0 };
        let pack = || customer_pack("orders/create", 12);
        archived.put(1, StreamId::ZERO, vec![(entry(1_000), pack())]).await;
        archived.put(1, entry(1_000), vec![(entry(5_000), pack())]).await;
        let archive = OpenArchive { store: archived.open(), keys: archived.keys.clone() };
        let order = PurgeOrder::until(Redaction::of_shop(SHOP), entry(9_000));
        let orders = PurgeOrders::new(vec![order]);
        // Cursor of the archiver, objects that are left, and webhooks that are erased.
        for (cursor, later, erased) in [(0, 2, 0), (1_000, 1, 1), (9_000, 0, 1), (9_000, 0, 0)] {
            let mut report = PurgeReport::default();
            let mut purge = ArchivePurge {
                archive: &archive,
                orders: &orders,
                now_ms: 20_000,
                settled_after: Duration::ZERO,
                finished: None,
                left: LeftObjects::default(),
            };
            let cell = SearchedCell { cell: 1, cursor: Some(entry(cursor)), is_named: false };
            purge.run(&[cell], &mut report).await;
            let found = (purge.left.later, report.counts.archived);
            assert_eq!(found, (later, erased), "up to {cursor}: {:?}", report.pending);
            assert_eq!(report.is_complete(), later == 0, "{:?}", report.pending);
        }
    }

    #[tokio::test]
    async fn an_archive_that_is_not_there_is_not_one_without_objects() {
        let archived = TestArchive::new();
        let archive = OpenArchive { store: archived.open(), keys: archived.keys.clone() };
        let cursor = StreamId { ms: 1_000, seq: 0 };
        let order = PurgeOrder::until(Redaction::of_shop(SHOP), cursor);
        let orders = PurgeOrders::new(vec![order]);
        let found = async |cursor, is_named| {
            let mut report = PurgeReport::default();
            let mut purge = ArchivePurge {
                archive: &archive,
                orders: &orders,
                now_ms: 20_000,
                settled_after: Duration::ZERO,
                finished: None,
                left: LeftObjects::default(),
            };
            purge.run(&[SearchedCell { cell: 1, cursor, is_named }], &mut report).await;
            report.pending
        };
        let pending = found(Some(cursor), false).await;
        assert!(matches!(&pending[..], [one] if one.contains("mounted")), "{pending:?}");
        let pending = found(None, true).await;
        assert!(
            matches!(&pending[..], [one] if one.contains("00000001, which FORGET")),
            "{pending:?}"
        );
        assert!(found(None, false).await.is_empty(), "nothing was archived");
        assert!(found(Some(StreamId::ZERO), false).await.is_empty(), "nothing was archived yet");
        // Objects expire, and the checkpoint stays.
        let checkpoint = Checkpoint::new(1, 7, Vec::new());
        checkpoint::write(&archive.store, 1, &checkpoint).await.expect("write a checkpoint");
        assert!(found(Some(cursor), false).await.is_empty());
        assert!(found(None, true).await.is_empty());
    }

    #[test]
    fn an_object_is_touched_minutes_after_it_was_written() {
        let id = |ms| StreamId { ms, seq: 0 };
        let name = ObjectName {
            cell: 1,
            first: id(1),
            last: id(9_000),
            webhooks: 1,
            tag: 2,
            generation: 0,
        };
        let listed = |written_ms| ListedObject { name, bytes: 100, written_ms };
        let minute = Duration::from_secs(60);
        assert!(is_fresh(&listed(5_000), minute, 68_999), "its last entry counts, too");
        assert!(!is_fresh(&listed(5_000), minute, 69_000));
        assert!(is_fresh(&listed(50_000), minute, 100_000), "old entries, written just now");
        assert!(!is_fresh(&listed(50_000), Duration::ZERO, 1_000));
    }

    #[test]
    fn objects_that_are_left_make_a_purge_incomplete() {
        let mut report = PurgeReport::default();
        LeftObjects::default().tell(&mut report);
        assert!(report.is_complete());
        let left =
            LeftObjects { later: 1, fresh: 2, failed: 3, changing: 1, ..LeftObjects::default() };
        assert_eq!(left.total(), 7);
        left.tell(&mut report);
        assert_eq!(report.pending.len(), 4);
        let failing = LeftObjects { failed_in_a_row: 2, ..LeftObjects::default() };
        assert_eq!(failing.total(), 0, "they are counted once");
    }
}
