//! Position of a webhook: the stream entry in which it was accepted, and its index there.
//!
//! A position is a webhook's identity within a cell. Positions sort in accepted order.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::identity::{NotAnId, StreamId};

/// Position at which a webhook was accepted. As text: `<ms>-<seq>-<index>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Milliseconds of the entry's id.
    pub ms: u64,
    /// Sequence number of the entry's id.
    pub seq: u32,
    /// Index in the entry's pack.
    pub index: u32,
}

impl Position {
    /// Returns the position of the webhook at `index` of `entry`. A sequence number over `u32::MAX`
    /// is clamped: for that, Redis would have to append four billion entries in a millisecond.
    pub fn new(entry: StreamId, index: u32) -> Self {
        Self { ms: entry.ms, seq: u32::try_from(entry.seq).unwrap_or(u32::MAX), index }
    }

    /// Stream entry in which the webhook was accepted.
    pub fn entry(self) -> StreamId {
        StreamId { ms: self.ms, seq: u64::from(self.seq) }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.ms, self.seq, self.index)
    }
}

impl FromStr for Position {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        parse(text).ok_or_else(|| NotAnId(text.to_owned()))
    }
}

impl Serialize for Position {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

fn parse(text: &str) -> Option<Position> {
    let mut parts = text.split('-');
    let ms = parts.next()?.parse().ok()?;
    let seq = parts.next()?.parse().ok()?;
    let index = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some(Position { ms, seq, index })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_back() {
        let position = Position { ms: 1_767_268_800_000, seq: 3, index: 412 };
        assert_eq!(position.to_string(), "1767268800000-3-412");
        assert_eq!(position.to_string().parse(), Ok(position));
        let json = serde_json::to_string(&position).unwrap();
        assert_eq!(json, "\"1767268800000-3-412\"");
        assert_eq!(serde_json::from_str::<Position>(&json).unwrap(), position);
        for text in ["", "1-2", "1-2-3-4", "a-1-2", "1-4294967296-0", "-1-2-3"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Position>("\"1-2\"").is_err());
    }

    #[test]
    fn positions_sort_in_accepted_order() {
        let sorted = ["1-2-3", "1-2-10", "1-10-0", "2-0-0"].map(|text| text.parse().unwrap());
        assert!(sorted.is_sorted_by(|a: &Position, b| a < b));
        assert!(Position::default() < sorted[0]);
    }

    #[test]
    fn an_entry_is_read_back_and_its_sequence_number_is_clamped() {
        let entry = StreamId { ms: 5, seq: 7 };
        assert_eq!(Position::new(entry, 1).entry(), entry);
        let huge = StreamId { ms: 5, seq: u64::MAX };
        assert_eq!(Position::new(huge, 1), Position { ms: 5, seq: u32::MAX, index: 1 });
    }
}
