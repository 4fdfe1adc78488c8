//! Puts an object: after it, the object is certainly in the archive, durable and intact.

use std::cell::Cell;

use spillway_archive::store::PutOutcome;
use spillway_archive::{ArchiveObject, ArchiveStore, ObjectName, SealedObject, StoreError};
use tokio::time::Instant;

use crate::access::ArchiveAccess;
use crate::overlap;

/// Puts an object, and repeats it until that is confirmed. If an object of its name is damaged and cannot be written
/// over, it gets the next name: the queue would grow otherwise until somebody removes the damaged one.
pub(crate) async fn put(access: &ArchiveAccess, store: &ArchiveStore, object: &SealedObject) {
    let metrics = &access.instance.metrics;
    let began = Instant::now();
    let mut object = object.clone();
    while let Err(next) = put_as_named(access, store, &object).await {
        tracing::error!(
            damaged = %object.name,
            name = %next,
            "a damaged object cannot be written over: its packs are written under another name, and readers take that \
             one; remove the damaged one when the archive allows it"
        );
        metrics.renamed.inc();
        object.name = next;
    }
    metrics.put_seconds.observe(began.elapsed().as_secs_f64());
    metrics.wrote(&object);
    tracing::debug!(name = %object.name, bytes = object.bytes, "an object was written");
}

/// Puts an object under its name, and repeats it until that is confirmed. Returns the next name if the object of this
/// name is damaged and cannot be written over.
///
/// The first attempt may find an object of this name, which a leader before has written. It is read, checked and made
/// durable: the cursor goes only over bytes that are there. In a directory, an attempt that fails may have left
/// anything, so the next one writes over it. A bucket holds an object as a whole or not at all, and may forbid to write
/// over one: each attempt creates it, and what an attempt before has left is read and checked. Without conditional puts,
/// such a bucket denies the attempt after a lost reply.
async fn put_as_named(
    access: &ArchiveAccess,
    store: &ArchiveStore,
    object: &SealedObject,
) -> Result<(), ObjectName> {
    const WHAT: &str = "writing an object";
    const CHECKING: &str = "checking an object that is there already";
    let is_first = Cell::new(true);
    let create = async || {
        access.leased().await;
        let put = store.put(object, may_trust(store.is_directory(), is_first.replace(false))).await;
        let error = match put {
            Err(error @ StoreError::Denied(_)) => error,
            put => return put,
        };
        if store.is_directory() || !is_there(access, store, &object.name).await {
            return Err(error);
        }
        let error = access.failed(&error);
        tracing::warn!(error, name = %object.name, "an object of this name is there already");
        Ok(PutOutcome::Exists)
    };
    if access.until_done(WHAT, create).await == PutOutcome::Written {
        return Ok(());
    }
    let found = overlap::read(access, store, &object.name, CHECKING).await;
    if found.is_some_and(|found| is_same(&found, object)) {
        return Ok(());
    }
    tracing::error!(name = %object.name, "an object of this name is damaged; writing it again");
    let replace = async || {
        access.leased().await;
        match store.put(object, false).await {
            Ok(_) => Ok(Ok(())),
            Err(error) => match name_after(&error, &object.name) {
                Some(next) => {
                    let error = access.failed(&error);
                    tracing::warn!(error, name = %object.name, "writing over a damaged object failed");
                    Ok(Err(next))
                }
                None => Err(error),
            },
        }
    };
    access.until_done(WHAT, replace).await
}

/// True if the archive holds an object of this name, damaged or not.
async fn is_there(access: &ArchiveAccess, store: &ArchiveStore, name: &ObjectName) -> bool {
    let keys = access.instance.settings.keys.ring();
    let read = store.object(name, &keys).await;
    matches!(read, Ok(_) | Err(StoreError::Bad(..) | StoreError::NoKey(..)))
}

/// Name to use after a damaged object could not be written over; `None` if that is to be tried again. An archive that
/// denies everything for a while denies the next name, too, until it takes that.
fn name_after(error: &StoreError, name: &ObjectName) -> Option<ObjectName> {
    name.next_generation().filter(|_| matches!(error, StoreError::Denied(_)))
}

/// True if an attempt to put an object may take one that is there for intact, until it is checked.
const fn may_trust(is_directory: bool, is_first: bool) -> bool {
    is_first || !is_directory
}

/// True if the object that was found holds the same packs. Its key may be another one.
fn is_same(found: &ArchiveObject, object: &SealedObject) -> bool {
    let name = &object.name;
    let index = &found.tail.index;
    found.tail.header.cell == name.cell
        && index.entries() == Some((name.first, name.last))
        && index.tag() == name.tag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_never_asked_to_write_over_an_object_after_a_lost_reply() {
        assert!(may_trust(false, true) && may_trust(false, false));
        assert!(may_trust(true, true), "a leader before may have written it");
        assert!(!may_trust(true, false), "the attempt before may have left anything");
    }
}
