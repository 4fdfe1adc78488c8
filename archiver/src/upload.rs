//! Puts an object: after it, the object is certainly in the archive, durable and intact.

use spillway_archive::store::PutOutcome;
use spillway_archive::{ArchiveObject, ArchiveStore, SealedObject};
use tokio::time::Instant;

use crate::access::ArchiveAccess;
use crate::overlap;

/// Puts an object, and repeats it until that is confirmed.
///
/// An attempt that seems to fail may be applied all the same. The next one finds an object of this name then,
/// which a leader before may have written too. It is read and checked: the cursor goes only over bytes that are
/// there.
pub(crate) async fn put(access: &ArchiveAccess, store: &ArchiveStore, object: &SealedObject) {
    const WHAT: &str = "writing an object";
    let metrics = &access.instance.metrics;
    let began = Instant::now();
    let outcome = access.until_done(WHAT, async || store.put(object, true).await).await;
    if outcome == PutOutcome::Exists {
        let found = overlap::read(access, store, &object.name).await;
        if !found.is_some_and(|found| is_same(&found, object)) {
            tracing::error!(name = %object.name, "an object of this name is damaged; writing it again");
            access.until_done(WHAT, async || store.put(object, false).await).await;
        }
    }
    metrics.put_seconds.observe(began.elapsed().as_secs_f64());
    metrics.wrote(object);
    tracing::debug!(name = %object.name, bytes = object.bytes, "an object was written");
}

/// True if the object that was found holds the same packs. Its key may be another one.
fn is_same(found: &ArchiveObject, object: &SealedObject) -> bool {
    let name = &object.name;
    let index = &found.tail.index;
    found.tail.header.cell == name.cell
        && index.entries() == Some((name.first, name.last))
        && index.tag() == name.tag
}
