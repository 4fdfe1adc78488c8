//! Notes about webhooks that may be missing: refused ones, those that a Redis lost, silences, and times without a receiver.
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

/// Notes that are kept: each has some 150 bytes. The oldest of the rest are merged.
const NOTES_KEPT: usize = 50_000;
/// Notes beyond which the oldest are left out, if nothing is noted that merges them.
pub(crate) const NOTES_MAX: usize = 55_000;
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
    /// No receiver accepted any.
    Down,
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
/// The number of notes that are written, and the error of Redis.
pub async fn note(
    redis: &Redis,
    connection: &mut Connection,
    notes: &[NotedGap],
) -> Result<(), (usize, QueueError)> {
    let script = Script::new(include_str!("lua/gaps.lua"));
    let keep_ms = u64::try_from(KEPT_FOR.as_millis()).unwrap_or(u64::MAX);
    for (number, some) in notes.chunks(NOTES_OF_A_CALL).enumerate() {
        let mut call = script.key(redis.keys.gaps());
        call.key(redis.keys.rhythm()).arg(NOTES_KEPT).arg(keep_ms);
        for note in some {
            call.arg(json_of(note));
        }
        let written: Result<u64, _> = call.invoke_async(connection).await;
        written.map_err(|error| (number * NOTES_OF_A_CALL, QueueError::from(error)))?;
    }
    Ok(())
}

/// Reads the run of Redis that a new connection is of, and the one that was noted before.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn read_run(redis: &Redis, connection: &mut Connection) -> Result<RedisRun, QueueError> {
    let script = Script::new(include_str!("lua/gaps_run.lua"));
    let mut call = script.key(redis.keys.stream());
    call.key(redis.keys.gaps_run()).key(redis.keys.gaps());
    let (before, current, newest): (String, String, String) = call.invoke_async(connection).await?;
    Ok(RedisRun { before, current, newest: stream_id(&newest)? })
}

/// Notes a run that was read, and what Redis lost before it: both or neither.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn note_run(
    redis: &Redis,
    connection: &mut Connection,
    run: &RedisRun,
    lost: Option<&NotedGap>,
) -> Result<(), QueueError> {
    let script = Script::new(include_str!("lua/gaps_run.lua"));
    let mut call = script.key(redis.keys.stream());
    call.key(redis.keys.gaps_run()).key(redis.keys.gaps());
    call.arg(&run.before).arg(&run.current).arg(NOTES_MAX);
    call.arg(lost.map(json_of).unwrap_or_default());
    let _: (String, String, String) = call.invoke_async(connection).await?;
    Ok(())
}

pub(crate) fn json_of(note: &NotedGap) -> String {
    serde_json::to_string(note).expect("BUG: a note is JSON")
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
