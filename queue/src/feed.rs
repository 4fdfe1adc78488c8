//! What a receiver that spills to its own disk asks of Redis: the claim to be the only one that does,
//! and that its packs are appended once each, in their order.
//!
//! Invariant: packs and the number of the last one are one script, which applies only to the number
//! before it. So a reply that was lost, a call that Redis gets late, or two of them on their way at
//! once neither repeat a pack nor leave one out. The claim is a counter that its holder makes grow, as
//! a drain's owner does: no expiry, so that it survives a Redis that was away for long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis::{Script, cmd};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;

/// One process' claim to spill for this cell.
pub struct Claim {
    redis: Redis,
    /// Of the log on disk: who has the same one takes the claim over at once.
    log_id: String,
    /// Of this process.
    token: String,
    counter: AtomicU64,
    claim: Script,
    feed: Script,
    is_held: AtomicBool,
}

/// What Redis says to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// It is ours. `fed` is the number of the newest pack of our log that Redis knows of; 0 if none.
    Ours {
        /// The number.
        fed: u64,
        /// Set if it was not ours just before: nobody's, or another's that stood still.
        is_new: bool,
    },
    /// Somebody else holds it, with this value.
    Theirs(String),
}

/// A pack to be fed: its number, its webhooks, its bytes.
pub type Fed<'a> = (u64, u32, &'a [u8]);

impl Claim {
    /// A claim for the log `log_id`, by a process that is told from others by `token`.
    pub fn new(redis: Redis, log_id: u64, token: u64) -> Self {
        Self {
            redis,
            log_id: format!("{log_id:016x}"),
            token: format!("{token:016x}"),
            counter: AtomicU64::new(0),
            claim: Script::new(include_str!("lua/claim.lua")),
            feed: Script::new(include_str!("lua/feed.lua")),
            is_held: AtomicBool::new(false),
        }
    }

    /// Takes the claim, or confirms it. `from` is a value it may be taken from although it is another's.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn confirm(
        &self,
        connection: &mut Connection,
        from: &str,
    ) -> Result<Claimed, QueueError> {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed) + 1;
        // Whoever comes first after a crash takes over from itself; later, another token is another.
        let verb = if self.is_held.load(Ordering::Relaxed) { "confirm" } else { "start" };
        let (granted, held, fed): (u8, String, String) = self
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
        Ok(Claimed::Ours { fed: fed.parse().unwrap_or(0), is_new })
    }

    /// Gives the claim up, if it is ours.
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

    /// Notes that our log was fed up to `fed`, whatever Redis knew.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn note(&self, connection: &mut Connection, fed: u64) -> Result<(), QueueError> {
        let script = Script::new(include_str!("lua/note.lua"));
        let mut call = script.key(self.redis.keys.spill());
        Ok(call.arg(&self.log_id).arg(fed).invoke_async(connection).await?)
    }

    /// Appends packs behind the one numbered `after`, all of them in one script.
    ///
    /// # Errors
    /// [`QueueError::Full`]: none of them. [`QueueError::Fenced`]: the claim is another's.
    /// [`QueueError::OutOfStep`]: the newest one is not `after`. Any other: it is unknown; ask again
    /// with [`confirm`](Self::confirm).
    pub async fn feed(
        &self,
        connection: &mut Connection,
        after: u64,
        packs: &[Fed<'_>],
    ) -> Result<(), QueueError> {
        let keys = &self.redis.keys;
        let mut call = self.feed.key(keys.stream());
        call.key(keys.counts()).key(keys.spill_claim()).key(keys.spill());
        call.arg(&self.log_id).arg(&self.token).arg(after);
        for (number, webhooks, pack) in packs {
            call.arg(number).arg(webhooks).arg(*pack);
        }
        Ok(call.invoke_async(connection).await?)
    }
}

/// The claim as it stands; empty if there is none.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn look(redis: &Redis, connection: &mut Connection) -> Result<String, QueueError> {
    let held: Option<String> =
        cmd("GET").arg(redis.keys.spill_claim()).query_async(connection).await?;
    Ok(held.unwrap_or_default())
}

/// Removes a claim that stands as `held` still: its holder is known to be gone.
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
