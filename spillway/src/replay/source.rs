//! Webhooks of a replay, in the order of the archive.

use std::sync::Arc;

use spillway_archive::keys::KeyRing;
use spillway_archive::{ArchiveReader, ArchiveStore, ListedObject, StoreError};
use spillway_webhook::pack::{Pack, Packer};
use spillway_webhook::{Position, RoutingFacts, StreamId, WebhookId};

use super::lanes::SkippedWebhooks;
use super::spec::ReplaySpec;
use crate::walk::Met;
use crate::walk::cursor::WaitCursor;

/// Reads the webhooks of a replay, from some position on.
pub(super) struct WebhookSource {
    reader: ArchiveReader,
    pack: Option<OpenPack>,
    /// Entry of the last pack, and number of webhooks with this entry so far.
    entry: (StreamId, u32),
    packer: Packer,
    /// Packs that cannot be decoded.
    corrupt: u64,
}

/// A pack whose webhooks are offered.
struct OpenPack {
    pack: Pack,
    entry: StreamId,
    /// Position of its first webhook. It is not 0 if Redis came back with older data and gave an entry twice.
    begin: u32,
    next: u32,
}

/// A webhook of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceWebhook {
    /// Position in the replay: that of the queue, unless two packs have one entry.
    pub position: Position,
    /// Id of the webhook.
    pub id: WebhookId,
    /// Index in the pack.
    pub index: u32,
    /// Domain of the shop.
    pub shop: String,
    /// Memory that it takes.
    pub bytes: usize,
    /// Reason not to feed it, if there is one.
    pub skip: Option<SkipReason>,
}

/// Reason not to feed a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SkipReason {
    /// Another one is meant.
    NotMeant,
    /// The consumer does not deliver it, it still waits there, or it was erased.
    NotForConsumer,
    /// A topic that is replayed only if it is named.
    KeptBack,
    /// Somebody in it is to be forgotten.
    Redacted,
}

impl WebhookSource {
    /// Reads these objects, from the position on.
    pub(super) fn new(
        store: &Arc<ArchiveStore>,
        keys: &Arc<KeyRing>,
        objects: Vec<ListedObject>,
        spec: &ReplaySpec,
        from: Position,
    ) -> Self {
        let after = from.entry().previous().max(spec.after);
        let reader = ArchiveReader::new(store.clone(), keys.clone(), objects, after, spec.through);
        Self { reader, pack: None, entry: (StreamId::ZERO, 0), packer: Packer::new(), corrupt: 0 }
    }

    /// Objects read so far.
    pub(super) fn objects_read(&self) -> u64 {
        self.reader.objects_read()
    }

    /// Packs so far that cannot be decoded. Nothing of them is fed.
    pub(super) fn corrupt(&self) -> u64 {
        self.corrupt
    }

    /// True if the next webhook is in memory.
    pub(super) fn has_next(&self) -> bool {
        self.pack.as_ref().is_some_and(|open| open.next < open.pack.count())
    }

    /// Goes to the next pack. Returns false at the end.
    ///
    /// # Errors
    /// [`StoreError`]. It can be called again.
    pub(super) async fn go_on(&mut self) -> Result<bool, StoreError> {
        while !self.has_next() {
            self.pack = None;
            let Some(archived) = self.reader.next().await? else { return Ok(false) };
            let Ok(pack) = Pack::decode(&archived.bytes) else {
                self.corrupt += 1;
                continue;
            };
            let entry = archived.entry;
            let begin = if self.entry.0 == entry { self.entry.1 } else { 0 };
            self.entry = (entry, begin + pack.count());
            self.pack = Some(OpenPack { pack, entry, begin, next: 0 });
        }
        Ok(true)
    }

    /// Returns the next webhook that is in memory, and goes to the one after it.
    pub(super) fn next(
        &mut self,
        spec: &ReplaySpec,
        skips: &SkippedWebhooks,
    ) -> Option<SourceWebhook> {
        let open = self.pack.as_mut().filter(|open| open.next < open.pack.count())?;
        let index = open.next;
        open.next += 1;
        let view = open.pack.view(index);
        let id = WebhookId { cell: spec.cell, entry: open.entry, index };
        let cursor = WaitCursor::Main(id.entry, id.index);
        let met = Met { id, view, aside: None, cursor };
        let skip = if view.is_erased() {
            Some(SkipReason::NotForConsumer)
        } else if !met.is_meant(&spec.filter) {
            Some(SkipReason::NotMeant)
        } else if spec.keeps_back(met.topic().as_bytes()) {
            Some(SkipReason::KeptBack)
        } else if skips.people.is_meant(Position::new(open.entry, index), &view) {
            Some(SkipReason::Redacted)
        } else {
            let is_for_consumer = skips.filter.matches(&RoutingFacts::of(view.target, &view));
            let waits = skips.waiting.contains(&(open.entry, index));
            (waits || !is_for_consumer).then_some(SkipReason::NotForConsumer)
        };
        Some(SourceWebhook {
            position: Position::new(open.entry, open.begin + index),
            id,
            index,
            shop: met.shop(),
            bytes: open.pack.record_raw_bytes(index),
            skip,
        })
    }

    /// Makes a pack of one webhook: the one that was returned last.
    ///
    /// # Panics
    /// When the next pack was read since then.
    pub(super) fn single_out(&mut self, webhook: &SourceWebhook) -> Vec<u8> {
        let open = self.pack.as_ref().filter(|open| open.entry == webhook.id.entry);
        let open = open.expect("BUG: the pack of the last webhook is in memory");
        self.packer.single_out(&open.pack, webhook.index)
    }
}
