//! One owner per drain.
//!
//! The owner bumps a counter; a standby that sees it stand still for [`TAKE_AFTER`] on its own
//! clock takes over by compare-and-set. No expiry in Redis is used: those run on the wall clock
//! and survive restarts wrongly. What an owner may do while it is unconfirmed is decided by
//! [`Lease`], which reads no clock itself.

use std::time::Duration;

use rand::RngExt;
use redis::{Script, cmd};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;

/// How often the owner bumps its counter, and a standby looks.
pub const BUMP_EVERY: Duration = Duration::from_secs(1);
/// Past this without a confirmed bump an owner starts nothing new. Less than [`TAKE_AFTER`] by
/// more than a bump and a look, so that it has stopped before anyone else starts.
pub const UNCONFIRMED_MAX: Duration = Duration::from_secs(5);
/// A counter that stood still for this long has no owner.
pub const TAKE_AFTER: Duration = Duration::from_secs(8);

/// What a confirmed owner learns with each bump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmed {
    /// Bytes held by the drain's dead letters.
    pub dead_bytes: u64,
    /// Whether Redis has reached its `maxmemory`.
    pub is_full: bool,
    /// Version of the operator's orders.
    pub orders: u64,
    /// Redis' clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// One instance's claim to a drain.
pub struct Claim {
    redis: Redis,
    drain: String,
    token: String,
    script: Script,
}

/// Watches a counter and says when it has stood still for long enough. Only time between two
/// answers counts, and at most [`BUMP_EVERY`] twice over for each: while Redis itself hangs, no
/// owner can be told from a dead one.
#[derive(Debug, Default)]
pub struct Watch {
    seen: Option<String>,
    stood_still: Duration,
}

/// The owner's side: how long ago its last confirmed bump was sent.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    confirmed_at: Duration,
}

impl Claim {
    /// A claim with a token of its own.
    pub fn new(redis: Redis, drain: &str) -> Self {
        let token = format!("{:016x}", rand::rng().random::<u64>());
        let script = Script::new(include_str!("lua/own.lua"));
        Self { redis, drain: drain.to_owned(), token, script }
    }

    /// The token that settlements carry.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// What stands in the owner's key now; empty if nothing does.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn look(&self, connection: &mut Connection) -> Result<String, QueueError> {
        let owner: Option<String> =
            cmd("GET").arg(self.redis.keys.owner(&self.drain)).query_async(connection).await?;
        Ok(owner.unwrap_or_default())
    }

    /// Takes the drain if its owner's key still holds `seen`.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] when it does not.
    pub async fn take(
        &self,
        connection: &mut Connection,
        seen: &str,
    ) -> Result<Confirmed, QueueError> {
        self.call(connection, "take", seen).await
    }

    /// Confirms the ownership.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] when it was lost.
    pub async fn bump(&self, connection: &mut Connection) -> Result<Confirmed, QueueError> {
        self.call(connection, "bump", "").await
    }

    /// Gives the drain up, so that a standby need not wait.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] when it was lost before.
    pub async fn release(&self, connection: &mut Connection) -> Result<(), QueueError> {
        self.call(connection, "release", "").await.map(|_| ())
    }

    async fn call(
        &self,
        connection: &mut Connection,
        verb: &str,
        seen: &str,
    ) -> Result<Confirmed, QueueError> {
        let (keys, drain) = (&self.redis.keys, &self.drain);
        let (granted, dead_bytes, full, orders, now_ms): (u8, String, String, String, String) =
            self.script
                .key(keys.owner(drain))
                .key(keys.drains())
                .key(keys.dead_bytes(drain))
                .key(keys.orders(drain))
                .arg(verb)
                .arg(&self.token)
                .arg(drain)
                .arg(seen)
                .invoke_async(connection)
                .await?;
        if granted != 1 {
            return Err(QueueError::Fenced);
        }
        Ok(Confirmed {
            dead_bytes: dead_bytes.parse().unwrap_or(0),
            is_full: full == "1",
            orders: orders.parse().unwrap_or(0),
            now_ms: now_ms.parse().unwrap_or(0),
        })
    }
}

impl Watch {
    /// Takes an answer that came `since_last` after the one before it; says whether the drain may
    /// be taken from the owner that was seen.
    pub fn may_take(&mut self, owner: &str, since_last: Duration) -> bool {
        if owner.is_empty() {
            return true;
        }
        if self.seen.as_deref() == Some(owner) {
            self.stood_still += since_last.min(2 * BUMP_EVERY);
        } else {
            self.seen = Some(owner.to_owned());
            self.stood_still = Duration::ZERO;
        }
        self.stood_still >= TAKE_AFTER
    }
}

impl Lease {
    /// A bump that was sent at `sent_at` (on a clock that runs on while the machine sleeps) was
    /// confirmed.
    pub fn confirmed(sent_at: Duration) -> Self {
        Self { confirmed_at: sent_at }
    }

    /// Whether anything new may be started at `now`.
    pub fn holds(&self, now: Duration) -> bool {
        !self.left(now).is_zero()
    }

    /// Time for which anything new may still be started at `now`.
    pub fn left(&self, now: Duration) -> Duration {
        UNCONFIRMED_MAX.saturating_sub(now.saturating_sub(self.confirmed_at))
    }
}

/// Now, on a clock that goes on while the machine is suspended (CLOCK_BOOTTIME): an owner that
/// slept must not believe it is still one.
pub fn boottime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_counter_that_stands_still_for_eight_seconds_may_be_taken() {
        let mut watch = Watch::default();
        assert!(!watch.may_take("a:1", SECOND));
        for _ in 0..7 {
            assert!(!watch.may_take("a:1", SECOND));
        }
        assert!(watch.may_take("a:1", SECOND));
    }

    #[test]
    fn a_counter_that_moves_may_not() {
        let mut watch = Watch::default();
        for count in 0..100 {
            assert!(!watch.may_take(&format!("a:{count}"), SECOND));
        }
    }

    #[test]
    fn time_that_redis_hung_does_not_count_against_the_owner() {
        let mut watch = Watch::default();
        assert!(!watch.may_take("a:1", SECOND));
        assert!(!watch.may_take("a:1", 60 * SECOND));
        assert!(!watch.may_take("a:2", SECOND));
    }

    #[test]
    fn an_empty_seat_may_be_taken_at_once() {
        assert!(Watch::default().may_take("", Duration::ZERO));
    }

    #[test]
    fn a_lease_ends_before_anyone_else_may_take() {
        let lease = Lease::confirmed(10 * SECOND);
        assert!(lease.holds(14 * SECOND));
        assert!(!lease.holds(15 * SECOND));
        assert!(UNCONFIRMED_MAX + 2 * BUMP_EVERY < TAKE_AFTER);
    }
}
