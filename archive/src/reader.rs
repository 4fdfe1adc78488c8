//! Reads the packs of a range of entries: each once, in the order of the stream.
//!
//! Objects that overlap form a group, whose indexes are read first. A pack that is in several of them is read from
//! one. Memory is bounded by one object, and the indexes of one group.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use spillway_webhook::StreamId;

use crate::chain::{PackPlace, distinct_packs, groups};
use crate::error::StoreError;
use crate::index::{ObjectIndex, PackRow};
use crate::keys::KeyRing;
use crate::name::ListedObject;
use crate::object::ArchiveObject;
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
    /// Packs of the group that are not read yet.
    places: VecDeque<PackPlace>,
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
            places: VecDeque::new(),
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
        while self.places.is_empty() {
            let Some(group) = self.groups.front().cloned() else { return Ok(None) };
            self.begin(group).await?;
            self.groups.pop_front();
        }
        let Some(place) = self.places.front().copied() else { return Ok(None) };
        let pack = self.pack(place).await?;
        self.places.pop_front();
        Ok(Some(pack))
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
        let is_in_range = |place: &PackPlace| {
            let entry = indexes[place.object].packs[place.pack].entry;
            entry > self.after && entry <= self.through
        };
        self.places = distinct_packs(&indexes).into_iter().filter(is_in_range).collect();
        self.group = group;
        Ok(())
    }

    async fn pack(&mut self, place: PackPlace) -> Result<ArchivedPack, StoreError> {
        if self.open.as_ref().is_none_or(|(number, _)| *number != place.object) {
            let listed = self.group[place.object];
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
