//! Waits for a condition with a time limit. No test sleeps to synchronise.

use std::time::{Duration, Instant};

/// Time between two checks, short compared with every time that the tests assert on.
const POLL: Duration = Duration::from_millis(15);

/// Waits until `check` is true. After `within`, fails the test with `what`.
pub async fn until(what: &str, within: Duration, mut check: impl AsyncFnMut() -> bool) {
    until_some(what, within, async || check().await.then_some(())).await;
}

/// Waits until `check` returns a value. After `within`, fails the test with `what`.
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
