//! Packs of the archive that a restoration needs, and the facts by which they are planned.

use std::collections::HashSet;
use std::sync::Arc;

use spillway_archive::chain::{ChainCheck, MissingEntries, groups};
use spillway_archive::keys::KeyRing;
use spillway_archive::reader::{ArchiveReader, ArchivedPack};
use spillway_archive::{ArchiveStore, ListedObject, ObjectTail, StoreError};
use spillway_process::error;
use spillway_webhook::pack::{Pack, Packer, View};
use spillway_webhook::shopify::Headers;
use spillway_webhook::{StreamId, lane_hash};

use super::plan::{ConsumerNeeds, LaneFacts, PlannedEntry};
use crate::out::{Progress, printable};

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
    /// Entry before the first one, when that was archived. Older ones may have been deleted since.
    pub begins_after: StreamId,
    /// Entries that consumers may need and that are in no object.
    pub gaps: Vec<MissingEntries>,
    /// Object with the newest entry.
    pub newest: ListedObject,
}

/// Reads packs: each once, without anything that is erased in any object that holds it.
pub(super) struct SourceReader {
    reader: ArchiveReader,
}

/// A pack of the archive.
pub(super) struct SourcePack {
    /// Entry that it was in.
    pub entry: StreamId,
    /// One for each webhook; `None` if the pack cannot be decoded.
    pub facts: Option<Vec<LaneFacts>>,
    bytes: bytes::Bytes,
    /// The same, decoded.
    pub pack: Option<Pack>,
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
        let mut oldest = newest;
        for day in &days {
            // Directories of days may be empty.
            if let Some(object) = store.objects(cell, day).await?.first() {
                oldest = *object;
                break;
            }
        }
        // Nothing of the oldest object may be needed, so its key may be gone.
        let begins_after = match store.tail(&oldest, &archive.keys).await {
            Ok(tail) => tail.header.after,
            Err(StoreError::NoKey(..) | StoreError::Bad(..)) => oldest.name.first.previous(),
            Err(error) => return Err(error),
        };
        let objects = store.objects_from(cell, after).await?;
        let mut chain = ChainCheck::default();
        if let Some(before) = store.newest_before(cell, after).await? {
            chain.add(StreamId::ZERO, before.name.last);
        }
        let mut source = Self {
            archive,
            objects: Vec::new(),
            after,
            span: (oldest.name.first, newest.name.last),
            begins_after,
            gaps: Vec::new(),
            newest,
        };
        let mut progress = Progress::new();
        for group in groups(objects) {
            progress.tell(|| {
                let first = group.first().map(|object| object.name.to_string());
                format!("looking at {}", first.unwrap_or_default())
            });
            source.look_at(group, &mut chain, consumers).await?;
        }
        Ok(Some(source))
    }

    /// Looks at the next objects, which overlap: for gaps, and if one of them may be needed. Then all are read: one may
    /// be the other with erased webhooks. One that is damaged is left out; its packs may lie in the others.
    async fn look_at(
        &mut self,
        group: Vec<ListedObject>,
        chain: &mut ChainCheck,
        consumers: &[ConsumerNeeds],
    ) -> Result<(), StoreError> {
        let mut readable: Vec<ListedObject> = Vec::new();
        let mut damaged = Vec::new();
        let mut is_needed = false;
        for object in group {
            let tail = match self.archive.store.tail(&object, &self.archive.keys).await {
                Ok(tail) => tail,
                Err(problem @ StoreError::Bad(..)) => {
                    eprintln!("spillway: {}", printable(error::chain(&problem).as_bytes()));
                    damaged.push(object.name);
                    continue;
                }
                Err(problem) => return Err(problem),
            };
            let gap = chain.add(tail.header.after, object.name.last);
            self.gaps.extend(gap.filter(|gap| gap.through > self.after));
            is_needed |= may_need(&object, &tail, consumers);
            readable.push(object);
        }
        for name in damaged {
            let begins_before = readable.iter().any(|object| object.name.first <= name.first);
            let ends_after = readable.iter().any(|object| object.name.last >= name.last);
            if !(begins_before && ends_after) && name.last > self.after {
                let after = name.first.previous();
                self.gaps.push(MissingEntries { after, through: name.last });
            }
        }
        if is_needed {
            self.objects.extend(readable);
        }
        Ok(())
    }

    /// True if the newest object is another one by now.
    pub(super) async fn grew_meanwhile(&self) -> Result<bool, StoreError> {
        let newest = self.archive.store.newest_before(self.newest.name.cell, END).await?;
        Ok(newest != Some(self.newest))
    }

    /// Bytes of the objects that are read.
    pub(super) fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum()
    }

    /// Reads the packs, from the first one on.
    pub(super) fn reader(&self) -> SourceReader {
        let RestoreArchive { store, keys } = self.archive.clone();
        let reader = ArchiveReader::new(store, keys, self.objects.clone(), self.after, END);
        SourceReader { reader }
    }
}

impl SourceReader {
    /// Returns the next pack; `None` at the end.
    ///
    /// # Errors
    /// As [`ArchiveReader::next`].
    pub(super) async fn next(&mut self) -> Result<Option<SourcePack>, StoreError> {
        Ok(self.reader.next().await?.map(SourcePack::of))
    }
}

/// False if the object certainly holds nothing that is needed: it ends before every cursor and every floor, and holds
/// no shop of a lane. While one shop fails for days, most objects are of this kind.
fn may_need(object: &ListedObject, tail: &ObjectTail, consumers: &[ConsumerNeeds]) -> bool {
    if consumers.iter().any(|consumer| consumer.needs_any(object.name.last)) {
        return true;
    }
    let shops: HashSet<u64> = consumers.iter().flat_map(ConsumerNeeds::shops).copied().collect();
    tail.index.shops.may_hold(|domain| shops.contains(&lane_hash::of_domain(domain)))
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

#[cfg(test)]
mod tests {
    use spillway_webhook::Webhook;
    use spillway_webhook::pack::Records;

    use super::*;
    use crate::testing::TestArchive;

    fn source(bytes: &[u8]) -> SourcePack {
        let entry = StreamId { ms: 5, seq: 0 };
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        SourcePack::of(ArchivedPack { entry, is_corrupt: false, bytes })
    }

    fn pack(bodies: &[&'static str]) -> SourcePack {
        let mut records = Records::default();
        for body in bodies {
            let target = http::uri::PathAndQuery::from_static("/webhooks");
            let headers = http::HeaderMap::new();
            records.push(&Webhook { received_at_ms: 7, target, headers, body: (*body).into() });
        }
        source(Packer::new().pack(&records))
    }

    fn opened(archived: &TestArchive) -> RestoreArchive {
        RestoreArchive { store: Arc::new(archived.open()), keys: archived.keys.clone() }
    }

    fn erased(pack: &SourcePack, index: u32) -> SourcePack {
        let pack = pack.pack.as_ref().expect("a pack");
        source(Packer::new().erase(pack, |at| at == index))
    }

    #[tokio::test]
    async fn gaps_count_where_a_consumer_needs_something() {
        let id = |seq| StreamId { ms: 1_767_268_800_000, seq };
        let archived = TestArchive::new();
        for (after, entry) in [(StreamId::ZERO, id(3)), (id(5), id(9))] {
            archived.put(7, after, vec![(entry, pack(&["a"]).bytes)]).await;
        }
        let gap = MissingEntries { after: id(3), through: id(5) };
        let needed = [(StreamId::ZERO, vec![gap]), (id(4), vec![gap]), (id(5), vec![])];
        for (cursor, gaps) in needed {
            let archive = opened(&archived);
            let needs = [ConsumerNeeds::after("http", None, cursor)];
            let found = ArchiveSource::find(archive, 7, &needs).await.expect("it is read");
            let source = found.expect("objects");
            assert_eq!(source.gaps, gaps, "from {cursor} on");
            assert_eq!((source.span, source.begins_after), ((id(3), id(9)), StreamId::ZERO));
            assert!(!source.grew_meanwhile().await.expect("it is listed"));
        }
    }

    #[tokio::test]
    async fn a_damaged_object_is_a_gap_unless_others_hold_its_entries() {
        let id = |seq| StreamId { ms: 1_767_268_800_000, seq };
        let archived = TestArchive::new();
        let put = async |after: StreamId, entries: &[StreamId]| {
            let packs = entries.iter().map(|entry| (*entry, pack(&["a"]).bytes));
            let name = archived.put(7, after, packs.collect()).await;
            archived.path().join(name.to_string())
        };
        let bad = put(StreamId::ZERO, &[id(3)]).await;
        put(id(3), &[id(9)]).await;
        std::fs::write(bad, "half of it").expect("damage it");
        let found = async || {
            let archive = opened(&archived);
            let needs = [ConsumerNeeds::after("http", None, StreamId::ZERO)];
            let found = ArchiveSource::find(archive, 7, &needs).await.expect("it is read");
            found.expect("objects")
        };
        let source = found().await;
        let gap = MissingEntries { after: id(2), through: id(3) };
        assert!(source.gaps.contains(&gap), "{:?}", source.gaps);
        assert_eq!(source.objects.len(), 1);
        put(StreamId::ZERO, &[id(1), id(3), id(5)]).await;
        let source = found().await;
        assert_eq!((source.gaps.len(), source.objects.len()), (0, 2));
    }

    #[tokio::test]
    async fn what_is_erased_in_either_of_two_objects_is_not_restored() {
        let id = |seq| StreamId { ms: 1_767_268_800_000, seq };
        let archived = TestArchive::new();
        let whole = || pack(&["a", "bb", "ccc"]);
        // Two purges were cut off, or two objects overlap that were purged one after the other.
        let objects = [
            vec![(id(3), whole())],
            vec![(id(3), erased(&whole(), 0))],
            vec![(id(3), erased(&whole(), 2)), (id(4), whole())],
        ];
        for packs in objects {
            let packs = packs.into_iter().map(|(entry, pack)| (entry, pack.bytes));
            archived.put(7, StreamId::ZERO, packs.collect()).await;
        }
        let archive = opened(&archived);
        let needs = [ConsumerNeeds::after("http", None, StreamId::ZERO)];
        let found = ArchiveSource::find(archive, 7, &needs).await.expect("it is read");
        let mut reader = found.expect("objects").reader();
        let mut restored = Vec::new();
        while let Some(found) = reader.next().await.expect("sound objects") {
            let facts = found.facts.expect("it can be decoded");
            restored.push((found.entry, facts.iter().map(|one| one.is_erased).collect::<Vec<_>>()));
        }
        assert_eq!(restored, [(id(3), vec![true, false, true]), (id(4), vec![false; 3])]);
    }
}
