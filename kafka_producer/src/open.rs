//! An open transaction: what is in it, how far it goes, and when it is to be committed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_queue::settle::Settlement;
use spillway_webhook::pack::Pack;
use spillway_webhook::{StreamId, WebhookId};

use crate::position::Position;

/// While little waits, records are committed this long after the first of them: ten commits a
/// second cost the broker little, and a reader sees them soon.
const AGE_MAX: Duration = Duration::from_millis(100);
/// While more waits, a transaction goes on for this long: a commit costs the same whatever its
/// size.
const AGE_MAX_BEHIND: Duration = Duration::from_secs(2);
/// Bytes at which it is committed in any case: what a fault makes us do again.
pub const BYTES_MAX: usize = 512 << 20;
/// The least that this is lowered to for a Kafka that is slow.
pub const BYTES_MIN: usize = 1 << 20;

/// Which webhook a record is, by where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// In a pack of the main stream.
    Main(StreamId, u32),
    /// In the stream of replays.
    Replay(StreamId),
}

/// One record that is sent by itself, because it may be one that Kafka refuses.
#[derive(Clone)]
pub struct Alone {
    /// Where it lies.
    pub place: Place,
    /// Which webhook it is.
    pub webhook: WebhookId,
    /// The pack that holds it.
    pub pack: Arc<Pack>,
    /// Its place there.
    pub index: u32,
}

/// An open transaction.
pub struct Open {
    /// Up to where it goes.
    pub position: Position,
    /// What Redis is to be told once it is committed.
    pub settlement: Settlement,
    /// Whether Kafka knows of it.
    pub has_begun: bool,
    /// When each record's webhook was received.
    pub received_at_ms: Vec<u64>,
    /// The one record it is for, if it is for one only.
    pub alone: Option<Alone>,
    bytes: usize,
    bytes_max: usize,
    first_at: Option<Instant>,
    /// The number of the first record of a run, and its place.
    runs: Vec<(usize, Place)>,
}

impl Open {
    /// One that begins at `position` and ends at `bytes_max`, if not sooner.
    pub fn at(position: Position, bytes_max: usize) -> Self {
        Self {
            position,
            settlement: Settlement::default(),
            has_begun: false,
            received_at_ms: Vec::new(),
            alone: None,
            bytes: 0,
            bytes_max,
            first_at: None,
            runs: Vec::new(),
        }
    }

    /// Records in it.
    pub fn records(&self) -> usize {
        self.received_at_ms.len()
    }

    /// Bytes of its records.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A record of so many bytes was handed over.
    pub fn sent(&mut self, place: Place, received_at_ms: u64, bytes: usize, now: Instant) {
        if self.place(self.records()) != Some(place) {
            self.runs.push((self.records(), place));
        }
        self.received_at_ms.push(received_at_ms);
        self.bytes += bytes;
        self.first_at.get_or_insert(now);
    }

    /// Where the record with this number lies.
    pub fn place(&self, number: usize) -> Option<Place> {
        let run = self.runs.partition_point(|(first, _)| *first <= number).checked_sub(1)?;
        let (first, place) = self.runs[run];
        match place {
            Place::Main(id, index) => {
                Some(Place::Main(id, index + u32::try_from(number - first).unwrap_or(u32::MAX)))
            }
            Place::Replay(_) if number > first => None,
            Place::Replay(_) => Some(place),
        }
    }

    /// The entry `id` with `webhooks` in it is done whole.
    pub fn pass(&mut self, id: StreamId, webhooks: u64, now: Instant) {
        self.position.entry = id;
        self.position.part = None;
        let passed = self.settlement.passed.get_or_insert_default();
        passed.cursor = id;
        passed.entries += 1;
        passed.webhooks += webhooks;
        self.first_at.get_or_insert(now);
    }

    /// How long it may stay open from `now`; `None` while there is nothing in it.
    pub fn closes_in(&self, now: Instant, is_behind: bool) -> Option<Duration> {
        let first_at = self.first_at?;
        if self.bytes >= self.bytes_max {
            return Some(Duration::ZERO);
        }
        let age_max = if is_behind { AGE_MAX_BEHIND } else { AGE_MAX };
        Some((first_at + age_max).saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use spillway_queue::settle::Passed;

    use super::*;

    const fn id(ms: u64) -> StreamId {
        StreamId { ms, seq: 0 }
    }

    #[test]
    fn a_record_is_found_by_its_number() {
        let now = Instant::now();
        let mut open = Open::at(Position::default(), BYTES_MAX);
        let places = [
            Place::Replay(id(1)),
            Place::Replay(id(2)),
            Place::Main(id(5), 0),
            Place::Main(id(5), 1),
            Place::Main(id(5), 4),
            Place::Main(id(6), 0),
        ];
        for place in places {
            open.sent(place, 7, 10, now);
        }
        let found: Vec<_> = (0..places.len()).map(|number| open.place(number).unwrap()).collect();
        assert_eq!(found, places);
        assert_eq!(open.records(), 6);
        assert_eq!(open.runs.len(), 5);
    }

    #[test]
    fn it_is_committed_soon_while_little_waits_and_late_while_much_does() {
        let now = Instant::now();
        let mut open = Open::at(Position::default(), BYTES_MAX);
        assert_eq!(open.closes_in(now, false), None);
        open.sent(Place::Main(id(5), 0), 7, 10, now);
        assert_eq!(open.closes_in(now, false), Some(AGE_MAX));
        assert_eq!(open.closes_in(now + AGE_MAX, false), Some(Duration::ZERO));
        assert_eq!(open.closes_in(now + AGE_MAX, true), Some(AGE_MAX_BEHIND - AGE_MAX));
        open.sent(Place::Main(id(5), 1), 7, BYTES_MAX, now);
        assert_eq!(open.closes_in(now, true), Some(Duration::ZERO));
    }

    #[test]
    fn entries_without_records_move_it_too() {
        let now = Instant::now();
        let mut open = Open::at(Position::after(id(4)), BYTES_MAX);
        open.position.part = Some((id(5), 3));
        open.pass(id(5), 8, now);
        assert_eq!(open.position, Position::after(id(5)));
        assert_eq!(open.settlement.passed, Some(Passed { cursor: id(5), entries: 1, webhooks: 8 }));
        assert!(open.closes_in(now, false).is_some());
    }
}
