//! What looks at Redis have found: shared by the watch, which looks, and by whoever goes by it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_queue::append::AppendError;
use spillway_service::error::chain;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::reply::Refusal;
use crate::store::gate::Gate;
use crate::store::mode::StoreEvent;

/// What is known of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum QueueHealth {
    /// Appends are expected to succeed.
    Usable = 0,
    /// Redis can't be reached, is loading, or may not be trusted.
    Unavailable = 1,
    /// No memory or disk left.
    Full = 2,
}

impl QueueHealth {
    /// Answer to a webhook that can't be stored then.
    pub fn refusal(self) -> Refusal {
        match self {
            Self::Full => Refusal::QueueFull,
            Self::Usable | Self::Unavailable => Refusal::QueueUnavailable,
        }
    }
}

/// Results of the looks at Redis. Each change of health is passed on to the store mode.
pub struct Looks {
    gate: Arc<Gate>,
    /// Held while health changes: the store mode follows in the same order.
    changing: Mutex<()>,
    health: AtomicU8,
    /// Grows with each connection of the watch: an older one of an appender is worth nothing.
    generation: AtomicU64,
    answered: AtomicU64,
    /// Grows when Redis did not answer as it should: it may be another one since.
    suspicions: AtomicU64,
    look_now: Notify,
    /// Cancelled by the first look.
    looked: CancellationToken,
}

impl Looks {
    /// Unavailable until the first look.
    pub fn new(gate: Arc<Gate>) -> Arc<Self> {
        Arc::new(Self {
            gate,
            changing: Mutex::default(),
            health: AtomicU8::new(QueueHealth::Unavailable as u8),
            generation: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            suspicions: AtomicU64::new(0),
            look_now: Notify::new(),
            looked: CancellationToken::new(),
        })
    }

    /// Sets what a look has found that is not good.
    pub fn set(&self, health: QueueHealth) {
        self.replace(health);
    }

    /// Sets that a look has found the queue usable, unless there was a suspicion since [`Self::suspicions`] was read for
    /// it. Returns whether it is usable.
    pub fn set_usable(&self, suspicions: u64) -> bool {
        let _changing = self.lock();
        let is_usable = self.suspicions() == suspicions;
        if is_usable {
            self.replace_locked(QueueHealth::Usable);
        }
        is_usable
    }

    /// Sets that a look has found no room on Redis' disk, which the log shares: nothing is appended, and the log is
    /// restored. Not after a suspicion, as [`Self::set_usable`].
    pub fn set_short(&self, suspicions: u64) {
        let _changing = self.lock();
        if self.suspicions() == suspicions {
            self.health.store(QueueHealth::Full as u8, Ordering::Relaxed);
            self.gate.on(StoreEvent::QueueShort);
        }
    }

    /// Sets what a failed append says of the queue, and has the watch look soon. Logged at the change
    /// only: while Redis is away, every append fails.
    pub fn append_failed(&self, health: QueueHealth, error: &AppendError) {
        let before = if health == QueueHealth::Unavailable {
            self.replace_by_suspicion()
        } else {
            self.replace(health)
        };
        if before != health as u8 {
            tracing::warn!(error = chain(error), "a pack was refused; the queue is looked at");
        }
        self.look_soon();
    }

    /// Redis may be another one, or an older one: it takes nothing until a new connection has told what it is.
    pub fn suspect(&self) {
        self.replace_by_suspicion();
        self.look_soon();
    }

    /// Number that grows with each reason to believe that Redis is another one: what a look found before is worth
    /// nothing.
    pub fn suspicions(&self) -> u64 {
        self.suspicions.load(Ordering::Relaxed)
    }

    /// Redis had no room for what was to be restored.
    pub fn set_full(&self) {
        self.replace(QueueHealth::Full);
        self.look_soon();
    }

    fn replace_by_suspicion(&self) -> u8 {
        let _changing = self.lock();
        self.suspicions.fetch_add(1, Ordering::Relaxed);
        self.replace_locked(QueueHealth::Unavailable)
    }

    fn replace(&self, health: QueueHealth) -> u8 {
        let _changing = self.lock();
        self.replace_locked(health)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace_locked(&self, health: QueueHealth) -> u8 {
        let before = self.health.swap(health as u8, Ordering::Relaxed);
        self.gate.on(StoreEvent::Queue { is_usable: health == QueueHealth::Usable });
        before
    }

    /// Whether Redis takes appends, as far as is known.
    pub fn is_usable(&self) -> bool {
        self.is(QueueHealth::Usable)
    }

    /// Whether Redis has no room.
    pub fn is_full(&self) -> bool {
        self.is(QueueHealth::Full)
    }

    fn is(&self, health: QueueHealth) -> bool {
        self.health.load(Ordering::Relaxed) == health as u8
    }

    /// Answer to a webhook that can't be stored now.
    pub fn refusal(&self) -> Refusal {
        let health = if self.is_full() { QueueHealth::Full } else { QueueHealth::Unavailable };
        health.refusal()
    }

    /// Has the watch look soon.
    pub fn look_soon(&self) {
        self.look_now.notify_one();
    }

    /// Waits until a look is asked for.
    pub async fn asked(&self) {
        self.look_now.notified().await;
    }

    /// Number that grows when Redis had to be connected to again.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Has the appenders connect again.
    pub fn renew_connections(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of looks that Redis has answered.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Redis has answered a look.
    pub fn count_answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// A look is over, whatever was found.
    pub fn set_looked(&self) {
        self.looked.cancel();
    }

    /// Waits until Redis was looked at once, whatever was found.
    pub async fn looked(&self) {
        self.looked.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_suspicion_outlives_what_a_look_found_before() {
        let gate = Gate::new(true, Duration::from_secs(3));
        let looks = Looks::new(gate.clone());
        let before = looks.suspicions();
        assert!(looks.set_usable(before) && looks.is_usable());
        looks.suspect();
        assert!(!looks.set_usable(before) && !looks.is_usable());
        assert!(looks.set_usable(looks.suspicions()) && looks.is_usable());
        let error = AppendError::Unknown(spillway_queue::QueueError::Loading);
        looks.append_failed(QueueHealth::Unavailable, &error);
        assert!(!looks.set_usable(before + 1) && !looks.is_usable());
        // Of a log on Redis' disk, too.
        gate.on(StoreEvent::ClaimOurs { is_new: false });
        looks.set_short(before + 1);
        assert!(!gate.needs_fence(), "it is not restored");
        looks.set_short(looks.suspicions());
        assert!(gate.needs_fence());
    }
}
