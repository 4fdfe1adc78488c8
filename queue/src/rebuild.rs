//! Restores a queue from packs that an archive kept, after Redis lost its disk.
//!
//! The packs are written into a stream beside the main one, in several scripts. Each names the number of entries
//! before it, so a script that is repeated or comes late changes nothing, and a restoration that was killed goes on
//! where it was. While it is not complete, no process registers ([`QueueError::Restoring`]): a mark in Redis says so.
//! Each script needs the mark under which the plan was made, so it changes only a Redis that is still as it was then.
//! One last script puts stream, cursors, bits, counts and the cell's id in place, so nobody ever sees a part of it.

use rand::RngExt as _;
use redis::{Script, ScriptInvocation};
use spillway_webhook::{StreamId, WebhookId};

use crate::connect::{Connection, Redis};
use crate::consumers::ConsumerKind;
use crate::error::QueueError;
use crate::gaps::{NOTES_MAX, NotedGap, json_of};
use crate::redactions::note_value;

/// Restoration of a queue according to one plan.
pub struct Rebuild {
    redis: Redis,
    plan: String,
    mark: String,
    fill: Script,
    end: Script,
}

/// Mark in Redis under which a restoration is planned: while it is there, no process registers.
#[derive(Debug, Clone)]
pub struct RebuildHold {
    mark: String,
    /// True if no restoration was unfinished.
    pub is_new: bool,
}

/// An entry to restore.
#[derive(Debug, Clone)]
pub struct RebuiltEntry {
    /// Id of the entry.
    pub id: StreamId,
    /// The pack.
    pub pack: Vec<u8>,
    /// Consumers with one bit for each webhook of the pack that the consumer has settled.
    pub bits: Vec<(String, Vec<u8>)>,
}

/// A consumer of the restored queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuiltConsumer {
    /// Name of the consumer.
    pub name: String,
    /// Program whose consumer it is, if that is known.
    pub kind: Option<ConsumerKind>,
    /// Entries up to here are settled.
    pub cursor: StreamId,
    /// Restored entries up to the cursor.
    pub entries: u64,
    /// Webhooks ever appended, up to the cursor.
    pub through: u64,
    /// Webhooks that are settled after the cursor.
    pub open: u64,
}

/// A redaction that was delivered and not carried out: it is noted again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuiltNote {
    /// Id of its webhook.
    pub webhook: WebhookId,
    /// Consumer that the note names.
    pub consumer: String,
    /// A pack of one: the webhook as it was received.
    pub pack: Vec<u8>,
}

/// The whole queue, once all entries are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuiltQueue {
    /// Random id of the cell whose webhooks these are.
    pub cell: u32,
    /// Number of entries that were written.
    pub entries: u64,
    /// Id that was given out last: no later webhook has one up to it.
    pub last: StreamId,
    /// Webhooks ever appended.
    pub appended: u64,
    /// Webhooks of these that are not in the stream.
    pub trimmed: u64,
    /// Consumers.
    pub consumers: Vec<RebuiltConsumer>,
    /// Redactions that are not carried out.
    pub notes: Vec<RebuiltNote>,
    /// Notes about what is lost.
    pub lost: Vec<NotedGap>,
}

impl RebuiltEntry {
    /// Approximate bytes that the entry takes in a request.
    pub fn size_bytes(&self) -> usize {
        self.pack.len()
            + self.bits.iter().map(|(name, bits)| name.len() + bits.len()).sum::<usize>()
    }
}

impl Rebuild {
    /// Restoration according to the plan that this text identifies, which was made under this mark.
    pub fn new(redis: Redis, plan: String, hold: &RebuildHold) -> Self {
        let fill = Script::new(include_str!("lua/rebuild.lua"));
        let end = Script::new(include_str!("lua/rebuilt.lua"));
        Self { redis, plan, mark: hold.mark.clone(), fill, end }
    }

    /// Begins, or goes on with what was begun according to the same plan. Returns the number of entries that are
    /// written.
    ///
    /// # Errors
    /// [`QueueError::NotEmpty`] when the main stream, lanes or replays hold something. [`QueueError::NotPlanned`] when
    /// the mark is gone.
    pub async fn begin(
        &self,
        connection: &mut Connection,
        consumers: &[String],
    ) -> Result<u64, QueueError> {
        let mut call = self.fill_keys();
        call.arg("begin").arg(&self.plan).arg(self.redis.keys.prefix()).arg(&self.mark);
        for consumer in consumers {
            call.arg(consumer);
        }
        Ok(call.invoke_async(connection).await?)
    }

    /// Writes entries after the first `written` ones. Returns the number of entries that are written.
    ///
    /// # Errors
    /// [`QueueError::Full`]: none of these was written. [`QueueError::OutOfStep`] when another number is written, or
    /// another plan was begun. Others as [`begin`](Self::begin).
    pub async fn add(
        &self,
        connection: &mut Connection,
        written: u64,
        entries: &[RebuiltEntry],
    ) -> Result<u64, QueueError> {
        let mut call = self.fill_keys();
        call.arg("add").arg(&self.plan).arg(self.redis.keys.prefix()).arg(&self.mark).arg(written);
        for RebuiltEntry { id, pack, bits } in entries {
            call.arg(id.to_string()).arg(&pack[..]).arg(bits.len());
            for (consumer, bits) in bits {
                call.arg(consumer).arg(&bits[..]);
            }
        }
        Ok(call.invoke_async(connection).await?)
    }

    /// Puts the restored queue in place of the empty one, and notes its redactions and what is lost.
    ///
    /// # Errors
    /// As [`add`](Self::add), and [`QueueError::NotPlanned`] when Redis has a consumer that is not in `queue`. Nothing
    /// was changed then.
    pub async fn finish(
        &self,
        connection: &mut Connection,
        queue: &RebuiltQueue,
    ) -> Result<(), QueueError> {
        let mut call = end_keys(&self.end, &self.redis);
        call.arg("finish").arg(self.redis.keys.prefix()).arg(&self.plan).arg(queue.entries);
        call.arg(format!("{:08x}", queue.cell)).arg(queue.last.to_string());
        call.arg(queue.appended).arg(queue.trimmed);
        // It has the form of a settlement's mark, and is none of any leader.
        call.arg(format!("restored:{}", queue.entries)).arg(&self.mark);
        call.arg(queue.notes.len()).arg(queue.lost.len()).arg(NOTES_MAX);
        for note in &queue.notes {
            call.arg(note.webhook.to_string()).arg(note_value(&note.consumer, &note.pack));
        }
        for lost in &queue.lost {
            call.arg(json_of(lost));
        }
        for one in &queue.consumers {
            let kind = one.kind.map_or("", ConsumerKind::label);
            call.arg(&one.name).arg(kind).arg(one.cursor.to_string());
            call.arg(one.entries).arg(one.through).arg(one.open);
        }
        let _: u8 = call.invoke_async(connection).await?;
        Ok(())
    }

    fn fill_keys(&self) -> ScriptInvocation<'_> {
        fill_keys(&self.fill, &self.redis)
    }
}

/// Entries that an unfinished restoration has written; 0 if there is none.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn written(redis: &Redis, connection: &mut Connection) -> Result<u64, QueueError> {
    let entries: Option<u64> =
        redis::cmd("HGET").arg(redis.keys.rebuild()).arg("entries").query_async(connection).await?;
    Ok(entries.unwrap_or(0))
}

/// Marks that a restoration is being planned: from now on, no process registers. One that is unfinished stays as it is,
/// and its mark is returned.
///
/// # Errors
/// [`QueueError::NotEmpty`] when the main stream, lanes or replays hold something.
pub async fn hold(redis: &Redis, connection: &mut Connection) -> Result<RebuildHold, QueueError> {
    let script = Script::new(include_str!("lua/rebuild.lua"));
    let mut call = fill_keys(&script, redis);
    call.arg("hold").arg("").arg(redis.keys.prefix());
    call.arg(format!("{:016x}", rand::rng().random::<u64>()));
    let (is_new, mark): (u8, String) = call.invoke_async(connection).await?;
    Ok(RebuildHold { mark, is_new: is_new == 1 })
}

/// Removes a mark of [`hold`] if nothing was begun since. Returns false if this mark is not there.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn release(
    redis: &Redis,
    connection: &mut Connection,
    hold: &RebuildHold,
) -> Result<bool, QueueError> {
    let script = Script::new(include_str!("lua/rebuilt.lua"));
    let mut call = end_keys(&script, redis);
    call.arg("release").arg(redis.keys.prefix()).arg(&hold.mark);
    let removed: u8 = call.invoke_async(connection).await?;
    Ok(removed == 1)
}

/// Removes what an unfinished restoration has written. Returns false if there was none.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn abandon(redis: &Redis, connection: &mut Connection) -> Result<bool, QueueError> {
    let script = Script::new(include_str!("lua/rebuilt.lua"));
    let mut call = end_keys(&script, redis);
    call.arg("abandon").arg(redis.keys.prefix());
    let removed: u8 = call.invoke_async(connection).await?;
    Ok(removed == 1)
}

fn fill_keys<'a>(script: &'a Script, redis: &Redis) -> ScriptInvocation<'a> {
    let keys = &redis.keys;
    let mut call = script.prepare_invoke();
    call.key(keys.stream()).key(keys.rebuild()).key(keys.rebuild_stream());
    call.key(keys.counts()).key(keys.consumers());
    call
}

fn end_keys<'a>(script: &'a Script, redis: &Redis) -> ScriptInvocation<'a> {
    let keys = &redis.keys;
    let mut call = script.prepare_invoke();
    call.key(keys.stream()).key(keys.rebuild()).key(keys.rebuild_stream());
    call.key(keys.cell()).key(keys.counts()).key(keys.consumers());
    call.key(keys.redactions()).key(keys.redactions_noted()).key(keys.gaps());
    call
}
