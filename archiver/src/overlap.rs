//! Packs after the cursor that are in the archive already: they are settled and not written again.
//!
//! A leader that ended between a put and its settlement leaves one such object, a Redis that came back with older
//! data many. An object counts only after all of its bytes were checked, for Redis frees what is settled. A pack
//! counts only if entry, length and checksum are the same: a restored Redis may give an id twice.

use std::collections::{HashMap, VecDeque};

use spillway_archive::index::{PackIdentity, PackRow};
use spillway_archive::{ArchiveObject, ArchiveStore, ListedObject, ObjectName, StoreError};
use spillway_process::error::chain;
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

    /// Returns the pack's row in the object that holds it, if one does. Call it with growing entries.
    pub(crate) async fn find(
        &mut self,
        access: &ArchiveAccess,
        store: &ArchiveStore,
        entry: &Entry,
    ) -> Option<PackRow> {
        if self.waiting.is_empty() && self.loaded.is_empty() {
            return None;
        }
        while let Some(object) = self.waiting.pop_front_if(|object| object.name.first <= entry.id) {
            let name = object.name;
            if name.last < entry.id {
                continue;
            }
            let found = read(access, store, &name).await;
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

/// Reads and checks an object. `None` if it is damaged, or gone.
pub(crate) async fn read(
    access: &ArchiveAccess,
    store: &ArchiveStore,
    name: &ObjectName,
) -> Option<ArchiveObject> {
    let keys = access.instance.settings.keys.ring();
    let ask = async || match store.object(name, &keys).await {
        Ok(object) => Ok(Some(object)),
        Err(StoreError::Missing(_)) => Ok(None),
        Err(error @ StoreError::Bad(..)) => {
            access.instance.metrics.failed(error.kind());
            tracing::error!(
                error = chain(&error),
                "an object of the archive cannot be read; what is still queued of it is written again"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    };
    access.until_done("reading an object", ask).await
}
