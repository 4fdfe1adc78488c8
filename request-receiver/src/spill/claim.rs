//! Claim of a receiver that spills, settled before the first request is taken.
//!
//! Two of them, or one beside a receiver that appends directly, would each keep the order of what
//! came to them and not of what came to both. So each start looks for the claim of another, and
//! whoever finds one whose counter moves does not begin.

use spillway_queue::feed::Claimed;
use spillway_service::start::Misconfigured;
use tokio::time::{sleep, timeout};

use crate::spill::feeder::Feeder;
use crate::store::claim::{FIRST_ANSWER, LOOK_EVERY, taken};

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
