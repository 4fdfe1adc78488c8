//! Audit: who changed what, with which filter, and how many; and who looked at personal data.
//!
//! A change is recorded before it is made, and its end replaces that record. So a record without an end
//! is of a change that is being made, or that was cut off. A look has one record.

use std::time::Duration;

use redis::{FromRedisValue, Script, cmd, pipe};
use serde::{Deserialize, Serialize};
use spillway_webhook::StreamId;

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::read::{Fields, field, stream_id};

/// Records that are kept, beside those of the last day: each has some 300 bytes, and an operator's script may make many.
const RECORDS_KEPT: usize = 100_000;
/// Records beyond which no change is made, so that nobody can fill Redis, or push out what was done just before.
const RECORDS_MAX: usize = 300_000;
/// Records beyond which no look is recorded: looks leave room for changes.
const LOOKS_MAX: usize = 200_000;
const _: () = assert!(RECORDS_KEPT < LOOKS_MAX, "older ones are deleted first");
const _: () = assert!(LOOKS_MAX < RECORDS_MAX, "a day of looks keeps nobody from a change");
/// Time within which the same look is recorded once.
const LOOK_ONCE: Duration = Duration::from_secs(600);
/// Calls of the script by which [`Audit::trim`] deletes. Each deletes some thousands at most.
const TRIM_CALLS: usize = 100;
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
    /// Ordered for so many. The consumer carries it out, as far as they are still there.
    Ordered(u64),
    /// Begun, for so many at most. Another record or the consumer says how many it became.
    Planned(u64),
    /// Stopped by somebody, after so many were done.
    Stopped(u64),
    /// Failed for this reason. A part of it may have been made.
    Failed(String),
    /// Failed for this reason, after at least so many were done or ordered.
    FailedAfter {
        /// Number that was done or ordered.
        done: u64,
        /// Reason.
        reason: String,
    },
}

impl From<u64> for AuditEnd {
    fn from(done: u64) -> Self {
        Self::Done(done)
    }
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
    /// Time for which records are kept, unless Redis knows another one.
    keep: Duration,
    /// Order about the time that Redis knows.
    order: KeepOrder,
}

/// Order about the time for which records are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeepOrder {
    /// None: the time is a default.
    Unset,
    /// Keep them for this time, or for a longer one that was set before.
    AtLeast,
    /// Keep them for this time from now on.
    Exactly,
}

/// One call of the script.
struct AuditCall<'a> {
    /// Record; empty if old ones are only deleted.
    json: &'a str,
    replaced: Option<StreamId>,
    /// Number of records beyond which it is refused.
    most: usize,
    /// Time within which the same record is written once.
    once: Option<Duration>,
    order: KeepOrder,
}

impl Audit {
    /// The audit of this cell, whose records are kept for a time, unless another one was set.
    pub fn new(redis: Redis, keep: Duration) -> Self {
        Self { redis, keep, order: KeepOrder::Unset }
    }

    /// Same, with a time that an operator has set: no process deletes anything earlier.
    #[must_use]
    pub fn with_set_keep(self) -> Self {
        Self { order: KeepOrder::AtLeast, ..self }
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

    /// Records that somebody looks at personal data, once in ten minutes for the same look. Returns false if there were
    /// too many in a day: it is not recorded then.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn note_look(
        &self,
        connection: &mut Connection,
        look: &AuditedChange,
    ) -> Result<bool, QueueError> {
        let end = Some(AuditEnd::Done(1));
        let stored = StoredChange { change: capped(look.clone()), began_ms: None, end };
        let json = serde_json::to_string(&stored).expect("BUG: a record is JSON");
        let call = AuditCall {
            json: &json,
            replaced: None,
            most: LOOKS_MAX,
            once: Some(LOOK_ONCE),
            order: self.order,
        };
        let id: String = self.call(connection, call).await?;
        Ok(!id.is_empty())
    }

    /// Deletes records that are older than they are kept. A change does so, too: this is for a cell in which nobody changes
    /// anything. Returns the number of those that were deleted.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn trim(&self, connection: &mut Connection) -> Result<u64, QueueError> {
        self.trim_by(connection, self.order).await
    }

    /// Keeps records for the time of this audit from now on, also if a longer one was set before. Returns the number of
    /// those that were deleted.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn set_keep(&self, connection: &mut Connection) -> Result<u64, QueueError> {
        self.trim_by(connection, KeepOrder::Exactly).await
    }

    /// Time for which records are kept.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn kept(&self, connection: &mut Connection) -> Result<Duration, QueueError> {
        let key = self.redis.keys.audit_keep();
        let stored: Option<u64> = cmd("HGET").arg(key).arg("ms").query_async(connection).await?;
        Ok(self.longest(stored))
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
            AuditEnd::FailedAfter { done, reason } => {
                AuditEnd::FailedAfter { done, reason: cut(reason, TEXT_BYTES) }
            }
            made @ (AuditEnd::Done(_)
            | AuditEnd::Ordered(_)
            | AuditEnd::Planned(_)
            | AuditEnd::Stopped(_)) => made,
        };
        let change = capped(change);
        let stored = StoredChange { change, began_ms: Some(begun.ms), end: Some(end) };
        self.write(connection, &stored, Some(begun)).await.map(|_| ())
    }

    /// Reads at most `count` records, newest first, that are older than `before`. Those that are older than they are kept
    /// are left out, also where nobody has deleted them yet.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn page(
        &self,
        connection: &mut Connection,
        before: Option<StreamId>,
        count: usize,
    ) -> Result<Vec<AuditRecord>, QueueError> {
        if before == Some(StreamId::ZERO) {
            // Redis refuses this end of a range, because no id is before it.
            return Ok(Vec::new());
        }
        let (stored, (seconds, micros)): (Option<u64>, (u64, u64)) = pipe()
            .cmd("HGET")
            .arg(self.redis.keys.audit_keep())
            .arg("ms")
            .cmd("TIME")
            .query_async(connection)
            .await?;
        let now_ms = seconds.saturating_mul(1000).saturating_add(micros / 1000);
        let oldest_ms = now_ms.saturating_sub(millis(self.longest(stored)));
        let newest = before.map_or_else(|| "+".to_owned(), |before| format!("({before}"));
        let found: Vec<(String, Fields)> = cmd("XREVRANGE")
            .arg(self.redis.keys.audit())
            .arg(newest)
            .arg(format!("{oldest_ms}-0"))
            .arg("COUNT")
            .arg(count)
            .query_async(connection)
            .await?;
        found.into_iter().map(|(id, fields)| record(&id, &fields)).collect()
    }

    /// Time for which records are kept, if Redis knows this one.
    fn longest(&self, stored_ms: Option<u64>) -> Duration {
        let stored = stored_ms.filter(|ms| *ms > 0).map(Duration::from_millis);
        match (stored, self.order) {
            (Some(stored), KeepOrder::AtLeast) => stored.max(self.keep),
            (Some(stored), KeepOrder::Unset | KeepOrder::Exactly) => stored,
            (None, _) => self.keep,
        }
    }

    async fn trim_by(
        &self,
        connection: &mut Connection,
        order: KeepOrder,
    ) -> Result<u64, QueueError> {
        let mut deleted = 0;
        for _ in 0..TRIM_CALLS {
            let most = RECORDS_MAX;
            let call = AuditCall { json: "", replaced: None, most, once: None, order };
            let part: u64 = self.call(connection, call).await?;
            if part == 0 {
                break;
            }
            deleted += part;
        }
        Ok(deleted)
    }

    async fn write(
        &self,
        connection: &mut Connection,
        stored: &StoredChange,
        replaced: Option<StreamId>,
    ) -> Result<StreamId, QueueError> {
        let json = serde_json::to_string(stored).expect("BUG: a record is JSON");
        let most = RECORDS_MAX;
        let call = AuditCall { json: &json, replaced, most, once: None, order: self.order };
        let id: String = self.call(connection, call).await?;
        if id.is_empty() {
            return Err(QueueError::AuditFull);
        }
        stream_id(&id)
    }

    async fn call<T: FromRedisValue>(
        &self,
        connection: &mut Connection,
        call: AuditCall<'_>,
    ) -> Result<T, QueueError> {
        let keys = &self.redis.keys;
        let script = Script::new(include_str!("lua/audit.lua"));
        let mut asked = script.key(keys.audit());
        asked.key(keys.audit_keep());
        asked.arg(call.json);
        asked.arg(call.replaced.map_or_else(String::new, |id| id.to_string()));
        asked.arg(RECORDS_KEPT).arg(millis(self.keep)).arg(call.most);
        asked.arg(match call.order {
            KeepOrder::Unset => "",
            KeepOrder::AtLeast => "longest",
            KeepOrder::Exactly => "exactly",
        });
        asked.arg(call.once.map_or_else(String::new, |once| millis(once).to_string()));
        Ok(asked.invoke_async(connection).await?)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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
        let reason = "redis".to_owned();
        for end in [
            None,
            Some(AuditEnd::Done(3)),
            Some(AuditEnd::Ordered(3)),
            Some(AuditEnd::Planned(3)),
            Some(AuditEnd::Stopped(3)),
            Some(AuditEnd::Failed(reason.clone())),
            Some(AuditEnd::FailedAfter { done: 3, reason }),
        ] {
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
    fn a_time_that_was_set_is_kept_by_all() {
        let day = Duration::from_secs(86_400);
        let redis = Redis::new("redis://127.0.0.1:6379/0", "{x}:").expect("a URL");
        let audit = Audit::new(redis, 30 * day);
        let stored = |days: u64| Some(days * 86_400_000);
        assert_eq!(audit.longest(None), 30 * day);
        assert_eq!(audit.longest(stored(7)), 7 * day, "ours is a default");
        let audit = audit.with_set_keep();
        assert_eq!(audit.longest(stored(7)), 30 * day);
        assert_eq!(audit.longest(stored(90)), 90 * day);
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
