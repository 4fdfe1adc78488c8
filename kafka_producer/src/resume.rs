//! Start position of a new leader, from Kafka's cursor, Redis' cursor and the content of the
//! stream.
//!
//! Usually Kafka's cursor is ahead, by what was committed and not yet settled. If the two
//! contradict each other, data was lost somewhere. Then sending continues from the position that
//! repeats webhooks rather than skip any that still exist, and the gap is reported.

use spillway_queue::read::StreamRange;
use spillway_webhook::StreamId;

use crate::position::CellPosition;

/// Cursor that Kafka holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Committed {
    /// Position of the cursor.
    pub position: CellPosition,
    /// Number of webhooks of this cell up to it.
    pub through: u64,
}

/// A contradiction between Kafka and Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gap {
    /// Kafka's cursor is ahead of the stream: Redis came back with older data. What was accepted
    /// between the two is gone from Redis. What is left after Redis' cursor is sent again.
    Ahead {
        /// Last entry that Redis ever had.
        last: StreamId,
        /// Kafka's cursor.
        cursor: StreamId,
    },
    /// Kafka's cursor is before Redis': Kafka lost commits, or the consumer was registered to start
    /// later.
    Behind {
        /// Kafka's cursor.
        cursor: StreamId,
        /// Redis' cursor, from which sending continues.
        redis: StreamId,
    },
    /// Entries after Kafka's cursor were freed while the consumer was not registered.
    Freed {
        /// Kafka's cursor.
        cursor: StreamId,
        /// Oldest entry of the stream.
        oldest: StreamId,
        /// Number of webhooks between the two.
        webhooks: u64,
    },
}

impl Gap {
    /// Label in the metrics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Ahead { .. } => "ahead",
            Self::Behind { .. } => "behind",
            Self::Freed { .. } => "freed",
        }
    }
}

/// Decides the position to continue from. Returns a contradiction, if there is one.
pub(crate) fn decide(
    kafka: Option<Committed>,
    redis: StreamId,
    span: &StreamRange,
) -> (CellPosition, Option<Gap>) {
    let from_redis = CellPosition::after(redis);
    let Some(Committed { position, through }) = kafka else { return (from_redis, None) };
    let cursor = position.newest();
    let last = span.last;
    if cursor > last {
        return (from_redis, Some(Gap::Ahead { last, cursor }));
    }
    if cursor < redis {
        let gap = Gap::Behind { cursor, redis };
        return (CellPosition { replay: position.replay, ..from_redis }, Some(gap));
    }
    if position.entry > redis && span.trimmed > through {
        let oldest = span.oldest.unwrap_or(last);
        let gap = Gap::Freed { cursor, oldest, webhooks: span.trimmed - through };
        return (position, Some(gap));
    }
    (position, None)
}

/// The position, without its replay if Redis never gave out that id: the stream of replays was lost, or begins again.
/// Otherwise new replays would count as committed.
pub(crate) fn with_known_replay(position: CellPosition, last_replay: StreamId) -> CellPosition {
    if position.replay > last_replay {
        return CellPosition { replay: StreamId::ZERO, ..position };
    }
    position
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(ms: u64) -> StreamId {
        StreamId { ms, seq: 0 }
    }

    fn kafka(ms: u64, through: u64) -> Option<Committed> {
        Some(Committed { position: CellPosition::after(id(ms)), through })
    }

    fn check(
        kafka: Option<Committed>,
        redis: u64,
        (oldest, last, trimmed): (Option<u64>, u64, u64),
        expected: (StreamId, Option<Gap>),
    ) {
        let span = StreamRange { oldest: oldest.map(id), last: id(last), trimmed };
        let (position, gap) = decide(kafka, id(redis), &span);
        assert_eq!((position.entry, gap), expected);
    }

    #[test]
    fn kafkas_cursor_is_the_one_ahead_and_wins() {
        check(None, 5, (Some(6), 9, 50), (id(5), None));
        check(kafka(5, 50), 5, (Some(6), 9, 50), (id(5), None));
        check(kafka(8, 80), 5, (Some(6), 9, 50), (id(8), None));
        check(kafka(9, 90), 5, (None, 9, 50), (id(9), None));
    }

    #[test]
    fn a_replay_that_redis_does_not_know_hides_no_new_one() {
        let position = CellPosition { replay: id(9), ..CellPosition::after(id(5)) };
        assert_eq!(with_known_replay(position, id(9)), position);
        assert_eq!(with_known_replay(position, id(12)), position);
        let forgotten = CellPosition { replay: StreamId::ZERO, ..position };
        assert_eq!(with_known_replay(position, id(8)), forgotten);
        assert_eq!(with_known_replay(position, StreamId::ZERO), forgotten);
    }

    #[test]
    fn a_redis_that_lost_data_is_read_again_from_its_own_cursor() {
        let gap = Gap::Ahead { last: id(9), cursor: id(12) };
        check(kafka(12, 120), 5, (Some(6), 9, 50), (id(5), Some(gap)));
        let part = CellPosition { part: Some((id(10), 1)), ..CellPosition::after(id(9)) };
        let gap = Gap::Ahead { last: id(9), cursor: id(10) };
        let kafka = Some(Committed { position: part, through: 90 });
        check(kafka, 5, (Some(6), 9, 50), (id(5), Some(gap)));
    }

    #[test]
    fn a_kafka_that_lost_commits_is_told() {
        let gap = Gap::Behind { cursor: id(3), redis: id(5) };
        check(kafka(3, 30), 5, (Some(6), 9, 50), (id(5), Some(gap)));
    }

    #[test]
    fn what_was_freed_while_the_consumer_was_forgotten_is_counted() {
        let gap = Gap::Freed { cursor: id(3), oldest: id(6), webhooks: 20 };
        check(kafka(3, 30), 0, (Some(6), 9, 50), (id(3), Some(gap)));
        check(kafka(5, 50), 0, (Some(6), 9, 50), (id(5), None));
    }
}
