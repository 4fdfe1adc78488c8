//! Position up to which records were produced. It is committed to Kafka with the records.
//!
//! The position is the metadata of an offset commit. The offset is the number of webhooks of this cell up to
//! it, for people and for the check against Redis.

use std::fmt;
use std::str::FromStr;

use spillway_webhook::StreamId;

/// Position in the streams of one cell: everything up to it is in Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CellPosition {
    /// Every entry of the main stream up to here is done completely.
    pub entry: StreamId,
    /// A later entry, and the number of its webhooks that are done.
    pub part: Option<(StreamId, u32)>,
    /// Every replayed webhook up to here is done.
    pub replay: StreamId,
}

/// Text that is not a position: another program committed to this consumer group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a position: {0:?}")]
pub(crate) struct NotAPosition(String);

/// Version of the text format, so that a later one can be recognized.
const FORM: &str = "1";

impl CellPosition {
    /// Position right after `entry`.
    pub(crate) fn after(entry: StreamId) -> Self {
        Self { entry, ..Self::default() }
    }

    /// Newest main entry that the position includes, at least in part.
    pub(crate) fn newest(&self) -> StreamId {
        self.part.map_or(self.entry, |(id, _)| id)
    }

    /// Number of webhooks of the entry `id` that are done.
    pub(crate) fn done_of(&self, id: StreamId) -> u32 {
        match self.part {
            _ if id <= self.entry => u32::MAX,
            Some((part, done)) if part == id => done,
            _ => 0,
        }
    }
}

impl fmt::Display for CellPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (part, done) = self.part.unwrap_or_default();
        write!(f, "{FORM} {} {part}/{done} {}", self.entry, self.replay)
    }
}

impl FromStr for CellPosition {
    type Err = NotAPosition;

    fn from_str(text: &str) -> Result<Self, NotAPosition> {
        parse(text).ok_or_else(|| NotAPosition(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<CellPosition> {
    let mut words = text.split(' ');
    words.next().filter(|form| *form == FORM)?;
    let entry = words.next()?.parse().ok()?;
    let (part, done) = words.next()?.split_once('/')?;
    let (part, done): (StreamId, u32) = (part.parse().ok()?, done.parse().ok()?);
    let replay = words.next()?.parse().ok()?;
    let part = (done > 0).then_some((part, done));
    words.next().is_none().then_some(CellPosition { entry, part, replay })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64, seq: u64) -> StreamId {
        StreamId { ms, seq }
    }

    #[test]
    fn a_position_is_read_back() {
        let whole = CellPosition::after(id(5, 1));
        assert_eq!(whole.to_string(), "1 5-1 0-0/0 0-0");
        assert_eq!(whole.to_string().parse(), Ok(whole));
        let part = CellPosition { part: Some((id(5, 2), 7)), replay: id(9, 0), ..whole };
        assert_eq!(part.to_string(), "1 5-1 5-2/7 9-0");
        assert_eq!(part.to_string().parse(), Ok(part));
        for text in ["", "5-1", "2 5-1 0-0/0 0-0", "1 5-1 0-0 0-0", "1 5-1 0-0/0 0-0 x"] {
            assert!(text.parse::<CellPosition>().is_err(), "{text}");
        }
    }

    #[test]
    fn it_knows_what_is_done_of_an_entry() {
        let position = CellPosition { part: Some((id(5, 2), 7)), ..CellPosition::after(id(5, 1)) };
        assert_eq!(position.done_of(id(5, 1)), u32::MAX);
        assert_eq!(position.done_of(id(5, 2)), 7);
        assert_eq!(position.done_of(id(5, 3)), 0);
        assert_eq!(position.newest(), id(5, 2));
    }
}
