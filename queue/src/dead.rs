//! Dead letters of one consumer: listed, replayed through the stream of replays, dropped, aged out.
//!
//! Compliance topics never age out, because they are a legal duty.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use redis::{Script, Value, cmd};
use spillway_webhook::shopify::is_compliance;
use spillway_webhook::{StreamId, WebhookId};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::read::{Fields, field, field_text, stream_id};

/// Time between two calls of [`age_out`], which bounds the number of letters that one call may
/// drop.
pub const AGE_OUT_EVERY: Duration = Duration::from_secs(60);
/// Dead letters that may age out in an hour, even if there are few.
const AGE_OUT_HOURLY_MIN: u64 = 1000;
/// Share (1/24) of the dead letters that may age out in an hour. A clock that is wrong by weeks is
/// noticed before many are lost.
const AGE_OUT_HOURLY_SHARE: u64 = 24;
/// A cell that accepted nothing for longer than this probably has a wrong clock.
const IDLE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Dead letters that one script takes away. Together with [`TAKE_BYTES_MAX`], this bounds the time
/// for which the script blocks Redis.
const TAKE_MAX: usize = 64;
/// Stored bytes of the dead letters that one script takes away.
const TAKE_BYTES_MAX: usize = 8 << 20;

/// A webhook that was given up.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// Id among the dead letters. Its milliseconds are the time at which the webhook was given up.
    pub id: StreamId,
    /// Id of the webhook.
    pub webhook: WebhookId,
    /// Shop domain.
    pub shop: String,
    /// Topic.
    pub topic: String,
    /// Resource of the webhook, such as `product/12`.
    pub resource: String,
    /// Shopify's id of the webhook.
    pub webhook_id: String,
    /// Reason for giving up.
    pub reason: String,
    /// Status of the last answer; 0 if there was none.
    pub status: u16,
    /// Delivery attempts made.
    pub attempts: u32,
    /// First KB of the last answer.
    pub answer: Bytes,
    /// A pack of one: the webhook exactly as it was received.
    pub pack: Bytes,
}

/// Action on dead letters that are taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Drops them.
    Drop,
    /// Moves them to the replays, in the order given. The consumer delivers them again.
    Replay,
}

/// Returns up to `count` dead letters of `consumer` after `after`, oldest first.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn list(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    after: StreamId,
    count: usize,
) -> Result<Vec<DeadLetter>, QueueError> {
    page(redis, connection, consumer, after, "+", count).await
}

/// Result of aging out dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgedOut {
    /// Letters that were dropped.
    pub dropped: u64,
    /// True if there were more, and the bound kept them for later.
    pub is_bounded: bool,
}

/// Takes dead letters away, in the order given. Returns the number of those that still existed.
/// Works in steps of bounded size: after an error, some may be taken.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn take(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    how: Take,
    ids: &[StreamId],
) -> Result<u64, QueueError> {
    let script = Script::new(include_str!("lua/dead.lua"));
    let own = redis.keys.of(consumer);
    let how = match how {
        Take::Drop => "drop",
        Take::Replay => "replay",
    };
    let mut taken = 0;
    let mut rest = ids;
    while !rest.is_empty() {
        let mut call = script.key(own.dead());
        call.key(own.dead_bytes()).key(own.replays());
        call.arg(how).arg(TAKE_BYTES_MAX);
        for id in &rest[..rest.len().min(TAKE_MAX)] {
            call.arg(id.to_string());
        }
        let (part, looked_at): (u64, usize) = call.invoke_async(connection).await?;
        taken += part;
        // The script looks at one at least.
        rest = rest.get(looked_at.max(1)..).unwrap_or_default();
    }
    Ok(taken)
}

/// Returns the time of Redis' clock, in milliseconds since the Unix epoch. The ids of dead letters
/// come from the same clock.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn now_ms(connection: &mut Connection) -> Result<u64, QueueError> {
    let (seconds, micros): (u64, u64) = cmd("TIME").query_async(connection).await?;
    Ok(seconds.saturating_mul(1000).saturating_add(micros / 1000))
}

/// Drops dead letters that were given up more than `keep` before `now_ms`, a result of [`now_ms`].
/// Call it once in [`AGE_OUT_EVERY`]. The number that one call drops is bounded: otherwise a clock
/// that jumps ahead by weeks would drop all dead letters at once.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn age_out(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    keep: Duration,
    now_ms: u64,
) -> Result<AgedOut, QueueError> {
    // Each may be as large as a webhook can be, and only its topic is needed.
    const AT_A_TIME: usize = 16;
    let mut aged = AgedOut { dropped: 0, is_bounded: false };
    let before_ms = now_ms.saturating_sub(millis(keep));
    // The range ends at this time, so that younger ones are not even read.
    let Some(newest_ms) = before_ms.checked_sub(1) else { return Ok(aged) };
    let newest = newest_ms.to_string();
    let mut after = StreamId::ZERO;
    let mut left = None;
    loop {
        let old = page(redis, connection, consumer, after, &newest, AT_A_TIME).await?;
        let Some(last) = old.last() else { return Ok(aged) };
        after = last.id;
        let mut ids: Vec<_> = old
            .iter()
            .filter(|letter| !is_compliance(letter.topic.as_bytes()))
            .map(|letter| letter.id)
            .collect();
        if ids.is_empty() {
            continue;
        }
        let most = match left {
            Some(left) => left,
            None => most_at_a_time(redis, connection, consumer, keep, now_ms).await?,
        };
        aged.is_bounded = ids.len() > most;
        ids.truncate(most);
        aged.dropped += take(redis, connection, consumer, Take::Drop, &ids).await?;
        if aged.is_bounded {
            return Ok(aged);
        }
        left = Some(most - ids.len());
    }
}

/// Maximum number of dead letters that one call of [`age_out`] may drop.
async fn most_at_a_time(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    keep: Duration,
    now_ms: u64,
) -> Result<usize, QueueError> {
    let keys = &redis.keys;
    let main = newest_ms(connection, &keys.stream()).await?;
    let stream = keys.of(consumer).dead();
    let dead = newest_ms(connection, &stream).await?;
    let letters: u64 = cmd("XLEN").arg(&stream).query_async(connection).await?;
    let idle = Duration::from_millis(now_ms.saturating_sub(main.max(dead)));
    let is_plausible = idle <= keep.max(IDLE_MAX);
    Ok(usize::try_from(bound(letters, keep, is_plausible)).unwrap_or(usize::MAX))
}

/// Time of the newest id of a stream; 0 if there is no stream.
async fn newest_ms(connection: &mut Connection, stream: &str) -> Result<u64, QueueError> {
    let found: Result<HashMap<String, Value>, _> =
        cmd("XINFO").arg("STREAM").arg(stream).query_async(connection).await;
    match found {
        Ok(found) => {
            let id = found.get("last-generated-id");
            let id = id.and_then(|id| redis::from_redis_value_ref::<String>(id).ok());
            Ok(stream_id(&id.unwrap_or_default())?.ms)
        }
        // XINFO of a stream that does not exist is an error.
        Err(error) if error.code() == Some("ERR") => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Number of dead letters, of `letters`, that may age out in one call. The hourly bound is the
/// largest of a fixed share, twice the rate at which they age out evenly, and a minimum. If the
/// clock is not plausible, it is the minimum.
fn bound(letters: u64, keep: Duration, is_plausible: bool) -> u64 {
    const HOUR: Duration = Duration::from_secs(3600);
    let evenly = letters.saturating_mul(HOUR.as_secs()) / keep.as_secs().max(1);
    let share = (letters / AGE_OUT_HOURLY_SHARE).max(evenly.saturating_mul(2));
    let hourly = if is_plausible { share.max(AGE_OUT_HOURLY_MIN) } else { AGE_OUT_HOURLY_MIN };
    hourly.div_ceil(HOUR.as_secs() / AGE_OUT_EVERY.as_secs())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

async fn page(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    after: StreamId,
    newest: &str,
    count: usize,
) -> Result<Vec<DeadLetter>, QueueError> {
    let found: Vec<(String, Fields)> = cmd("XRANGE")
        .arg(redis.keys.of(consumer).dead())
        .arg(format!("({after}"))
        .arg(newest)
        .arg("COUNT")
        .arg(count)
        .query_async(connection)
        .await?;
    found.into_iter().map(|(id, fields)| dead_letter(&id, &fields)).collect()
}

fn dead_letter(id: &str, fields: &Fields) -> Result<DeadLetter, QueueError> {
    let webhook = field_text(fields, "id");
    let webhook = webhook
        .parse()
        .map_err(|_| QueueError::Unexpected(format!("webhook id {webhook:?} in dead {id}")))?;
    Ok(DeadLetter {
        id: stream_id(id)?,
        webhook,
        shop: field_text(fields, "shop"),
        topic: field_text(fields, "topic"),
        resource: field_text(fields, "res"),
        webhook_id: field_text(fields, "wid"),
        reason: field_text(fields, "reason"),
        status: field_text(fields, "status").parse().unwrap_or(0),
        attempts: field_text(fields, "attempts").parse().unwrap_or(0),
        answer: field(fields, "answer"),
        pack: field(fields, "p"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_clock_costs_a_small_share_of_the_dead_letters_before_somebody_notices() {
        let day = Duration::from_secs(24 * 3600);
        for (letters, keep, is_plausible, expected) in [
            (10, 30 * day, true, 17),
            (1_000_000, 30 * day, true, 695),
            (1_000_000, 30 * day, false, 17),
            // In two hours, all of them are this old.
            (1_000_000, day / 24, true, 33_334),
            (u64::MAX, Duration::ZERO, true, u64::MAX.div_ceil(60)),
        ] {
            assert_eq!(bound(letters, keep, is_plausible), expected, "{letters} {keep:?}");
        }
    }
}
