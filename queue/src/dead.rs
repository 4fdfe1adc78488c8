//! Dead letters of one drain: listed, replayed through the parked stream, dropped, aged out.
//!
//! Never aged out: the compliance topics, which are a legal duty to someone.

use std::time::Duration;

use bytes::Bytes;
use redis::{Script, cmd};
use spillway_webhook::shopify::is_compliance;
use spillway_webhook::{StreamId, WebhookId};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::read::{Fields, field, field_text, stream_id};

/// A webhook that was given up.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// Its place among the dead letters; the time in it is when it was given up.
    pub id: StreamId,
    /// Which webhook it is.
    pub webhook: WebhookId,
    /// Shop domain.
    pub shop: String,
    /// Topic.
    pub topic: String,
    /// What it was about, such as `product/12`.
    pub resource: String,
    /// Shopify's id of the webhook.
    pub delivery_id: String,
    /// Why it was given up.
    pub reason: String,
    /// Status of the last answer; 0 if there was none.
    pub status: u16,
    /// Deliveries tried.
    pub attempts: u32,
    /// First KB of the last answer.
    pub answer: Bytes,
    /// A pack of one: the webhook exactly as it was received.
    pub pack: Bytes,
}

/// What becomes of dead letters that are taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// They are gone.
    Drop,
    /// They are delivered again, in the order given.
    Replay,
}

/// Up to `count` dead letters of `drain` behind `after`, oldest first.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn list(
    redis: &Redis,
    connection: &mut Connection,
    drain: &str,
    after: StreamId,
    count: usize,
) -> Result<Vec<DeadLetter>, QueueError> {
    page(redis, connection, drain, after, "+", count).await
}

/// Takes dead letters away in one step; says how many of them were still there.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn take(
    redis: &Redis,
    connection: &mut Connection,
    drain: &str,
    how: Take,
    ids: &[StreamId],
) -> Result<u64, QueueError> {
    let script = Script::new(include_str!("lua/dead.lua"));
    let keys = &redis.keys;
    let mut call = script.key(keys.dead(drain));
    call.key(keys.dead_bytes(drain)).key(keys.parked(drain));
    call.arg(match how {
        Take::Drop => "drop",
        Take::Replay => "replay",
    });
    for id in ids {
        call.arg(id.to_string());
    }
    Ok(call.invoke_async(connection).await?)
}

/// Drops what was given up more than `keep` before `now_ms`, a bounded number at a time.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn age_out(
    redis: &Redis,
    connection: &mut Connection,
    drain: &str,
    keep: Duration,
    now_ms: u64,
) -> Result<u64, QueueError> {
    // Each may be as large as a webhook can be, and only its topic is looked at.
    const AT_A_TIME: usize = 16;
    let before_ms = now_ms.saturating_sub(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
    // Asked for by their time, so that the young ones are not even read.
    let Some(newest_ms) = before_ms.checked_sub(1) else { return Ok(0) };
    let newest = newest_ms.to_string();
    let mut after = StreamId::ZERO;
    let mut dropped = 0;
    loop {
        let old = page(redis, connection, drain, after, &newest, AT_A_TIME).await?;
        let Some(last) = old.last() else { return Ok(dropped) };
        after = last.id;
        let ids: Vec<_> = old
            .iter()
            .filter(|letter| !is_compliance(letter.topic.as_bytes()))
            .map(|letter| letter.id)
            .collect();
        if !ids.is_empty() {
            dropped += take(redis, connection, drain, Take::Drop, &ids).await?;
        }
    }
}

async fn page(
    redis: &Redis,
    connection: &mut Connection,
    drain: &str,
    after: StreamId,
    newest: &str,
    count: usize,
) -> Result<Vec<DeadLetter>, QueueError> {
    let found: Vec<(String, Fields)> = cmd("XRANGE")
        .arg(redis.keys.dead(drain))
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
        delivery_id: field_text(fields, "wid"),
        reason: field_text(fields, "reason"),
        status: field_text(fields, "status").parse().unwrap_or(0),
        attempts: field_text(fields, "attempts").parse().unwrap_or(0),
        answer: field(fields, "answer"),
        pack: field(fields, "p"),
    })
}
