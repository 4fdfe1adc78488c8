//! Leader election of a consumer.
//!
//! The leader bumps a counter. A standby that sees it stand still for [`TAKE_AFTER`] on its own
//! clock takes over by compare-and-set. No expiry in Redis is used: those run on the wall clock and
//! survive restarts wrongly. A [`Lease`], which reads no clock itself, tells how long an
//! unconfirmed leader may go on.

use std::time::Duration;

use rand::RngExt;
use redis::{Script, cmd};
use spillway_webhook::ConsumerFilter;

use crate::connect::{Connection, Redis};
use crate::consumers::ConsumerKind;
use crate::error::QueueError;

/// Time between two bumps of the leader's counter, and between two looks of a standby.
pub const BUMP_EVERY: Duration = Duration::from_secs(1);
/// Time without a confirmed bump after which a leader starts nothing new. Shorter than
/// [`TAKE_AFTER`] by more than a bump and a look, so that it has stopped before another instance
/// starts.
pub const UNCONFIRMED_MAX: Duration = Duration::from_secs(5);
/// Time for which a counter must stand still before a standby may take over.
pub const TAKE_AFTER: Duration = Duration::from_secs(8);
const _: () = assert!(
    UNCONFIRMED_MAX.as_millis() + 2 * BUMP_EVERY.as_millis() < TAKE_AFTER.as_millis(),
    "a leader stops before a standby takes over"
);

/// Verb with which the script takes the lease.
const TAKE: &str = "take";

/// State that a leader receives with each confirmed bump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmed {
    /// Bytes held by the consumer's dead letters.
    pub dead_bytes: u64,
    /// True if Redis has reached its `maxmemory`.
    pub is_full: bool,
    /// Version of the operator's controls.
    pub controls: u64,
    /// Redis' clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// Candidacy of one instance for the leadership of a consumer.
pub struct Candidacy {
    redis: Redis,
    consumer: String,
    token: String,
    /// Name of this machine or container.
    host: String,
    /// Kind of the consumer and JSON of its filter, to publish; empty if there is none.
    kind: &'static str,
    filter: String,
    script: Script,
}

/// Observes a leader's counter until it has stood still for long enough. Only time between two
/// answers counts, and for each pair at most twice [`BUMP_EVERY`]: while Redis itself hangs, a live
/// leader and a dead one look alike.
#[derive(Debug, Default)]
pub struct StallDetector {
    seen: Option<String>,
    stood_still: Duration,
}

/// Lease of a leader: the time at which its last confirmed bump was sent.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    confirmed_at: Duration,
}

impl Candidacy {
    /// Creates a candidacy with a random token.
    pub fn new(redis: Redis, consumer: &str) -> Self {
        let token = format!("{:016x}", rand::rng().random::<u64>());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let script = Script::new(include_str!("lua/leader.lua"));
        let consumer = consumer.to_owned();
        Self { redis, consumer, token, host, kind: "", filter: String::new(), script }
    }

    /// Publishes the kind of the consumer and its filter with the lease. A consumer of another kind is
    /// never taken.
    #[must_use]
    pub fn publishing(mut self, kind: ConsumerKind, filter: &ConsumerFilter) -> Self {
        self.kind = kind.label();
        self.filter = filter.to_json();
        self
    }

    /// Token that settlements carry.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Returns the value of the leader's key; empty if there is none.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn look(&self, connection: &mut Connection) -> Result<String, QueueError> {
        let leader: Option<String> = cmd("GET")
            .arg(self.redis.keys.of(&self.consumer).leader())
            .query_async(connection)
            .await?;
        Ok(leader.unwrap_or_default())
    }

    /// Checks that the consumer is of the kind that this candidacy publishes, for a standby: only
    /// [`take`](Self::take) would find that out, once the leader is gone.
    ///
    /// # Errors
    /// [`QueueError::Refused`] when the consumer is one of another kind.
    pub async fn check(&self, connection: &mut Connection) -> Result<(), QueueError> {
        self.call(connection, "check", "", "").await.map(|_| ())
    }

    /// Takes the lease if the leader's key still holds `seen`.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] when it holds another value. [`QueueError::Refused`] when the consumer is
    /// one of another kind.
    pub async fn take(
        &self,
        connection: &mut Connection,
        seen: &str,
    ) -> Result<Confirmed, QueueError> {
        self.call(connection, TAKE, seen, "starting").await
    }

    /// Confirms the lease. `state` tells an operator how the instance is.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] when it was lost.
    pub async fn bump(
        &self,
        connection: &mut Connection,
        state: &str,
    ) -> Result<Confirmed, QueueError> {
        self.call(connection, "bump", "", state).await
    }

    /// Releases the lease, so that a standby need not wait.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] when it was lost before.
    pub async fn release(&self, connection: &mut Connection) -> Result<(), QueueError> {
        self.call(connection, "release", "", "").await.map(|_| ())
    }

    async fn call(
        &self,
        connection: &mut Connection,
        verb: &str,
        seen: &str,
        state: &str,
    ) -> Result<Confirmed, QueueError> {
        let keys = &self.redis.keys;
        let own = keys.of(&self.consumer);
        let (granted, dead_bytes, full, controls, now_ms): (u8, String, String, String, String) =
            self.script
                .key(own.leader())
                .key(keys.consumers())
                .key(own.dead_bytes())
                .key(own.controls())
                .key(own.instance())
                .arg(verb)
                .arg(&self.token)
                .arg(&self.consumer)
                .arg(seen)
                .arg(&self.host)
                .arg(std::process::id())
                .arg(state)
                .arg(self.kind)
                // A filter does not change while a process runs. It may be long.
                .arg(if verb == TAKE { self.filter.as_str() } else { "" })
                .invoke_async(connection)
                .await?;
        if granted != 1 {
            return Err(QueueError::Fenced);
        }
        Ok(Confirmed {
            dead_bytes: dead_bytes.parse().unwrap_or(0),
            is_full: full == "1",
            controls: controls.parse().unwrap_or(0),
            now_ms: now_ms.parse().unwrap_or(0),
        })
    }
}

impl StallDetector {
    /// Records an answer that came `since_last` after the one before it. Returns true if the lease
    /// may be taken from the leader that was seen.
    pub fn observe(&mut self, leader: &str, since_last: Duration) -> bool {
        if leader.is_empty() {
            return true;
        }
        if self.seen.as_deref() == Some(leader) {
            self.stood_still += since_last.min(2 * BUMP_EVERY);
        } else {
            self.seen = Some(leader.to_owned());
            self.stood_still = Duration::ZERO;
        }
        self.stood_still >= TAKE_AFTER
    }
}

impl Lease {
    /// Creates the lease of a leader whose bump, sent at `sent_at`, was confirmed. The clock must
    /// run on while the machine sleeps.
    pub fn confirmed(sent_at: Duration) -> Self {
        Self { confirmed_at: sent_at }
    }

    /// True if new work may be started at `now`.
    pub fn holds(&self, now: Duration) -> bool {
        !self.left(now).is_zero()
    }

    /// Time, from `now`, in which new work may still be started.
    pub fn left(&self, now: Duration) -> Duration {
        UNCONFIRMED_MAX.saturating_sub(now.saturating_sub(self.confirmed_at))
    }
}

/// Returns the time of a clock that runs on while the machine is suspended (CLOCK_BOOTTIME). A
/// leader that slept must not trust its lease.
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
        let mut watch = StallDetector::default();
        assert!(!watch.observe("a:1", SECOND));
        for _ in 0..7 {
            assert!(!watch.observe("a:1", SECOND));
        }
        assert!(watch.observe("a:1", SECOND));
    }

    #[test]
    fn a_counter_that_moves_may_not() {
        let mut watch = StallDetector::default();
        for count in 0..100 {
            assert!(!watch.observe(&format!("a:{count}"), SECOND));
        }
    }

    #[test]
    fn time_that_redis_hung_does_not_count_against_the_leader() {
        let mut watch = StallDetector::default();
        assert!(!watch.observe("a:1", SECOND));
        assert!(!watch.observe("a:1", 60 * SECOND));
        assert!(!watch.observe("a:2", SECOND));
    }

    #[test]
    fn an_empty_seat_may_be_taken_at_once() {
        assert!(StallDetector::default().observe("", Duration::ZERO));
    }

    #[test]
    fn a_lease_ends_before_anyone_else_may_take_it() {
        let lease = Lease::confirmed(10 * SECOND);
        assert!(lease.holds(14 * SECOND));
        assert!(!lease.holds(15 * SECOND));
        assert!(UNCONFIRMED_MAX + 2 * BUMP_EVERY < TAKE_AFTER);
    }
}
