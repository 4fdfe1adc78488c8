//! Deletes objects whose packs are all in others: what a leader wrote that had lost its lease.

use std::time::Duration;

use spillway_archive::chain::{groups, redundant_objects};
use spillway_archive::index::ObjectIndex;
use spillway_archive::{ArchiveStore, ListedObject};
use spillway_process::error::chain;
use spillway_queue::leader::boottime;

use crate::access::ArchiveAccess;
use crate::overlap;

/// Age of the objects that are looked at. Two instances that look at the same time, one of them without knowing
/// that it lost its lease, must see the same ones: otherwise each could delete what the other one keeps.
const SETTLED_AFTER: Duration = Duration::from_secs(600);
/// Most groups that a start looks at. Each object of a group is read.
const GROUPS_MAX: usize = 16;

/// Deletes objects that lie within others, and returns the rest.
pub(crate) async fn clean(
    access: &ArchiveAccess,
    store: &ArchiveStore,
    objects: Vec<ListedObject>,
) -> Vec<ListedObject> {
    let now_ms = access.leader.now_ms();
    let age_ms = u64::try_from(SETTLED_AFTER.as_millis()).unwrap_or(u64::MAX);
    let is_settled = |object: &ListedObject| object.name.last.ms.saturating_add(age_ms) < now_ms;
    let mut left = Vec::with_capacity(objects.len());
    let mut looked_at = 0;
    for group in groups(objects) {
        let is_meant = group.len() > 1 && looked_at < GROUPS_MAX && group.iter().all(is_settled);
        looked_at += usize::from(is_meant);
        let deleted =
            if is_meant { delete_redundant(access, store, &group).await } else { Vec::new() };
        left.extend(group.into_iter().filter(|object| !deleted.contains(object)));
    }
    left
}

async fn delete_redundant(
    access: &ArchiveAccess,
    store: &ArchiveStore,
    group: &[ListedObject],
) -> Vec<ListedObject> {
    // What cannot be read makes no other object redundant, and is left to the operator. Only the indexes are
    // kept, after all bytes were checked.
    let mut intact: Vec<(ListedObject, ObjectIndex)> = Vec::new();
    for object in group {
        let found = overlap::read(access, store, &object.name).await;
        intact.extend(found.map(|found| (*object, found.tail.index)));
    }
    let indexes: Vec<&ObjectIndex> = intact.iter().map(|(_, index)| index).collect();
    let mut deleted = Vec::new();
    for number in redundant_objects(&indexes) {
        let object = intact[number].0;
        if !access.leader.holds(boottime()) {
            break;
        }
        match store.delete(&object.name).await {
            Ok(()) => {
                tracing::info!(name = %object.name, "deleted an object that lies within others");
                access.instance.metrics.deleted.with_label_values(&["redundant"]).inc();
                deleted.push(object);
            }
            // It stays, and readers leave it out.
            Err(error) => {
                tracing::warn!(error = chain(&error), name = %object.name, "a redundant object stays");
            }
        }
    }
    deleted
}
