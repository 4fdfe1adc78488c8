//! Notes about webhooks that may be missing: refused ones, those that a Redis lost, and silences.
//!
//! Receivers note refusals together, a few seconds later, and nothing is noted of a webhook that was stored. The notes are
//! for an operator and for the app's own reconciliation. Nothing is decided by them.

use std::time::Duration;

use redis::{Script, cmd};
use serde::{Deserialize, Serialize};
use spillway_webhook::StreamId;

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::read::{Fields, field, stream_id};

/// Notes that are kept at most: each has some 150 bytes.
pub(crate) const NOTES_KEPT: usize = 50_000;
/// Time for which notes are kept: long enough to reconcile after an incident that is noticed late.
pub const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// Notes of one call of the script, which bounds the time for which it blocks Redis.
const NOTES_OF_A_CALL: usize = 500;

/// Reason why webhooks may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapReason {
    /// They were answered 503.
    Refused,
    /// Redis lost or may have lost them after they were answered 200.
    Lost,
    /// None came for much longer than usual.
    Silent,
}

/// Note about webhooks that may be missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedGap {
    /// Reason.
    pub reason: GapReason,
    /// Shop domain; empty if any shop may be concerned.
    pub shop: String,
    /// Topic; empty if any topic may be concerned.
    pub topic: String,
    /// Begin, in milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// End, in milliseconds since the Unix epoch.
    pub to_ms: u64,
    /// Number of requests that were refused; else 0.
    pub count: u64,
}

/// Run of Redis, as a new connection found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisRun {
    /// Run id that was noted before, in the data that this Redis holds; empty if none was.
    pub before: String,
    /// Run id of this Redis: it changes with each start, and each Redis has its own.
    pub current: String,
    /// Newest id of the main stream.
    pub newest: StreamId,
}

/// Writes notes, also to a full Redis.
///
/// # Errors
/// [`QueueError`] from Redis. Some of the notes may be written then.
pub async fn note(
    redis: &Redis,
    connection: &mut Connection,
    notes: &[NotedGap],
) -> Result<(), QueueError> {
    let script = Script::new(include_str!("lua/gaps.lua"));
    let keep_ms = u64::try_from(KEPT_FOR.as_millis()).unwrap_or(u64::MAX);
    for notes in notes.chunks(NOTES_OF_A_CALL) {
        let mut call = script.key(redis.keys.gaps());
        call.key(redis.keys.rhythm()).arg(NOTES_KEPT).arg(keep_ms);
        for note in notes {
            call.arg(serde_json::to_string(note).expect("BUG: a note is JSON"));
        }
        call.invoke_async::<u64>(connection).await?;
    }
    Ok(())
}

/// Notes the run of Redis that a new connection is of, and returns it with the one before.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn note_run(redis: &Redis, connection: &mut Connection) -> Result<RedisRun, QueueError> {
    let (before, current, newest): (String, String, String) =
        Script::new(include_str!("lua/gaps_run.lua"))
            .key(redis.keys.stream())
            .key(redis.keys.gaps_run())
            .invoke_async(connection)
            .await?;
    Ok(RedisRun { before, current, newest: stream_id(&newest)? })
}

/// Reads at most `count` notes that were written after `after`, oldest first, each with its id.
///
/// # Errors
/// [`QueueError`] from Redis, or if a note can't be read.
pub async fn page(
    redis: &Redis,
    connection: &mut Connection,
    after: StreamId,
    count: usize,
) -> Result<Vec<(StreamId, NotedGap)>, QueueError> {
    let found: Vec<(String, Fields)> = cmd("XRANGE")
        .arg(redis.keys.gaps())
        .arg(after.next().to_string())
        .arg("+")
        .arg("COUNT")
        .arg(count)
        .query_async(connection)
        .await?;
    found.into_iter().map(|(id, fields)| noted(&id, &fields)).collect()
}

fn noted(id: &str, fields: &Fields) -> Result<(StreamId, NotedGap), QueueError> {
    let id = stream_id(id)?;
    let unexpected = |_| QueueError::Unexpected(format!("note {id} of a gap"));
    Ok((id, serde_json::from_slice(&field(fields, "g")).map_err(unexpected)?))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let note = NotedGap {
            reason: GapReason::Refused,
            shop: "a.myshopify.com".to_owned(),
            topic: "orders/create".to_owned(),
            from_ms: 1_767_268_800_000,
            to_ms: 1_767_268_860_000,
            count: 3,
        };
        let json = serde_json::to_vec(&note).expect("JSON");
        let fields = vec![Bytes::from_static(b"g"), Bytes::from(json)];
        assert_eq!(noted("5-1", &fields).expect("a note"), (StreamId { ms: 5, seq: 1 }, note));
        assert!(noted("5-1", &Vec::new()).is_err());
    }
}
