//! Questions to the parts of a process, and what follows from their answers: notifications to the
//! supervisor that started it (systemd, or one that speaks its protocol), and `/livez`.
//!
//! Invariant: a ping is sent only when everything that is watched has answered since the last one.
//! A process whose work stands still sends no ping, fails its liveness probe, and is started again.
//! A thread of its own asks: a runtime that is stuck must not keep it from noticing.
//!
//! Source of the protocol: sd_notify(3), sd_watchdog_enabled(3). Nothing is sent unless a
//! supervisor asks for it.

use std::borrow::Cow;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::Notify;

/// Pings within the time after which the supervisor gives up. Two of them may be late, or miss an
/// answer from a task that is only busy.
const PINGS: u32 = 4;

/// Longest time between two questions.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Time without an answer after which a task is stuck. A task that works answers within milliseconds,
/// on a crowded machine within a second or two.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Asks every watched task for an answer, and pings the supervisor.
#[derive(Debug, Clone)]
pub struct Watchdog {
    beats: Arc<Beats>,
    /// Time between two questions.
    every: Duration,
}

/// All watched tasks.
type Beats = Mutex<Vec<Weak<Beat>>>;

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
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start() -> io::Result<Self> {
        let ping_every = sd_notify::watchdog_enabled().map(|time| time / PINGS);
        let every = ping_every.map_or(ASK_EVERY, |ping_every| ASK_EVERY.min(ping_every));
        let watchdog = Self::every(every);
        let beats = Arc::downgrade(&watchdog.beats);
        let asking = move || ask_on(&beats, every, ping_every);
        thread::Builder::new().name("watchdog".to_owned()).spawn(asking)?;
        Ok(watchdog)
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
        let mut silent = self.silent();
        silent.retain(|(_, time)| *time >= STUCK_AFTER);
        let text = |(name, time): (Cow<'static, str>, Duration)| {
            format!("{name} has not answered for {} s", time.as_secs())
        };
        silent.into_iter().map(text).collect()
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

    /// Tasks that have not answered the last question or more, and the time that these questions took.
    /// Questions are counted and no clock is read: in a process that was suspended, nothing is stuck.
    fn silent(&self) -> Vec<(Cow<'static, str>, Duration)> {
        let beats = self.lock();
        let silent = |beat: Arc<Beat>| {
            let missed = beat.missed.load(Ordering::Relaxed);
            (missed > 0).then(|| (beat.name.clone(), self.every * missed))
        };
        beats.iter().filter_map(Weak::upgrade).filter_map(silent).collect()
    }

    /// Pings the supervisor if everything has answered within this time.
    fn ping(&self, within: Duration) {
        let mut silent = self.silent();
        silent.retain(|(_, time)| *time >= within);
        if silent.is_empty() {
            // It may wait for a supervisor that does not read now.
            tell(NotifyState::Watchdog);
        } else {
            tracing::warn!(?silent, "no progress; the supervisor is not pinged");
        }
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

/// Asks for as long as somebody holds the watchdog.
fn ask_on(beats: &Weak<Beats>, every: Duration, ping_every: Option<Duration>) {
    let mut since_ping = Duration::ZERO;
    while let Some(beats) = beats.upgrade() {
        let watchdog = Watchdog { beats, every };
        watchdog.ask();
        since_ping += every;
        if let Some(ping_every) = ping_every
            && since_ping >= ping_every
        {
            since_ping = Duration::ZERO;
            watchdog.ping(ping_every);
        }
        drop(watchdog);
        thread::sleep(every);
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
        assert_eq!(watchdog.silent(), [(Cow::Borrowed("shard 1"), Duration::from_millis(9_500))]);
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

    #[tokio::test]
    async fn a_task_that_waits_is_answered_for_and_one_that_blocks_its_thread_is_not() {
        let watchdog = Watchdog::default();
        let pulse = watchdog.watch("waiting");
        let waiting = async {
            for _ in 0..30 {
                watchdog.ask();
                tokio::task::yield_now().await;
            }
        };
        pulse.attend(waiting).await;
        assert!(watchdog.stuck().is_empty());
        pulse.attend(async { (0..30).for_each(|_| watchdog.ask()) }).await;
        assert_eq!(watchdog.stuck().len(), 1);
    }

    #[test]
    fn a_watchdog_asks_by_itself_until_nobody_holds_it() {
        let watchdog = Watchdog::every(Duration::from_millis(1));
        let beats = Arc::downgrade(&watchdog.beats);
        let asking = {
            let beats = beats.clone();
            thread::spawn(move || ask_on(&beats, Duration::from_millis(1), None))
        };
        let _pulse = watchdog.watch("silent");
        while watchdog.silent().is_empty() {
            thread::yield_now();
        }
        drop(watchdog);
        asking.join().expect("it ends");
        assert!(beats.upgrade().is_none());
    }

    #[test]
    fn nothing_watched_is_nothing_silent() {
        assert!(ask(&Watchdog::default()).is_empty());
    }
}
