//! Puts an object: after it, the object is certainly in the archive, durable and intact.

use std::cell::Cell;

use spillway_archive::store::PutOutcome;
use spillway_archive::{ArchiveObject, ArchiveStore, SealedObject};
use tokio::time::Instant;

use crate::access::ArchiveAccess;
use crate::overlap;

/// Puts an object, and repeats it until that is confirmed.
///
/// The first attempt may find an object of this name, which a leader before has written. It is read, checked and made
/// durable: the cursor goes only over bytes that are there. In a directory, an attempt that fails may have left
/// anything, so the next one writes over it. A bucket holds an object as a whole or not at all, and may forbid to write
/// over one: each attempt creates it, and what an attempt before has left is read and checked.
pub(crate) async fn put(access: &ArchiveAccess, store: &ArchiveStore, object: &SealedObject) {
    const WHAT: &str = "writing an object";
    const CHECKING: &str = "checking an object that is there already";
    let metrics = &access.instance.metrics;
    let began = Instant::now();
    let is_first = Cell::new(true);
    let create = async || {
        access.leased().await;
        store.put(object, may_trust(store.is_directory(), is_first.replace(false))).await
    };
    let outcome = access.until_done(WHAT, create).await;
    if outcome == PutOutcome::Exists {
        let found = overlap::read(access, store, &object.name, CHECKING).await;
        if !found.is_some_and(|found| is_same(&found, object)) {
            tracing::error!(name = %object.name, "an object of this name is damaged; writing it again");
            let replace = async || {
                access.leased().await;
                store.put(object, false).await
            };
            access.until_done(WHAT, replace).await;
        }
    }
    metrics.put_seconds.observe(began.elapsed().as_secs_f64());
    metrics.wrote(object);
    tracing::debug!(name = %object.name, bytes = object.bytes, "an object was written");
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
