//! One receiver spills for a cell: what is settled before the first request is taken.
//!
//! Two of them, or one beside a receiver that appends directly, would each keep the order of what
//! came to them and not of what came to both. So each start looks for the claim of another, and
//! whoever finds one whose counter moves does not begin. One that stands still is of a receiver that
//! has ended, or is cut off from Redis as its log then waits on its disk.

use std::time::Duration;

use spillway_queue::feed::{self, Claimed};
use spillway_queue::owner::Watch;
use spillway_queue::{QueueError, Redis};
use spillway_service::error::chain;
use spillway_service::start::Misconfigured;
use tokio::time::{Instant, sleep, timeout};

use crate::spill::feeder::Feeder;

/// A Redis that does not answer sooner is asked later: webhooks can be taken meanwhile.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// How often a claim is looked at. Its holder makes it move once a second.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// What a receiver without `SPILL_DIR` knows of a claim.
#[derive(Default)]
pub struct Others {
    watch: Watch,
    looked: Option<Instant>,
    is_told: bool,
}

impl Others {
    /// Takes the claim as it stands now; says whether its holder lives.
    pub fn is_alive(&mut self, held: &str) -> bool {
        let now = Instant::now();
        let since = self.looked.replace(now).map_or(Duration::ZERO, |before| now - before);
        let is_alive = !held.is_empty() && !self.watch.may_take(held, since);
        if !held.is_empty() && !is_alive && !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(
                claim = held,
                "a receiver that spilled for this cell has ended; if its SPILL_DIR still holds \
                 webhooks, start it again with it"
            );
        }
        is_alive
    }
}

/// Settles the claim of a receiver that spills, if Redis can be asked.
///
/// # Errors
/// [`Misconfigured`] when another holds it.
pub async fn settle(feeder: &mut Feeder) -> Result<(), Misconfigured> {
    let mut seen: Option<String> = None;
    loop {
        match timeout(FIRST_ANSWER, feeder.confirm()).await {
            Ok(Ok(Claimed::Theirs(held))) => {
                if seen.as_ref().is_some_and(|before| *before != held) {
                    return Err(taken("another SPILL_DIR"));
                }
                seen = Some(held);
            }
            Ok(Ok(Claimed::Ours { .. }) | Err(_)) | Err(_) => return Ok(()),
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Looks whether a receiver that spills has this cell, for one that does not, if Redis can be asked.
///
/// # Errors
/// [`Misconfigured`] when one has.
pub async fn settle_without(redis: &Redis) -> Result<(), Misconfigured> {
    let mut others = Others::default();
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
        if !others.is_alive(&held) {
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

async fn look(redis: &Redis) -> Result<String, QueueError> {
    feed::look(redis, &mut redis.connect(Some(FIRST_ANSWER)).await?).await
}

async fn drop_claim(redis: &Redis, held: &str) -> Result<(), QueueError> {
    feed::drop_claim(redis, &mut redis.connect(Some(FIRST_ANSWER)).await?, held).await
}

fn taken(with: &str) -> Misconfigured {
    Misconfigured(format!(
        "SPILL_DIR: another receiver of this cell runs with {with}: one that spills is a cell's only \
         one; stop it first, or give this one a cell of its own"
    ))
}
