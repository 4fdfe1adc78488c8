//! The object that grows, and the settlement that follows its put. Pure: time is an argument.

use std::time::Duration;

use spillway_archive::ObjectWriter;
use spillway_archive::index::PackRow;
use spillway_archive::keys::{KeyRing, NoRandomness};
use spillway_archive::name::is_same_day;
use spillway_queue::read::Entry;
use spillway_queue::settle::Settlement;
use spillway_webhook::StreamId;
use tokio::time::Instant;

/// Limits of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectLimits {
    /// Bytes at which it is written.
    pub bytes: usize,
    /// Age of its first pack, since it was read, at which it is written.
    pub delay: Duration,
}

/// The object that is being filled. It is contiguous: no entry between its packs is left out of it.
pub(crate) struct Filling {
    cell: u32,
    limits: ObjectLimits,
    /// Last entry that was taken.
    position: StreamId,
    /// The object, and the time at which its first pack was added.
    object: Option<(ObjectWriter, Instant)>,
    /// Set once the next pack belongs to another object.
    is_closed: bool,
    settlement: Settlement,
}

impl Filling {
    /// Nothing yet, after the entry `position`.
    pub(crate) fn after(position: StreamId, cell: u32, limits: ObjectLimits) -> Self {
        Self {
            cell,
            limits,
            position,
            object: None,
            is_closed: false,
            settlement: Settlement::default(),
        }
    }

    /// True if a pack of `entry` may be in this object: it lies in the same day. If not, the object is complete.
    pub(crate) fn accepts(&self, entry: StreamId) -> bool {
        let first = self.object.as_ref().and_then(|(writer, _)| writer.first());
        first.is_none_or(|first| is_same_day(first.ms, entry.ms))
    }

    /// Marks the object as complete, if there is one.
    pub(crate) fn close(&mut self) {
        self.is_closed = self.object.is_some();
    }

    /// Last entry that was taken.
    pub(crate) fn position(&self) -> StreamId {
        self.position
    }

    /// Adds a pack.
    ///
    /// # Errors
    /// If the system gives no random bytes for a key.
    pub(crate) fn add(
        &mut self,
        entry: Entry,
        keys: &KeyRing,
        now: Instant,
    ) -> Result<PackRow, NoRandomness> {
        let (writer, _) = match &mut self.object {
            Some(object) => object,
            None => self.object.insert((ObjectWriter::new(self.cell, self.position, keys)?, now)),
        };
        debug_assert!(!self.is_closed, "a pack after it belongs to the next object");
        let row = writer.add(entry.id, entry.pack);
        self.take_over(&row);
        Ok(row)
    }

    /// Moves over an entry that is in the archive. An object that is being filled ends before it.
    pub(crate) fn pass(&mut self, row: &PackRow) {
        self.close();
        self.take_over(row);
    }

    fn take_over(&mut self, row: &PackRow) {
        debug_assert!(self.position < row.entry, "entries arrive in their order");
        self.position = row.entry;
        let passed = self.settlement.passed.get_or_insert_default();
        passed.cursor = row.entry;
        passed.entries += 1;
        passed.webhooks += u64::from(row.webhooks);
        if row.is_corrupt {
            self.settlement.corrupt.packs.push(row.entry);
        }
    }

    /// True if one more pack may be added.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_closed
            && self.object.as_ref().is_none_or(|(writer, _)| writer.bytes() < self.limits.bytes)
    }

    /// True if no entry was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.settlement.is_empty()
    }

    /// Time at which the object is to be written; `None` if there is none.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let (_, began) = self.object.as_ref()?;
        Some(if self.has_room() { *began + self.limits.delay } else { *began })
    }

    /// Takes the object, if there is one, and the settlement of all entries. What follows is empty.
    pub(crate) fn take(&mut self) -> (Option<ObjectWriter>, Settlement) {
        self.is_closed = false;
        let object = self.object.take().map(|(writer, _)| writer);
        (object, std::mem::take(&mut self.settlement))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use spillway_queue::settle::PassedEntries;
    use spillway_webhook::pack::{Packer, Records};

    use super::*;

    const DAY_MS: u64 = 86_400_000;
    const LIMITS: ObjectLimits = ObjectLimits { bytes: 300, delay: Duration::from_secs(60) };

    fn entry(ms: u64, pack: Bytes) -> Entry {
        Entry { id: StreamId { ms, seq: 0 }, pack }
    }

    /// A pack without webhooks: it can be decoded.
    fn pack() -> Bytes {
        Packer::new().pack(&Records::default()).to_vec().into()
    }

    fn filling() -> Filling {
        Filling::after(StreamId { ms: 5, seq: 0 }, 1, LIMITS)
    }

    #[test]
    fn an_object_is_due_at_its_age_or_size() {
        let (mut filling, now) = (filling(), Instant::now());
        let keys = KeyRing::default();
        assert_eq!((filling.due_at(), filling.is_empty()), (None, true));
        filling.add(entry(6, pack()), &keys, now).expect("a pack");
        let later = now + Duration::from_secs(9);
        filling.add(entry(7, pack()), &keys, later).expect("a pack");
        assert_eq!(filling.due_at(), Some(now + LIMITS.delay));
        let corrupt = entry(8, Bytes::from(vec![0; 300]));
        assert!(filling.add(corrupt, &keys, later).expect("a pack").is_corrupt);
        assert!(!filling.has_room());
        assert_eq!(filling.due_at(), Some(now));
        let (object, settlement) = filling.take();
        let name = object.and_then(ObjectWriter::finish).expect("an object").name;
        assert_eq!((name.first.ms, name.last.ms), (6, 8));
        assert_eq!(settlement.corrupt.packs, [StreamId { ms: 8, seq: 0 }]);
        let cursor = StreamId { ms: 8, seq: 0 };
        assert_eq!(settlement.passed, Some(PassedEntries { cursor, entries: 3, webhooks: 0 }));
        assert!(filling.is_empty() && filling.has_room());
    }

    #[test]
    fn entries_that_are_archived_are_settled_without_an_object() {
        let mut filling = filling();
        let row = PackRow {
            entry: StreamId { ms: 6, seq: 0 },
            bytes: 10,
            webhooks: 3,
            is_corrupt: false,
            crc32: 0,
        };
        filling.pass(&row);
        assert!(!filling.is_empty() && filling.due_at().is_none() && filling.has_room());
        let (object, settlement) = filling.take();
        assert!(object.is_none());
        assert_eq!(settlement.passed.map(|passed| passed.webhooks), Some(3));
    }

    #[test]
    fn an_object_ends_before_an_entry_that_is_archived() {
        let (mut filling, now) = (filling(), Instant::now());
        let keys = KeyRing::default();
        let row = filling.add(entry(6, pack()), &keys, now).expect("a pack");
        filling.pass(&PackRow { entry: StreamId { ms: 7, seq: 0 }, ..row });
        assert!(!filling.has_room());
        assert_eq!(filling.due_at(), Some(now));
        let (object, settlement) = filling.take();
        let name = object.and_then(ObjectWriter::finish).expect("an object").name;
        assert_eq!((name.first.ms, name.last.ms), (6, 6));
        assert_eq!(settlement.passed.map(|passed| passed.entries), Some(2));
        assert_eq!(filling.position(), StreamId { ms: 7, seq: 0 });
        assert!(filling.has_room(), "the next one");
    }

    #[test]
    fn an_object_lies_within_one_day() {
        let (mut filling, now) = (filling(), Instant::now());
        assert!(filling.accepts(StreamId { ms: 5 * DAY_MS, seq: 0 }));
        filling.add(entry(DAY_MS - 1, pack()), &KeyRing::default(), now).expect("a pack");
        assert!(filling.accepts(StreamId { ms: DAY_MS - 1, seq: 1 }));
        assert!(!filling.accepts(StreamId { ms: DAY_MS, seq: 0 }));
        filling.close();
        assert!(!filling.has_room());
        assert_eq!(filling.due_at(), Some(now));
    }
}
