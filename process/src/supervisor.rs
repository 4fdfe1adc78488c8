//! Notifications to the supervisor that started this process: systemd, or one that speaks its
//! protocol. They report that the process is ready, that it stops, and, for the watchdog, that it
//! makes progress.
//!
//! Invariant: a ping is sent only when everything that is watched has answered since the last one.
//! A process whose runtime runs while its work stands still sends no ping, and is started again.
//! Source of the protocol: sd_notify(3), sd_watchdog_enabled(3). Nothing is sent unless a
//! supervisor asks for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

/// Rounds within the time after which the supervisor gives up. Two of them may be late, or miss an
/// answer from a task that is only busy.
const ROUNDS: u32 = 4;

/// Asks every watched task for an answer, and pings the supervisor.
#[derive(Debug, Clone, Default)]
pub struct Watchdog(Arc<Mutex<Vec<Weak<Beat>>>>);

/// Handle of one watched task. When it is dropped, the task is no longer asked.
#[derive(Debug)]
pub struct Pulse(Arc<Beat>);

#[derive(Debug)]
struct Beat {
    name: &'static str,
    asked: Notify,
    has_answered: AtomicBool,
}

/// Reports that the process does its work from now on.
pub fn ready() {
    tell(NotifyState::Ready);
}

/// Reports that the process was told to stop, and will stop.
pub fn stopping() {
    tell(NotifyState::Stopping);
}

impl Watchdog {
    /// Starts to ping the supervisor, if it asks for that. Pings go on while everything watched
    /// answers.
    pub fn start() -> Self {
        let watchdog = Self::default();
        if let Some(time) = sd_notify::watchdog_enabled() {
            tokio::spawn(watchdog.clone().run(time / ROUNDS));
        }
        watchdog
    }

    /// Watches one more task. It answers when it is asked, or as often as it makes progress.
    pub fn watch(&self, name: &'static str) -> Pulse {
        let has_answered = AtomicBool::new(true);
        let beat = Arc::new(Beat { name, asked: Notify::new(), has_answered });
        self.lock().push(Arc::downgrade(&beat));
        Pulse(beat)
    }

    async fn run(self, every: Duration) {
        let mut round = interval(every);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            round.tick().await;
            let silent = self.ask();
            if silent.is_empty() {
                // The call may wait for a supervisor that does not read now. The runtime must not.
                tokio::task::spawn_blocking(|| tell(NotifyState::Watchdog)).await.ok();
            } else {
                tracing::warn!(?silent, "no progress; the supervisor is not pinged");
            }
        }
    }

    /// Returns the tasks that have not answered since the last call, and asks all of them again.
    fn ask(&self) -> Vec<&'static str> {
        let mut silent = Vec::new();
        self.lock().retain(|beat| {
            let Some(beat) = beat.upgrade() else { return false };
            if !beat.has_answered.swap(false, Ordering::Relaxed) {
                silent.push(beat.name);
            }
            beat.asked.notify_one();
            true
        });
        silent
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Beat>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pulse {
    /// Waits until the watchdog asks. The wait is cancel-safe: no question is lost.
    pub async fn asked(&self) {
        self.0.asked.notified().await;
    }

    /// Reports progress, or that there is nothing to do. It is as cheap as setting a flag.
    pub fn answer(&self) {
        self.0.has_answered.store(true, Ordering::Relaxed);
    }
}

fn tell(state: NotifyState<'_>) {
    // Without NOTIFY_SOCKET this does nothing. If the socket is gone, no supervisor is left to
    // notify.
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "the supervisor could not be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_are_silent_who_did_not_answer_since_they_were_asked() {
        let watchdog = Watchdog::default();
        let one = watchdog.watch("one");
        let two = watchdog.watch("two");
        assert!(watchdog.ask().is_empty(), "nobody was asked before");
        one.answer();
        assert_eq!(watchdog.ask(), ["two"]);
        assert_eq!(watchdog.ask(), ["one", "two"]);
        two.answer();
        one.answer();
        one.answer();
        assert!(watchdog.ask().is_empty());
        drop(two);
        one.answer();
        assert!(watchdog.ask().is_empty(), "what has ended is not waited for");
    }

    #[tokio::test]
    async fn a_question_waits_for_who_is_busy() {
        let watchdog = Watchdog::default();
        let pulse = watchdog.watch("busy");
        watchdog.ask();
        pulse.asked().await;
        pulse.answer();
        assert!(watchdog.ask().is_empty());
    }

    #[test]
    fn nothing_watched_is_nothing_silent() {
        assert!(Watchdog::default().ask().is_empty());
    }
}
