//! Gate that each batch passes: the store mode, shared by all shards, the watch over Redis and the
//! overflow log.
//!
//! One for the whole process. A lock rather than atomics: it is taken twice for a batch and never
//! held for long. Batches that are held wait here, for the time of a sync and two calls.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::store::mode::{Destination, StoreEvent, StoreMachine, StoreMode};

/// Longest time for which batches are held, a small part of Shopify's 5 s. `HOLD_MAX` where Redis
/// is far away.
const HOLD: Duration = Duration::from_millis(250);
const HOLD_MAX: Duration = Duration::from_secs(1);
/// Calls to Redis that may be under way or begin within a hold.
const HOLD_CALLS: u32 = 4;
/// Time from one hold to the next.
const HOLD_AGAIN: Duration = Duration::from_secs(2);

/// Store mode of the process.
pub struct Gate {
    has_log: bool,
    state: Mutex<GateState>,
    /// Copy of the mode, to be read at each request.
    mode: AtomicU8,
    /// Time limit of a hold, in ms.
    hold_ms: AtomicU64,
    hold_max: Duration,
    /// Notified when the restorer may have something to do.
    changed: Notify,
    /// Notified when batches are no longer held.
    opened: Notify,
}

struct GateState {
    machine: StoreMachine,
    /// Time at which the last hold began.
    held_at: Option<Instant>,
}

/// A batch that has passed, by its destination.
pub enum GatePass {
    /// To be appended to the queue.
    Append(AppendPass),
    /// To be written to the log.
    Write(WritePass),
    /// To be answered 503.
    Refused,
}

/// Append that may still take effect. Dropped without an outcome, it counts as under way until the
/// process ends. Then nothing is restored after it.
pub struct AppendPass {
    gate: Arc<Gate>,
    is_hanging: bool,
}

/// Write under way. It ends when this is dropped.
pub struct WritePass(Arc<Gate>);

impl Gate {
    /// Gate of a process that has just begun, with or without a log. Batches are held for at most
    /// half of `ack_timeout`.
    pub fn new(has_log: bool, ack_timeout: Duration) -> Arc<Self> {
        let machine = StoreMachine::new(has_log);
        let hold_max = HOLD_MAX.min(ack_timeout / 2);
        Arc::new(Self {
            has_log,
            mode: AtomicU8::new(machine.mode() as u8),
            hold_ms: AtomicU64::new(HOLD.min(hold_max).as_millis() as u64),
            hold_max,
            state: Mutex::new(GateState { machine, held_at: None }),
            changed: Notify::new(),
            opened: Notify::new(),
        })
    }

    /// Passes a batch that is ready. Waits while batches are held.
    pub async fn pass(self: &Arc<Self>) -> GatePass {
        loop {
            // Enabled before the check, or an opening in between would be missed.
            let mut opened = std::pin::pin!(self.opened.notified());
            opened.as_mut().enable();
            if self.mode() == StoreMode::Closing {
                self.tick();
            }
            if let Some(passed) = self.try_pass() {
                return passed;
            }
            if timeout(self.hold(), opened).await.is_err() {
                self.tick();
            }
        }
    }

    fn try_pass(self: &Arc<Self>) -> Option<GatePass> {
        let destination = self.lock().machine.route()?;
        Some(match destination {
            Destination::Append => {
                GatePass::Append(AppendPass { gate: self.clone(), is_hanging: false })
            }
            Destination::Write => GatePass::Write(WritePass(self.clone())),
            Destination::Refused => GatePass::Refused,
        })
    }

    /// Current mode.
    pub fn mode(&self) -> StoreMode {
        let mode = self.mode.load(Ordering::Relaxed);
        StoreMode::ALL.into_iter().find(|one| *one as u8 == mode).unwrap_or(StoreMode::StandingBack)
    }

    /// Returns true while batches do not go to Redis directly: they are written to the log, wait while
    /// it is emptied, or are refused because another receiver holds the claim.
    pub fn is_spilling(&self) -> bool {
        self.has_log && self.mode() != StoreMode::Direct
    }

    /// Applies an event. Returns true if the mode has changed.
    pub fn on(&self, event: StoreEvent) -> bool {
        self.change(|machine| machine.on(event))
    }

    /// Notes the time that Redis took to restore a chunk. The next holds last accordingly.
    pub fn restored_in(&self, time: Duration) {
        let hold = (HOLD_CALLS * time).max(HOLD).min(self.hold_max);
        self.hold_ms.store(hold.as_millis() as u64, Ordering::Relaxed);
    }

    fn hold(&self) -> Duration {
        Duration::from_millis(self.hold_ms.load(Ordering::Relaxed))
    }

    /// Ends holds that ran out, and allows the next.
    pub fn tick(&self) {
        let (held_at, is_holding) = {
            let state = self.lock();
            (state.held_at, state.machine.is_holding())
        };
        let Some(since) = held_at.map(|at| at.elapsed()) else { return };
        if is_holding && since >= self.hold() {
            self.on(StoreEvent::HoldRanOut);
        } else if !is_holding && since >= HOLD_AGAIN {
            self.on(StoreEvent::HoldAllowed);
        }
    }

    /// Returns true if connections of earlier processes must be closed before anything is restored.
    pub fn needs_fence(&self) -> bool {
        self.lock().machine.needs_fence()
    }

    /// Makes batches go to the queue, if nothing is being written to the log and `is_empty`
    /// confirms that it is empty. Batches that come meanwhile wait. Returns true if the mode has
    /// changed.
    pub fn finish_if(&self, is_empty: impl FnOnce() -> bool) -> bool {
        self.change(|machine| {
            if machine.may_finish() && is_empty() {
                machine.on(StoreEvent::LogEmpty);
            }
        })
    }

    /// Waits until something has changed since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns true if the mode has changed.
    fn change(&self, change: impl FnOnce(&mut StoreMachine)) -> bool {
        let (before, after) = {
            let mut state = self.lock();
            let before = state.machine.clone();
            change(&mut state.machine);
            let after = state.machine.clone();
            if after.is_holding() && !before.is_holding() {
                state.held_at = Some(Instant::now());
            }
            if after.mode() != before.mode() {
                self.mode.store(after.mode() as u8, Ordering::Relaxed);
            }
            (before, after)
        };
        if before.is_holding() && !after.is_holding() {
            self.opened.notify_waiters();
        }
        if before != after && after.mode() != StoreMode::Direct {
            self.changed.notify_one();
        }
        log_change(before.mode(), after.mode());
        before.mode() != after.mode()
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log_change(before: StoreMode, after: StoreMode) {
    match (before, after) {
        (StoreMode::Direct, StoreMode::Spilling | StoreMode::Restoring) => {
            tracing::warn!("redis does not take webhooks; they are spilled to disk");
        }
        (StoreMode::StandingBack, StoreMode::Spilling) => {
            tracing::info!("this receiver has the claim to spill for this cell again");
        }
        _ => {}
    }
}

impl AppendPass {
    /// Notes that there was no answer for so long that other batches go into the log.
    pub fn hangs(&mut self) {
        self.is_hanging = true;
        self.gate.on(StoreEvent::AppendHangs);
    }

    /// Notes that the append has ended. `is_final`: it can't take effect any more.
    pub fn ended(self, is_final: bool) {
        self.gate.on(StoreEvent::AppendEnded { was_hanging: self.is_hanging, is_final });
    }

    /// Notes that the pack was refused. Returns a pass to write its batch to the log. `None`
    /// without a log, and while another receiver has the claim.
    pub fn refused(self) -> Option<WritePass> {
        let mut may_write = false;
        self.gate.change(|machine| may_write = machine.on_refused(self.is_hanging));
        may_write.then(|| WritePass(self.gate.clone()))
    }
}

impl Drop for WritePass {
    fn drop(&mut self) {
        self.0.on(StoreEvent::WriteEnded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gate with an empty log and a queue that takes appends.
    fn restoring() -> Arc<Gate> {
        let gate = Gate::new(true, Duration::from_secs(3));
        gate.on(StoreEvent::Queue { is_usable: true });
        gate.on(StoreEvent::ClaimOurs { is_new: false });
        assert!(gate.needs_fence());
        gate.on(StoreEvent::Fenced);
        assert_eq!(gate.mode(), StoreMode::Restoring);
        gate
    }

    fn direct() -> Arc<Gate> {
        let gate = restoring();
        assert!(gate.finish_if(|| true));
        gate
    }

    fn append(gate: &Arc<Gate>) -> AppendPass {
        let Some(GatePass::Append(pass)) = gate.try_pass() else { panic!("{:?}", gate.mode()) };
        pass
    }

    fn is_written(gate: &Arc<Gate>) -> bool {
        matches!(gate.try_pass(), Some(GatePass::Write(_)))
    }

    #[test]
    fn direct_begins_when_nothing_is_written_and_the_log_is_empty() {
        let gate = restoring();
        let writing = gate.try_pass();
        assert!(!gate.finish_if(|| true), "a write is under way");
        drop(writing);
        assert!(!gate.finish_if(|| false), "the log is not empty");
        assert!(gate.finish_if(|| true));
        append(&gate).ended(true);
        assert_eq!(gate.mode(), StoreMode::Direct);
        append(&gate).ended(false);
        assert_eq!(gate.mode(), StoreMode::Spilling);
        assert!(gate.needs_fence(), "it may take effect yet");
    }

    #[test]
    fn nothing_is_restored_while_an_append_may_take_effect() {
        let gate = direct();
        let mut hanging = append(&gate);
        let lost = append(&gate);
        hanging.hangs();
        assert!(is_written(&gate));
        assert_eq!(gate.mode(), StoreMode::Spilling);
        hanging.ended(true);
        assert_eq!(gate.mode(), StoreMode::Spilling, "another one is under way");
        drop(lost);
        assert_eq!(gate.mode(), StoreMode::Spilling, "nobody knows how it ended");
    }

    #[test]
    fn a_refused_append_takes_the_others_along_into_the_log() {
        let gate = direct();
        let write = append(&gate).refused();
        assert!(write.is_some() && is_written(&gate));
        drop(write);
        assert_eq!(gate.mode(), StoreMode::Restoring, "the queue is usable all the while");
        assert!(gate.finish_if(|| true));
        let late = append(&gate);
        gate.on(StoreEvent::ClaimTheirs);
        assert!(late.refused().is_none() && matches!(gate.try_pass(), Some(GatePass::Refused)));
        gate.on(StoreEvent::ClaimOurs { is_new: false });
        assert!(is_written(&gate) && gate.needs_fence());
    }

    #[tokio::test(start_paused = true)]
    async fn batches_are_held_until_the_log_is_empty_or_for_a_quarter_of_a_second() {
        let gate = restoring();
        let enter = |gate: &Arc<Gate>| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.pass().await })
        };
        let writing = gate.pass().await;
        gate.on(StoreEvent::ChunkRead { is_last: true });
        let entering = enter(&gate);
        tokio::task::yield_now().await;
        assert!(!entering.is_finished() && !gate.finish_if(|| true));
        drop(writing);
        assert!(gate.finish_if(|| true));
        let Ok(GatePass::Append(pass)) = entering.await else { panic!("it is not appended") };
        assert!(pass.refused().is_some());
        // Not again so soon.
        gate.on(StoreEvent::ChunkRead { is_last: true });
        assert!(is_written(&gate));
        tokio::time::advance(HOLD_AGAIN).await;
        gate.tick();
        assert!(gate.try_pass().is_none());
        assert!(matches!(enter(&gate).await, Ok(GatePass::Write(_))), "the hold ran out");
        // True however late the end of the hold is noticed.
        tokio::time::advance(HOLD_AGAIN).await;
        gate.tick();
        assert!(gate.try_pass().is_none());
        tokio::time::advance(10 * HOLD_AGAIN).await;
        let entering = enter(&gate);
        tokio::time::sleep(2 * HOLD).await;
        assert!(entering.is_finished());
    }

    #[test]
    fn a_hold_has_time_for_four_calls_and_leaves_senders_half_of_theirs() {
        let ms = Duration::from_millis;
        let hold = |ack_timeout, call| {
            let gate = Gate::new(true, ack_timeout);
            gate.restored_in(call);
            gate.hold()
        };
        assert_eq!(hold(ms(3000), ms(5)), HOLD);
        assert_eq!(hold(ms(3000), ms(120)), ms(480));
        assert_eq!(hold(ms(3000), ms(900)), HOLD_MAX);
        assert_eq!(hold(ms(800), ms(120)), ms(400));
    }
}
