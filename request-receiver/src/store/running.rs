//! Appends of all shards that may still take effect, and the rule by which they stay in order.
//!
//! A sender that was answered 503 may send its webhook again to another shard, and later ones after a
//! 200. The first pack must not arrive after these. So a shard that has sealed a batch first waits for
//! the appends that have [`Outlived`] a sender by then. If that takes long, their own shards may give
//! them up. An append whose connection broke is lost: the next append ends its connection in Redis
//! first.

use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use spillway_queue::append::Fence;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::batch::Outlived;

/// Appends of all shards that may still take effect.
pub struct RunningAppends {
    /// Set with an overflow log. After an append whose outcome is not known, the gate lets no other pass
    /// then before the restorer has ended all connections, so that it need not be kept.
    has_log: bool,
    all: Mutex<Vec<Arc<AppendState>>>,
}

/// State of an append, as other shards see it.
pub struct AppendState {
    pub(super) outlived: Outlived,
    /// Ends the connection that the pack is sent on. Set before that.
    pub(super) fence: OnceLock<Fence>,
    phase: AtomicU8,
    /// Notified when other shards need not wait any more.
    ended: Notify,
    /// Notified when another shard has waited for long.
    pub(super) pressed: Notify,
}

/// Place of an append among the running ones. Dropped before its outcome is known, it is lost.
pub struct ListedAppend {
    running: Arc<RunningAppends>,
    pub(super) state: Arc<AppendState>,
}

/// Phases of an append.
const RUNNING: u8 = 0;
/// Another shard has waited for long.
const PRESSED: u8 = 1;
/// Lost: it may take effect until its connection is ended in Redis.
const LOST: u8 = 2;
const ENDED: u8 = 3;

impl RunningAppends {
    /// No append yet.
    pub fn new(has_log: bool) -> Arc<Self> {
        Arc::new(Self { has_log, all: Mutex::default() })
    }

    /// Appends that have outlived a sender and may end by themselves.
    pub fn outlived(&self) -> Vec<Arc<AppendState>> {
        self.filtered(|append| append.outlived.is_set() && append.may_end())
    }

    /// Appends whose connections are to be ended.
    pub(super) fn lost(&self) -> Vec<Arc<AppendState>> {
        self.filtered(AppendState::is_lost)
    }

    fn filtered(&self, mut is_meant: impl FnMut(&AppendState) -> bool) -> Vec<Arc<AppendState>> {
        self.lock().iter().filter(|append| is_meant(append)).cloned().collect()
    }

    /// Lists an append that is about to be sent.
    pub(super) fn list(&self, append: &Arc<AppendState>, fence: Fence) {
        append.fence.set(fence).ok();
        self.lock().push(append.clone());
    }

    /// Notes that an append can't take effect any more.
    pub(super) fn ended(&self, append: &Arc<AppendState>) {
        self.end(append, ENDED);
    }

    fn end(&self, append: &Arc<AppendState>, phase: u8) {
        let phase = if self.has_log { ENDED } else { phase };
        if phase == ENDED {
            self.lock().retain(|other| !Arc::ptr_eq(other, append));
        }
        append.turn(phase);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<AppendState>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AppendState {
    fn new(outlived: Outlived) -> Self {
        let (fence, phase) = (OnceLock::new(), AtomicU8::new(RUNNING));
        Self { outlived, fence, phase, ended: Notify::new(), pressed: Notify::new() }
    }

    /// Waits until the append has ended, while `must_wait`.
    pub async fn settled(&self, must_wait: impl Fn() -> bool) {
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if !self.may_end() || !must_wait() {
                return;
            }
            ended.await;
        }
    }

    /// Lets its own shard give it up, because another shard has waited for long.
    pub fn press(&self) {
        let order = Ordering::SeqCst;
        if self.phase.compare_exchange(RUNNING, PRESSED, order, order).is_ok() {
            self.pressed.notify_one();
        }
    }

    fn turn(&self, phase: u8) {
        self.phase.store(phase, Ordering::SeqCst);
        self.ended.notify_waiters();
    }

    /// True while its end is waited for.
    pub(super) fn may_end(&self) -> bool {
        self.phase.load(Ordering::SeqCst) < LOST
    }

    /// True until its connection is ended.
    pub(super) fn is_lost(&self) -> bool {
        self.phase.load(Ordering::SeqCst) == LOST
    }

    pub(super) fn is_pressed(&self) -> bool {
        self.phase.load(Ordering::SeqCst) == PRESSED
    }
}

/// Waits until these appends have ended, while `must_wait`. Presses those that still must be waited for at
/// `press_at`.
pub async fn all_settled(
    appends: &[Arc<AppendState>],
    press_at: Instant,
    must_wait: impl Fn() -> bool,
) {
    let settled = async || {
        for append in appends {
            append.settled(&must_wait).await;
        }
    };
    if timeout_at(press_at, settled()).await.is_ok() {
        return;
    }
    if must_wait() {
        appends.iter().for_each(|append| append.press());
    }
    settled().await;
}

impl ListedAppend {
    /// An append that is not listed before it is about to be sent.
    pub(super) fn new(running: Arc<RunningAppends>, outlived: Outlived) -> Self {
        Self { running, state: Arc::new(AppendState::new(outlived)) }
    }

    /// Notes that it has ended. `is_final`: it can't take effect any more.
    pub fn end(&self, is_final: bool) {
        self.running.end(&self.state, if is_final { ENDED } else { LOST });
    }

    /// True if it was given up, or may be, because another shard has waited for long.
    pub fn is_pressed(&self) -> bool {
        self.state.is_pressed()
    }

    /// Wakes other shards, whose batches need not wait if they go to the log now.
    pub fn hangs(&self) {
        self.state.ended.notify_waiters();
    }
}

impl Drop for ListedAppend {
    fn drop(&mut self) {
        // Nobody tells the gate, so that it stays lost with a log, too.
        if self.state.may_end() {
            self.state.turn(LOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use spillway_queue::Redis;
    use spillway_queue::append::Appender;
    use tokio::time::timeout;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn listed(running: &Arc<RunningAppends>) -> ListedAppend {
        let redis = Redis::new("unix:///nonexistent", "{spillway}:").expect("a good URL");
        let listed = ListedAppend::new(running.clone(), Outlived::default());
        running.list(&listed.state, Appender::new(redis).fence());
        listed
    }

    #[tokio::test(start_paused = true)]
    async fn an_append_that_has_outlived_a_sender_is_waited_for_and_can_be_pressed() {
        let running = RunningAppends::new(false);
        let append = listed(&running);
        assert!(running.outlived().is_empty(), "its senders wait");
        append.state.outlived.set(true);
        let outlived = running.outlived().pop().expect("it has outlived a sender");
        timeout(SECOND, outlived.settled(|| false)).await.expect("the shard need not wait");
        assert!(!append.state.is_pressed());
        let waiting = tokio::spawn({
            let outlived = outlived.clone();
            async move { outlived.settled(|| true).await }
        });
        outlived.press();
        timeout(SECOND, append.state.pressed.notified()).await.expect("pressed");
        assert!(append.state.is_pressed() && !waiting.is_finished());
        append.end(true);
        timeout(SECOND, waiting).await.expect("woken").expect("no panic");
        assert!(running.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_append_is_pressed_only_while_it_must_be_waited_for() {
        for must_wait in [true, false] {
            let running = RunningAppends::new(false);
            let append = listed(&running);
            append.state.outlived.set(true);
            let (outlived, waits) = (running.outlived(), Arc::new(AtomicBool::new(true)));
            let waiting = tokio::spawn({
                let (press_at, waits) = (Instant::now() + SECOND, waits.clone());
                async move {
                    all_settled(&outlived, press_at, || waits.load(Ordering::SeqCst)).await;
                }
            });
            tokio::time::sleep(SECOND / 2).await;
            // The mode may change while an append is waited for.
            waits.store(must_wait, Ordering::SeqCst);
            tokio::time::sleep(SECOND).await;
            assert_eq!(append.state.is_pressed(), must_wait);
            assert_eq!(waiting.is_finished(), !must_wait);
            append.end(true);
            timeout(SECOND, waiting).await.expect("woken").expect("no panic");
        }
    }

    #[tokio::test]
    async fn an_append_whose_end_is_not_known_is_lost_unless_a_log_takes_over() {
        for has_log in [false, true] {
            let running = RunningAppends::new(has_log);
            listed(&running).end(false);
            assert_eq!(running.lost().is_empty(), has_log);
            assert_eq!(running.lock().is_empty(), has_log);
            drop(listed(&running));
            let lost = running.lost().pop().expect("a dropped one is lost in any case");
            assert!(lost.is_lost() && running.outlived().is_empty());
            running.ended(&lost);
            assert!(!lost.is_lost());
        }
    }
}
