//! An open transaction: its records, its position, and the time at which it is committed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_consumer::DeliveredRedaction;
use spillway_queue::settle::Settlement;
use spillway_trace::Tracer;
use spillway_webhook::pack::Pack;
use spillway_webhook::{StreamId, WebhookId};

use crate::position::CellPosition;
use crate::trace::TransactionSpans;

/// Age at which a transaction is committed while little waits. Ten commits a second cost the broker
/// little, and a reader sees the records soon.
const AGE_MAX: Duration = Duration::from_millis(100);
/// Age at which a transaction is committed while more waits. A commit costs the same whatever its
/// size.
const AGE_MAX_BEHIND: Duration = Duration::from_secs(2);
/// Bytes at which a transaction is committed in any case. A fault makes at most this much be sent
/// again.
pub(crate) const BYTES_MAX: usize = 512 << 20;
/// Lower limit of these bytes, for a Kafka that is slow.
pub(crate) const BYTES_MIN: usize = 1 << 20;

/// Place in the queue of the webhook that a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RecordRef {
    /// In a pack of the main stream.
    Main(StreamId, u32),
    /// In the stream of replays.
    Replay(StreamId),
}

/// Record that is sent in a transaction without others, because Kafka may refuse it.
#[derive(Clone)]
pub(crate) struct Alone {
    /// Place of the webhook in the queue.
    pub place: RecordRef,
    /// Id of the webhook.
    pub webhook: WebhookId,
    /// Pack that holds the webhook.
    pub pack: Arc<Pack>,
    /// Index of the webhook in the pack.
    pub index: u32,
}

/// Numbers of webhooks that the filter excludes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Excluded {
    /// All of them.
    pub webhooks: u64,
    /// Those among them that no other consumer delivers either.
    pub unmatched: u64,
}

/// An open transaction.
pub(crate) struct Open {
    /// Position that the commit moves the cursor to.
    pub position: CellPosition,
    /// Settlement to apply in Redis after the commit.
    pub settlement: Settlement,
    /// Set once the transaction has begun in Kafka.
    pub has_begun: bool,
    /// Time at which each record's webhook was received.
    pub received_at_ms: Vec<u64>,
    /// The only record, if the transaction is for one suspect record.
    pub alone: Option<Alone>,
    /// Spans of the records whose traces are recorded.
    pub spans: TransactionSpans,
    /// Webhooks without a record, because the filter excludes them.
    pub excluded: Excluded,
    /// Redactions among the records.
    pub redactions: Vec<DeliveredRedaction>,
    bytes: usize,
    bytes_max: usize,
    first_at: Option<Instant>,
    /// Number and place of the first record of each run.
    runs: Vec<(usize, RecordRef)>,
}

impl Open {
    /// Empty transaction from `position`. It is committed at `bytes_max`, if not sooner.
    pub(crate) fn at(position: CellPosition, bytes_max: usize) -> Self {
        Self {
            position,
            settlement: Settlement::default(),
            has_begun: false,
            received_at_ms: Vec::new(),
            alone: None,
            spans: TransactionSpans::default(),
            excluded: Excluded::default(),
            redactions: Vec::new(),
            bytes: 0,
            bytes_max,
            first_at: None,
            runs: Vec::new(),
        }
    }

    /// Number of records.
    pub(crate) fn records(&self) -> usize {
        self.received_at_ms.len()
    }

    /// Bytes of the records.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Ends the spans of the records, as the transaction ends.
    pub(crate) fn end_spans(&mut self, tracer: Option<&Tracer>, error: Option<&'static str>) {
        let records = self.records();
        self.spans.end(tracer, records, error);
    }

    /// Adds a record of so many bytes that was handed to librdkafka.
    pub(crate) fn sent(
        &mut self,
        place: RecordRef,
        received_at_ms: u64,
        bytes: usize,
        now: Instant,
    ) {
        if self.place(self.records()) != Some(place) {
            self.runs.push((self.records(), place));
        }
        self.received_at_ms.push(received_at_ms);
        self.bytes += bytes;
        self.first_at.get_or_insert(now);
    }

    /// RecordRef of the record with this number.
    pub(crate) fn place(&self, number: usize) -> Option<RecordRef> {
        let run = self.runs.partition_point(|(first, _)| *first <= number).checked_sub(1)?;
        let (first, place) = self.runs[run];
        match place {
            RecordRef::Main(id, index) => {
                Some(RecordRef::Main(id, index + u32::try_from(number - first).unwrap_or(u32::MAX)))
            }
            RecordRef::Replay(_) if number > first => None,
            RecordRef::Replay(_) => Some(place),
        }
    }

    /// Moves the position after the entry `id`, which has `webhooks` in it.
    pub(crate) fn pass(&mut self, id: StreamId, webhooks: u64, now: Instant) {
        self.position.entry = id;
        self.position.part = None;
        let passed = self.settlement.passed.get_or_insert_default();
        passed.cursor = id;
        passed.entries += 1;
        passed.webhooks += webhooks;
        self.first_at.get_or_insert(now);
    }

    /// Time that the transaction may stay open from `now`. `None` while it is empty.
    pub(crate) fn closes_in(&self, now: Instant, is_behind: bool) -> Option<Duration> {
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
    use spillway_queue::settle::PassedEntries;

    use super::*;

    const fn id(ms: u64) -> StreamId {
        StreamId { ms, seq: 0 }
    }

    #[test]
    fn a_record_is_found_by_its_number() {
        let now = Instant::now();
        let mut open = Open::at(CellPosition::default(), BYTES_MAX);
        let places = [
            RecordRef::Replay(id(1)),
            RecordRef::Replay(id(2)),
            RecordRef::Main(id(5), 0),
            RecordRef::Main(id(5), 1),
            RecordRef::Main(id(5), 4),
            RecordRef::Main(id(6), 0),
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
        let mut open = Open::at(CellPosition::default(), BYTES_MAX);
        assert_eq!(open.closes_in(now, false), None);
        open.sent(RecordRef::Main(id(5), 0), 7, 10, now);
        assert_eq!(open.closes_in(now, false), Some(AGE_MAX));
        assert_eq!(open.closes_in(now + AGE_MAX, false), Some(Duration::ZERO));
        assert_eq!(open.closes_in(now + AGE_MAX, true), Some(AGE_MAX_BEHIND - AGE_MAX));
        open.sent(RecordRef::Main(id(5), 1), 7, BYTES_MAX, now);
        assert_eq!(open.closes_in(now, true), Some(Duration::ZERO));
    }

    #[test]
    fn entries_without_records_move_it_too() {
        let now = Instant::now();
        let mut open = Open::at(CellPosition::after(id(4)), BYTES_MAX);
        open.position.part = Some((id(5), 3));
        open.pass(id(5), 8, now);
        assert_eq!(open.position, CellPosition::after(id(5)));
        assert_eq!(
            open.settlement.passed,
            Some(PassedEntries { cursor: id(5), entries: 1, webhooks: 8 })
        );
        assert!(open.closes_in(now, false).is_some());
    }
}
