//! Cell and time of the objects that a command reads.

use clap::Args;
use spillway_archive::name::day_of;
use spillway_archive::{ArchiveStore, ListedObject, ObjectName, StoreError};

use crate::failure::Failure;
use crate::filter::moment_ms;
use crate::out::now_ms;

/// Cell and time, as given on the command line.
#[derive(Debug, Default, Args)]
pub(super) struct RangeArguments {
    /// Only objects of this cell, 8 hexadecimal digits; default: of all cells in the archive
    #[arg(long)]
    cell: Option<String>,

    /// Stored in the queue at or after this RFC 3339 time, or this long ago, such as 2h
    #[arg(long)]
    from: Option<String>,

    /// Stored in the queue at or before this RFC 3339 time, or this long ago, such as 30m
    #[arg(long)]
    to: Option<String>,
}

/// Cell and time, after their values were checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectRange {
    cell: Option<u32>,
    from_ms: u64,
    to_ms: u64,
}

/// One day of one cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CellDay {
    /// Id of the cell.
    pub cell: u32,
    /// The day, such as `2026-01-31`.
    pub day: String,
}

impl RangeArguments {
    /// Checks the values.
    pub(super) fn checked(self) -> Result<ObjectRange, Failure> {
        let now_ms = now_ms();
        let moment = |flag: &str, text: Option<String>| {
            text.map(|text| moment_ms(flag, &text, now_ms)).transpose()
        };
        let cell = self.cell.map(|cell| {
            let parsed = u32::from_str_radix(&cell, 16).ok().filter(|_| cell.len() == 8);
            let wrong = || Failure::Usage(format!("--cell {cell:?} is not an id such as a1b2c3d4"));
            parsed.ok_or_else(wrong)
        });
        Ok(ObjectRange {
            cell: cell.transpose()?,
            from_ms: moment("--from", self.from)?.unwrap_or(0),
            to_ms: moment("--to", self.to)?.unwrap_or(u64::MAX),
        })
    }
}

impl ObjectRange {
    /// Range of one time, in one cell.
    pub(super) fn at(cell: u32, ms: u64) -> Self {
        Self { cell: Some(cell), from_ms: ms, to_ms: ms }
    }

    /// Days with objects in the range, by cell and time.
    pub(super) async fn days(&self, store: &ArchiveStore) -> Result<Vec<CellDay>, StoreError> {
        let cells = match self.cell {
            Some(cell) => vec![cell],
            None => store.cells().await?,
        };
        let first = day_of(self.from_ms);
        let last = day_of(self.to_ms);
        let mut days = Vec::new();
        for cell in cells {
            let of_cell = store.days(cell).await?.into_iter();
            let meant = of_cell.filter(|day| *day >= first && *day <= last);
            days.extend(meant.map(|day| CellDay { cell, day }));
        }
        Ok(days)
    }

    /// Objects of a day in the range, sorted.
    pub(super) async fn objects(
        &self,
        store: &ArchiveStore,
        day: &CellDay,
    ) -> Result<Vec<ListedObject>, StoreError> {
        let mut objects = store.objects(day.cell, &day.day).await?;
        objects.retain(|object| self.meets(&object.name));
        Ok(objects)
    }

    /// Damaged objects of a day in the range, in whose place others were written.
    pub(super) async fn replaced(
        &self,
        store: &ArchiveStore,
        day: &CellDay,
    ) -> Result<Vec<ObjectName>, StoreError> {
        let mut replaced = store.replaced(day.cell, &day.day).await?;
        replaced.retain(|name| self.meets(name));
        Ok(replaced)
    }

    fn meets(&self, name: &ObjectName) -> bool {
        name.first.ms <= self.to_ms && name.last.ms >= self.from_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let of = |cell: &str, from: &str| RangeArguments {
            cell: Some(cell.to_owned()),
            from: Some(from.to_owned()),
            to: None,
        };
        let range = of("a1b2c3d4", "1970-01-01T00:00:10Z").checked().expect("good ones");
        assert_eq!((range.cell, range.from_ms, range.to_ms), (Some(0xa1b2_c3d4), 10_000, u64::MAX));
        for (cell, from) in [("a1b2", "2h"), ("xxxxxxxx", "2h"), ("a1b2c3d4", "yesterday")] {
            assert!(of(cell, from).checked().is_err(), "{cell} {from}");
        }
    }
}
