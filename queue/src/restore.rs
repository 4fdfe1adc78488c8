//! Restores packs that a receiver spilled to its own disk: the claim to be the only receiver that
//! spills, and the append of its packs, each once and in order.
//!
//! Invariant: one script appends packs and writes the number of the last one. It applies only if
//! Redis holds the number before the first. So a lost reply, a call that reaches Redis late, or two
//! calls at once neither repeat a pack nor leave one out. The claim is a counter that its holder
//! increments, like the one of a consumer's leader. It has no expiry, so that it survives a Redis
//! that is away for long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis::{Script, cmd};
use spillway_webhook::StreamId;

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::read::stream_id;

/// Claim of one process to be the cell's only receiver with an overflow log.
pub struct SpillClaim {
    redis: Redis,
    /// Id of the log on disk. A process with the same log takes the claim over at once.
    log_id: String,
    /// Token of this process.
    token: String,
    counter: AtomicU64,
    claim: Script,
    restore: Script,
    is_held: AtomicBool,
}

/// Answer of Redis to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The claim is ours. `restored` is the number of the newest pack of our log that Redis holds; 0 if
    /// none.
    Ours {
        /// Number of the newest restored pack.
        restored: u64,
        /// Set if it was not ours just before: there was none, or another's counter stood still.
        is_new: bool,
    },
    /// Another process holds the claim. This is its value.
    Theirs(String),
}

/// A pack to restore: its number, its webhooks, its bytes.
pub type Restored<'a> = (u64, u32, &'a [u8]);

impl SpillClaim {
    /// Creates a claim for the log `log_id`, by the process that `token` identifies.
    pub fn new(redis: Redis, log_id: u64, token: u64) -> Self {
        Self {
            redis,
            log_id: format!("{log_id:016x}"),
            token: format!("{token:016x}"),
            counter: AtomicU64::new(0),
            claim: Script::new(include_str!("lua/claim.lua")),
            restore: Script::new(include_str!("lua/restore.lua")),
            is_held: AtomicBool::new(false),
        }
    }

    /// Takes the claim or confirms it. `from` is a value of another's claim from which it may be
    /// taken.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn confirm(
        &self,
        connection: &mut Connection,
        from: &str,
    ) -> Result<Claimed, QueueError> {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed) + 1;
        // The first call after a crash takes over from the process before, which had the same log.
        // Later calls treat another token as another process.
        let verb = if self.is_held.load(Ordering::Relaxed) { "confirm" } else { "start" };
        let (granted, held, restored): (u8, String, String) = self
            .claim
            .key(self.redis.keys.spill_claim())
            .key(self.redis.keys.spill())
            .arg(verb)
            .arg(&self.log_id)
            .arg(&self.token)
            .arg(counter)
            .arg(from)
            .invoke_async(connection)
            .await?;
        if granted != 1 {
            return Ok(Claimed::Theirs(held));
        }
        self.is_held.store(true, Ordering::Relaxed);
        let is_new = !held.starts_with(&format!("{}:{}:", self.log_id, self.token));
        Ok(Claimed::Ours { restored: restored.parse().unwrap_or(0), is_new })
    }

    /// Releases the claim, if it is ours.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn release(&self, connection: &mut Connection) -> Result<(), QueueError> {
        let _: (u8, String, String) = self
            .claim
            .key(self.redis.keys.spill_claim())
            .key(self.redis.keys.spill())
            .arg("release")
            .arg(&self.log_id)
            .arg(&self.token)
            .arg(0)
            .arg("")
            .invoke_async(connection)
            .await?;
        Ok(())
    }

    /// Records that our log is restored up to `restored`, in place of `held`, the number that Redis
    /// answered.
    ///
    /// # Errors
    /// [`QueueError::Fenced`]: another process holds the claim. [`QueueError::OutOfStep`]: Redis
    /// holds another number than `held`. Others from Redis.
    pub async fn note(
        &self,
        connection: &mut Connection,
        held: u64,
        restored: u64,
    ) -> Result<(), QueueError> {
        let keys = &self.redis.keys;
        let script = Script::new(include_str!("lua/note.lua"));
        let mut call = script.key(keys.spill_claim());
        call.key(keys.spill()).arg(&self.log_id).arg(&self.token).arg(held).arg(restored);
        Ok(call.invoke_async(connection).await?)
    }

    /// Appends packs after the one numbered `after`, all of them in one script. Returns the entry of the last one.
    ///
    /// [`QueueError::Full`]: none was appended. [`QueueError::Fenced`]: another process holds the
    /// claim. [`QueueError::OutOfStep`]: the newest restored pack is not `after`. After any other
    /// error the outcome is unknown: ask with [`confirm`](Self::confirm).
    pub async fn restore(
        &self,
        connection: &mut Connection,
        after: u64,
        packs: &[Restored<'_>],
    ) -> Result<StreamId, QueueError> {
        let keys = &self.redis.keys;
        let mut call = self.restore.key(keys.stream());
        call.key(keys.counts()).key(keys.spill_claim()).key(keys.spill());
        call.arg(&self.log_id).arg(&self.token).arg(after);
        for (number, webhooks, pack) in packs {
            call.arg(number).arg(webhooks).arg(*pack);
        }
        let entry: String = call.invoke_async(connection).await?;
        stream_id(&entry)
    }
}

/// Returns the current value of the claim; empty if there is none.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn look(redis: &Redis, connection: &mut Connection) -> Result<String, QueueError> {
    let held: Option<String> =
        cmd("GET").arg(redis.keys.spill_claim()).query_async(connection).await?;
    Ok(held.unwrap_or_default())
}

/// Removes a claim if it still has the value `held`. Use it when its holder is known to be gone.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn drop_claim(
    redis: &Redis,
    connection: &mut Connection,
    held: &str,
) -> Result<(), QueueError> {
    let script = Script::new(include_str!("lua/unclaim.lua"));
    Ok(script.key(redis.keys.spill_claim()).arg(held).invoke_async(connection).await?)
}
