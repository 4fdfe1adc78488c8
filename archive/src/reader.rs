//! Reads the packs of a range of entries: each once, in the order of the stream.
//!
//! Objects that overlap form a group, whose indexes are read first. A pack that is in several of them is read from
//! one. Memory is bounded by one object, and the indexes of one group.
//!
//! An erasure that was cut off leaves an object and the one that replaces it. Packs of one entry that differ only in
//! erased places are given as one, without anything that is erased in either.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use spillway_webhook::StreamId;
use spillway_webhook::pack::{Pack, Packer};

use crate::chain::{PackPlace, distinct_packs, groups};
use crate::error::StoreError;
use crate::index::{ObjectIndex, PackRow};
use crate::keys::KeyRing;
use crate::name::ListedObject;
use crate::object::{ArchiveObject, ObjectTail};
use crate::store::ArchiveStore;

/// Packs of one cell between two entries, each once, in the order of the stream.
pub struct ArchiveReader {
    store: Arc<ArchiveStore>,
    keys: Arc<KeyRing>,
    /// Entries after this one are read.
    after: StreamId,
    /// Last entry that is read.
    through: StreamId,
    groups: VecDeque<Vec<ListedObject>>,
    /// Objects of the group that is read.
    group: Vec<ListedObject>,
    /// Ends of these objects, if there are several.
    tails: Vec<ObjectTail>,
    /// Packs of the group that are not read yet, each with its entry.
    places: VecDeque<(StreamId, PackPlace)>,
    /// Packs of one entry that were read.
    ready: VecDeque<ArchivedPack>,
    /// Object of the group that was read last, and its number.
    open: Option<(usize, ArchiveObject)>,
    objects_read: u64,
}

/// A pack as it was in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedPack {
    /// Entry of the stream.
    pub entry: StreamId,
    /// True if it could not be decoded when it was archived.
    pub is_corrupt: bool,
    /// The pack.
    pub bytes: Bytes,
}

impl ArchiveReader {
    /// Reads `objects`, which are those of one cell, sorted. Packs whose entries are not after `after`, or are after
    /// `through`, are left out.
    pub fn new(
        store: Arc<ArchiveStore>,
        keys: Arc<KeyRing>,
        objects: Vec<ListedObject>,
        after: StreamId,
        through: StreamId,
    ) -> Self {
        let is_in_range = |object: &ListedObject| {
            let name = &object.name;
            name.last > after && name.first <= through
        };
        let objects = objects.into_iter().filter(is_in_range).collect();
        Self {
            store,
            keys,
            after,
            through,
            groups: groups(objects).into(),
            group: Vec::new(),
            tails: Vec::new(),
            places: VecDeque::new(),
            ready: VecDeque::new(),
            open: None,
            objects_read: 0,
        }
    }

    /// Returns the next pack; `None` at the end. Reads one object at a time.
    ///
    /// # Errors
    /// [`StoreError`], also for an object that is damaged, gone, or whose key is missing: nothing is left out
    /// silently.
    pub async fn next(&mut self) -> Result<Option<ArchivedPack>, StoreError> {
        if let Some(pack) = self.ready.pop_front() {
            return Ok(Some(pack));
        }
        while self.places.is_empty() {
            let Some(group) = self.groups.front().cloned() else { return Ok(None) };
            self.begin(group).await?;
            self.groups.pop_front();
        }
        let entry = self.places.front().map(|(entry, _)| *entry);
        let of_entry = self.places.iter().take_while(|(other, _)| Some(*other) == entry);
        let places: Vec<PackPlace> = of_entry.map(|(_, place)| *place).collect();
        let mut packs = Vec::new();
        for place in &places {
            packs.push(self.pack(*place, places.len() > 1).await?);
        }
        self.places.drain(..places.len());
        self.ready = without_superseded(packs).into();
        Ok(self.ready.pop_front())
    }

    /// Number of objects that were read so far.
    pub fn objects_read(&self) -> u64 {
        self.objects_read
    }

    /// Finds the packs of a group. An object that overlaps with no other one is read whole for that.
    async fn begin(&mut self, group: Vec<ListedObject>) -> Result<(), StoreError> {
        self.open = None;
        let mut tails = Vec::new();
        match &group[..] {
            [only] => self.open = Some((0, self.object(only).await?)),
            several => {
                for object in several {
                    tails.push(self.store.tail(object, &self.keys).await?);
                }
            }
        }
        let indexes: Vec<&ObjectIndex> = match &self.open {
            Some((_, object)) => vec![&object.tail.index],
            None => tails.iter().map(|tail| &tail.index).collect(),
        };
        let with_entry = |place: PackPlace| {
            let entry = indexes[place.object].packs[place.pack].entry;
            (entry > self.after && entry <= self.through).then_some((entry, place))
        };
        self.places = distinct_packs(&indexes).into_iter().filter_map(with_entry).collect();
        self.group = group;
        self.tails = tails;
        Ok(())
    }

    /// Reads a pack. If it is `one_of_several` with its entry, the object that is open stays open: the next packs are in
    /// it, too.
    async fn pack(
        &mut self,
        place: PackPlace,
        one_of_several: bool,
    ) -> Result<ArchivedPack, StoreError> {
        if self.open.as_ref().is_none_or(|(number, _)| *number != place.object) {
            let listed = self.group[place.object];
            let tail = self.tails.get(place.object).filter(|_| one_of_several);
            if let (Some(tail), true) = (tail, self.open.is_some()) {
                let bytes = self.store.pack(&listed.name, tail, place.pack).await?;
                let PackRow { entry, is_corrupt, .. } = tail.index.packs[place.pack];
                return Ok(ArchivedPack { entry, is_corrupt, bytes });
            }
            // Freed first: two objects would be in memory otherwise.
            self.open = None;
            self.open = Some((place.object, self.object(&listed).await?));
        }
        let (number, object) = self.open.as_ref().expect("BUG: it was opened");
        let name = &self.group[*number].name;
        let bytes = object.pack(place.pack).map_err(|error| StoreError::of_object(name, error))?;
        let PackRow { entry, is_corrupt, .. } = object.tail.index.packs[place.pack];
        Ok(ArchivedPack { entry, is_corrupt, bytes })
    }

    async fn object(&mut self, listed: &ListedObject) -> Result<ArchiveObject, StoreError> {
        let object = self.store.object(&listed.name, &self.keys).await?;
        self.objects_read += 1;
        Ok(object)
    }
}

/// Packs of one entry, without those that others supersede.
fn without_superseded(packs: Vec<ArchivedPack>) -> Vec<ArchivedPack> {
    let mut kept: Vec<ArchivedPack> = Vec::new();
    for pack in packs {
        let found = kept
            .iter()
            .enumerate()
            .find_map(|(number, other)| Some((number, united(&other.bytes, &pack.bytes)?)));
        match found {
            Some((number, bytes)) => kept[number].bytes = bytes,
            None => kept.push(pack),
        }
    }
    kept
}

/// Pack without anything that is erased in either; `None` if the two differ in more than that.
fn united(one: &Bytes, other: &Bytes) -> Option<Bytes> {
    let [first, second] = [Pack::decode(one).ok()?, Pack::decode(other).ok()?];
    let is_same = |index: u32| {
        let [a, b] = [first.view(index), second.view(index)];
        // An erased place keeps its time.
        a.received_at_ms == b.received_at_ms
            && (a.is_erased()
                || b.is_erased()
                || (a.target == b.target && a.body == b.body && a.headers().eq(b.headers())))
    };
    if first.count() != second.count() || !(0..first.count()).all(is_same) {
        return None;
    }
    let is_more = |pack: &Pack, than: &Pack| {
        let mut indexes = 0..pack.count();
        indexes.any(|index| pack.view(index).is_erased() && !than.view(index).is_erased())
    };
    if !is_more(&second, &first) {
        return Some(one.clone());
    }
    if !is_more(&first, &second) {
        return Some(other.clone());
    }
    let erased = |index: u32| second.view(index).is_erased();
    Some(Bytes::copy_from_slice(Packer::new().erase(&first, erased)))
}
