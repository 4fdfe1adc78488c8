//! Names of objects: `<cell>/<day>/<first entry>_<last entry>_<webhooks>_<tag>.spwa`.
//!
//! An archive may forbid to write over an object that is damaged. Then its packs are written under the next name, which
//! ends with `_1` to `_9`: its generation. Of objects that differ in nothing else, only the last one counts.
//!
//! Names of a cell sort in the order of the stream. An object lies within one day (UTC) of Redis' clock, so a
//! range of time is a range of names. The tag is a hash of the packs: two objects with one name hold the same
//! packs.

use std::fmt;
use std::str::FromStr;

use spillway_webhook::StreamId;
use time::OffsetDateTime;

/// Ending of the name of an object.
pub const EXTENSION: &str = "spwa";

/// Highest generation. If that many objects are damaged, somebody has to look at the archive.
const GENERATION_MAX: u8 = 9;

/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;

/// Name of an object, relative to the archive's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Random id of the cell.
    pub cell: u32,
    /// First entry in the object.
    pub first: StreamId,
    /// Last entry in the object.
    pub last: StreamId,
    /// Number of webhooks in it.
    pub webhooks: u64,
    /// CRC-32 of entry, length and CRC-32 of each pack.
    pub tag: u32,
    /// Number of objects with the same packs that are damaged and could not be written over.
    pub generation: u8,
}

/// An object as a list has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedObject {
    /// Name of the object.
    pub name: ObjectName,
    /// Bytes of the object.
    pub bytes: u64,
    /// Time at which it was written, by the clock of the store, in milliseconds since the Unix epoch.
    pub written_ms: u64,
}

/// Text that is not the name of an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the name of an object: {0:?}")]
pub struct NotAName(String);

impl ObjectName {
    /// Directory of the cell's objects.
    pub fn cell_directory(cell: u32) -> String {
        format!("{cell:08x}")
    }

    /// Day of the first entry, such as `2026-01-31`.
    pub fn day(&self) -> String {
        day_of(self.first.ms)
    }

    /// Name under which the same packs are written if the object of this name is damaged and cannot be written over.
    /// `None` after the last one.
    pub fn next_generation(&self) -> Option<Self> {
        let generation = self.generation.checked_add(1).filter(|next| *next <= GENERATION_MAX)?;
        Some(Self { generation, ..*self })
    }

    /// True if this object was written in place of the other one, which is damaged.
    pub fn replaces(&self, other: &Self) -> bool {
        self.generation > other.generation
            && Self { generation: other.generation, ..*self } == *other
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cell, first, last, webhooks, tag, generation } = self;
        write!(
            f,
            "{cell:08x}/{}/{:013}-{:010}_{:013}-{:010}_{webhooks}_{tag:08x}",
            day_of(first.ms),
            first.ms,
            first.seq,
            last.ms,
            last.seq,
        )?;
        if *generation > 0 {
            write!(f, "_{generation}")?;
        }
        write!(f, ".{EXTENSION}")
    }
}

impl FromStr for ObjectName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        // One object has one name: leading zeros or another day are another file.
        let parsed = parse(text).filter(|name| name.to_string() == text);
        parsed.ok_or_else(|| NotAName(text.to_owned()))
    }
}

/// Splits a sorted list into the objects that count, and the damaged ones in whose place others were written.
pub(crate) fn split_replaced(sorted: Vec<ListedObject>) -> (Vec<ListedObject>, Vec<ObjectName>) {
    let mut kept: Vec<ListedObject> = Vec::new();
    let mut replaced = Vec::new();
    for object in sorted {
        match kept.last_mut().filter(|before| object.name.replaces(&before.name)) {
            Some(before) => {
                replaced.push(before.name);
                *before = object;
            }
            None => kept.push(object),
        }
    }
    (kept, replaced)
}

fn parse(text: &str) -> Option<ObjectName> {
    let mut directories = text.split('/');
    let cell = u32::from_str_radix(directories.next()?, 16).ok()?;
    let _day = directories.next()?;
    let (stem, extension) = directories.next()?.split_once('.')?;
    let mut parts = stem.split('_');
    let first = parts.next()?.parse().ok()?;
    let last = parts.next()?.parse().ok()?;
    let webhooks = parts.next()?.parse().ok()?;
    let tag = u32::from_str_radix(parts.next()?, 16).ok()?;
    let generation = parts.next().map_or(Some(0), |generation| generation.parse().ok())?;
    let is_whole = parts.next().is_none() && directories.next().is_none();
    let is_whole = is_whole && generation <= GENERATION_MAX;
    let name = ObjectName { cell, first, last, webhooks, tag, generation };
    let is_day = first <= last && is_same_day(first.ms, last.ms);
    (is_whole && extension == EXTENSION && is_day).then_some(name)
}

/// Day of a time in milliseconds since the Unix epoch, in UTC, such as `2026-01-31`.
pub fn day_of(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1_000).unwrap_or(i64::MAX);
    let Ok(time) = OffsetDateTime::from_unix_timestamp(seconds) else {
        // Later than the year 9999. It sorts after all days.
        return "9999-99-99".to_owned();
    };
    format!("{:04}-{:02}-{:02}", time.year(), u8::from(time.month()), time.day())
}

/// True if both times lie in one day.
pub fn is_same_day(one_ms: u64, other_ms: u64) -> bool {
    one_ms / DAY_MS == other_ms / DAY_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> ObjectName {
        ObjectName {
            cell: 0xa1b2_c3d4,
            first: StreamId { ms: 1_767_268_800_000, seq: 3 },
            last: StreamId { ms: 1_767_268_860_000, seq: 0 },
            webhooks: 35_000,
            tag: 0xbeef,
            generation: 0,
        }
    }

    #[test]
    fn a_name_is_read_back() {
        let text = "a1b2c3d4/2026-01-01/1767268800000-0000000003_1767268860000-0000000000_35000_0000beef.spwa";
        assert_eq!(name().to_string(), text);
        assert_eq!(text.parse(), Ok(name()));
        for bad in [
            text.replace("2026-01-01", "2026-01-02"),
            text.replace(".spwa", ".spwa#1"),
            text.replace(".spwa", ".txt"),
            text.replace(".spwa", "_0.spwa"),
            text.replace(".spwa", "_10.spwa"),
            text.replace(".spwa", "_1_1.spwa"),
            text.replace("_35000", "_035000"),
            text.replace("1767268860000", "1767268700000"),
            // The last entry lies in the next day.
            text.replace("1767268860000", "1767312000000"),
            format!("x/{text}"),
            String::new(),
        ] {
            assert!(bad.parse::<ObjectName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_next_name_of_a_damaged_object_sorts_after_it_and_there_are_nine() {
        let second = name().next_generation().expect("a name");
        assert!(second.to_string().ends_with("_35000_0000beef_1.spwa"), "{second}");
        assert_eq!(second.to_string().parse(), Ok(second));
        assert!(name() < second && second.replaces(&name()));
        assert!(!name().replaces(&second) && !second.replaces(&second));
        let other = ObjectName { tag: 0xbee, ..second };
        assert!(!other.replaces(&name()));
        let later = std::iter::successors(Some(name()), ObjectName::next_generation);
        assert_eq!(later.count(), 10);
    }

    #[test]
    fn names_sort_in_the_order_of_the_stream() {
        let mut later = name();
        later.first.seq = 10;
        assert!(name() < later && name().to_string() < later.to_string());
        later.first.ms += DAY_MS;
        later.last.ms += DAY_MS;
        assert!(name().to_string() < later.to_string());
    }

    #[test]
    fn days_are_those_of_utc() {
        assert_eq!(day_of(0), "1970-01-01");
        assert_eq!(day_of(1_767_225_599_999), "2025-12-31");
        assert_eq!(day_of(1_767_225_600_000), "2026-01-01");
        assert_eq!(day_of(u64::MAX), "9999-99-99");
        assert!(is_same_day(1_767_225_600_000, 1_767_311_999_999));
        assert!(!is_same_day(1_767_225_599_999, 1_767_225_600_000));
    }
}
