//! Shares of the shops in what waits for a consumer. Its leader publishes them; receivers read them
//! with the [status](crate::status).
//!
//! Stored as `<ms of Redis' clock> <JSON>`, such as
//! `5 {"waiting":9,"shops":[{"hash":"00000000000000ab","shop":"a.myshopify.com","waiting":8}]}`.

use std::time::Duration;

use redis::Script;
use serde::{Deserialize, Serialize};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::status::{CellStatus, ConsumerStatus};

/// Published shares older than this are ignored, because no leader is active. A leader publishes
/// unchanged shares again every 20 s.
pub const FRESH_FOR: Duration = Duration::from_secs(60);
/// Maximum memory that one webhook is assumed to take in Redis. If Redis is full of other data, the
/// few webhooks that wait are not taken for the cause.
const WEBHOOK_BYTES_MAX: u64 = 1 << 20;

/// Shops that take much of what waits for a consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    /// Unsettled webhooks of all shops that the consumer has read.
    pub waiting: u64,
    /// Shops with more than 5 % of these webhooks.
    pub shops: Vec<ShopShare>,
}

/// Share of one shop in what waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShopShare {
    /// Stable hash of the shop's domain.
    #[serde(with = "hex")]
    pub hash: u64,
    /// Domain of the shop; empty if none of its webhooks lies in a lane.
    #[serde(default)]
    pub shop: String,
    /// Unsettled webhooks of the shop.
    pub waiting: u64,
}

impl ShopShare {
    /// Returns the shop's domain, or its hash if the domain is not known.
    pub fn label(&self) -> String {
        if self.shop.is_empty() { crate::lane::hash(self.hash) } else { self.shop.clone() }
    }
}

/// Shares as they were published.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Published {
    /// Time of Redis' clock, in milliseconds since the Unix epoch.
    at_ms: u64,
    shares: Shares,
}

/// A shop that takes much of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargeShop {
    /// Share of the shop in what waits for a consumer.
    pub share: ShopShare,
    /// Approximate memory of its webhooks, in bytes: the memory of Redis without dead letters,
    /// divided by the number of webhooks, times the number of the shop's webhooks.
    pub bytes: u64,
}

/// Returns the shops that take much of the queue, as `consumer` published within [`FRESH_FOR`].
///
/// # Errors
/// [`QueueError::Unexpected`] when the published text has another form.
pub fn large_shops(
    status: &CellStatus,
    consumer: &ConsumerStatus,
) -> Result<Vec<LargeShop>, QueueError> {
    if consumer.notes.shares.is_empty() {
        return Ok(Vec::new());
    }
    let Published { at_ms, shares } = Published::parse(&consumer.notes.shares)?;
    // A clock that was set back would make old shares look new.
    if u128::from(status.now_ms.abs_diff(at_ms)) > FRESH_FOR.as_millis() {
        return Ok(Vec::new());
    }
    let dead_bytes: u64 = status.consumers.iter().map(|consumer| consumer.dead.bytes).sum();
    let queue_bytes = status.queue.bytes.saturating_sub(dead_bytes);
    // Includes webhooks that this consumer has not read yet, and those that wait only for another
    // one.
    let webhooks = shares.waiting.max(status.queue.webhooks + consumer.parked);
    let large = shares.shops.into_iter().map(|share| {
        let most = share.waiting.saturating_mul(WEBHOOK_BYTES_MAX);
        let bytes = u128::from(queue_bytes) * u128::from(share.waiting);
        let bytes = bytes / u128::from(webhooks.max(share.waiting).max(1));
        LargeShop { share, bytes: u64::try_from(bytes).unwrap_or(most).min(most) }
    });
    Ok(large.collect())
}

impl Published {
    fn parse(text: &str) -> Result<Self, QueueError> {
        let unexpected = |why: &str| QueueError::Unexpected(format!("shares of shops: {why}"));
        let (at_ms, json) = text.split_once(' ').ok_or_else(|| unexpected("no time"))?;
        let at_ms = at_ms.parse().map_err(|_| unexpected("the time is not a number"))?;
        let shares = serde_json::from_str(json).map_err(|error| unexpected(&error.to_string()))?;
        Ok(Self { at_ms, shares })
    }
}

/// Publishes the shares of `consumer`, even in a full Redis. Without a shop, removes the published
/// ones.
///
/// # Errors
/// [`QueueError::Fenced`] when `token` is not the leader's; any other from Redis.
pub async fn publish(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    token: &str,
    shares: &Shares,
) -> Result<(), QueueError> {
    let json = if shares.shops.is_empty() {
        String::new()
    } else {
        serde_json::to_string(shares).expect("BUG: shares have no map and no odd key")
    };
    let _: u64 = Script::new(include_str!("lua/shares.lua"))
        .key(redis.keys.of(consumer).leader())
        .key(redis.keys.shares())
        .arg(token)
        .arg(consumer)
        .arg(json)
        .invoke_async(connection)
        .await?;
    Ok(())
}

/// A hash as 16 hex digits: other readers of JSON have no 64-bit integers.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(hash: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&crate::lane::hash(*hash))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        crate::lane::parse_hash(&text).ok_or_else(|| de::Error::custom("not a hash"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str = r#"1500 {"waiting":9,"shops":[{"hash":"fffffffffffffffe","shop":"a.myshopify.com","waiting":8}]}"#;

    #[test]
    fn what_is_published_is_read_back() {
        let shop = ShopShare { hash: u64::MAX - 1, shop: "a.myshopify.com".to_owned(), waiting: 8 };
        let shares = Shares { waiting: 9, shops: vec![shop] };
        assert_eq!(format!("1500 {}", serde_json::to_string(&shares).unwrap()), STORED);
        assert_eq!(Published::parse(STORED).unwrap(), Published { at_ms: 1500, shares });
    }

    #[test]
    fn anything_else_is_an_error() {
        let nameless = r#"5 {"waiting":9,"shops":[{"hash":"00000000000000ab","waiting":8}]}"#;
        assert_eq!(Published::parse(nameless).unwrap().shares.shops[0].hash, 0xab);
        for text in ["", "5", "x {}", "5 {}", "5 []", r#"5 {"waiting":-1,"shops":[]}"#] {
            assert!(Published::parse(text).is_err(), "{text}");
        }
        for hash in ["ab", "00000000000000ag", "000000000000000ab"] {
            let text = nameless.replace("00000000000000ab", hash);
            assert!(Published::parse(&text).is_err(), "{hash}");
        }
    }
}
