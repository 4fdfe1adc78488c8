//! Position in what waits, for a list that is read in pages, and the bound of one page.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use spillway_queue::lane::ChunkId;
use spillway_webhook::StreamId;

/// Position after a webhook that waits, or after what was looked at. A list begins in the main stream, goes
/// on with replays, and ends with lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WaitCursor {
    /// After this index of a pack of the main stream.
    Main(StreamId, u32),
    /// After this replay.
    Replay(StreamId),
    /// After so many webhooks of a chunk.
    Lane(ChunkId, u32),
}

/// Bound of one look at a list: it ends at what was looked at, not at what was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LookBudget {
    until: Instant,
    entries: usize,
    bytes: usize,
}

impl WaitCursor {
    /// Position after the main stream.
    pub(super) const REPLAYS: Self = Self::Replay(StreamId::ZERO);
    /// Position after the replays.
    pub(super) const LANES: Self = Self::Lane(ChunkId { lane: 0, number: 0 }, 0);

    /// Position before the first pack of the main stream that was stored at this time or later.
    pub(crate) fn since(ms: u64) -> Self {
        Self::Main(StreamId { ms, seq: 0 }.previous(), u32::MAX)
    }
}

impl fmt::Display for WaitCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Main(entry, index) => write!(f, "main:{entry}:{index}"),
            Self::Replay(id) => write!(f, "replay:{id}"),
            Self::Lane(chunk, count) => write!(f, "lane:{chunk}:{count}"),
        }
    }
}

impl FromStr for WaitCursor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let (place, rest) = text.split_once(':')?;
            if place == "replay" {
                return Some(Self::Replay(rest.parse().ok()?));
            }
            let (id, number) = rest.rsplit_once(':')?;
            let number = number.parse().ok()?;
            match place {
                "main" => Some(Self::Main(id.parse().ok()?, number)),
                "lane" => Some(Self::Lane(id.parse().ok()?, number)),
                _ => None,
            }
        };
        parsed().ok_or_else(|| format!("{text:?} is no cursor: take it from `next` of a page"))
    }
}

impl LookBudget {
    /// A budget of time, entries and bytes.
    pub(crate) fn new(now: Instant, time: Duration, entries: usize, bytes: usize) -> Self {
        Self { until: now + time, entries, bytes }
    }

    /// Spends some of it on what was looked at.
    pub(crate) fn spend(&mut self, entries: usize, bytes: usize) {
        self.entries = self.entries.saturating_sub(entries);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// True if the look ends now.
    pub(crate) fn is_spent(&self, now: Instant) -> bool {
        now >= self.until || self.entries == 0 || self.bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_from_its_text_and_sorts_in_the_order_of_the_list() {
        let id = StreamId { ms: 5, seq: 1 };
        let chunk = ChunkId { lane: 0xfeed, number: 3 };
        let all = [
            WaitCursor::since(0),
            WaitCursor::since(5),
            WaitCursor::Main(id, 0),
            WaitCursor::Main(id, u32::MAX),
            WaitCursor::REPLAYS,
            WaitCursor::Replay(id),
            WaitCursor::LANES,
            WaitCursor::Lane(chunk, 2),
        ];
        assert!(all.is_sorted(), "{all:?}");
        for cursor in all {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for bad in ["", "main", "main:5-1", "main:5:x", "lane:5-1:2", "other:5-1:2", "replay:x"] {
            assert!(bad.parse::<WaitCursor>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_budget_ends_by_time_by_entries_or_by_bytes() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let budget = || LookBudget::new(now, second, 10, 1000);
        assert!(!budget().is_spent(now) && budget().is_spent(now + second));
        for (entries, bytes, is_spent) in [(9, 999, false), (10, 0, true), (1, 5000, true)] {
            let mut budget = budget();
            budget.spend(entries, bytes);
            assert_eq!(budget.is_spent(now), is_spent, "{entries} {bytes}");
        }
    }
}
