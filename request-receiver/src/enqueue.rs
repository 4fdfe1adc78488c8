//! Group commit: whatever arrives while one pack is written becomes the next.
//!
//! Each shard has a pack of its own in flight, and no core waits for another. Invariants: never a
//! second pack of a shard before the first one's outcome is known; a webhook's waiter hears `Ok` only
//! after Redis confirmed its pack, or the disk did where packs are spilled (`routed`). Deadlines are
//! kept by [`Waiting`].

mod routed;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_queue::append::{AppendError, Appender, Fence};
use spillway_queue::{QueueError, Redis};
use spillway_service::error::chain;
use spillway_service::supervisor::Pulse;
use spillway_webhook::StreamId;
use spillway_webhook::pack::{Packer, RAW_BYTES_TARGET, Records};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::metrics::Metrics;
use crate::queue_state::{Health, QueueState};
use crate::reply::Refusal;
use crate::settings::Settings;
use crate::spill::Spill;
use crate::waiting::{Answer, Waiting};

/// How often a shard lets its other tasks run before it closes a pack, as long as each time brings
/// more. Past this it would only wait for itself.
const GATHER_ROUNDS_MAX: usize = 12;
/// Looks at Redis, of one a second, that were answered while an append was not: Redis runs one
/// command after the other, so by then it is this connection that is dead, not Redis that is slow.
const LOOKS_MAX: u64 = 10;
/// And at least so long, with so many bytes of its pack each second: a large one may be slow to send.
const DEAD_AFTER: Duration = Duration::from_secs(10);
const SLOWEST_BYTES_PER_S: usize = 16 << 10;
/// How often that is looked up.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Stores what waits at a shard.
pub struct Batcher {
    waiting: Arc<Waiting>,
    packer: Packer,
    redis: Redis,
    appender: Appender,
    /// Where packs go instead; none unless it is set.
    spill: Option<Arc<Spill>>,
    state: QueueState,
    metrics: Metrics,
    ack_timeout: Duration,
    generation: u64,
    /// Appends that hang, left behind with their batches (`routed`).
    late: JoinSet<()>,
    pulse: Pulse,
}

impl Batcher {
    /// For one shard.
    pub fn new(
        waiting: Arc<Waiting>,
        settings: &Settings,
        state: QueueState,
        metrics: &Metrics,
        pulse: Pulse,
    ) -> Self {
        let redis = settings.common.redis.clone();
        Self {
            waiting,
            packer: Packer::new(),
            appender: Appender::new(redis.clone()),
            redis,
            spill: state.spill().cloned(),
            state,
            metrics: metrics.clone(),
            ack_timeout: settings.ack_timeout,
            generation: 0,
            late: JoinSet::new(),
            pulse,
        }
    }

    /// Runs until what waits is closed, and stored.
    pub async fn run(mut self) {
        while self.arrived().await {
            self.gather().await;
            if let Some(batch) = self.waiting.take() {
                if let Some(spill) = self.spill.clone() {
                    self.store_either_way(batch, &spill).await;
                } else {
                    let answer = self.write(batch.records()).await;
                    self.waiting.resolve(batch, answer);
                }
                self.pulse.answer();
            }
        }
    }

    /// Waits for something to store; `false` once there will be nothing more.
    async fn arrived(&mut self) -> bool {
        loop {
            tokio::select! {
                biased;
                Some(settled) = self.late.join_next() => end_with(settled),
                is_more = self.waiting.arrived() => return is_more,
                () = self.pulse.asked() => self.pulse.answer(),
            }
        }
    }

    /// What lies in the sockets by now comes along: a fuller pack is a sync saved.
    async fn gather(&self) {
        let mut bytes = self.waiting.bytes();
        for _ in 0..GATHER_ROUNDS_MAX {
            tokio::task::yield_now().await;
            let before = std::mem::replace(&mut bytes, self.waiting.bytes());
            if bytes == before || bytes >= RAW_BYTES_TARGET {
                return;
            }
        }
    }

    async fn write(&mut self, records: &Records) -> Answer {
        self.connect_anew_if_redis_went();
        let count = records.count();
        let pack = self.packer.pack(records);
        let bytes = pack.len();
        let outcome = {
            let mut append = pin!(self.appender.append(pack, count));
            let in_time = timeout(self.ack_timeout, answering(&self.pulse, &mut append));
            // What arrives meanwhile wakes nobody: that would cost more than all else it does.
            if let Ok(outcome) = in_time.await {
                Some(outcome)
            } else {
                // Nothing that arrives now would be answered in time.
                self.state.set_stalled(true);
                let append = unless_dead(&self.state, bytes, append);
                answering(&self.pulse, append).await
            }
        };
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => {
                let fence = self.appender.fence();
                self.appender.disconnect();
                answering(&self.pulse, close(&fence)).await;
                Err(given_up())
            }
        };
        self.state.set_stalled(false);
        told(outcome, count, &self.state, &self.metrics)
    }

    /// A connection from before Redis went would break with the pack on it, and leave its outcome
    /// unknown. The append connects anew, while its webhooks' deadlines are kept.
    fn connect_anew_if_redis_went(&mut self) {
        let generation = self.state.generation();
        if generation != std::mem::replace(&mut self.generation, generation) {
            self.appender.disconnect();
        }
    }
}

/// Ends this task too if another panicked: nothing is fed before each append that hangs is settled.
fn end_with(settled: Result<(), JoinError>) {
    if let Err(error) = settled
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

/// What its waiters are to be told of a pack.
fn told(
    outcome: Result<StreamId, AppendError>,
    count: u32,
    state: &QueueState,
    metrics: &Metrics,
) -> Answer {
    match outcome {
        Ok(_) => {
            metrics.packed(count);
            Ok(())
        }
        Err(error) => {
            tracing::debug!(error = chain(&error), webhooks = count, "pack refused");
            let (health, refusal) = judge(&error);
            state.failed(health, &error);
            Err(refusal)
        }
    }
}

/// Waits for something of Redis', and answers the watchdog meanwhile: a restart would not mend what
/// Redis is slow with, and would lose what is in flight.
async fn answering<T>(pulse: &Pulse, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            outcome = &mut work => return outcome,
            () = pulse.asked() => pulse.answer(),
        }
    }
}

/// The outcome of an append of so many bytes; `None` when Redis answers others and not this one, for
/// so long that its connection must be dead.
async fn unless_dead<T>(
    state: &QueueState,
    bytes: usize,
    append: impl Future<Output = T>,
) -> Option<T> {
    let (looks_before, mut append) = (state.looks(), pin!(append));
    let dead_at = Instant::now() + DEAD_AFTER + slowly(bytes);
    loop {
        tokio::select! {
            biased;
            outcome = &mut append => return Some(outcome),
            () = sleep(LOOK_EVERY) => {
                if state.looks() - looks_before >= LOOKS_MAX && Instant::now() >= dead_at {
                    return None;
                }
            }
        }
    }
}

fn slowly(bytes: usize) -> Duration {
    Duration::from_secs((bytes / SLOWEST_BYTES_PER_S) as u64)
}

/// Sees to it that an append that was given up does not take effect behind those after it. Returns
/// only then, or where Redis forbids it.
async fn close(fence: &Fence) {
    loop {
        match fence.close().await {
            Ok(connections) => {
                tracing::warn!(connections, "an append without an answer was given up");
                return;
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), "a connection cannot be ended now");
                sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// What is known of an append that was given up.
fn given_up() -> AppendError {
    AppendError::Unknown(QueueError::Unexpected("no answer, while others had theirs".to_owned()))
}

/// What a failed append says about the queue, and to those who waited for it.
fn judge(error: &AppendError) -> (Health, Refusal) {
    match error {
        AppendError::NotStored(QueueError::Full(_)) => (Health::Full, Refusal::QueueFull),
        AppendError::NotStored(_) => (Health::Unavailable, Refusal::QueueUnavailable),
        AppendError::Unknown(_) => (Health::Unavailable, Refusal::AckTimeout),
    }
}
