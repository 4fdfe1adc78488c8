//! Days of the archive that a purge has finished: one that is cut off, or that leaves something, need not read them
//! again. They count only for the same set of orders.

use std::collections::BTreeMap;

use spillway_archive::name::day_of;
use spillway_queue::purge_lease::{self, PurgeLease};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_webhook::StreamId;

use super::order::PurgeOrders;

/// Days that are never recorded as finished: objects of them may still be written.
const FRESH_DAYS: u64 = 2;

const DAY_MS: u64 = 86_400_000;

/// Days of one cell to which no object is added any more.
///
/// An archiver that lags, or begins again with an older Redis, writes more objects of its cursor's day and of later
/// ones.
#[derive(Debug)]
pub(super) struct DayBounds {
    /// First day of which the clock says that it is too young.
    fresh_from: String,
    /// Day of the archiver's cursor; `None` without an archiver.
    settled_from: Option<String>,
}

/// Last finished day of each cell.
pub(super) struct FinishedDays {
    lease: PurgeLease,
    connection: Connection,
    subject: u64,
    last: BTreeMap<u32, String>,
}

impl DayBounds {
    /// Days before those of the archiver's cursor, and before the last two.
    pub(super) fn new(cursor: Option<StreamId>, now_ms: u64) -> Self {
        Self {
            fresh_from: day_of(now_ms.saturating_sub(FRESH_DAYS * DAY_MS)),
            settled_from: cursor.map(|cursor| day_of(cursor.ms)),
        }
    }

    /// True if a day that an earlier purge finished need not be read again.
    pub(super) fn is_settled(&self, day: &str) -> bool {
        self.settled_from.as_deref().is_none_or(|from| day < from)
    }

    /// True if a day of which nothing is left may be recorded as finished.
    pub(super) fn may_finish(&self, day: &str) -> bool {
        day < self.fresh_from.as_str() && self.is_settled(day)
    }
}

impl FinishedDays {
    /// Reads what the purges of before have finished.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub(super) async fn read(
        redis: &Redis,
        mut connection: Connection,
        lease: PurgeLease,
        orders: &PurgeOrders,
    ) -> Result<Self, QueueError> {
        let subject = orders.subject();
        let text = purge_lease::progress(redis, &mut connection).await?;
        let last = parse(&text.unwrap_or_default(), subject);
        Ok(Self { lease, connection, subject, last })
    }

    /// True if this day is finished.
    pub(super) fn has(&self, cell: u32, day: &str) -> bool {
        self.last.get(&cell).is_some_and(|last| day <= last.as_str())
    }

    /// Records that this day is finished, and all days before it. A Redis that does not take it costs time only.
    pub(super) async fn add(&mut self, cell: u32, day: &str) {
        self.last.insert(cell, day.to_owned());
        let text = text(self.subject, &self.last);
        if let Err(error) = self.lease.keep(&mut self.connection, &text).await {
            eprintln!("spillway: the progress of this purge is not kept: {error}");
        }
    }
}

fn text(subject: u64, last: &BTreeMap<u32, String>) -> String {
    let days = last.iter().map(|(cell, day)| format!(" {cell:08x}={day}"));
    format!("{subject:016x}{}", days.collect::<String>())
}

fn parse(text: &str, subject: u64) -> BTreeMap<u32, String> {
    let Some((known, days)) = text.split_once(' ') else { return BTreeMap::new() };
    if known != format!("{subject:016x}") {
        return BTreeMap::new();
    }
    let day = |part: &str| {
        let (cell, day) = part.split_once('=')?;
        Some((u32::from_str_radix(cell, 16).ok()?, day.to_owned()))
    };
    days.split(' ').filter_map(day).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_to_which_a_lagging_archiver_adds_objects_is_neither_finished_nor_left_out() {
        const DAY_20: u64 = 20 * DAY_MS;
        let cursor = |days: u64| Some(StreamId { ms: days * DAY_MS + 7, seq: 0 });
        let [one, nine, ten, seventeen] = [0, 8, 9, 16].map(|days| day_of(days * DAY_MS));
        assert_eq!((one.as_str(), ten.as_str()), ("1970-01-01", "1970-01-10"));
        // It has settled all but the last day.
        let bounds = DayBounds::new(cursor(19), DAY_20);
        assert!(bounds.is_settled(&ten) && bounds.may_finish(&ten));
        assert!(bounds.may_finish(&seventeen));
        let fresh = day_of(18 * DAY_MS);
        assert!(bounds.is_settled(&fresh) && !bounds.may_finish(&fresh), "too young");
        // It lags, or began again with an older Redis: days that were finished are read again.
        let lagging = DayBounds::new(cursor(9), DAY_20);
        assert!(lagging.may_finish(&nine), "before its cursor's day");
        for day in [&ten, &seventeen, &fresh] {
            assert!(!lagging.is_settled(day) && !lagging.may_finish(day), "{day}");
        }
        // It has settled nothing at all.
        let new = DayBounds::new(Some(StreamId::ZERO), DAY_20);
        assert!(!new.is_settled(&one) && !new.may_finish(&ten));
        // The cell is gone.
        let gone = DayBounds::new(None, DAY_20);
        assert!(gone.is_settled(&seventeen) && gone.may_finish(&ten) && !gone.may_finish(&fresh));
    }

    #[test]
    fn finished_days_count_for_the_same_orders_only() {
        let last = BTreeMap::from([(1, "2026-01-02".to_owned()), (0xa1, "2026-03-04".to_owned())]);
        let text = text(7, &last);
        assert_eq!(parse(&text, 7), last);
        assert_eq!(parse(&text, 8), BTreeMap::new());
        assert_eq!(parse("", 7), BTreeMap::new());
    }
}
