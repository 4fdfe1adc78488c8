//! Claims of receivers with an overflow log, as seen by one without.
//!
//! A receiver with a log keeps the order of what comes to it, and not of what comes to another. So it is
//! its cell's only one. Its claim is a counter that it makes grow; one that stands still is of a receiver
//! that has ended, or is cut off from Redis as its log then waits on its disk.

use std::time::Duration;

use spillway_queue::owner::Watch as ClaimWatch;
use spillway_queue::{QueueError, Redis, feed};
use spillway_service::error::chain;
use spillway_service::start::Misconfigured;
use tokio::time::{Instant, sleep, timeout};

/// A Redis that does not answer sooner is asked later: webhooks can be taken meanwhile.
pub const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// Time between looks at a claim. Its holder makes it move once a second.
pub const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Follows the claim of another receiver.
#[derive(Default)]
pub struct ClaimFollower {
    watch: ClaimWatch,
    looked: Option<Instant>,
    is_reported: bool,
}

impl ClaimFollower {
    /// Takes the claim as it stands now. Returns whether its holder lives.
    pub fn is_alive(&mut self, held: &str) -> bool {
        let now = Instant::now();
        let since = self.looked.replace(now).map_or(Duration::ZERO, |before| now - before);
        let is_alive = !held.is_empty() && !self.watch.may_take(held, since);
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

/// Looks whether a receiver with a log has this cell, if Redis can be asked.
///
/// # Errors
/// [`Misconfigured`] when one has.
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
        if !follower.is_alive(&held) {
            if !held.is_empty() {
                // Or each start would wait as long.
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

/// Why a receiver may not begin: another has the cell, with this.
pub fn taken(with: &str) -> Misconfigured {
    Misconfigured(format!(
        "SPILL_DIR: another receiver of this cell runs with {with}: one that spills is a cell's only \
         one; stop it first, or give this one a cell of its own"
    ))
}

async fn look(redis: &Redis) -> Result<String, QueueError> {
    feed::look(redis, &mut redis.connect(Some(FIRST_ANSWER)).await?).await
}

async fn drop_claim(redis: &Redis, held: &str) -> Result<(), QueueError> {
    feed::drop_claim(redis, &mut redis.connect(Some(FIRST_ANSWER)).await?, held).await
}
