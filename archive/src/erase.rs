//! Erases webhooks from an object: makes another one with the same entries, in which their places are empty.
//!
//! Objects are immutable, so an object from which something is to be erased is replaced: the new one is put and read
//! back before the old one is deleted. An erased webhook keeps its place in its pack, so the ids of the others stay
//! the same, and the object begins and ends with the same entries, so the chain has no gap. The checksum of a pack
//! that has changed is another one, and with it the tag in the object's name.

use std::collections::BTreeSet;

use bytes::Bytes;
use spillway_webhook::pack::{Pack, Packer, View};
use spillway_webhook::{StreamId, WebhookId};

use crate::error::{BadObject, StoreError};
use crate::index::{ObjectIndex, PackRow};
use crate::keys::{KeyRing, NoRandomness};
use crate::name::ObjectName;
use crate::object::{ArchiveObject, ObjectTail};
use crate::store::{ArchiveStore, PutOutcome};
use crate::writer::{ObjectWriter, SealedObject};

/// Webhooks of an object that are to be erased.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeantWebhooks {
    /// Number of the pack in the object, and index of the webhook in it.
    places: BTreeSet<(usize, u32)>,
    /// Packs that cannot be decoded and show what is to be erased.
    pub corrupt: u64,
}

/// Reason why an object was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum EraseError {
    /// The archive failed, or the object cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system gives no random bytes for a key.
    #[error("the new object cannot be encrypted")]
    NoRandomness(#[source] NoRandomness),
    /// The new object is not as it was written. The old one is still there.
    #[error("object {0}: it is not as it was written, so the object that it replaces stays")]
    Unequal(Box<ObjectName>),
}

impl MeantWebhooks {
    /// Looks for webhooks that `is_meant` chooses. Erased ones are left out. `is_shown` looks at packs that cannot be
    /// decoded.
    ///
    /// # Errors
    /// [`BadObject`] if a pack cannot be read.
    pub fn find(
        object: &ArchiveObject,
        mut is_meant: impl FnMut(WebhookId, &View<'_>) -> bool,
        mut is_shown: impl FnMut(&[u8]) -> bool,
    ) -> Result<Self, BadObject> {
        let mut found = Self::default();
        let cell = object.tail.header.cell;
        for (number, row) in object.tail.index.packs.iter().enumerate() {
            let bytes = object.pack(number)?;
            let Ok(pack) = Pack::decode(&bytes) else {
                found.corrupt += u64::from(is_shown(&bytes));
                continue;
            };
            for index in 0..pack.count() {
                let view = pack.view(index);
                let id = WebhookId { cell, entry: row.entry, index };
                if !view.is_erased() && is_meant(id, &view) {
                    found.places.insert((number, index));
                }
            }
        }
        Ok(found)
    }

    /// Number of webhooks that are to be erased.
    pub fn count(&self) -> u64 {
        u64::try_from(self.places.len()).unwrap_or(u64::MAX)
    }

    fn is_in_pack(&self, number: usize) -> bool {
        self.places.range((number, 0)..=(number, u32::MAX)).next().is_some()
    }
}

/// Makes the object without these webhooks. It is encrypted again, with the first key.
///
/// # Errors
/// [`EraseError::Store`] if a pack cannot be read, [`EraseError::NoRandomness`].
pub fn without(
    object: &ArchiveObject,
    name: &ObjectName,
    keys: &KeyRing,
    meant: &MeantWebhooks,
) -> Result<SealedObject, EraseError> {
    let bad = |error| EraseError::Store(StoreError::of_object(name, error));
    let header = &object.tail.header;
    let writer = ObjectWriter::new(header.cell, header.after, keys);
    let mut writer = writer.map_err(EraseError::NoRandomness)?;
    for (number, row) in object.tail.index.packs.iter().enumerate() {
        let bytes = object.pack(number).map_err(bad)?;
        let bytes = match meant.is_in_pack(number) {
            true => erased(&bytes, number, meant).map_err(bad)?,
            false => bytes,
        };
        writer.add(row.entry, bytes);
    }
    writer.finish().ok_or_else(|| bad(BadObject::Malformed("no packs")))
}

/// Pack without the webhooks that are meant. Packers that were used before may compress in another way: each pack
/// has its own, so that the same erasure gives the same bytes.
fn erased(bytes: &[u8], number: usize, meant: &MeantWebhooks) -> Result<Bytes, BadObject> {
    const BAD: BadObject = BadObject::Malformed("a pack that was decoded before");
    let pack = Pack::decode(bytes).map_err(|_| BAD)?;
    let is_meant = |index: u32| meant.places.contains(&(number, index));
    Ok(Bytes::copy_from_slice(Packer::new().erase(&pack, is_meant)))
}

/// Puts the object that replaces `old`, reads it back, and deletes `old`. It may be repeated after a failure at any
/// moment: a new object that is there already is checked and made durable. A bucket may forbid to write over an object,
/// so only one that is damaged is written over, and it gets the next name if that is refused.
///
/// # Errors
/// [`EraseError`]. `old` is still there, or the new object is durable.
pub async fn replace(
    store: &ArchiveStore,
    keys: &KeyRing,
    old: &ObjectName,
    new: &SealedObject,
) -> Result<(), EraseError> {
    if *old == (ObjectName { generation: old.generation, ..new.name }) {
        // Nothing was erased, or two checksums are equal by chance.
        return Err(EraseError::Unequal(Box::new(new.name)));
    }
    let mut new = new.clone();
    while !put_durably(store, keys, &new).await? {
        let next = new.name.next_generation();
        new.name = next.ok_or_else(|| EraseError::Unequal(Box::new(new.name)))?;
    }
    Ok(store.delete(old).await?)
}

/// Puts an object, unless the same one is there. It is durable and was read then. Returns false if the object of its
/// name is damaged and cannot be written over.
async fn put_durably(
    store: &ArchiveStore,
    keys: &KeyRing,
    new: &SealedObject,
) -> Result<bool, EraseError> {
    let put = match store.put(new, true).await {
        // Without conditional puts, a bucket that forbids to write over an object denies that.
        Err(error @ StoreError::Denied(_)) => match read_as_written(store, keys, new).await {
            Ok(_) => PutOutcome::Exists,
            Err(_) => return Err(error.into()),
        },
        put => put?,
    };
    if put == PutOutcome::Exists {
        if let Some(found) = read_as_written(store, keys, new).await? {
            store.make_durable(&new.name, &found).await?;
            return Ok(true);
        }
        match store.put(new, false).await {
            Ok(_) => {}
            Err(StoreError::Denied(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    match read_as_written(store, keys, new).await? {
        Some(_) => Ok(true),
        None => Err(EraseError::Unequal(Box::new(new.name))),
    }
}

/// Object of the name of `new`, if it is intact and has the same entries and packs. Its bytes may be others: each has a
/// key of its own.
async fn read_as_written(
    store: &ArchiveStore,
    keys: &KeyRing,
    new: &SealedObject,
) -> Result<Option<ArchiveObject>, StoreError> {
    let found = match store.object(&new.name, keys).await {
        Ok(found) => found,
        Err(StoreError::Bad(..)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let ObjectTail { header, index, .. } = &found.tail;
    let is_same = is_of_name(index, &new.name) && header.cell == new.name.cell;
    let is_same = is_same && header.after < new.name.first;
    Ok(is_same.then_some(found))
}

/// True if an index is of the object with this name: the tag is a hash of the packs.
fn is_of_name(index: &ObjectIndex, name: &ObjectName) -> bool {
    index.entries() == Some((name.first, name.last))
        && index.webhooks() == name.webhooks
        && index.tag() == name.tag
}

/// True if `new` is `old` without some of its webhooks: an erasure that was cut off leaves both. All others are as they
/// were, so two objects in which a restored Redis gave an id twice are none.
///
/// # Errors
/// [`BadObject`] if a pack cannot be read.
pub fn supersedes(new: &ArchiveObject, old: &ArchiveObject) -> Result<bool, BadObject> {
    let [(head, rows), (old_head, old_rows)] =
        [new, old].map(|object| (&object.tail.header, &object.tail.index.packs));
    let is_same_chain = head.cell == old_head.cell && head.after == old_head.after;
    if !is_same_chain || rows.len() != old_rows.len() {
        return Ok(false);
    }
    let mut is_less = false;
    for (number, (row, old_row)) in rows.iter().zip(old_rows).enumerate() {
        if row.identity() == old_row.identity() {
            continue;
        }
        if row.entry != old_row.entry || !is_erased_from(&new.pack(number)?, &old.pack(number)?) {
            return Ok(false);
        }
        is_less = true;
    }
    Ok(is_less)
}

/// True if a pack is another one in which some places are empty.
fn is_erased_from(new: &[u8], old: &[u8]) -> bool {
    let [Ok(new), Ok(old)] = [new, old].map(Pack::decode) else { return false };
    let is_left = |index: u32| {
        let [new, old] = [&new, &old].map(|pack| pack.view(index));
        let is_same = new.received_at_ms == old.received_at_ms
            && new.target == old.target
            && new.body == old.body
            && new.headers().eq(old.headers());
        is_same || new.is_erased()
    };
    new.count() == old.count() && (0..new.count()).all(is_left)
}

/// Entries that stand in several of these objects with other content: an erasure was cut off before it deleted the
/// old object, or a restored Redis gave an id twice.
pub fn differing_entries(indexes: &[&ObjectIndex]) -> Vec<StreamId> {
    let rows = indexes.iter().flat_map(|index| &index.packs);
    let identities: BTreeSet<_> = rows.map(PackRow::identity).collect();
    let entries: Vec<StreamId> = identities.iter().map(|identity| identity.entry).collect();
    let mut differing: Vec<StreamId> =
        entries.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    differing.dedup();
    differing
}
