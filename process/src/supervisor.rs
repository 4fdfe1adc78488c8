//! Questions to the parts of a process, and what follows from their answers: notifications to the
//! supervisor that started it (systemd, or one that speaks its protocol), and `/livez`.
//!
//! Invariant: a ping is sent only when everything that is watched has answered since the last one.
//! A process whose runtime runs while its work stands still sends no ping, fails its liveness probe,
//! and is started again.
//! Source of the protocol: sd_notify(3), sd_watchdog_enabled(3). Nothing is sent unless a
//! supervisor asks for it.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

/// Pings within the time after which the supervisor gives up. Two of them may be late, or miss an
/// answer from a task that is only busy.
const PINGS: u32 = 4;

/// Longest time between two questions.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Time without an answer after which a task is stuck. The longest that one is busy without a pause is
/// far shorter.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Asks every watched task for an answer, and pings the supervisor.
#[derive(Debug, Clone)]
pub struct Watchdog {
    beats: Arc<Mutex<Vec<Weak<Beat>>>>,
    /// Time between two questions.
    every: Duration,
}

/// Handle of one watched task. When it is dropped, the task is no longer asked.
#[derive(Debug)]
pub struct Pulse(Arc<Beat>);

#[derive(Debug)]
struct Beat {
    name: Cow<'static, str>,
    asked: Notify,
    has_answered: AtomicBool,
    /// Number of questions since the last answer.
    missed: AtomicU32,
}

/// Reports that the process does its work from now on.
pub fn ready() {
    tell(NotifyState::Ready);
}

/// Reports that the process was told to stop, and will stop.
pub fn stopping() {
    tell(NotifyState::Stopping);
}

/// A watchdog that asks nothing.
impl Default for Watchdog {
    fn default() -> Self {
        Self::every(ASK_EVERY)
    }
}

impl Watchdog {
    /// Starts to ask. If the supervisor wants pings, it gets them while everything watched answers.
    pub fn start() -> Self {
        let ping_every = sd_notify::watchdog_enabled().map(|time| time / PINGS);
        let every = ping_every.map_or(ASK_EVERY, |ping_every| ASK_EVERY.min(ping_every));
        let watchdog = Self::every(every);
        tokio::spawn(watchdog.clone().run(ping_every));
        watchdog
    }

    fn every(every: Duration) -> Self {
        Self { beats: Arc::default(), every }
    }

    /// Watches one more task. It answers when it is asked, or as often as it makes progress.
    pub fn watch(&self, name: impl Into<Cow<'static, str>>) -> Pulse {
        let beat = Arc::new(Beat {
            name: name.into(),
            asked: Notify::new(),
            has_answered: AtomicBool::new(true),
            missed: AtomicU32::new(0),
        });
        self.lock().push(Arc::downgrade(&beat));
        Pulse(beat)
    }

    /// Names the tasks that are stuck, and the time for which each has not answered.
    pub fn stuck(&self) -> Vec<String> {
        let is_stuck = |(name, time): (Cow<'static, str>, Duration)| {
            (time >= STUCK_AFTER).then(|| format!("{name} has not answered for {} s", time.as_secs()))
        };
        self.silent().into_iter().filter_map(is_stuck).collect()
    }

    async fn run(self, ping_every: Option<Duration>) {
        let mut round = interval(self.every);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut since_ping = Duration::ZERO;
        loop {
            round.tick().await;
            self.ask();
            since_ping += self.every;
            let Some(ping_every) = ping_every.filter(|time| since_ping >= *time) else { continue };
            since_ping = Duration::ZERO;
            let mut silent = self.silent();
            silent.retain(|(_, time)| *time >= ping_every);
            if silent.is_empty() {
                // The call may wait for a supervisor that does not read now. The runtime must not.
                tokio::task::spawn_blocking(|| tell(NotifyState::Watchdog)).await.ok();
            } else {
                tracing::warn!(?silent, "no progress; the supervisor is not pinged");
            }
        }
    }

    /// Notes who has answered since the last call, and asks all again.
    fn ask(&self) {
        self.lock().retain(|beat| {
            let Some(beat) = beat.upgrade() else { return false };
            if beat.has_answered.swap(false, Ordering::Relaxed) {
                beat.missed.store(0, Ordering::Relaxed);
            } else {
                beat.missed.fetch_add(1, Ordering::Relaxed);
            }
            beat.asked.notify_one();
            true
        });
    }

    /// Tasks that have not answered the last question or more, and the time of these questions. It is
    /// no clock's, so that a process that was suspended is not stuck.
    fn silent(&self) -> Vec<(Cow<'static, str>, Duration)> {
        let beats = self.lock();
        let silent = |beat: Arc<Beat>| {
            let missed = beat.missed.load(Ordering::Relaxed);
            (missed > 0).then(|| (beat.name.clone(), self.every * missed))
        };
        beats.iter().filter_map(Weak::upgrade).filter_map(silent).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Beat>>> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Runs `work`, and answers for it: its task is not stuck while it waits for something.
    pub async fn attend<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.asked() => self.answer(),
            }
        }
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

    /// Names of those who did not answer the question before this one.
    fn ask(watchdog: &Watchdog) -> Vec<String> {
        watchdog.ask();
        watchdog.silent().into_iter().map(|(name, _)| name.into_owned()).collect()
    }

    #[test]
    fn only_those_are_silent_who_did_not_answer_since_they_were_asked() {
        let watchdog = Watchdog::default();
        let one = watchdog.watch("one");
        let two = watchdog.watch("two");
        assert!(ask(&watchdog).is_empty(), "nobody was asked before");
        one.answer();
        assert_eq!(ask(&watchdog), ["two"]);
        assert_eq!(ask(&watchdog), ["one", "two"]);
        two.answer();
        one.answer();
        one.answer();
        assert!(ask(&watchdog).is_empty());
        drop(two);
        one.answer();
        assert!(ask(&watchdog).is_empty(), "what has ended is not waited for");
    }

    #[test]
    fn a_task_is_stuck_after_ten_seconds_without_an_answer_and_until_the_next_one() {
        let watchdog = Watchdog::every(Duration::from_millis(500));
        let shard = watchdog.watch(format!("shard {}", 1));
        (0..20).for_each(|_| watchdog.ask());
        assert_eq!(watchdog.silent(), [("shard 1".into(), Duration::from_millis(9_500))]);
        assert!(watchdog.stuck().is_empty());
        watchdog.ask();
        assert_eq!(watchdog.stuck(), ["shard 1 has not answered for 10 s"]);
        shard.answer();
        watchdog.ask();
        assert!(watchdog.stuck().is_empty());
    }

    #[tokio::test]
    async fn a_question_waits_for_who_is_busy() {
        let watchdog = Watchdog::default();
        let pulse = watchdog.watch("busy");
        watchdog.ask();
        pulse.asked().await;
        pulse.answer();
        assert!(ask(&watchdog).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_waits_is_answered_for_and_one_that_blocks_its_thread_is_not() {
        let watchdog = Watchdog::start();
        let pulse = watchdog.watch("waiting");
        pulse.attend(tokio::time::sleep(STUCK_AFTER * 2)).await;
        assert!(watchdog.stuck().is_empty());
        tokio::time::sleep(STUCK_AFTER * 2).await;
        assert_eq!(watchdog.stuck().len(), 1);
    }

    #[test]
    fn nothing_watched_is_nothing_silent() {
        assert!(ask(&Watchdog::default()).is_empty());
    }
}
