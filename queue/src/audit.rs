//! Audit: who changed what, with which filter, and how many.
//!
//! A change is recorded before it is made, and its end replaces that record. So a record without an end
//! is of a change that is being made, or that was cut off.

use std::time::Duration;

use redis::{Script, cmd};
use serde::{Deserialize, Serialize};
use spillway_webhook::StreamId;

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::read::{Fields, field, stream_id};

/// Records that are kept, beside those of the last day: each has some 300 bytes, and an operator's script may make many.
const RECORDS_KEPT: usize = 100_000;
/// Records beyond which no change is made, so that nobody can fill Redis, or push out what was done just before.
const RECORDS_MAX: usize = 300_000;
const _: () = assert!(RECORDS_KEPT < RECORDS_MAX, "older ones are deleted first");
/// Bytes of a name in a record.
const NAME_BYTES: usize = 256;
/// Bytes of a filter or a reason in a record.
const TEXT_BYTES: usize = 2048;

/// A change that is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedChange {
    /// User, API token, or user of the machine who makes it.
    pub actor: String,
    /// Way by which it is made.
    pub way: AuditWay,
    /// Command, such as `dead replay`.
    pub verb: String,
    /// Consumer that it changes; empty if it is no consumer's.
    pub consumer: String,
    /// Webhooks that are meant, in words.
    pub filter: String,
}

/// Way by which a change is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditWay {
    /// The command on a machine.
    Cli,
    /// The API.
    Api,
    /// A page of the console.
    Console,
}

/// End of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditEnd {
    /// Made, for so many webhooks, pauses or the like.
    Done(u64),
    /// Failed for this reason. A part of it may have been made.
    Failed(String),
}

/// Record of a change as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredChange {
    #[serde(flatten)]
    change: AuditedChange,
    began_ms: Option<u64>,
    end: Option<AuditEnd>,
}

/// Record of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Id of the record.
    pub id: StreamId,
    /// The change.
    pub change: AuditedChange,
    /// Time at which it began, in milliseconds since the Unix epoch, by Redis' clock.
    pub began_ms: u64,
    /// End of it; `None` while it is being made, or if it was cut off.
    pub end: Option<AuditEnd>,
}

/// The audit of a cell.
#[derive(Debug, Clone)]
pub struct Audit {
    redis: Redis,
    /// Time for which records are kept.
    keep: Duration,
}

impl Audit {
    /// The audit of this cell, whose records are kept for a time.
    pub fn new(redis: Redis, keep: Duration) -> Self {
        Self { redis, keep }
    }

    /// Records that a change is about to be made. Without this record it must not be made.
    ///
    /// # Errors
    /// [`QueueError`] from Redis; [`QueueError::AuditFull`] if there were too many changes in a day.
    pub async fn begin(
        &self,
        connection: &mut Connection,
        change: &AuditedChange,
    ) -> Result<StreamId, QueueError> {
        let stored = StoredChange { change: capped(change.clone()), began_ms: None, end: None };
        self.write(connection, &stored, None).await
    }

    /// Replaces the record of the change that `begun` names by one with its end.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn end(
        &self,
        connection: &mut Connection,
        begun: StreamId,
        change: AuditedChange,
        end: AuditEnd,
    ) -> Result<(), QueueError> {
        let end = match end {
            AuditEnd::Failed(reason) => AuditEnd::Failed(cut(reason, TEXT_BYTES)),
            done @ AuditEnd::Done(_) => done,
        };
        let change = capped(change);
        let stored = StoredChange { change, began_ms: Some(begun.ms), end: Some(end) };
        self.write(connection, &stored, Some(begun)).await.map(|_| ())
    }

    /// Reads at most `count` records, newest first, that are older than `before`.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn page(
        &self,
        connection: &mut Connection,
        before: Option<StreamId>,
        count: usize,
    ) -> Result<Vec<AuditRecord>, QueueError> {
        let newest = before.map_or_else(|| "+".to_owned(), |before| format!("({before}"));
        let found: Vec<(String, Fields)> = cmd("XREVRANGE")
            .arg(self.redis.keys.audit())
            .arg(newest)
            .arg("-")
            .arg("COUNT")
            .arg(count)
            .query_async(connection)
            .await?;
        found.into_iter().map(|(id, fields)| record(&id, &fields)).collect()
    }

    async fn write(
        &self,
        connection: &mut Connection,
        stored: &StoredChange,
        replaced: Option<StreamId>,
    ) -> Result<StreamId, QueueError> {
        let json = serde_json::to_string(stored).expect("BUG: a record is JSON");
        let keep_ms = u64::try_from(self.keep.as_millis()).unwrap_or(u64::MAX);
        let id: String = Script::new(include_str!("lua/audit.lua"))
            .key(self.redis.keys.audit())
            .arg(json)
            .arg(replaced.map_or_else(String::new, |id| id.to_string()))
            .arg(RECORDS_KEPT)
            .arg(keep_ms)
            .arg(RECORDS_MAX)
            .invoke_async(connection)
            .await?;
        if id.is_empty() {
            return Err(QueueError::AuditFull);
        }
        stream_id(&id)
    }
}

/// A change whose texts have a bound: names of users and filters come from elsewhere.
fn capped(change: AuditedChange) -> AuditedChange {
    let AuditedChange { actor, way, verb, consumer, filter } = change;
    AuditedChange {
        actor: cut(actor, NAME_BYTES),
        way,
        verb: cut(verb, NAME_BYTES),
        consumer: cut(consumer, NAME_BYTES),
        filter: cut(filter, TEXT_BYTES),
    }
}

fn cut(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push('…');
    }
    text
}

fn record(id: &str, fields: &Fields) -> Result<AuditRecord, QueueError> {
    let id = stream_id(id)?;
    let unexpected = |_| QueueError::Unexpected(format!("audit record {id}"));
    let StoredChange { change, began_ms, end } =
        serde_json::from_slice(&field(fields, "r")).map_err(unexpected)?;
    Ok(AuditRecord { id, change, began_ms: began_ms.unwrap_or(id.ms), end })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let change = AuditedChange {
            actor: "mia".to_owned(),
            way: AuditWay::Api,
            verb: "dead replay".to_owned(),
            consumer: "http".to_owned(),
            filter: "shop a.myshopify.com".to_owned(),
        };
        for end in [None, Some(AuditEnd::Done(3)), Some(AuditEnd::Failed("redis".to_owned()))] {
            let began_ms = end.as_ref().map(|_| 5);
            let stored = StoredChange { change: change.clone(), began_ms, end: end.clone() };
            let json = serde_json::to_vec(&stored).expect("it is JSON");
            let found = record("7-0", &vec![Bytes::from_static(b"r"), Bytes::from(json)]);
            let found = found.expect("it is a record");
            assert_eq!((found.change, found.end), (change.clone(), end));
            assert_eq!(found.began_ms, began_ms.unwrap_or(7));
        }
        assert!(record("7-0", &Vec::new()).is_err());
    }

    #[test]
    fn texts_of_a_record_have_a_bound() {
        let long = "é".repeat(TEXT_BYTES);
        let change = AuditedChange {
            actor: long.clone(),
            way: AuditWay::Api,
            verb: "pause".to_owned(),
            consumer: "http".to_owned(),
            filter: long,
        };
        let AuditedChange { actor, verb, filter, .. } = capped(change);
        assert_eq!(verb, "pause");
        for (text, bytes) in [(actor, NAME_BYTES), (filter, TEXT_BYTES)] {
            assert!(text.len() <= bytes + 3 && text.ends_with("é…"), "{}", text.len());
        }
    }
}
