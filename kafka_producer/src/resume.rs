//! Where a new owner goes on: Kafka's cursor, Redis' cursor and what the stream holds, made one.
//!
//! As a rule Kafka's is the one ahead, by what was committed and not yet settled. Where the two
//! contradict each other, data was lost somewhere: the drain goes on from the side that repeats
//! rather than skips what is still there, and says so.

use spillway_queue::read::Span;
use spillway_webhook::StreamId;

use crate::position::Position;

/// What Kafka holds of the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The place.
    pub position: Position,
    /// Webhooks of this cell up to it.
    pub through: u64,
}

/// A contradiction between Kafka and Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// Kafka's cursor is ahead of the stream: Redis came back with older data. What was accepted
    /// between the two is gone from Redis; what is left behind Redis' cursor is sent again.
    Ahead {
        /// The last entry that Redis ever had.
        last: StreamId,
        /// Kafka's cursor.
        cursor: StreamId,
    },
    /// Kafka's cursor is behind Redis': Kafka lost commits, or the drain was told to begin later.
    Behind {
        /// Kafka's cursor.
        cursor: StreamId,
        /// Redis' cursor, from which it goes on.
        redis: StreamId,
    },
    /// Entries behind Kafka's cursor were freed while the drain was not registered.
    Freed {
        /// Kafka's cursor.
        cursor: StreamId,
        /// Where the stream begins now.
        oldest: StreamId,
        /// Webhooks between the two.
        webhooks: u64,
    },
}

impl Gap {
    /// Its name, for a label.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Ahead { .. } => "ahead",
            Self::Behind { .. } => "behind",
            Self::Freed { .. } => "freed",
        }
    }
}

/// The place to go on from, and what contradicts it.
pub fn decide(kafka: Option<Committed>, redis: StreamId, span: &Span) -> (Position, Option<Gap>) {
    let from_redis = Position::after(redis);
    let Some(Committed { position, through }) = kafka else { return (from_redis, None) };
    let (cursor, last) = (position.newest(), span.last);
    if cursor > last {
        return (from_redis, Some(Gap::Ahead { last, cursor }));
    }
    if cursor < redis {
        let gap = Gap::Behind { cursor, redis };
        return (Position { replay: position.replay, ..from_redis }, Some(gap));
    }
    if position.entry > redis && span.trimmed > through {
        let oldest = span.oldest.unwrap_or(last);
        let gap = Gap::Freed { cursor, oldest, webhooks: span.trimmed - through };
        return (position, Some(gap));
    }
    (position, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(ms: u64) -> StreamId {
        StreamId { ms, seq: 0 }
    }

    fn kafka(ms: u64, through: u64) -> Option<Committed> {
        Some(Committed { position: Position::after(id(ms)), through })
    }

    fn check(
        kafka: Option<Committed>,
        redis: u64,
        (oldest, last, trimmed): (Option<u64>, u64, u64),
        expected: (StreamId, Option<Gap>),
    ) {
        let span = Span { oldest: oldest.map(id), last: id(last), trimmed };
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
    fn a_redis_that_lost_data_is_read_again_from_its_own_cursor() {
        let gap = Gap::Ahead { last: id(9), cursor: id(12) };
        check(kafka(12, 120), 5, (Some(6), 9, 50), (id(5), Some(gap)));
        let part = Position { part: Some((id(10), 1)), ..Position::after(id(9)) };
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
    fn what_was_freed_while_the_drain_was_forgotten_is_counted() {
        let gap = Gap::Freed { cursor: id(3), oldest: id(6), webhooks: 20 };
        check(kafka(3, 30), 0, (Some(6), 9, 50), (id(3), Some(gap)));
        check(kafka(5, 50), 0, (Some(6), 9, 50), (id(5), None));
    }
}
