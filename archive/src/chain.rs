//! Objects as a chain: each names the entry before its first one, so that a gap is found.
//!
//! Objects may overlap: a leader that lost its lease may still write one, and Redis may come back with older
//! data. A pack is the same in two objects if entry, length and checksum are. So each pack is read once, and
//! after a restored Redis gave an id twice, both packs are.

use std::collections::{BTreeMap, HashMap};

use spillway_webhook::StreamId;

use crate::index::{ObjectIndex, PackIdentity};
use crate::name::{ListedObject, ObjectName};

/// Entries that are in no object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingEntries {
    /// Last entry before the gap that is in an object.
    pub after: StreamId,
    /// Entry up to which entries are missing: the next object begins right after it.
    pub through: StreamId,
}

/// Place of a pack: number of the object, number of the pack in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackPlace {
    /// Number of the object.
    pub object: usize,
    /// Number of the pack in the object.
    pub pack: usize,
}

/// Finds gaps between objects that are looked at in the order of their names.
#[derive(Debug, Default)]
pub struct ChainCheck {
    covered: Option<StreamId>,
}

impl ChainCheck {
    /// Looks at the next object, which begins after the entry `after` and ends with `last`. Returns the gap
    /// before it, if there is one. The first object has none: older ones may have been deleted.
    pub fn add(&mut self, after: StreamId, last: StreamId) -> Option<MissingEntries> {
        let covered =
            self.covered.replace(self.covered.map_or(last, |covered| covered.max(last)))?;
        (after > covered).then_some(MissingEntries { after: covered, through: after })
    }
}

/// Sorts objects, and divides them into groups: objects of different groups have no entries in common.
pub fn groups(mut objects: Vec<ListedObject>) -> Vec<Vec<ListedObject>> {
    objects.sort_unstable();
    let mut groups: Vec<Vec<ListedObject>> = Vec::new();
    let mut covered: Option<StreamId> = None;
    for object in objects {
        let ObjectName { first, last, .. } = object.name;
        match groups.last_mut() {
            Some(group) if covered >= Some(first) => group.push(object),
            _ => groups.push(vec![object]),
        }
        covered = covered.max(Some(last));
    }
    groups
}

/// Packs of these objects: each once, in the order of the stream.
pub fn distinct_packs(indexes: &[&ObjectIndex]) -> Vec<PackPlace> {
    let mut places: BTreeMap<PackIdentity, PackPlace> = BTreeMap::new();
    for (object, index) in indexes.iter().enumerate() {
        for (pack, row) in index.packs.iter().enumerate() {
            places.entry(row.identity()).or_insert(PackPlace { object, pack });
        }
    }
    places.into_values().collect()
}

/// Numbers of the objects, each given by its packs, whose packs are all in others that stay. The smallest ones
/// go first.
pub fn redundant_objects(objects: &[Vec<PackIdentity>]) -> Vec<usize> {
    let mut copies: HashMap<PackIdentity, u32> = HashMap::new();
    for pack in objects.iter().flatten() {
        *copies.entry(*pack).or_default() += 1;
    }
    let mut by_size: Vec<usize> = (0..objects.len()).collect();
    by_size.sort_by_key(|number| objects[*number].len());
    let mut redundant = Vec::new();
    for number in by_size {
        let packs = &objects[number];
        if packs.iter().all(|pack| copies.get(pack).is_some_and(|count| *count > 1)) {
            for pack in packs {
                copies.entry(*pack).and_modify(|count| *count -= 1);
            }
            redundant.push(number);
        }
    }
    redundant.sort_unstable();
    redundant
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bloom::BloomFilter;
    use crate::index::{LabelCounts, PackRow};

    const fn id(ms: u64) -> StreamId {
        StreamId { ms, seq: 0 }
    }

    fn object(first: u64, last: u64) -> ListedObject {
        let name = ObjectName {
            cell: 1,
            first: id(first),
            last: id(last),
            webhooks: 1,
            tag: 0,
            generation: 0,
        };
        ListedObject { name, bytes: 100, written_ms: 0 }
    }

    /// Index of packs, each given by its entry and its checksum.
    fn index(packs: &[(u64, u32)]) -> ObjectIndex {
        let row = |(ms, crc32): &(u64, u32)| PackRow {
            entry: id(*ms),
            bytes: 10,
            webhooks: 1,
            is_corrupt: false,
            crc32: *crc32,
        };
        ObjectIndex {
            received_ms: Some((1, 2)),
            packs: packs.iter().map(row).collect(),
            shops: LabelCounts::default(),
            topics: LabelCounts::default(),
            webhook_ids: BloomFilter::of(&[]),
            resources: BloomFilter::of(&[]),
        }
    }

    #[test]
    fn a_gap_is_found_and_an_overlap_is_none() {
        let mut check = ChainCheck::default();
        assert_eq!(check.add(id(4), id(9)), None, "the first one");
        assert_eq!(check.add(id(9), id(12)), None);
        assert_eq!(check.add(id(9), id(10)), None, "a late one");
        assert_eq!(check.add(id(11), id(20)), None);
        let gap = MissingEntries { after: id(20), through: id(21) };
        assert_eq!(check.add(id(21), id(30)), Some(gap));
        assert_eq!(check.add(id(30), id(40)), None);
    }

    #[test]
    fn objects_that_overlap_are_one_group() {
        let objects =
            vec![object(30, 40), object(1, 9), object(10, 20), object(15, 18), object(20, 25)];
        let groups = groups(objects);
        let expected = [
            vec![object(1, 9)],
            vec![object(10, 20), object(15, 18), object(20, 25)],
            vec![object(30, 40)],
        ];
        assert_eq!(groups, expected);
    }

    #[test]
    fn each_pack_is_read_once_and_two_with_one_id_are_both() {
        let (one, other) = (index(&[(1, 7), (2, 7), (3, 7)]), index(&[(2, 7), (3, 8), (4, 7)]));
        let found: Vec<_> = distinct_packs(&[&one, &other])
            .into_iter()
            .map(|place| [&one, &other][place.object].packs[place.pack])
            .map(|row| (row.entry.ms, row.crc32))
            .collect();
        assert_eq!(found, [(1, 7), (2, 7), (3, 7), (3, 8), (4, 7)]);
    }

    #[test]
    fn only_an_object_that_lies_within_others_is_redundant() {
        let of = |packs: &[(u64, u32)]| -> Vec<PackIdentity> {
            index(packs).packs.iter().map(PackRow::identity).collect()
        };
        let late = of(&[(2, 7), (3, 7)]);
        let first = of(&[(1, 7), (2, 7)]);
        let second = of(&[(3, 7), (4, 7), (5, 7)]);
        let redundant = |objects: &[&Vec<PackIdentity>]| {
            redundant_objects(&objects.iter().map(|packs| (*packs).clone()).collect::<Vec<_>>())
        };
        assert_eq!(redundant(&[&first, &late, &second]), [1]);
        assert_eq!(redundant(&[&late, &second]), [0; 0]);
        let other_content = of(&[(2, 7), (3, 9)]);
        assert_eq!(redundant(&[&first, &other_content, &second]), [0; 0]);
        let twice = of(&[(1, 7), (2, 7)]);
        assert_eq!(redundant(&[&first, &twice]).len(), 1, "one of two stays");
    }
}
