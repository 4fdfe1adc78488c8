//! Packs after the cursor that are in the archive already: they are settled and not written again.
//!
//! A leader that ended between a put and its settlement leaves one such object, a Redis that came back with older
//! data many. An object counts only after all of its bytes were checked and made durable, for Redis frees what is
//! settled. A pack counts only if entry, length and checksum are the same: a restored Redis may give an id twice.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use spillway_archive::index::{PackIdentity, PackRow};
use spillway_archive::keys::KeyRing;
use spillway_archive::{ArchiveObject, ArchiveStore, ListedObject, ObjectName, StoreError};
use spillway_queue::read::Entry;
use spillway_webhook::StreamId;
use tokio::time::Instant;

use crate::access::ArchiveAccess;

/// Attempts to read a file, and time from the first to the last of them, after which it counts as damaged. A disk that
/// is only busy answers by then. If it is another fault after all, packs are in two objects, which readers know.
const UNREADABLE_ATTEMPTS: u32 = 5;
const UNREADABLE_FOR: Duration = Duration::from_secs(30);

/// Objects that may hold packs after the cursor.
pub(crate) struct Overlap {
    /// Objects that were not read yet, in the order of their first entries.
    waiting: VecDeque<ListedObject>,
    /// Objects that begin before the entry that was looked for last, and end after it.
    loaded: Vec<LoadedObject>,
}

/// Attempts to read a file that failed one after the other, and the time of the first one.
#[derive(Default)]
struct ReadFailures(Cell<Option<(u32, Instant)>>);

struct LoadedObject {
    last: StreamId,
    packs: HashMap<PackIdentity, PackRow>,
}

impl Overlap {
    /// Overlap with these objects.
    pub(crate) fn with(mut objects: Vec<ListedObject>) -> Self {
        objects.sort_unstable();
        Self { waiting: objects.into(), loaded: Vec::new() }
    }

    /// True if no object may hold a pack that comes.
    pub(crate) fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.loaded.is_empty()
    }

    /// Returns the pack's row in the object that holds it, if one does. Call it with growing entries.
    pub(crate) async fn find(
        &mut self,
        access: &ArchiveAccess,
        store: &ArchiveStore,
        entry: &Entry,
    ) -> Option<PackRow> {
        while let Some(object) = self.waiting.pop_front_if(|object| object.name.first <= entry.id) {
            let name = object.name;
            if name.last < entry.id {
                continue;
            }
            let found = read(access, store, &name, "reading an object").await;
            let Some(found) = found else { continue };
            let packs = found.tail.index.packs.iter().map(|row| (row.identity(), *row)).collect();
            self.loaded.push(LoadedObject { last: name.last, packs });
        }
        self.loaded.retain(|object| object.last >= entry.id);
        let bytes = u32::try_from(entry.pack.len()).ok()?;
        let crc32 = spillway_archive::index::checksum(&entry.pack);
        let key = PackIdentity { entry: entry.id, bytes, crc32 };
        self.loaded.iter().find_map(|object| object.packs.get(&key).copied())
    }
}

/// Reads and checks an object, and makes it durable. `None` if it is damaged, or gone. Waits for a key that is
/// missing: without it, nobody knows that. `what` is shown while it waits. A file that cannot be read again and again
/// is damaged: Redis still has its packs, and waits for nothing else.
pub(crate) async fn read(
    access: &ArchiveAccess,
    store: &ArchiveStore,
    name: &ObjectName,
    what: &'static str,
) -> Option<ArchiveObject> {
    let failures = ReadFailures::default();
    let ask = async || {
        // The keys may have been read again since the last attempt.
        let keys = access.instance.settings.keys.ring();
        let read = store.object(name, &keys).await;
        let is_file_error = match &read {
            Err(error) => store.is_file_error(error).await,
            Ok(_) => false,
        };
        let is_unreadable = failures.note(is_file_error, Instant::now());
        let durable = match read {
            Ok(object) => make_durable(access, store, name, object).await,
            Err(error) => Err(error),
        };
        match durable {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_unreadable => {
                not_archived(access, &error);
                Ok(None)
            }
            Err(StoreError::Missing(_)) => Ok(None),
            Err(error @ StoreError::Bad(..)) => {
                not_archived(access, &error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    };
    access.until_done(what, ask).await
}

/// Reads and checks an object once, and makes it durable.
///
/// # Errors
/// [`StoreError`]
pub(crate) async fn durable(
    access: &ArchiveAccess,
    store: &ArchiveStore,
    name: &ObjectName,
    keys: &KeyRing,
) -> Result<ArchiveObject, StoreError> {
    let object = store.object(name, keys).await?;
    make_durable(access, store, name, object).await
}

async fn make_durable(
    access: &ArchiveAccess,
    store: &ArchiveStore,
    name: &ObjectName,
    object: ArchiveObject,
) -> Result<ArchiveObject, StoreError> {
    access.leased().await;
    store.make_durable(name, &object).await?;
    Ok(object)
}

impl ReadFailures {
    /// Notes the result of an attempt. Returns true once the file counts as damaged.
    fn note(&self, is_file_error: bool, now: Instant) -> bool {
        if !is_file_error {
            self.0.set(None);
            return false;
        }
        let (attempts, since) = self.0.get().unwrap_or((0, now));
        self.0.set(Some((attempts + 1, since)));
        attempts + 1 >= UNREADABLE_ATTEMPTS && now.duration_since(since) >= UNREADABLE_FOR
    }
}

fn not_archived(access: &ArchiveAccess, error: &StoreError) {
    let error = access.failed(error);
    tracing::error!(
        error,
        "an object of the archive cannot be used; what is still queued of it is written again"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_for_long_is_damaged() {
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let failures = ReadFailures::default();
        assert!((0..20).all(|seconds| !failures.note(true, after(seconds))), "not long enough");
        assert!(failures.note(true, after(30)));
        assert!(!failures.note(false, after(31)), "another error, or none");
        assert!([32, 90, 91, 92].iter().all(|seconds| !failures.note(true, after(*seconds))));
        assert!(failures.note(true, after(93)), "the fifth attempt");
    }
}
