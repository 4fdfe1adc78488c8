//! Claims of receivers with an overflow log, as seen by a receiver without one.
//!
//! A receiver with a log keeps the order of the webhooks that come to it, but not of those that
//! come to another. So it is the only one of its cell. Its claim is a counter that it increments.
//! If the counter stands still, that receiver has ended, or is cut off from Redis while its log
//! waits on its disk.

use std::time::Duration;

use spillway_process::error::chain;
use spillway_process::start::Misconfigured;
use spillway_queue::leader::StallDetector;
use spillway_queue::{QueueError, Redis, restore};
use tokio::time::{Instant, sleep, timeout};

/// Time for Redis to answer at start. If it does not, it is asked later: webhooks can be accepted
/// meanwhile.
pub const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// Time between looks at a claim. Its holder increments it once a second.
pub const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Follows the claim of another receiver.
#[derive(Default)]
pub struct ClaimFollower {
    watch: StallDetector,
    looked: Option<Instant>,
    is_reported: bool,
}

impl ClaimFollower {
    /// Records the claim as it was read just now. Returns true if its holder is alive.
    pub fn observe(&mut self, held: &str) -> bool {
        let now = Instant::now();
        let since = self.looked.replace(now).map_or(Duration::ZERO, |before| now - before);
        let is_alive = !held.is_empty() && !self.watch.observe(held, since);
        if !held.is_empty() && !is_alive && !std::mem::replace(&mut self.is_reported, true) {
            tracing::warn!(
                claim = held,
                "a receiver that spilled for this cell has ended; if its SPILL_DIR still holds \
                 webhooks, start it again with it"
            );
        }
        is_alive
    }
}

/// Checks that no receiver with a log has this cell, if Redis answers.
///
/// # Errors
/// [`Misconfigured`] if one has it.
pub async fn ensure_free(redis: &Redis) -> Result<(), Misconfigured> {
    let mut follower = ClaimFollower::default();
    let mut seen: Option<String> = None;
    loop {
        let held = match timeout(FIRST_ANSWER, look(redis)).await {
            Ok(Ok(held)) => held,
            Ok(Err(error)) => {
                tracing::debug!(error = chain(&error), "redis is not asked for a claim yet");
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        if !follower.observe(&held) {
            if !held.is_empty() {
                // Otherwise each start would wait as long.
                timeout(FIRST_ANSWER, drop_claim(redis, &held)).await.ok();
            }
            return Ok(());
        }
        if seen.as_ref().is_some_and(|before| *before != held) {
            return Err(taken("a SPILL_DIR"));
        }
        seen = Some(held);
        sleep(LOOK_EVERY).await;
    }
}

/// Error of a receiver that may not start because another one has the cell. `with` names what that
/// one runs with.
pub fn taken(with: &str) -> Misconfigured {
    Misconfigured(format!(
        "SPILL_DIR: another receiver of this cell runs with {with}: a receiver with SPILL_DIR must \
         be the only one of its cell; stop the other first, or give this one a separate cell"
    ))
}

async fn look(redis: &Redis) -> Result<String, QueueError> {
    restore::look(redis, &mut redis.connect(Some(FIRST_ANSWER)).await?).await
}

async fn drop_claim(redis: &Redis, held: &str) -> Result<(), QueueError> {
    restore::drop_claim(redis, &mut redis.connect(Some(FIRST_ANSWER)).await?, held).await
}
