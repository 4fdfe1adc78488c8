//! Days of the archive that a purge has finished: one that is cut off, or that leaves something, need not read them
//! again. They count only for the same set of orders.

use std::collections::BTreeMap;

use spillway_queue::purge_lease::{self, PurgeLease};
use spillway_queue::{Connection, QueueError, Redis};

use super::order::PurgeOrders;

/// Last finished day of each cell.
pub(super) struct FinishedDays {
    lease: PurgeLease,
    connection: Connection,
    subject: u64,
    last: BTreeMap<u32, String>,
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
    fn finished_days_count_for_the_same_orders_only() {
        let last = BTreeMap::from([(1, "2026-01-02".to_owned()), (0xa1, "2026-03-04".to_owned())]);
        let text = text(7, &last);
        assert_eq!(parse(&text, 7), last);
        assert_eq!(parse(&text, 8), BTreeMap::new());
        assert_eq!(parse("", 7), BTreeMap::new());
    }
}
