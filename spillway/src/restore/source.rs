//! Packs of the archive that a restoration needs, and the facts by which they are planned.

use std::collections::HashSet;
use std::sync::Arc;

use spillway_archive::keys::KeyRing;
use spillway_archive::reader::{ArchiveReader, ArchivedPack};
use spillway_archive::{ArchiveStore, ListedObject, StoreError};
use spillway_webhook::pack::{Pack, Packer, View};
use spillway_webhook::shopify::Headers;
use spillway_webhook::{StreamId, lane_hash};

use super::plan::{ConsumerNeeds, LaneFacts, PlannedEntry};
use crate::out::Progress;

/// No entry is later.
const END: StreamId = StreamId { ms: u64::MAX, seq: u64::MAX };

/// An archive, and the keys to read it with.
#[derive(Clone)]
pub(super) struct RestoreArchive {
    /// The archive.
    pub store: Arc<ArchiveStore>,
    /// Keys of its objects.
    pub keys: Arc<KeyRing>,
}

/// Objects of a cell that a restoration needs.
pub(super) struct ArchiveSource {
    archive: RestoreArchive,
    objects: Vec<ListedObject>,
    /// Entries after this one are read.
    after: StreamId,
    /// First and last entry of the cell in the archive.
    pub span: (StreamId, StreamId),
}

/// A pack of the archive.
pub(super) struct SourcePack {
    /// Entry that it was in.
    pub entry: StreamId,
    /// One for each webhook; `None` if the pack cannot be decoded.
    pub facts: Option<Vec<LaneFacts>>,
    bytes: bytes::Bytes,
    pack: Option<Pack>,
}

impl ArchiveSource {
    /// Finds the objects that these consumers need. `None` if the archive has no object of the cell.
    pub(super) async fn find(
        archive: RestoreArchive,
        cell: u32,
        consumers: &[ConsumerNeeds],
    ) -> Result<Option<Self>, StoreError> {
        let store = &archive.store;
        let after = consumers.iter().map(ConsumerNeeds::begins_after).min().unwrap_or(END);
        let Some(newest) = store.newest_before(cell, END).await? else { return Ok(None) };
        let days = store.days(cell).await?;
        let mut first = newest.name.first;
        for day in &days {
            // Directories of days may be empty.
            if let Some(object) = store.objects(cell, day).await?.first() {
                first = object.name.first;
                break;
            }
        }
        let objects = store.objects_from(cell, after).await?;
        let span = (first, newest.name.last);
        let mut source = Self { archive, objects: Vec::new(), after, span };
        let mut progress = Progress::new();
        for object in objects {
            progress.tell(|| format!("looking at {}", object.name));
            if source.may_need(&object, consumers).await? {
                source.objects.push(object);
            }
        }
        Ok(Some(source))
    }

    /// Bytes of the objects that are read.
    pub(super) fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum()
    }

    /// Reads the packs, from the first one on.
    pub(super) fn reader(&self) -> ArchiveReader {
        let RestoreArchive { store, keys } = self.archive.clone();
        ArchiveReader::new(store, keys, self.objects.clone(), self.after, END)
    }

    /// False if the object certainly holds nothing that is needed: it ends before every cursor and every floor, and
    /// holds no shop of a lane. While one shop fails for days, most objects are of this kind.
    async fn may_need(
        &self,
        object: &ListedObject,
        consumers: &[ConsumerNeeds],
    ) -> Result<bool, StoreError> {
        if consumers.iter().any(|consumer| consumer.needs_any(object.name.last)) {
            return Ok(true);
        }
        let shops: HashSet<u64> = consumers.iter().flat_map(ConsumerNeeds::shops).copied().collect();
        let tail = self.archive.store.tail(object, &self.archive.keys).await?;
        Ok(tail.index.shops.may_hold(|domain| shops.contains(&lane_hash::of_domain(domain))))
    }
}

impl SourcePack {
    /// Decodes a pack. One that cannot be decoded is restored as it is.
    pub(super) fn of(archived: ArchivedPack) -> Self {
        let pack = Pack::decode(&archived.bytes).ok();
        let facts = pack
            .as_ref()
            .map(|pack| (0..pack.count()).map(|index| facts(&pack.view(index))).collect());
        Self { entry: archived.entry, facts, bytes: archived.bytes, pack }
    }

    /// The pack as it is restored: unchanged, or with those webhooks erased that nobody needs.
    pub(super) fn restored(&self, planned: &PlannedEntry, packer: &mut Packer) -> Vec<u8> {
        match &self.pack {
            Some(pack) if planned.kept.contains(&false) => {
                let is_kept = |index: u32| {
                    usize::try_from(index).is_ok_and(|index| planned.kept.get(index) == Some(&true))
                };
                packer.erase(pack, |index| !is_kept(index)).to_vec()
            }
            _ => self.bytes.to_vec(),
        }
    }
}

fn facts(webhook: &View<'_>) -> LaneFacts {
    LaneFacts {
        lanes: lane_hash::candidates(webhook, webhook.body),
        shop: lane_hash::of_domain(webhook.shop().unwrap_or_default()),
        is_erased: webhook.is_erased(),
    }
}
