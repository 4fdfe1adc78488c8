//! Identity of a webhook: its cell, the stream entry that it was accepted in, and its index there.
//!
//! Invariant: within a cell, ids sort (as text and as values) in accepted order. Redis only hands
//! out growing stream ids, and the text of an id has a fixed width.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Id of a Redis stream entry: milliseconds and a sequence number within them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StreamId {
    /// Redis' clock at the append, in milliseconds since the Unix epoch.
    pub ms: u64,
    /// Position among the entries of that millisecond.
    pub seq: u64,
}

/// A webhook's id: `<cell>-<ms>-<seq>-<index>`, stable over retries and replays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WebhookId {
    /// Random id of the cell. A cell has one Redis.
    pub cell: u32,
    /// Stream entry in which the webhook was accepted.
    pub entry: StreamId,
    /// Index in that entry's pack.
    pub index: u32,
}

/// Text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an id: {0:?}")]
pub struct NotAnId(pub(crate) String);

impl StreamId {
    /// The id before every entry.
    pub const ZERO: Self = Self { ms: 0, seq: 0 };

    /// The id just after this one.
    #[must_use]
    pub fn next(self) -> Self {
        match self.seq.checked_add(1) {
            Some(seq) => Self { ms: self.ms, seq },
            None => Self { ms: self.ms + 1, seq: 0 },
        }
    }

    /// The id just before this one; [`StreamId::ZERO`] stays.
    #[must_use]
    pub fn previous(self) -> Self {
        match (self.ms, self.seq.checked_sub(1)) {
            (ms, Some(seq)) => Self { ms, seq },
            (0, None) => Self::ZERO,
            (ms, None) => Self { ms: ms - 1, seq: u64::MAX },
        }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl FromStr for StreamId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let parsed = text
            .split_once('-')
            .and_then(|(ms, seq)| Some(Self { ms: ms.parse().ok()?, seq: seq.parse().ok()? }));
        parsed.ok_or_else(|| NotAnId(text.to_owned()))
    }
}

impl Serialize for StreamId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StreamId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for WebhookId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 13 digits of milliseconds last until the year 2286. The sequence number needs more than a
        // few digits only while Redis' clock is earlier than its last id.
        write!(
            f,
            "{:08x}-{:013}-{:010}-{:05}",
            self.cell, self.entry.ms, self.entry.seq, self.index
        )
    }
}

impl FromStr for WebhookId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        parse_webhook_id(text).ok_or_else(|| NotAnId(text.to_owned()))
    }
}

fn parse_webhook_id(text: &str) -> Option<WebhookId> {
    let mut parts = text.split('-');
    let cell = u32::from_str_radix(parts.next().filter(|cell| cell.len() == 8)?, 16).ok()?;
    let entry = StreamId { ms: parts.next()?.parse().ok()?, seq: parts.next()?.parse().ok()? };
    let index = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some(WebhookId { cell, entry, index })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64, seq: u64, index: u32) -> WebhookId {
        WebhookId { cell: 0xa1b2_c3d4, entry: StreamId { ms, seq }, index }
    }

    #[test]
    fn text_sorts_as_values_do() {
        let mut ids = [id(1_700_000_000_001, 0, 0), id(1_700_000_000_000, 10, 0)];
        assert!(ids[0] > ids[1]);
        ids.sort_by_key(ToString::to_string);
        assert_eq!(ids[0].entry.seq, 10);
        assert!(id(5, 1, 10).to_string() < id(5, 10, 1).to_string());
        assert!(id(5, 1, 9).to_string() < id(5, 1, 10).to_string());
    }

    #[test]
    fn ids_are_read_back() {
        let one = id(1_767_268_800_000, 3, 412);
        assert_eq!(one.to_string(), "a1b2c3d4-1767268800000-0000000003-00412");
        assert_eq!(one.to_string().parse(), Ok(one));
        for text in ["", "a-1-2-3", "a1b2c3d4-1-2", "a1b2c3d4-1-2-3-4", "zzzzzzzz-1-2-3"] {
            assert!(text.parse::<WebhookId>().is_err(), "{text}");
        }
        assert_eq!("12-3".parse(), Ok(StreamId { ms: 12, seq: 3 }));
    }

    #[test]
    fn next_and_previous_are_inverse() {
        for entry in [StreamId { ms: 4, seq: 0 }, StreamId { ms: 4, seq: u64::MAX }] {
            assert_eq!(entry.next().previous(), entry);
        }
        assert_eq!(StreamId::ZERO.previous(), StreamId::ZERO);
    }
}
