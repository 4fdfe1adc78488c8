//! Results of the looks at Redis. The watch writes them, and all others read them.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_process::error::chain;
use spillway_queue::append::AppendError;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::reply::Refusal;
use crate::store::gate::Gate;
use crate::store::mode::StoreEvent;

/// Health of the queue.
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
    /// Answer to a webhook that can't be stored in this state.
    pub fn refusal(self) -> Refusal {
        match self {
            Self::Full => Refusal::QueueFull,
            Self::Usable | Self::Unavailable => Refusal::QueueUnavailable,
        }
    }
}

/// Newest entry that Redis has confirmed, appended or restored: a stream that ends before it lost something.
#[derive(Debug, Default)]
pub struct NewestStored(AtomicU64);

impl NewestStored {
    /// Handles a confirmation. The time is that of the entry, by Redis' clock.
    pub fn on_confirmed(&self, entry_ms: u64) {
        self.0.fetch_max(entry_ms, Ordering::Relaxed);
    }

    /// Time of the newest entry; 0 if none was confirmed.
    pub fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Results of the looks at Redis. Each change of health is passed on to the store mode.
pub struct RedisLooks {
    gate: Arc<Gate>,
    /// Held while the health changes, so that the store mode follows in the same order.
    changing: Mutex<()>,
    health: AtomicU8,
    /// Grows with each connection of the watch. An appender's connection from before is not used
    /// again.
    generation: AtomicU64,
    answered: AtomicU64,
    /// Grows when Redis did not answer as it should. It may be another instance since then.
    suspicions: AtomicU64,
    stored: NewestStored,
    look_now: Notify,
    /// Cancelled by the first look.
    looked: CancellationToken,
}

impl RedisLooks {
    /// Unavailable until the first look.
    pub fn new(gate: Arc<Gate>) -> Arc<Self> {
        Arc::new(Self {
            gate,
            changing: Mutex::default(),
            health: AtomicU8::new(QueueHealth::Unavailable as u8),
            generation: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            suspicions: AtomicU64::new(0),
            stored: NewestStored::default(),
            look_now: Notify::new(),
            looked: CancellationToken::new(),
        })
    }

    /// Sets the health after a look that found the queue not usable.
    pub fn set(&self, health: QueueHealth) {
        self.replace(health);
    }

    /// Sets the health to usable after a look. Does not if there was a suspicion since
    /// [`Self::suspicions`] was read for it. Returns true if the queue is usable.
    pub fn set_usable(&self, suspicions: u64) -> bool {
        let _changing = self.lock();
        let is_usable = self.suspicions() == suspicions;
        if is_usable {
            self.replace_locked(QueueHealth::Usable);
        }
        is_usable
    }

    /// Sets that Redis' disk, which the log shares, has no room. Nothing is appended, and the log
    /// is restored. Has no effect after a suspicion, as [`Self::set_usable`].
    pub fn set_short(&self, suspicions: u64) {
        let _changing = self.lock();
        if self.suspicions() == suspicions {
            self.health.store(QueueHealth::Full as u8, Ordering::Relaxed);
            self.gate.on(StoreEvent::QueueShort);
        }
    }

    /// Sets the health after a failed append, and asks for a look soon. Logs only a change: while
    /// Redis is away, every append fails.
    pub fn append_failed(&self, health: QueueHealth, error: &AppendError) {
        let before = if health == QueueHealth::Unavailable {
            self.replace_by_suspicion()
        } else {
            self.replace(health)
        };
        if before != health as u8 {
            tracing::warn!(
                error = chain(error),
                "an append failed or has no known outcome; the queue is looked at"
            );
        }
        self.look_soon();
    }

    /// Notes that Redis may be another instance, or have older data. It is not used until a new
    /// connection has shown its state.
    pub fn suspect(&self) {
        self.replace_by_suspicion();
        self.look_soon();
    }

    /// Number that grows with each reason to believe that Redis is another instance. Results of
    /// looks from before are void then.
    pub fn suspicions(&self) -> u64 {
        self.suspicions.load(Ordering::Relaxed)
    }

    /// Sets that Redis had no room for what was to be restored.
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

    /// Returns true if Redis takes appends, as far as is known.
    pub fn is_usable(&self) -> bool {
        self.is(QueueHealth::Usable)
    }

    /// Returns true if Redis has no room.
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

    /// Asks the watch for a look soon.
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

    /// Makes the appenders connect again.
    pub fn renew_connections(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of looks that Redis has answered.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Newest entry that Redis has confirmed.
    pub fn stored(&self) -> &NewestStored {
        &self.stored
    }

    /// Counts a look that Redis has answered.
    pub fn count_answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a look is over, whatever it found.
    pub fn set_looked(&self) {
        self.looked.cancel();
    }

    /// Waits until the first look is over, whatever it found.
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
        let looks = RedisLooks::new(gate.clone());
        let before = looks.suspicions();
        assert!(looks.set_usable(before) && looks.is_usable());
        looks.suspect();
        assert!(!looks.set_usable(before) && !looks.is_usable());
        assert!(looks.set_usable(looks.suspicions()) && looks.is_usable());
        let error = AppendError::Unknown(spillway_queue::QueueError::Loading);
        looks.append_failed(QueueHealth::Unavailable, &error);
        assert!(!looks.set_usable(before + 1) && !looks.is_usable());
        // Also of a log on Redis' disk.
        gate.on(StoreEvent::ClaimOurs { is_new: false });
        looks.set_short(before + 1);
        assert!(!gate.needs_fence(), "it is not restored");
        looks.set_short(looks.suspicions());
        assert!(gate.needs_fence());
    }
}
