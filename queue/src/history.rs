//! History: outcomes of webhooks. Each has a record of a few bytes, which is written with its
//! settlement and deleted as late as the fingerprints of delivered webhooks.
//!
//! ```text
//! record  key u64 | entry ms u64 | entry seq u32 | index u32 | outcome u8 | attempts u8
//! ```
//! Integers are little endian. The key is half of the webhook's fingerprint: a hash of the id that
//! Shopify gave it. The history is for operators only. Nothing is decided by it, and it may be
//! incomplete.

use redis::cmd;
use spillway_webhook::StreamId;

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::read::{Fields, field, stream_id};

/// Number of settlements that are read at a time.
const CHUNKS_MAX: usize = 2048;
const RECORD_BYTES: usize = 26;

/// Outcome of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedOutcome {
    /// The backend accepted it.
    Delivered = 1,
    /// An identical webhook was delivered before.
    Duplicate = 2,
    /// A newer webhook of its resource stood for it: the next record that is not of this kind.
    Coalesced = 3,
    /// Given up: it became a dead letter.
    Dead = 4,
    /// An operator ordered to drop it.
    Dropped = 5,
    /// The update showed the state of its resource that was delivered last.
    Suppressed = 6,
    /// The update was older than that state.
    Stale = 7,
}

/// Record of one settled webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutcomeRecord {
    /// Hash of its id; 0 if that was not known.
    pub key: u64,
    /// Stream entry in which it was accepted.
    pub entry: StreamId,
    /// Index in that entry's pack.
    pub index: u32,
    /// Outcome of the webhook.
    pub outcome: RecordedOutcome,
    /// Delivery attempts, as far as the leader knew; 255 means 255 or more.
    pub attempts: u8,
}

/// Records of one settlement, in the settlement's order.
#[derive(Debug, Clone)]
pub struct OutcomeRecords {
    /// Id in the history. Its milliseconds are the time of the settlement by Redis' clock.
    pub id: StreamId,
    /// Records of the settlement.
    pub records: Vec<OutcomeRecord>,
}

impl OutcomeRecord {
    /// Appends the record to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key.to_le_bytes());
        out.extend_from_slice(&self.entry.ms.to_le_bytes());
        // A larger sequence number would take four billion packs in one millisecond.
        out.extend_from_slice(&u32::try_from(self.entry.seq).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&self.index.to_le_bytes());
        out.extend_from_slice(&[self.outcome as u8, self.attempts]);
    }

    fn read(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let number = |from: usize, to: usize| {
            let low_first = bytes[from..to].iter().rev();
            low_first.fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        Some(Self {
            key: number(0, 8),
            entry: StreamId { ms: number(8, 16), seq: number(16, 20) },
            index: u32::try_from(number(20, 24)).ok()?,
            outcome: RecordedOutcome::of(bytes[24])?,
            attempts: bytes[25],
        })
    }
}

impl RecordedOutcome {
    fn of(byte: u8) -> Option<Self> {
        let sent = [Self::Delivered, Self::Dead];
        let unsent =
            [Self::Duplicate, Self::Coalesced, Self::Dropped, Self::Suppressed, Self::Stale];
        sent.into_iter().chain(unsent).find(|outcome| *outcome as u8 == byte)
    }
}

/// Returns the history of `consumer` after `after`, of a bounded number of settlements. Empty when
/// there is no more. Records with an unknown outcome are left out.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn after(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    after: StreamId,
) -> Result<Vec<OutcomeRecords>, QueueError> {
    let found: Vec<(String, Fields)> = cmd("XRANGE")
        .arg(redis.keys.of(consumer).history())
        .arg(format!("({after}"))
        .arg("+")
        .arg("COUNT")
        .arg(CHUNKS_MAX)
        .query_async(connection)
        .await?;
    let chunk = |(id, fields): (String, Fields)| {
        Ok(OutcomeRecords { id: stream_id(&id)?, records: records(&field(&fields, "h")) })
    };
    found.into_iter().map(chunk).collect()
}

fn records(bytes: &[u8]) -> Vec<OutcomeRecord> {
    bytes.as_chunks::<RECORD_BYTES>().0.iter().filter_map(OutcomeRecord::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back_and_unknown_kinds_left_out() {
        let one = OutcomeRecord {
            key: 0xfedc_ba98_7654_3210,
            entry: StreamId { ms: 1_767_268_800_000, seq: 3 },
            index: 70_000,
            outcome: RecordedOutcome::Coalesced,
            attempts: 7,
        };
        let mut bytes = Vec::new();
        one.write(&mut bytes);
        assert_eq!(bytes.len(), RECORD_BYTES);
        let two = OutcomeRecord { outcome: RecordedOutcome::Stale, ..one };
        two.write(&mut bytes);
        let mut unknown = bytes.clone();
        unknown[24] = 99;
        assert_eq!(records(&bytes), [one, two]);
        assert_eq!(records(&unknown), [two]);
        assert_eq!(records(&bytes[..40]), [one]);
    }
}
