//! What the supervisor that started this process (systemd, or one that speaks its protocol) is
//! told: that it is ready, that it stops, and, by the watchdog, that it still makes progress.
//!
//! Invariant: a ping is sent only when everything that is watched has answered since the last one.
//! A process whose runtime turns while the work stands still gets no further ping, and is started
//! again. Source of the protocol: sd_notify(3), sd_watchdog_enabled(3). Without a supervisor that
//! asks for it, nothing here runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

/// Rounds in the time after which the supervisor gives up: two may be late, or without an answer
/// from somebody who is merely busy.
const ROUNDS: u32 = 4;

/// Asks everything that is watched whether it makes progress, and tells the supervisor.
#[derive(Debug, Clone, Default)]
pub struct Watchdog(Arc<Mutex<Vec<Weak<Beat>>>>);

/// One watched thing's end of the watchdog; dropped, it is asked no more.
#[derive(Debug)]
pub struct Pulse(Arc<Beat>);

#[derive(Debug)]
struct Beat {
    name: &'static str,
    asked: Notify,
    has_answered: AtomicBool,
}

/// Says that the process does its work from now on.
pub fn ready() {
    tell(NotifyState::Ready);
}

/// Says that the process was told to stop, and will.
pub fn stopping() {
    tell(NotifyState::Stopping);
}

impl Watchdog {
    /// Pings the supervisor for as long as everything watched answers, if it asks for that.
    pub fn start() -> Self {
        let watchdog = Self::default();
        if let Some(time) = sd_notify::watchdog_enabled() {
            tokio::spawn(watchdog.clone().run(time / ROUNDS));
        }
        watchdog
    }

    /// Watches one more thing, which answers from now on, or as often as it makes progress.
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
                // It waits for a supervisor that does not listen just now; the runtime must not.
                tokio::task::spawn_blocking(|| tell(NotifyState::Watchdog)).await.ok();
            } else {
                tracing::warn!(?silent, "no progress; the supervisor is not pinged");
            }
        }
    }

    /// Who has not answered since they were last asked; all are asked again.
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
    /// Waits until the watchdog asks. Nothing is lost if the wait is given up.
    pub async fn asked(&self) {
        self.0.asked.notified().await;
    }

    /// Says that there was progress, or that there is nothing to do; as cheap as setting a flag.
    pub fn answer(&self) {
        self.0.has_answered.store(true, Ordering::Relaxed);
    }
}

fn tell(state: NotifyState<'_>) {
    // Without NOTIFY_SOCKET this does nothing; with one that is gone, nobody is left to be told.
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
        let (one, two) = (watchdog.watch("one"), watchdog.watch("two"));
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
