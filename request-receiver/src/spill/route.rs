//! Which way packs go: to Redis, or to the disk.
//!
//! One for the whole process. Invariants: a pack enters its way and leaves it by a value that says
//! so, panics included; the way back to Redis is taken only while nothing is on either way and
//! nothing lies on the disk. Under load there is no such moment by itself: so, shortly before, packs
//! are held at the entry for some milliseconds. A lock rather than atomics: it is taken twice for a
//! pack, never waited for long, and the rules can be read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// How long packs are held at most for the way back to be taken: it is a matter of a sync and two
/// calls, and a part of Shopify's 5 s.
pub const HOLD_MAX: Duration = Duration::from_millis(250);

/// The way that packs go. Begins by the disk: what may lie there comes first.
pub struct Route {
    state: Mutex<State>,
    /// The same as in the state, to be read at each request.
    is_spilling: AtomicBool,
    /// Told when there may be something for the feeder to do.
    changed: Notify,
    /// Told when packs are not held any more.
    opened: Notify,
}

struct State {
    is_spilling: bool,
    /// Appends under way.
    appending: usize,
    /// Writes under way.
    writing: usize,
    /// Whether packs wait at the entry.
    is_held: bool,
}

/// A pack's way.
pub enum Way {
    /// To Redis.
    Direct(Direct),
    /// To the disk.
    Spill(Spilling),
}

/// An append that may be under way.
pub struct Direct(Arc<Route>);

/// A write that may be under way.
pub struct Spilling(Arc<Route>);

impl Default for Route {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                is_spilling: true,
                appending: 0,
                writing: 0,
                is_held: false,
            }),
            is_spilling: AtomicBool::new(true),
            changed: Notify::new(),
            opened: Notify::new(),
        }
    }
}

impl Route {
    /// The way of a pack that is ready. Waits while packs are held, and not for long.
    pub async fn enter(self: &Arc<Self>) -> Way {
        loop {
            // Before the look, or an opening in between would be missed.
            let mut opened = std::pin::pin!(self.opened.notified());
            opened.as_mut().enable();
            if let Some(way) = self.try_enter() {
                return way;
            }
            if timeout(HOLD_MAX, opened).await.is_err() {
                // Redis hangs: who waits for it here would not be answered in time.
                self.release();
            }
        }
    }

    fn try_enter(self: &Arc<Self>) -> Option<Way> {
        let mut state = self.lock();
        if state.is_held {
            None
        } else if state.is_spilling {
            state.writing += 1;
            Some(Way::Spill(Spilling(self.clone())))
        } else {
            state.appending += 1;
            Some(Way::Direct(Direct(self.clone())))
        }
    }

    /// From now on packs wait at the entry, until the way back is taken, or given up.
    pub fn hold(&self) {
        self.lock().is_held = true;
    }

    /// The way back is given up for now.
    pub fn release(&self) {
        self.open(&mut self.lock());
    }

    /// By the disk, as all that follow.
    pub fn enter_spilling(self: &Arc<Self>) -> Spilling {
        let mut state = self.lock();
        self.spill(&mut state);
        state.writing += 1;
        Spilling(self.clone())
    }

    /// From now on all go by the disk; says whether that is news.
    pub fn fail_over(&self) -> bool {
        self.spill(&mut self.lock())
    }

    /// From now on all go to Redis, if nothing is under way either way and `is_empty` says that
    /// nothing lies on the disk. Whoever wants to enter waits that long.
    pub fn return_if(&self, is_empty: impl FnOnce() -> bool) -> bool {
        let mut state = self.lock();
        let may_return = state.appending == 0 && state.writing == 0 && is_empty();
        if may_return {
            state.is_spilling = false;
            self.is_spilling.store(false, Ordering::Relaxed);
            self.open(&mut state);
        }
        may_return
    }

    /// Whether packs go to the disk.
    pub fn is_spilling(&self) -> bool {
        self.is_spilling.load(Ordering::Relaxed)
    }

    /// Whether appends are under way.
    pub fn is_appending(&self) -> bool {
        self.lock().appending > 0
    }

    /// Waits until something has changed since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn open(&self, state: &mut State) {
        if std::mem::replace(&mut state.is_held, false) {
            self.opened.notify_waiters();
        }
    }

    fn spill(&self, state: &mut State) -> bool {
        self.open(state);
        self.is_spilling.store(true, Ordering::Relaxed);
        let is_news = !std::mem::replace(&mut state.is_spilling, true);
        if is_news {
            self.changed.notify_one();
        }
        is_news
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.appending -= 1;
        if state.is_spilling {
            self.0.changed.notify_one();
        }
    }
}

impl Drop for Spilling {
    fn drop(&mut self) {
        self.0.lock().writing -= 1;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_direct(route: &Arc<Route>) -> bool {
        matches!(route.try_enter(), Some(Way::Direct(_)))
    }

    #[test]
    fn the_way_back_is_taken_only_when_nothing_is_under_way() {
        let route = Arc::new(Route::default());
        assert!(!is_direct(&route), "it begins by the disk");
        assert!(!route.return_if(|| false));
        let writing = route.try_enter();
        assert!(!route.return_if(|| true), "a write is under way");
        drop(writing);
        assert!(route.return_if(|| true));
        assert!(is_direct(&route) && !route.is_spilling());
        let appending = route.try_enter();
        assert!(route.fail_over());
        assert!(!route.fail_over(), "no news");
        assert!(!is_direct(&route) && route.is_appending());
        assert!(!route.return_if(|| true), "an append is under way");
        drop(appending);
        assert!(!route.is_appending() && route.return_if(|| true));
        drop(route.enter_spilling());
        assert!(!is_direct(&route), "one that was refused takes the others along");
    }

    #[tokio::test]
    async fn packs_are_held_until_the_way_back_is_taken_or_given_up() {
        let route = Arc::new(Route::default());
        let writing = route.enter().await;
        route.hold();
        let entering = tokio::spawn({
            let route = route.clone();
            async move { matches!(route.enter().await, Way::Direct(_)) }
        });
        tokio::task::yield_now().await;
        assert!(!entering.is_finished() && !route.return_if(|| true));
        drop(writing);
        assert!(route.return_if(|| true));
        assert!(entering.await.unwrap(), "it goes the way that was taken");
        route.fail_over();
        let is_spilled = || matches!(route.try_enter(), Some(Way::Spill(_)));
        route.hold();
        assert!(route.try_enter().is_none());
        route.release();
        assert!(is_spilled());
        route.hold();
        route.fail_over();
        assert!(is_spilled());
    }
}
