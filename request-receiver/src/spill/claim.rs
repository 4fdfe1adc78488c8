//! Claim of a receiver that spills, taken before the first request is accepted.
//!
//! Two such receivers, or one next to a receiver that appends directly, would each keep the order
//! of their own webhooks, but not the order of all. So each start looks for the claim of another
//! receiver. If it finds one whose counter moves, it does not start.

use spillway_process::start::Misconfigured;
use spillway_queue::restore::Claimed;
use tokio::time::{sleep, timeout};

use crate::spill::restorer::Restorer;
use crate::store::claim::{FIRST_ANSWER, LOOK_EVERY, taken};

/// Takes the claim of a receiver that spills, if Redis answers.
///
/// # Errors
/// [`Misconfigured`] if another receiver holds it.
pub async fn take_at_start(restorer: &mut Restorer) -> Result<(), Misconfigured> {
    let mut seen: Option<String> = None;
    loop {
        match timeout(FIRST_ANSWER, restorer.confirm()).await {
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
