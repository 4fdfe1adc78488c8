//! What became of webhooks: one record of a few bytes for each, written with the settlement that
//! settled it, and forgotten like the fingerprints of what was delivered.
//!
//! ```text
//! record  key u64 | entry ms u64 | entry seq u32 | index u32 | outcome u8 | attempts u8
//! ```
//! Integers are little endian. The key is half of the webhook's fingerprint: a hash of the id that
//! Shopify gave it. Never a promise: it is for an operator's eyes, nothing is decided by it.

use redis::cmd;
use spillway_webhook::StreamId;

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::read::{Fields, field, stream_id};

/// Settlements read at a time.
const CHUNKS_MAX: usize = 2048;
const RECORD_BYTES: usize = 26;

/// What became of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The backend took it.
    Delivered = 1,
    /// The very same one was delivered before.
    Duplicate = 2,
    /// A newer one of its resource stood for it: the next record that is not of this kind.
    Coalesced = 3,
    /// It was given up.
    Dead = 4,
    /// An operator ordered that it be dropped.
    Dropped = 5,
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Past {
    /// A hash of its id; 0 where that was not known.
    pub key: u64,
    /// The entry it was accepted in.
    pub entry: StreamId,
    /// Its place there.
    pub index: u32,
    /// What became of it.
    pub outcome: Outcome,
    /// Deliveries tried, as far as the owner knew; 255 stands for more.
    pub attempts: u8,
}

/// The records of one settlement, in its order.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// When it was applied: Redis' clock.
    pub id: StreamId,
    /// Its records.
    pub records: Vec<Past>,
}

impl Past {
    /// Writes it behind others.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key.to_le_bytes());
        out.extend_from_slice(&self.entry.ms.to_le_bytes());
        // A sequence beyond this would be 4 billion packs in one millisecond.
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
            outcome: Outcome::of(bytes[24])?,
            attempts: bytes[25],
        })
    }
}

impl Outcome {
    fn of(byte: u8) -> Option<Self> {
        let all = [Self::Delivered, Self::Duplicate, Self::Coalesced, Self::Dead, Self::Dropped];
        all.into_iter().find(|outcome| *outcome as u8 == byte)
    }
}

/// The history of `drain` behind `after`, of a bounded number of settlements. Empty when there is no
/// more. Records of a kind that is not known are left out.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn after(
    redis: &Redis,
    connection: &mut Connection,
    drain: &str,
    after: StreamId,
) -> Result<Vec<Chunk>, QueueError> {
    let found: Vec<(String, Fields)> = cmd("XRANGE")
        .arg(redis.keys.history(drain))
        .arg(format!("({after}"))
        .arg("+")
        .arg("COUNT")
        .arg(CHUNKS_MAX)
        .query_async(connection)
        .await?;
    let chunk = |(id, fields): (String, Fields)| {
        Ok(Chunk { id: stream_id(&id)?, records: records(&field(&fields, "h")) })
    };
    found.into_iter().map(chunk).collect()
}

fn records(bytes: &[u8]) -> Vec<Past> {
    bytes.as_chunks::<RECORD_BYTES>().0.iter().filter_map(Past::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back_and_unknown_kinds_left_out() {
        let one = Past {
            key: 0xfedc_ba98_7654_3210,
            entry: StreamId { ms: 1_767_268_800_000, seq: 3 },
            index: 70_000,
            outcome: Outcome::Coalesced,
            attempts: 7,
        };
        let mut bytes = Vec::new();
        one.write(&mut bytes);
        assert_eq!(bytes.len(), RECORD_BYTES);
        let two = Past { outcome: Outcome::Dropped, ..one };
        two.write(&mut bytes);
        let mut unknown = bytes.clone();
        unknown[24] = 99;
        assert_eq!(records(&bytes), [one, two]);
        assert_eq!(records(&unknown), [two]);
        assert_eq!(records(&bytes[..40]), [one]);
    }
}
