//! Redactions that were delivered before the disk was lost and not carried out: they are noted again, from the archive.

use spillway_archive::{ArchiveReader, Checkpoint, StoreError};
use spillway_queue::rebuild::RebuiltNote;
use spillway_webhook::WebhookId;
use spillway_webhook::pack::{Pack, Packer};
use spillway_webhook::redaction::is_redaction;
use spillway_webhook::shopify::Headers;

use super::source::RestoreArchive;

/// Consumer that a note names: the one that delivered the redaction is not in the checkpoint.
const NOTED_BY: &str = "restored";

/// Redactions of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct RestoredNotes {
    /// Those that the archive holds, each as a pack of one.
    pub found: Vec<(WebhookId, Vec<u8>)>,
    /// Ids of the others.
    pub missing: Vec<String>,
}

impl RestoredNotes {
    /// Looks for the redactions that a checkpoint names.
    pub(super) async fn find(
        archive: &RestoreArchive,
        cell: u32,
        checkpoint: &Checkpoint,
    ) -> Result<Self, StoreError> {
        let mut notes = Self::default();
        let mut packer = Packer::new();
        for name in &checkpoint.redactions {
            let found = match name.parse::<WebhookId>() {
                Ok(id) if id.cell == cell => {
                    find(archive, id, &mut packer).await?.map(|pack| (id, pack))
                }
                _ => None,
            };
            match found {
                Some(found) => notes.found.push(found),
                None => notes.missing.push(name.clone()),
            }
        }
        Ok(notes)
    }

    /// Notes of those that were found, for the restored queue.
    pub(super) fn rebuilt(&self) -> Vec<RebuiltNote> {
        let note = |(id, pack): &(WebhookId, Vec<u8>)| RebuiltNote {
            webhook: *id,
            consumer: NOTED_BY.to_owned(),
            pack: pack.clone(),
        };
        self.found.iter().map(note).collect()
    }
}

/// The redaction as a pack of one; `None` if it is not in the archive.
async fn find(
    archive: &RestoreArchive,
    id: WebhookId,
    packer: &mut Packer,
) -> Result<Option<Vec<u8>>, StoreError> {
    let RestoreArchive { store, keys } = archive.clone();
    let day = spillway_archive::name::day_of(id.entry.ms);
    let mut objects = store.objects(id.cell, &day).await?;
    // An object is in the directory of its day, and lies within it.
    objects.retain(|object| object.name.first <= id.entry && object.name.last >= id.entry);
    let mut reader = ArchiveReader::new(store, keys, objects, id.entry.previous(), id.entry);
    while let Some(archived) = reader.next().await? {
        let Ok(pack) = Pack::decode(&archived.bytes) else { continue };
        if id.index >= pack.count() {
            continue;
        }
        let webhook = pack.view(id.index);
        if webhook.topic().is_some_and(|topic| is_redaction(&topic)) {
            return Ok(Some(packer.single_out(&pack, id.index)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use spillway_webhook::pack::Records;
    use spillway_webhook::{StreamId, Webhook};

    use super::*;
    use crate::testing::TestArchive;

    /// Noon of 2026-01-01.
    const NOON: u64 = 1_767_268_800_000;

    fn webhook(topic: &'static str) -> Webhook {
        let mut headers = http::HeaderMap::new();
        headers.insert("x-shopify-topic", http::HeaderValue::from_static(topic));
        Webhook {
            received_at_ms: NOON,
            target: http::uri::PathAndQuery::from_static("/webhooks"),
            headers,
            body: "{}".into(),
        }
    }

    #[tokio::test]
    async fn a_redaction_is_found_in_the_archive_and_what_is_none_is_missing() {
        let archived = TestArchive::new();
        let entry = StreamId { ms: NOON, seq: 1 };
        let mut records = Records::default();
        for topic in ["orders/create", "shop/redact"] {
            records.push(&webhook(topic));
        }
        let pack = Packer::new().pack(&records).to_vec().into();
        archived.put(7, StreamId::ZERO, vec![(entry, pack)]).await;
        let id = |index| WebhookId { cell: 7, entry, index }.to_string();
        let mut checkpoint = Checkpoint::new(7, NOON, Vec::new());
        checkpoint.redactions = vec![id(1), id(0), id(2), "nonsense".to_owned()];
        let store = Arc::new(archived.open());
        let archive = RestoreArchive { store, keys: archived.keys.clone() };
        let notes = RestoredNotes::find(&archive, 7, &checkpoint).await.expect("it is read");
        assert_eq!(notes.missing, [id(0), id(2), "nonsense".to_owned()]);
        assert_eq!(notes.found.len(), 1);
        let (found, pack) = &notes.found[0];
        assert_eq!(found.to_string(), id(1));
        assert_eq!(Pack::decode(pack).expect("a pack").count(), 1);
    }
}
