//! Redactions that were delivered, and records of what was purged because of them.
//!
//! A consumer notes a redaction before it settles it. So from then on Redis knows that the data of a person, or of
//! a shop, is to be purged, and since when. A note is removed once a purge has ended, and the AOF is rewritten after
//! that: the note itself holds personal data. Until then, a mark takes the place of the notes.

use std::collections::HashMap;

use bytes::Bytes;
use rand::RngExt;
use redis::{Script, cmd};
use spillway_webhook::WebhookId;

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::read::{Fields, field_text, stream_id};

/// Records of purges that are kept. They prove that people were forgotten, and have some 300 bytes each.
const RECORDS_KEPT: usize = 10_000;
/// Records that one read asks for.
const RECORDS_READ: usize = 1_000;
/// Start of the names of orders by hand. No Spillway-Id begins like that.
const BY_HAND: &str = "hand:";
/// Field of the mark that a rewrite of the AOF is due.
const REWRITE: &str = "rewrite";

/// A redaction that was delivered.
#[derive(Debug, Clone)]
pub struct NotedRedaction {
    /// Id of its webhook.
    pub webhook: WebhookId,
    /// Time at which it was noted, in milliseconds since the Unix epoch, by Redis' clock.
    pub noted_ms: u64,
    /// First consumer that delivered it.
    pub consumer: String,
    /// A pack of one: the webhook as it was received.
    pub pack: Bytes,
}

/// An order by hand whose purge has begun and has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedOrder {
    /// Name of the note.
    pub name: String,
    /// Description of the order, as the operator's command wrote it. It holds personal data.
    pub order: String,
}

/// Notes that are left.
#[derive(Debug, Clone, Default)]
pub struct PendingRedactions {
    /// Redactions that are not carried out, oldest first.
    pub noted: Vec<NotedRedaction>,
    /// Orders by hand that are not carried out, oldest first.
    pub by_hand: Vec<NotedOrder>,
    /// Mark of a purge after which the AOF was not rewritten.
    pub rewrite: Option<String>,
    /// Time of the oldest note, in milliseconds since the Unix epoch. A mark counts.
    pub oldest_ms: Option<u64>,
}

/// Notes that `consumer` delivered a redaction, given as a pack of one. Returns true if that is new.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn note(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    webhook: WebhookId,
    pack: &[u8],
) -> Result<bool, QueueError> {
    let value = note_value(consumer, pack);
    let arguments = [b"note".to_vec(), webhook.to_string().into_bytes(), value];
    Ok(call(redis, connection, &arguments).await? == 1)
}

/// Value of a note.
pub(crate) fn note_value(consumer: &str, pack: &[u8]) -> Vec<u8> {
    [consumer.as_bytes(), b" ", pack].concat()
}

/// Notes an order by hand, with its number, before its purge begins, so that one which is cut off is finished by the next
/// one. Returns the name of the note.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn note_by_hand(
    redis: &Redis,
    connection: &mut Connection,
    number: u64,
    order: &str,
) -> Result<String, QueueError> {
    let name = format!("{BY_HAND}{number:016x}");
    let arguments = ["order", &name, order].map(|text| text.as_bytes().to_vec());
    call(redis, connection, &arguments).await?;
    Ok(name)
}

/// Reads the notes.
///
/// # Errors
/// [`QueueError`] from Redis, or if a note cannot be read.
pub async fn pending(
    redis: &Redis,
    connection: &mut Connection,
) -> Result<PendingRedactions, QueueError> {
    let keys = &redis.keys;
    let (notes, times): (HashMap<String, Bytes>, Vec<(String, f64)>) = redis::pipe()
        .atomic()
        .cmd("HGETALL")
        .arg(keys.redactions())
        .cmd("ZRANGE")
        .arg(keys.redactions_noted())
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES")
        .query_async(connection)
        .await?;
    let mut found = PendingRedactions::default();
    for (name, score) in times {
        // A time in milliseconds has far fewer than 53 bits.
        let noted_ms = score.max(0.0) as u64;
        found.oldest_ms.get_or_insert(noted_ms);
        let Some(value) = notes.get(&name) else { continue };
        if name == REWRITE {
            found.rewrite = Some(String::from_utf8_lossy(value).into_owned());
            continue;
        }
        if name.starts_with(BY_HAND) {
            let order = String::from_utf8_lossy(value).into_owned();
            found.by_hand.push(NotedOrder { name, order });
            continue;
        }
        let unexpected = || QueueError::Unexpected(format!("redaction {name:?}"));
        let webhook = name.parse().map_err(|_| unexpected())?;
        let end = value.iter().position(|byte| *byte == b' ').ok_or_else(unexpected)?;
        let consumer = String::from_utf8_lossy(&value[..end]).into_owned();
        let pack = value.slice(end + 1..);
        found.noted.push(NotedRedaction { webhook, noted_ms, consumer, pack });
    }
    Ok(found)
}

/// Writes the record of a purge. With `done`, the names of the notes that it carried out, these are replaced by a
/// mark that the AOF is to be rewritten, which is returned.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn record(
    redis: &Redis,
    connection: &mut Connection,
    record: &str,
    done: Option<&[String]>,
) -> Result<String, QueueError> {
    let mark = format!("{:016x}", rand::rng().random::<u64>());
    let field = if done.is_some() { REWRITE } else { "" };
    let kept = RECORDS_KEPT.to_string();
    let fixed = ["record", record, &kept, &mark, field].map(|text| text.as_bytes().to_vec());
    let mut arguments = Vec::from(fixed);
    let ids = done.unwrap_or_default().iter();
    arguments.extend(ids.map(|id| id.clone().into_bytes()));
    call(redis, connection, &arguments).await?;
    Ok(mark)
}

/// Removes the mark of a purge: the AOF was rewritten after it.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn rewritten(
    redis: &Redis,
    connection: &mut Connection,
    mark: &str,
) -> Result<(), QueueError> {
    let arguments = ["rewritten", REWRITE, mark].map(|text| text.as_bytes().to_vec());
    call(redis, connection, &arguments).await.map(|_| ())
}

/// True if a receiver claims the cell because it has an overflow log, which may hold something.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn claims_overflow(
    redis: &Redis,
    connection: &mut Connection,
) -> Result<bool, QueueError> {
    Ok(cmd("EXISTS").arg(redis.keys.spill_claim()).query_async(connection).await?)
}

/// Returns records of purges, newest first: the time of each, in milliseconds since the Unix epoch, and its JSON.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn records(
    redis: &Redis,
    connection: &mut Connection,
) -> Result<Vec<(u64, String)>, QueueError> {
    let found: Vec<(String, Fields)> = cmd("XREVRANGE")
        .arg(redis.keys.forgotten())
        .arg("+")
        .arg("-")
        .arg("COUNT")
        .arg(RECORDS_READ)
        .query_async(connection)
        .await?;
    let record =
        |(id, fields): (String, Fields)| Ok((stream_id(&id)?.ms, field_text(&fields, "r")));
    found.into_iter().map(record).collect()
}

/// Returns the keys of what is set aside because it could not be decoded.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn corrupt_keys(
    redis: &Redis,
    connection: &mut Connection,
) -> Result<Vec<String>, QueueError> {
    const KEYS_LOOKED_AT: usize = 1_000;
    // A prefix may hold letters that mean something in a pattern.
    let prefix = redis.keys.corrupt_prefix();
    let escaped: String = prefix
        .chars()
        .flat_map(|letter| {
            let escape = matches!(letter, '*' | '?' | '[' | ']' | '\\').then_some('\\');
            escape.into_iter().chain([letter])
        })
        .collect();
    let mut keys = Vec::new();
    let mut cursor = 0u64;
    loop {
        let mut command = cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(format!("{escaped}*"));
        command.arg("COUNT").arg(KEYS_LOOKED_AT);
        let (next, page): (u64, Vec<String>) = command.query_async(connection).await?;
        keys.extend(page);
        if next == 0 {
            break;
        }
        cursor = next;
    }
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

/// Value of a key that is set aside; `None` if it is gone.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn corrupt_value(
    connection: &mut Connection,
    key: &str,
) -> Result<Option<Bytes>, QueueError> {
    Ok(cmd("GET").arg(key).query_async(connection).await?)
}

async fn call(
    redis: &Redis,
    connection: &mut Connection,
    arguments: &[Vec<u8>],
) -> Result<u64, QueueError> {
    let keys = &redis.keys;
    let script = Script::new(include_str!("lua/redact.lua"));
    let mut call = script.key(keys.redactions());
    call.key(keys.redactions_noted()).key(keys.forgotten());
    for argument in arguments {
        call.arg(&argument[..]);
    }
    Ok(call.invoke_async(connection).await?)
}
