//! Waiting for a condition, under a deadline. No test sleeps to synchronise.

use std::time::{Duration, Instant};

/// How often a condition is looked at: small beside every time the tests assert on.
const POLL: Duration = Duration::from_millis(15);

/// Waits until `check` is true, or fails the test naming `what`.
pub async fn until(what: &str, within: Duration, mut check: impl AsyncFnMut() -> bool) {
    until_some(what, within, async || check().await.then_some(())).await;
}

/// Waits until `check` yields a value, or fails the test naming `what`.
pub async fn until_some<T>(
    what: &str,
    within: Duration,
    mut check: impl AsyncFnMut() -> Option<T>,
) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(started.elapsed() < within, "not within {within:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}
