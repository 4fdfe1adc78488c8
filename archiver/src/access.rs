//! Requests to the archive: each is repeated until it succeeds. The queue holds everything meanwhile.

use std::time::Duration;

use spillway_archive::StoreError;
use spillway_consumer::LeaderHandle;
use spillway_process::error::chain;
use spillway_process::failure_log::FailureLog;
use tokio::time::{Instant, sleep};

use crate::instance::ArchiverInstance;

/// First and longest pause between two attempts. It doubles in between. An archive that comes back is found
/// soon, and one that is overloaded gets few requests.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// A leader's access to the archive.
pub(crate) struct ArchiveAccess {
    /// The instance that leads.
    pub instance: ArchiverInstance,
    /// Lease of the leader.
    pub leader: LeaderHandle,
}

impl ArchiveAccess {
    /// Repeats `ask` until it succeeds. Shows failures in the log, in the metrics and in `/readyz`.
    pub(crate) async fn until_done<T>(
        &self,
        what: &'static str,
        ask: impl AsyncFn() -> Result<T, StoreError>,
    ) -> T {
        let (mut pause, longest) = PAUSES;
        let mut failures = FailureLog::default();
        loop {
            match ask().await {
                Ok(answer) => {
                    self.leader.show_trouble(None);
                    if failures.on_success() {
                        tracing::info!(what, "the archive answers again");
                    }
                    return answer;
                }
                Err(error) => {
                    let problem = chain(&error);
                    self.instance.metrics.failed(error.kind());
                    if let Some(failures) = failures.on_failure(Instant::now()) {
                        tracing::warn!(
                            what,
                            error = problem,
                            failures,
                            "the archive does not do what was asked; trying until it does"
                        );
                    }
                    let kind = error.kind();
                    self.leader
                        .show_trouble(Some(format!("archive_{kind}: {what}: {problem}").into()));
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }
}
