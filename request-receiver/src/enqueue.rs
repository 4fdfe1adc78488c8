//! Group commit: whatever arrives while one pack is written becomes the next.
//!
//! Where Redis syncs before it answers, a second pack would only wait for the first one's sync. So
//! one is in flight for all shards together, and the shard whose turn it is sends what waits at each
//! of them. Otherwise each shard has a pack of its own in flight, and no core waits for another.
//! Invariants: never a second pack of a shard before the first one's outcome is known; a webhook's
//! waiter hears `Ok` only after Redis confirmed its pack; every waiter hears something by its
//! deadline.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_queue::QueueError;
use spillway_queue::append::{AppendError, Appender};
use spillway_service::error::chain;
use spillway_webhook::pack::{Packer, RAW_BYTES_TARGET};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, Interval, interval_at};

use crate::metrics::Metrics;
use crate::queue_state::{Health, QueueState};
use crate::reply::Refusal;
use crate::settings::Settings;
use crate::waiting::{Answer, Batch, Waiting};

/// How often deadlines are looked at while Redis is slow: a webhook is answered at most this late.
const DEADLINE_TICK: Duration = Duration::from_millis(20);
/// How often a shard lets its other tasks run before it closes a pack, as long as each time brings
/// more. Past this it would only wait for itself.
const GATHER_ROUNDS_MAX: usize = 12;

/// What the shards share to store their webhooks together.
pub struct Commits {
    /// Held by the shard that has a pack of all in flight.
    turn: Mutex<()>,
    /// What waits at each shard.
    shards: Vec<Arc<Waiting>>,
}

/// A batch and the shard it is of.
type Taken = (usize, Batch);

/// Stores what waits, when it is its shard's turn.
pub struct Batcher {
    commits: Arc<Commits>,
    shard: usize,
    packer: Packer,
    appender: Appender,
    state: QueueState,
    metrics: Metrics,
    ack_timeout: Duration,
    generation: u64,
}

impl Commits {
    /// For so many shards.
    pub fn new(shards: usize, metrics: &Metrics) -> Arc<Self> {
        let shards = (0..shards).map(|_| Arc::new(Waiting::new(metrics.topics()))).collect();
        Arc::new(Self { turn: Mutex::new(()), shards })
    }

    /// What waits at `shard`.
    pub fn waiting_at(&self, shard: usize) -> Arc<Waiting> {
        self.shards[shard].clone()
    }

    /// The oldest batch of each shard, as far as a pack has room for it; that of `first` goes first.
    fn take(&self, first: usize) -> Vec<Taken> {
        let mut room = usize::MAX;
        let mut taken = Vec::with_capacity(self.shards.len());
        for shard in (first..self.shards.len()).chain(0..first) {
            if let Some(batch) = self.shards[shard].take(room) {
                room = room.min(RAW_BYTES_TARGET).saturating_sub(batch.records().bytes());
                taken.push((shard, batch));
            }
        }
        taken
    }
}

impl Batcher {
    /// For one of the shards.
    pub fn new(
        commits: Arc<Commits>,
        shard: usize,
        settings: &Settings,
        state: QueueState,
        metrics: &Metrics,
    ) -> Self {
        Self {
            commits,
            shard,
            packer: Packer::new(),
            appender: Appender::new(settings.common.redis.clone()),
            state,
            metrics: metrics.clone(),
            ack_timeout: settings.ack_timeout,
            generation: 0,
        }
    }

    /// Runs until what waits here is closed, and stored.
    pub async fn run(mut self) {
        let commits = self.commits.clone();
        while self.waiting().arrived().await {
            let turn = if self.state.is_synced() { Some(self.turn(&commits).await) } else { None };
            self.gather().await;
            let batches = match turn {
                Some(_) => commits.take(self.shard),
                None => self.take_own(),
            };
            if !batches.is_empty() {
                self.write(batches).await;
            }
        }
    }

    fn waiting(&self) -> &Waiting {
        &self.commits.shards[self.shard]
    }

    async fn turn<'a>(&self, commits: &'a Commits) -> MutexGuard<'a, ()> {
        let asked_at = Instant::now();
        let mut turn = pin!(commits.turn.lock());
        let mut tick = deadline_tick();
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => {
                    self.state.set_stalled(false);
                    return turn;
                }
                _ = tick.tick() => {
                    self.waiting().expire();
                    self.state.set_stalled(asked_at.elapsed() > self.ack_timeout);
                }
            }
        }
    }

    /// What lies in the sockets by now comes along: a fuller pack is a sync saved.
    async fn gather(&self) {
        let mut bytes = self.waiting().bytes();
        for _ in 0..GATHER_ROUNDS_MAX {
            tokio::task::yield_now().await;
            let before = std::mem::replace(&mut bytes, self.waiting().bytes());
            if bytes == before || bytes >= RAW_BYTES_TARGET {
                return;
            }
        }
    }

    fn take_own(&self) -> Vec<Taken> {
        let own = self.waiting().take(usize::MAX);
        own.into_iter().map(|batch| (self.shard, batch)).collect()
    }

    async fn write(&mut self, mut batches: Vec<Taken>) {
        let ((_, first), others) = batches.split_first_mut().expect("BUG: something was taken");
        others.iter().for_each(|(_, other)| first.take_along(other));
        let count = first.records().count();
        let pack = self.packer.pack(first.records());
        // A connection from before Redis went would break with the pack on it, and leave its
        // outcome unknown. The append connects anew, while its webhooks' deadlines are kept.
        let generation = self.state.generation();
        if generation != std::mem::replace(&mut self.generation, generation) {
            self.appender.disconnect();
        }
        let sent_at = Instant::now();
        let outcome = {
            let mut append = pin!(self.appender.append(pack, count));
            let mut tick = deadline_tick();
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut append => break outcome,
                    // What arrives meanwhile wakes nobody: that would cost more than all else the
                    // batcher does.
                    _ = tick.tick() => {
                        let now = Instant::now();
                        batches.iter().for_each(|(_, batch)| batch.tell_expired(now));
                        self.commits.shards[self.shard].expire();
                        // Past this, nothing that arrives now would be answered in time.
                        self.state.set_stalled(sent_at.elapsed() > self.ack_timeout);
                    }
                }
            }
        };
        self.state.set_stalled(false);
        let answer = self.judge(outcome.map(|_| ()), count);
        for (shard, batch) in batches {
            if shard == self.shard {
                self.waiting().resolve(batch, answer);
            } else {
                self.commits.shards[shard].hand_back(batch, answer);
            }
        }
    }

    /// What its waiters are to be told of a pack.
    fn judge(&self, outcome: Result<(), AppendError>, count: u32) -> Answer {
        match outcome {
            Ok(()) => {
                self.metrics.packed(count);
                Ok(())
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), webhooks = count, "pack refused");
                let (health, refusal) = judge(&error);
                self.state.failed(health, &error);
                Err(refusal)
            }
        }
    }
}

fn deadline_tick() -> Interval {
    interval_at(Instant::now() + DEADLINE_TICK, DEADLINE_TICK)
}

/// What a failed append says about the queue, and to those who waited for it.
fn judge(error: &AppendError) -> (Health, Refusal) {
    match error {
        AppendError::NotStored(QueueError::Full(_)) => (Health::Full, Refusal::QueueFull),
        AppendError::NotStored(_) => (Health::Unavailable, Refusal::QueueUnavailable),
        AppendError::Unknown(_) => (Health::Unavailable, Refusal::AckTimeout),
    }
}
