//! Deletes objects whose packs are all in others: what a leader wrote that had lost its lease, and what a purge replaced
//! that was cut off before it deleted the old object.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use spillway_archive::chain::{groups, redundant_objects};
use spillway_archive::index::{PackIdentity, PackRow};
use spillway_archive::{ArchiveStore, ListedObject, ObjectName, StoreError, erase};
use spillway_webhook::StreamId;

use crate::access::ArchiveAccess;
use crate::overlap;

/// Age of the objects that are looked at, by their entries and by their writes. Two instances that look at the
/// same time, one of them without knowing that it lost its lease, must decide the same: otherwise each could
/// delete what the other one keeps. So both look at whole groups only. A late write gives an object old entries, and a
/// new time.
const SETTLED_AFTER: Duration = Duration::from_secs(600);
/// Time after the first entry that is looked at. A group that begins in it may have objects before that were not
/// listed.
const BEGIN_MARGIN: Duration = Duration::from_secs(600);
/// Most objects that a start looks at. Those that stay for deleted ones are read twice, so it reads less than 128: 4 GiB
/// of those of the default size.
const OBJECTS_MAX: usize = 64;

/// Deletes objects that lie within others, once. Runs beside archiving, which it does not delay: what is deleted is
/// in objects that stay. `objects` are those that end at `from` or later. A group that fails stays until the next
/// start: readers know that packs are in several objects.
pub(crate) async fn clean(
    access: Arc<ArchiveAccess>,
    store: Arc<ArchiveStore>,
    objects: Vec<ListedObject>,
    from: StreamId,
) {
    let now_ms = access.leader.now_ms();
    for group in chosen(groups(objects), from, now_ms) {
        let first = group.first().map(|object| object.name.to_string());
        let cleaned = async {
            let group = delete_superseded(&access, &store, group).await?;
            delete_redundant(&access, &store, &group).await
        };
        if let Err(error) = cleaned.await {
            let error = access.failed(&error);
            tracing::warn!(error, first, "objects that overlap stay until the next start");
        }
    }
}

/// Groups to look at: whole ones of several objects, all of them old, and not too many.
fn chosen(groups: Vec<Vec<ListedObject>>, from: StreamId, now_ms: u64) -> Vec<Vec<ListedObject>> {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let begin_ms = from.ms.saturating_add(milliseconds(BEGIN_MARGIN));
    let is_settled = |object: &ListedObject| {
        let newest_ms = object.name.last.ms.max(object.written_ms);
        newest_ms.saturating_add(milliseconds(SETTLED_AFTER)) < now_ms
    };
    let is_whole = |group: &Vec<ListedObject>| {
        group.iter().all(|object| object.name.first.ms > begin_ms && is_settled(object))
    };
    let mut left = OBJECTS_MAX;
    let mut chosen = Vec::new();
    for group in groups.into_iter().filter(is_whole) {
        if (2..=left).contains(&group.len()) {
            left -= group.len();
            chosen.push(group);
        }
    }
    chosen
}

/// Deletes objects of a group that another one replaces without some of their webhooks. Returns those that stay.
async fn delete_superseded(
    access: &ArchiveAccess,
    store: &ArchiveStore,
    mut group: Vec<ListedObject>,
) -> Result<Vec<ListedObject>, StoreError> {
    let keys = access.instance.settings.keys.ring();
    for (new, old) in twins(&group) {
        let Some(found) = readable(store.object(&new, &keys).await)? else { continue };
        let Some(before) = readable(store.object(&old, &keys).await)? else { continue };
        if !erase::supersedes(&found, &before).unwrap_or(false) {
            continue;
        }
        overlap::durable(access, store, &new, &keys).await?;
        access.leased().await;
        store.delete(&old).await?;
        tracing::info!(name = %old, "deleted an object that a purge has replaced");
        access.instance.metrics.deleted.with_label_values(&["redundant"]).inc();
        group.retain(|object| object.name != old);
    }
    Ok(group)
}

/// Pairs of objects that differ in nothing but their tags, in both orders.
fn twins(group: &[ListedObject]) -> Vec<(ObjectName, ObjectName)> {
    let names = group.iter().map(|object| object.name);
    let pairs = names.clone().flat_map(|one| names.clone().map(move |other| (one, other)));
    let is_twin = |(one, other): &(ObjectName, ObjectName)| {
        let ObjectName { tag, generation, .. } = *other;
        one.tag != tag && ObjectName { tag, generation, ..*one } == *other
    };
    pairs.filter(is_twin).collect()
}

/// Object that was read; `None` for one that is left to the operator, or is gone.
fn readable<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(StoreError::Bad(..) | StoreError::NoKey(..) | StoreError::Missing(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes the redundant ones of a group. Before that, those that stay for them are checked and made durable. A group
/// with an object that cannot be read is left as it is: another instance may decide otherwise about it.
async fn delete_redundant(
    access: &ArchiveAccess,
    store: &ArchiveStore,
    group: &[ListedObject],
) -> Result<(), StoreError> {
    let mut packs: Vec<Vec<PackIdentity>> = Vec::new();
    let keys = access.instance.settings.keys.ring();
    for object in group {
        let found = store.object(&object.name, &keys).await?;
        packs.push(found.tail.index.packs.iter().map(PackRow::identity).collect());
    }
    let redundant = redundant_objects(&packs);
    for number in keepers(&packs, &redundant) {
        overlap::durable(access, store, &group[number].name, &keys).await?;
    }
    for number in redundant {
        let object = group[number];
        access.leased().await;
        store.delete(&object.name).await?;
        tracing::info!(name = %object.name, "deleted an object that lies within others");
        access.instance.metrics.deleted.with_label_values(&["redundant"]).inc();
    }
    Ok(())
}

/// Numbers of the objects that stay and hold packs of those that are redundant.
fn keepers(packs: &[Vec<PackIdentity>], redundant: &[usize]) -> Vec<usize> {
    let deleted: HashSet<PackIdentity> =
        redundant.iter().flat_map(|number| packs[*number].iter().copied()).collect();
    let is_keeper = |number: &usize| {
        !redundant.contains(number) && packs[*number].iter().any(|pack| deleted.contains(pack))
    };
    (0..packs.len()).filter(is_keeper).collect()
}

#[cfg(test)]
mod tests {

    use super::*;

    const NOW_MS: u64 = 10_000_000;
    /// Entry of the objects.
    const FIRST_MS: u64 = 1_000_000;

    fn object(tag: u32, written_ms: u64) -> ListedObject {
        let id = |ms| StreamId { ms, seq: 0 };
        let name = ObjectName {
            cell: 1,
            first: id(FIRST_MS),
            last: id(FIRST_MS + 9),
            webhooks: 1,
            tag,
            generation: 0,
        };
        ListedObject { name, bytes: 100, written_ms }
    }

    #[test]
    fn only_objects_that_were_written_long_ago_are_looked_at() {
        let old = vec![object(1, 10), object(2, 10)];
        assert_eq!(chosen(vec![old.clone()], StreamId::ZERO, NOW_MS), [old]);
        let late = vec![object(1, 10), object(2, NOW_MS - 1_000)];
        assert!(
            chosen(vec![late], StreamId::ZERO, NOW_MS).is_empty(),
            "old entries, written just now"
        );
        let alone = chosen(vec![vec![object(1, 10)]], StreamId::ZERO, NOW_MS);
        assert!(alone.is_empty(), "nothing overlaps");
    }

    #[test]
    fn a_group_that_may_begin_before_what_is_listed_is_left_out() {
        let group = vec![object(1, 10), object(2, 10)];
        let chosen_from = |ms| chosen(vec![group.clone()], StreamId { ms, seq: 0 }, NOW_MS).len();
        assert_eq!(chosen_from(FIRST_MS - 599_000), 0);
        assert_eq!(chosen_from(FIRST_MS - 601_000), 1);
    }

    #[test]
    fn only_objects_that_differ_in_their_tags_may_be_an_erasure() {
        let [one, other] = [object(1, 10), object(2, 20)];
        let mut longer = object(3, 10);
        longer.name.last.ms += 1;
        let expected = [(one.name, other.name), (other.name, one.name)];
        assert_eq!(twins(&[one, other, longer]), expected);
        let mut successor = other;
        successor.name.generation = 1;
        assert_eq!(twins(&[one, successor, longer]).len(), 2, "of a damaged object");
        assert!(twins(&[one]).is_empty());
    }

    #[test]
    fn what_stays_for_a_deleted_object_is_made_durable_and_nothing_else() {
        let of = |entries: &[u64]| -> Vec<PackIdentity> {
            let pack = |ms| PackIdentity { entry: StreamId { ms, seq: 0 }, bytes: 1, crc32: 1 };
            entries.iter().copied().map(pack).collect()
        };
        let packs = [of(&[1, 2]), of(&[2, 3]), of(&[3, 4, 5]), of(&[6, 7])];
        let redundant = redundant_objects(&packs);
        assert_eq!(redundant, [1]);
        assert_eq!(keepers(&packs, &redundant), [0, 2]);
        assert_eq!(keepers(&packs, &[]), [0; 0], "nothing is written without need");
    }

    #[test]
    fn a_start_looks_at_a_bounded_number_of_objects() {
        let group = |objects| (0..objects).map(|tag| object(tag, 10)).collect::<Vec<_>>();
        let groups = vec![group(50), group(15), group(14), group(2)];
        let chosen = chosen(groups, StreamId::ZERO, NOW_MS);
        assert_eq!(chosen.iter().map(Vec::len).collect::<Vec<_>>(), [50, 14], "whole groups");
    }
}
