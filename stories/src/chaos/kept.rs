//! A process that is kept running, as systemd keeps it: started again some time after it ended,
//! whatever it ended by.

use std::ops::DerefMut;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::process::Process;

/// What `RestartSec=` says in the units.
const RESTART_AFTER: Duration = Duration::from_millis(100);
/// By then it listens for SIGTERM, on a busy machine too. Before, the signal ends it as it is.
const LISTENS_WITHIN: Duration = Duration::from_secs(2);

/// A process under supervision.
#[derive(Debug)]
pub struct Kept<P> {
    /// The process.
    pub process: P,
    /// It stays down until this is false again.
    pub is_held: bool,
    /// Its end was brought about, and how it has to look, if that is known.
    is_doomed: bool,
    is_asked_to_end: bool,
    /// Set if the next log is to be a pipe that nobody reads.
    loses_log: bool,
    started: Instant,
    ended: Option<Instant>,
}

impl<P: DerefMut<Target = Process>> Kept<P> {
    /// Takes over a process that was started.
    pub fn new(process: P) -> Self {
        Self {
            process,
            is_held: false,
            is_doomed: false,
            is_asked_to_end: false,
            loses_log: false,
            started: Instant::now(),
            ended: None,
        }
    }

    /// `kill -9`.
    pub fn kill9(&mut self) {
        if self.process.is_running() {
            self.is_doomed = true;
            self.process.kill9();
        }
    }

    /// `kill -9`; what the next one writes to its log is lost.
    pub fn kill9_and_break_log(&mut self) {
        self.loses_log = true;
        self.kill9();
    }

    /// Asks it to end, once it listens.
    pub async fn sigterm(&mut self) {
        sleep(LISTENS_WITHIN.saturating_sub(self.started.elapsed())).await;
        if self.process.is_running() {
            self.is_asked_to_end = true;
            self.process.sigterm();
        }
    }

    /// Stops it in its tracks.
    pub fn sigstop(&mut self) {
        if self.process.is_running() {
            self.process.sigstop();
        }
    }

    /// Lets it go on.
    pub fn sigcont(&mut self) {
        if self.process.is_running() {
            self.process.sigcont();
        }
    }

    /// Starts it again where it is time to; how it ended, if it did so by itself.
    pub fn keep(&mut self) -> Option<ExitStatus> {
        let status = self.process.ended()?;
        let ended = *self.ended.get_or_insert_with(Instant::now);
        if self.is_held || ended.elapsed() < RESTART_AFTER {
            return None;
        }
        let is_asked_to_end = std::mem::take(&mut self.is_asked_to_end);
        let is_doomed = std::mem::take(&mut self.is_doomed);
        let did_as_asked = is_asked_to_end && status.success();
        self.ended = None;
        if std::mem::take(&mut self.loses_log) {
            self.process.restart_without_log();
        } else {
            self.process.restart();
        }
        self.started = Instant::now();
        (!is_doomed && !did_as_asked).then_some(status)
    }
}
