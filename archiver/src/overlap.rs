//! Packs after the cursor that are in the archive already: they are settled and not written again.
//!
//! A leader that ended between a put and its settlement leaves one such object, a Redis that came back with older
//! data many. An object counts only after all of its bytes were checked and made durable, for Redis frees what is
//! settled. A pack counts only if entry, length and checksum are the same: a restored Redis may give an id twice.

use std::collections::{HashMap, VecDeque};

use spillway_archive::index::{PackIdentity, PackRow};
use spillway_archive::keys::KeyRing;
use spillway_archive::{ArchiveObject, ArchiveStore, ListedObject, ObjectName, StoreError};
use spillway_queue::read::Entry;
use spillway_webhook::StreamId;

use crate::access::ArchiveAccess;

/// Objects that may hold packs after the cursor.
pub(crate) struct Overlap {
    /// Objects that were not read yet, in the order of their first entries.
    waiting: VecDeque<ListedObject>,
    /// Objects that begin before the entry that was looked for last, and end after it.
    loaded: Vec<LoadedObject>,
}

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
/// missing: without it, nobody knows that. `what` is shown while it waits.
pub(crate) async fn read(
    access: &ArchiveAccess,
    store: &ArchiveStore,
    name: &ObjectName,
    what: &'static str,
) -> Option<ArchiveObject> {
    let ask = async || {
        // The keys may have been read again since the last attempt.
        let keys = access.instance.settings.keys.ring();
        match durable(access, store, name, &keys).await {
            Ok(object) => Ok(Some(object)),
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
    access.leased().await;
    store.make_durable(name, &object).await?;
    Ok(object)
}

fn not_archived(access: &ArchiveAccess, error: &StoreError) {
    let error = access.failed(error);
    tracing::error!(
        error,
        "an object of the archive cannot be used; what is still queued of it is written again"
    );
}
