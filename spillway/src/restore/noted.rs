//! Redactions that were delivered before the disk was lost and not carried out: they are noted again, from the archive.

use spillway_archive::{ArchiveReader, Checkpoint, StoreError};
use spillway_queue::{Connection, Redis, redactions};
use spillway_webhook::WebhookId;
use spillway_webhook::pack::{Pack, Packer};
use spillway_webhook::redaction::is_redaction;
use spillway_webhook::shopify::Headers;

use super::source::RestoreArchive;
use crate::failure::Failure;

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

    /// Notes those that were found.
    pub(super) async fn write(
        &self,
        redis: &Redis,
        connection: &mut Connection,
    ) -> Result<(), Failure> {
        for (id, pack) in &self.found {
            redactions::note(redis, connection, NOTED_BY, *id, pack).await?;
        }
        Ok(())
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
