//! Checkpoint of a cell's consumers, beside its objects: `<cell>/consumers.json`. With it, a queue whose disk is lost
//! is restored from the archive.
//!
//! ```text
//! JSON, in one line
//! CRC-32 (IEEE) of that line without its end, 8 hexadecimal digits
//! ```
//! A checkpoint holds no webhook, and shops as hashes only. So it is not encrypted.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use spillway_webhook::{Position, StreamId};

use crate::error::{BadObject, StoreError};
use crate::name::ObjectName;
use crate::store::ArchiveStore;

/// Version of the format.
const VERSION: u8 = 1;
/// Name of the file in the directory of a cell.
const NAME: &str = "consumers.json";
/// Lanes of a consumer that are kept one by one, the oldest ones: 1.5 MB. Of the others, only the first position is.
pub const LANES_MAX: usize = 10_000;
/// Packs of a consumer that are kept of those that it has settled in part: 1 MB.
pub const DONE_MAX: usize = 10_000;

/// State of all consumers of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    version: u8,
    /// Random id of the cell, 8 hexadecimal digits.
    cell: String,
    /// Time of Redis' clock at which the state was read, in milliseconds since the Unix epoch.
    pub read_at_ms: u64,
    /// Id of the queue that was given out last.
    pub last: StreamId,
    /// Webhooks ever appended to the queue.
    pub appended: u64,
    /// Consumers, in the order of their names.
    pub consumers: Vec<ConsumerCheckpoint>,
    /// Spillway-Ids of redactions that were delivered and are not carried out.
    #[serde(default)]
    pub redactions: Vec<String>,
}

/// State of one consumer: what it has not settled is after `cursor`, or in a lane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerCheckpoint {
    /// Name of the consumer.
    pub name: String,
    /// Program whose consumer it is; `None` if it never ran.
    pub kind: Option<String>,
    /// Entries up to here are settled, except for what lies in lanes.
    pub cursor: StreamId,
    /// Lanes of which webhooks up to the cursor wait.
    pub lanes: Vec<LaneMark>,
    /// If there were more lanes than are kept: first position of the others, from which on everything counts as not
    /// settled.
    pub floor: Option<Position>,
    /// Rows of lanes that could not be read. The checkpoint lacks them.
    #[serde(default)]
    pub unreadable: u64,
    /// Webhooks after the cursor that are settled: entry, and a bit for each webhook of its pack, in base64.
    done: Vec<(StreamId, String)>,
}

/// A lane of which webhooks wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneMark {
    /// Hash of the lane. `None` if it was made by rules of an earlier version: then all of the shop may be in it.
    #[serde(with = "hex_option")]
    pub lane: Option<u64>,
    /// Hash of the shop's domain.
    #[serde(with = "hex")]
    pub shop: u64,
    /// Position of the first webhook that waits.
    pub first: Position,
    /// Webhooks that wait.
    pub waiting: u64,
}

impl Checkpoint {
    /// Checkpoint of a cell.
    pub fn new(cell: u32, read_at_ms: u64, consumers: Vec<ConsumerCheckpoint>) -> Self {
        let cell = ObjectName::cell_directory(cell);
        Self {
            version: VERSION,
            cell,
            read_at_ms,
            last: StreamId::ZERO,
            appended: 0,
            consumers,
            redactions: Vec::new(),
        }
    }

    /// True if the other one says the same, at whatever time.
    pub fn is_same_state(&self, other: &Self) -> bool {
        self.last == other.last
            && self.appended == other.appended
            && self.consumers == other.consumers
            && self.redactions == other.redactions
            && self.cell == other.cell
    }

    /// Encodes the checkpoint.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("BUG: a checkpoint has no map");
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(format!("\n{crc:08x}\n").as_bytes());
        bytes
    }

    /// Decodes a checkpoint of this cell.
    ///
    /// # Errors
    /// [`BadObject`] when any byte is not as [`Checkpoint::encode`] writes it.
    pub(crate) fn decode(cell: u32, bytes: &[u8]) -> Result<Self, BadObject> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u8,
        }
        const FORM: BadObject = BadObject::Malformed("not a checkpoint");
        let text = std::str::from_utf8(bytes).map_err(|_| FORM)?;
        let (json, crc) = text.split_once('\n').ok_or(FORM)?;
        if format!("{:08x}\n", crc32fast::hash(json.as_bytes())) != crc {
            return Err(BadObject::Checksum("checkpoint"));
        }
        let Versioned { version } = serde_json::from_str(json).map_err(|_| FORM)?;
        if version != VERSION {
            return Err(BadObject::Unknown(version));
        }
        let checkpoint: Self = serde_json::from_str(json).map_err(|_| FORM)?;
        let mut done = checkpoint.consumers.iter().flat_map(|consumer| &consumer.done);
        let is_decodable = done.all(|(_, bits)| STANDARD.decode(bits).is_ok());
        if checkpoint.cell != ObjectName::cell_directory(cell) || !is_decodable {
            return Err(BadObject::Malformed("a checkpoint of another cell"));
        }
        Ok(checkpoint)
    }
}

impl ConsumerCheckpoint {
    /// State of a consumer without lanes that has settled nothing after its cursor.
    pub fn new(name: String, kind: Option<String>, cursor: StreamId) -> Self {
        Self { name, kind, cursor, ..Self::default() }
    }

    /// Sets the lanes. If there are too many, the oldest ones are kept, and the first position of the others.
    pub fn set_lanes(&mut self, lanes: Vec<LaneMark>) {
        self.lanes = lanes;
        self.lanes.sort_by_key(|lane| (lane.first, lane.lane));
        self.floor = self.lanes.get(LANES_MAX).map(|lane| lane.first);
        self.lanes.truncate(LANES_MAX);
    }

    /// Sets the webhooks after the cursor that are settled. Too many are left out: they count as not settled.
    pub fn set_done(&mut self, done: impl ExactSizeIterator<Item = (StreamId, Vec<u8>)>) {
        self.done.clear();
        if done.len() <= DONE_MAX {
            self.done.extend(done.map(|(entry, bits)| (entry, STANDARD.encode(bits))));
            self.done.sort();
        }
    }

    /// Webhooks after the cursor that are settled: entry, and a bit for each webhook of its pack.
    pub fn done(&self) -> impl Iterator<Item = (StreamId, Vec<u8>)> {
        self.done.iter().map(|(entry, bits)| (*entry, STANDARD.decode(bits).unwrap_or_default()))
    }
}

/// Writes the checkpoint of a cell over the one before, durably.
///
/// # Errors
/// [`StoreError`]. The one before is whole if it is still there.
pub async fn write(
    store: &ArchiveStore,
    cell: u32,
    checkpoint: &Checkpoint,
) -> Result<(), StoreError> {
    store.replace(&file_of(cell), checkpoint.encode()).await
}

/// Reads the checkpoint of a cell; `None` if there is none.
///
/// # Errors
/// [`StoreError`]; [`StoreError::Unusable`] if it is damaged.
pub async fn read(store: &ArchiveStore, cell: u32) -> Result<Option<Checkpoint>, StoreError> {
    let name = file_of(cell);
    let bytes = match store.file(&name).await {
        Ok(bytes) => bytes,
        Err(StoreError::Missing(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let decoded = Checkpoint::decode(cell, &bytes);
    decoded.map(Some).map_err(|error| StoreError::Unusable(format!("{name}: {error}")))
}

/// True if an archive has neither an object of a cell nor a checkpoint of it, which every archiver writes.
///
/// # Errors
/// [`StoreError`]
pub async fn holds_nothing_of(store: &ArchiveStore, cell: u32) -> Result<bool, StoreError> {
    if !store.days(cell).await?.is_empty() {
        return Ok(false);
    }
    match read(store, cell).await {
        Ok(found) => Ok(found.is_none()),
        // It is there, and damaged.
        Err(StoreError::Unusable(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn file_of(cell: u32) -> String {
    format!("{}/{NAME}", ObjectName::cell_directory(cell))
}

/// A hash as 16 hexadecimal digits: JSON readers round large numbers.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(hash: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{hash:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(de::Error::custom)
    }
}

/// The same for one that may be missing.
mod hex_option {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(
        hash: &Option<u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match hash {
            Some(hash) => super::hex::serialize(hash, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<u64>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| u64::from_str_radix(&text, 16)).transpose().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(lane: Option<u64>, ms: u64) -> LaneMark {
        LaneMark { lane, shop: 0xab, first: Position { ms, seq: 0, index: 3 }, waiting: 2 }
    }

    fn checkpoint() -> Checkpoint {
        let cursor = StreamId { ms: 9, seq: 1 };
        let kind = Some("downstreamer".to_owned());
        let mut http = ConsumerCheckpoint::new("http".to_owned(), kind, cursor);
        http.set_lanes(vec![mark(Some(u64::MAX), 7), mark(None, 5)]);
        http.set_done([(cursor.next(), vec![0b101])].into_iter());
        let redactions = vec!["000000a1-9-1-0".to_owned()];
        let new = Checkpoint::new(0xa1, 1_000, vec![http]);
        Checkpoint { last: cursor.next(), appended: 70, redactions, ..new }
    }

    #[test]
    fn a_checkpoint_is_read_back_and_damage_is_found() {
        let checkpoint = checkpoint();
        let bytes = checkpoint.encode();
        assert_eq!(Checkpoint::decode(0xa1, &bytes), Ok(checkpoint.clone()));
        assert!(Checkpoint::decode(0xa2, &bytes).is_err(), "of another cell");
        let done: Vec<_> = checkpoint.consumers[0].done().collect();
        assert_eq!(done, [(StreamId { ms: 9, seq: 2 }, vec![0b101])]);
        assert_eq!(checkpoint.consumers[0].lanes[0].first.ms, 5, "sorted");
        for at in 0..bytes.len() {
            assert!(Checkpoint::decode(0xa1, &bytes[..at]).is_err(), "cut to {at}");
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(Checkpoint::decode(0xa1, &bad).is_err(), "byte {at}");
        }
        let newer = Checkpoint { version: 2, ..checkpoint };
        assert_eq!(Checkpoint::decode(0xa1, &newer.encode()), Err(BadObject::Unknown(2)));
    }

    #[test]
    fn of_too_many_lanes_the_oldest_are_kept_and_of_too_many_bits_none() {
        let mut consumer = ConsumerCheckpoint::default();
        let most = LANES_MAX as u64;
        consumer.set_lanes((0..most).rev().map(|lane| mark(Some(lane), 100 + lane)).collect());
        assert_eq!((consumer.lanes.len(), consumer.floor), (LANES_MAX, None));
        consumer.set_lanes((0..most + 2).rev().map(|lane| mark(Some(lane), 100 + lane)).collect());
        assert_eq!((consumer.lanes.len(), consumer.lanes[0].first.ms), (LANES_MAX, 100));
        assert_eq!(consumer.floor.map(|at| at.ms), Some(100 + most), "first of the others");
        let done: Vec<_> =
            (0..=DONE_MAX).map(|ms| (StreamId { ms: ms as u64, seq: 0 }, vec![1])).collect();
        consumer.set_done(done.into_iter());
        assert_eq!(consumer.done().count(), 0);
    }

    #[test]
    fn a_checkpoint_of_before_redactions_were_kept_is_read() {
        let json = r#"{"version":1,"cell":"000000a1","read_at_ms":5,"last":"1-0","appended":7,"consumers":
            [{"name":"http","kind":null,"cursor":"1-0","lanes":[],"floor":null,"done":[]}]}"#;
        let json = json.replace('\n', "");
        let bytes = format!("{json}\n{:08x}\n", crc32fast::hash(json.as_bytes()));
        let read = Checkpoint::decode(0xa1, bytes.as_bytes()).expect("it is read");
        assert_eq!((read.redactions.len(), read.consumers[0].unreadable), (0, 0));
    }

    #[test]
    fn the_time_alone_makes_no_other_state() {
        let one = checkpoint();
        let later = Checkpoint { read_at_ms: 2_000, ..one.clone() };
        assert!(one.is_same_state(&later));
        let other = Checkpoint { appended: 71, ..one.clone() };
        assert!(!one.is_same_state(&other));
    }
}
