//! Rewrites of the AOF: when to request one, and how long to wait after a failure.
//!
//! Redis starts rewrites itself as the AOF grows, and limits those attempts. It does not limit
//! requested ones: each attempt forks, and one that fails leaves another file in the AOF's
//! directory.

use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, ServerErrorKind, cmd};

use crate::connect::Connection;
use crate::error::QueueError;
use crate::health::{RedisInfo, is_disk_short};

/// An AOF smaller than this is not worth rewriting.
const WORTH_BYTES: u64 = 256 << 20;
/// From `4 × used memory + 4 GiB` on, the AOF is rewritten at any cost.
const OUTGROWN_FACTOR: u64 = 4;
const OUTGROWN_SLACK_BYTES: u64 = 4 << 30;
/// Minimum gain of a rewrite on a disk that is short of space.
const GAIN_BYTES: u64 = 64 << 20;
/// Pause after the first failure. It doubles with each further failure.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Longest pause: at most 24 attempts a day while every one fails.
const PAUSE_LONGEST: Duration = Duration::from_secs(3600);
/// Time between two looks at a rewrite.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const _: () = assert!(PAUSE_FIRST.as_millis() < PAUSE_LONGEST.as_millis(), "pauses grow");
const _: () = assert!(GAIN_BYTES < WORTH_BYTES, "a rewrite of a small AOF gains little");

/// Backoff of rewrites after failures, of Redis' child process or of the request itself.
#[derive(Debug, Default)]
pub struct RewriteBackoff {
    /// Number of requests that Redis refused since the last accepted one.
    refused: u32,
    /// Number of failures, and the time of its last change.
    failed: Option<(u32, Instant)>,
    /// Set once a rewrite was requested, or once none was urgent.
    has_begun: bool,
}

impl RewriteBackoff {
    /// Records the state of Redis at `now`. Returns true if a rewrite is to be requested.
    pub fn try_begin(&mut self, facts: &RedisInfo, now: Instant) -> bool {
        let failures = facts.rewrite_failures.saturating_add(self.refused);
        if failures == 0 {
            self.has_begun = true;
            self.failed = None;
            return should_rewrite(facts);
        }
        let failed_at = match self.failed {
            Some((before, at)) if before == failures => at,
            _ => {
                self.failed = Some((failures, now));
                now
            }
        };
        // The time of the last failure is not known yet, and webhooks are refused meanwhile.
        let is_urgent = !self.has_begun && is_disk_short(facts);
        let is_over = now.duration_since(failed_at) >= pause_after(failures);
        let is_due = should_rewrite(facts) && (is_urgent || is_over);
        self.has_begun |= is_due || (facts.disk_free_bytes.is_some() && !is_urgent);
        is_due
    }

    /// Records Redis' answer to a request for a rewrite.
    pub fn on_answer(&mut self, is_accepted: bool) {
        self.refused = if is_accepted { 0 } else { self.refused.saturating_add(1) };
    }
}

/// Pause after `failures` failures in a row, which are at least one.
fn pause_after(failures: u32) -> Duration {
    let doubled = 2_u32.checked_pow(failures.saturating_sub(1));
    let pause = doubled.and_then(|times| PAUSE_FIRST.checked_mul(times));
    pause.unwrap_or(PAUSE_LONGEST).min(PAUSE_LONGEST)
}

/// True if a rewrite of the AOF fits on its disk and is worthwhile: it is cheap because the queue
/// is nearly empty, or the AOF has outgrown the data, or only a rewrite gives a full disk room
/// again. In the last case webhooks are refused, so nothing else would ever shrink the AOF, however
/// empty the queue becomes.
pub fn should_rewrite(facts: &RedisInfo) -> bool {
    if !facts.aof_enabled || facts.is_rewriting || !fits(facts) {
        return false;
    }
    if is_disk_short(facts) && facts.aof_bytes > facts.used_bytes + GAIN_BYTES {
        return true;
    }
    let is_nearly_empty = facts.used_bytes < facts.aof_bytes / 8;
    let has_outgrown =
        facts.aof_bytes > facts.used_bytes.saturating_mul(OUTGROWN_FACTOR) + OUTGROWN_SLACK_BYTES;
    facts.aof_bytes >= WORTH_BYTES && (is_nearly_empty || has_outgrown)
}

/// True if the new AOF fits beside the old one, as far as is known. One that does not fit fills the
/// disk completely, and an append at that moment ends Redis.
fn fits(facts: &RedisInfo) -> bool {
    facts.disk_free_bytes.is_none_or(|free| free > facts.used_bytes)
}

/// Requests a rewrite of the AOF in the background.
///
/// # Errors
/// [`QueueError`] from Redis, also when another rewrite is running.
pub async fn start(connection: &mut Connection) -> Result<(), QueueError> {
    Ok(cmd("BGREWRITEAOF").query_async(connection).await?)
}

/// Result of a rewrite that was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RewriteOutcome {
    /// The AOF holds only what Redis holds.
    Rewritten,
    /// There is no AOF.
    NoAof,
    /// Nobody may request a rewrite, as with many a Redis service.
    NotAllowed,
    /// Redis could not write the new AOF. Its log says why.
    Failed,
    /// The time was over before it ended.
    Unfinished,
}

/// State of the AOF.
struct AofState {
    is_on: bool,
    is_rewriting: bool,
    has_failed: bool,
}

impl AofState {
    async fn read(connection: &mut Connection) -> Result<Self, QueueError> {
        let info: String = cmd("INFO").arg("persistence").query_async(connection).await?;
        let is = |field: &str, value: &str| {
            let mut pairs = info.lines().filter_map(|line| line.trim_end().split_once(':'));
            pairs.any(|pair| pair == (field, value))
        };
        Ok(Self {
            is_on: is("aof_enabled", "1"),
            is_rewriting: is("aof_rewrite_in_progress", "1") || is("aof_rewrite_scheduled", "1"),
            has_failed: is("aof_last_bgrewrite_status", "err"),
        })
    }
}

/// Rewrites the AOF and waits until that has ended, so that no file holds what Redis does not hold any more. One
/// that is running has begun before, and does not count. Waits up to `patience` in all.
///
/// # Errors
/// [`QueueError`] from Redis; [`QueueError::Refused`] if a rewrite cannot be requested now.
pub async fn complete(
    connection: &mut Connection,
    patience: Duration,
) -> Result<RewriteOutcome, QueueError> {
    let until = Instant::now() + patience;
    let mut is_requested = false;
    loop {
        let aof = AofState::read(connection).await?;
        if !aof.is_on {
            return Ok(RewriteOutcome::NoAof);
        }
        if !aof.is_rewriting && is_requested {
            let failed = aof.has_failed;
            return Ok(if failed { RewriteOutcome::Failed } else { RewriteOutcome::Rewritten });
        }
        if !aof.is_rewriting {
            let started = start(connection).await;
            is_requested = started.is_ok();
            if let Err(error) = started {
                if let QueueError::Refused(refused) = &error
                    && is_never_allowed(refused)
                {
                    return Ok(RewriteOutcome::NotAllowed);
                }
                // Another one may have begun in between.
                if !AofState::read(connection).await?.is_rewriting {
                    return Err(error);
                }
            }
            continue;
        }
        if Instant::now() >= until {
            return Ok(RewriteOutcome::Unfinished);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// True if Redis refuses the command at any time: the user lacks the permission, or the service does not know it. A
/// refusal for another reason ends.
fn is_never_allowed(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoPerm) => true,
        ErrorKind::Server(ServerErrorKind::ResponseError) => {
            error.detail().is_some_and(|detail| detail.starts_with("unknown command"))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::tests::{LENIENT, good};
    use crate::health::{HealthVerdict, judge};

    #[test]
    fn only_a_missing_permission_or_command_is_never_allowed() {
        let refused = |kind, detail: &str| {
            is_never_allowed(&RedisError::from((
                ErrorKind::Server(kind),
                "An error was signalled by the server",
                detail.to_owned(),
            )))
        };
        let no_permission = "this user has no permissions to run the 'bgrewriteaof' command";
        assert!(refused(ServerErrorKind::NoPerm, no_permission));
        assert!(refused(ServerErrorKind::ResponseError, "unknown command 'BGREWRITEAOF'"));
        for detail in [
            "Can't execute an AOF background rewriting. Please check the server logs for more information.",
            "Background append only file rewriting already in progress",
        ] {
            assert!(!refused(ServerErrorKind::ResponseError, detail), "{detail}");
        }
        assert!(!refused(
            ServerErrorKind::ReadOnly,
            "You can't write against a read only replica."
        ));
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn the_aof_is_rewritten_when_cheap_and_when_due() {
        let cheap = RedisInfo { aof_bytes: 300 << 20, ..good() };
        assert!(should_rewrite(&cheap));
        let busy = RedisInfo { is_rewriting: true, ..cheap };
        assert!(!should_rewrite(&busy));
        let held = RedisInfo { used_bytes: 900 << 20, aof_bytes: 4 << 30, ..good() };
        assert!(!should_rewrite(&held));
        let outgrown = RedisInfo { aof_bytes: 8 << 30, limit_bytes: 2 << 30, ..held };
        assert!(should_rewrite(&outgrown));
    }

    #[test]
    fn the_aof_is_rewritten_where_only_that_gives_the_disk_room() {
        let full = RedisInfo {
            used_bytes: 43 << 20,
            aof_bytes: 330 << 20,
            disk_free_bytes: Some(1066 << 20),
            ..good()
        };
        assert!(matches!(judge(&full, LENIENT, false), HealthVerdict::Full(_)));
        assert!(should_rewrite(&full));
        // A rewrite would gain nothing, or would not fit.
        let waiting = RedisInfo { used_bytes: 300 << 20, ..full.clone() };
        assert!(!should_rewrite(&waiting));
        let brim = RedisInfo { disk_free_bytes: Some(40 << 20), ..full };
        assert!(!should_rewrite(&brim));
    }

    #[test]
    fn a_rewrite_that_does_not_fit_is_never_asked_for() {
        let free = Some(300 << 20);
        let nearly_empty = RedisInfo {
            used_bytes: 500 << 20,
            aof_bytes: 7 << 30,
            disk_free_bytes: free,
            ..good()
        };
        assert!(!should_rewrite(&nearly_empty));
        let outgrown =
            RedisInfo { used_bytes: 2 << 30, aof_bytes: 13 << 30, ..nearly_empty.clone() };
        assert!(!should_rewrite(&outgrown));
        // The disk of a Redis on another machine is not known.
        let unknown = RedisInfo { disk_free_bytes: None, ..nearly_empty };
        assert!(should_rewrite(&unknown));
    }

    #[test]
    fn after_failures_the_pause_doubles_up_to_an_hour_and_a_success_ends_it() {
        let start = Instant::now();
        let due =
            |failures| RedisInfo { aof_bytes: 300 << 20, rewrite_failures: failures, ..good() };
        let mut backoff = RewriteBackoff::default();
        assert!(backoff.try_begin(&due(0), start));
        assert!(!backoff.try_begin(&due(1), after(start, 1)));
        assert!(backoff.try_begin(&due(1), after(start, 2)));
        assert!(!backoff.try_begin(&due(2), after(start, 3)));
        assert!(!backoff.try_begin(&due(2), after(start, 4)));
        assert!(backoff.try_begin(&due(2), after(start, 5)));
        assert!(!backoff.try_begin(&due(40), after(start, 6)));
        assert!(!backoff.try_begin(&due(40), after(start, 6 + 3599)));
        assert!(backoff.try_begin(&due(40), after(start, 6 + 3600)));
        assert!(backoff.try_begin(&due(0), after(start, 6 + 3601)), "it succeeded meanwhile");
        assert!(!backoff.try_begin(&due(1), after(start, 6 + 3602)));
        assert!(
            backoff.try_begin(&due(1), after(start, 6 + 3603)),
            "the pause begins with 1 s again"
        );
    }

    #[test]
    fn a_redis_that_refuses_the_request_is_asked_ever_more_rarely() {
        let start = Instant::now();
        let facts = RedisInfo { aof_bytes: 300 << 20, ..good() };
        let mut backoff = RewriteBackoff::default();
        let mut asked = 0;
        for second in 0..3600 {
            if backoff.try_begin(&facts, after(start, second)) {
                asked += 1;
                backoff.on_answer(false);
            }
        }
        assert!((8..=12).contains(&asked), "{asked} requests in an hour");
        backoff.on_answer(true);
        assert!(backoff.try_begin(&facts, after(start, 3600)));
    }

    #[test]
    fn a_process_that_begins_amid_failures_and_a_full_disk_asks_once_at_once() {
        let start = Instant::now();
        let full = RedisInfo {
            used_bytes: 43 << 20,
            aof_bytes: 330 << 20,
            disk_free_bytes: Some(1066 << 20),
            rewrite_failures: 40,
            ..good()
        };
        let mut backoff = RewriteBackoff::default();
        let busy = RedisInfo { is_rewriting: true, ..full.clone() };
        assert!(!backoff.try_begin(&busy, start));
        assert!(backoff.try_begin(&full, start));
        assert!(!backoff.try_begin(&full, after(start, 1)));
        let mut backoff = RewriteBackoff::default();
        let roomy = RedisInfo { aof_bytes: 300 << 20, disk_free_bytes: None, ..full };
        assert!(!backoff.try_begin(&roomy, start), "nobody waits for it");
    }
}
