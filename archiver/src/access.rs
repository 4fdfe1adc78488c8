//! Requests to the archive: each is repeated until it succeeds. The queue holds everything meanwhile.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use spillway_archive::StoreError;
use spillway_consumer::LeaderHandle;
use spillway_process::error::chain;
use spillway_process::failure_log::FailureLog;
use spillway_queue::leader::boottime;
use tokio::time::{Instant, sleep};

use crate::instance::ArchiverInstance;
use crate::troubles::Troubles;

/// First and longest pause between two attempts. It doubles in between. An archive that comes back is found
/// soon, and one that is overloaded gets few requests.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
const _: () = assert!(PAUSES.0.as_millis() < PAUSES.1.as_millis(), "pauses grow");
/// Time between two looks at a lease that is not confirmed.
const LEASE_EVERY: Duration = Duration::from_millis(100);
/// Most characters of a failure that are shown. The rest is what a server answered, such as a page of HTML.
const SHOWN_MAX: usize = 300;

/// A leader's access to the archive.
pub(crate) struct ArchiveAccess {
    /// The instance that leads.
    pub instance: ArchiverInstance,
    /// Lease of the leader.
    pub leader: LeaderHandle,
    troubles: Mutex<Troubles>,
}

impl ArchiveAccess {
    /// Access of this leader.
    pub(crate) fn new(instance: ArchiverInstance, leader: LeaderHandle) -> Self {
        Self { instance, leader, troubles: Mutex::default() }
    }

    /// Waits until the lease is confirmed. A leader that slept must not write or delete what another one has
    /// written since: call it before each attempt.
    pub(crate) async fn leased(&self) {
        while !self.leader.holds(boottime()) {
            sleep(LEASE_EVERY).await;
        }
    }

    /// Repeats `ask` until it succeeds. Shows failures in the log, in the metrics and in `/readyz`.
    pub(crate) async fn until_done<T>(
        &self,
        what: &'static str,
        ask: impl AsyncFn() -> Result<T, StoreError>,
    ) -> T {
        let (mut pause, longest) = PAUSES;
        let mut failures = FailureLog::default();
        let mut is_shown = false;
        loop {
            match ask().await {
                Ok(answer) => {
                    if is_shown {
                        self.show(what, None);
                    }
                    if failures.on_success() {
                        tracing::info!(what, "the archive answers again");
                    }
                    return answer;
                }
                Err(error) => {
                    let problem = self.failed(&error);
                    if let Some(failures) = failures.on_failure(Instant::now()) {
                        tracing::warn!(
                            what,
                            error = problem,
                            failures,
                            "the archive does not do what was asked; trying until it does"
                        );
                    }
                    let kind = error.kind();
                    self.show(what, Some(format!("archive_{kind}: {what}: {problem}")));
                    is_shown = true;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Shows in `/readyz` why a request waits; `None` if it was done.
    fn show(&self, what: &'static str, problem: Option<String>) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        self.leader.show_trouble(troubles.note(what, problem));
    }

    /// Counts a failure, and returns its text.
    pub(crate) fn failed(&self, error: &StoreError) -> String {
        self.instance.metrics.failed(error.kind());
        shown(&chain(error))
    }
}

/// The beginning of a failure's text, without control characters: a server chose some of it.
fn shown(problem: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    let mut text: String = problem.chars().take(SHOWN_MAX).map(plain).collect();
    if problem.chars().nth(SHOWN_MAX).is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_shown_up_to_a_length_and_without_control_characters() {
        assert_eq!(shown("no\r\n\u{1b}[31m answer"), "no   [31m answer");
        assert_eq!(shown(&"é".repeat(SHOWN_MAX)), "é".repeat(SHOWN_MAX));
        let cut = shown(&"é".repeat(SHOWN_MAX + 1));
        assert_eq!(cut, format!("{}…", "é".repeat(SHOWN_MAX)));
    }
}
