//! A process that is restarted as systemd does it: some time after it ended, for whatever reason.

use std::ops::DerefMut;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::process::Process;

/// `RestartSec=` of the units.
const RESTART_AFTER: Duration = Duration::from_millis(100);
/// Time after which a process handles SIGTERM, even on a busy machine. An earlier signal kills it.
const LISTENS_WITHIN: Duration = Duration::from_secs(2);

/// A process under supervision.
#[derive(Debug)]
pub struct Kept<P> {
    /// The process.
    pub process: P,
    /// While set, the process is not restarted.
    pub is_held: bool,
    /// Set if the test killed it, so that its end is not reported.
    is_doomed: bool,
    is_asked_to_end: bool,
    /// Set if the next log is a pipe that nobody reads.
    loses_log: bool,
    started: Instant,
    ended: Option<Instant>,
}

impl<P: DerefMut<Target = Process>> Kept<P> {
    /// Takes over a running process.
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

    /// Kills it with SIGKILL.
    pub fn kill9(&mut self) {
        if self.process.is_running() {
            self.is_doomed = true;
            self.process.kill9();
        }
    }

    /// Kills it with SIGKILL. The log of the next process is lost.
    pub fn kill9_and_break_log(&mut self) {
        self.loses_log = true;
        self.kill9();
    }

    /// Sends SIGTERM, once the process handles it.
    pub async fn sigterm(&mut self) {
        sleep(LISTENS_WITHIN.saturating_sub(self.started.elapsed())).await;
        if self.process.is_running() {
            self.is_asked_to_end = true;
            self.process.sigterm();
        }
    }

    /// Stops it with SIGSTOP.
    pub fn sigstop(&mut self) {
        if self.process.is_running() {
            self.process.sigstop();
        }
    }

    /// Continues it with SIGCONT.
    pub fn sigcont(&mut self) {
        if self.process.is_running() {
            self.process.sigcont();
        }
    }

    /// Restarts it when it is time. Returns the exit status if the process ended by itself.
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
