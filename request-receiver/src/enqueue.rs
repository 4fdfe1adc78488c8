//! Group commit: whatever arrives while one pack is written becomes the next.
//!
//! Where Redis syncs before it answers, a second pack would only wait for the first one's sync. So
//! the shards of a group have one in flight together: the shard whose turn it is sends what waits at
//! each. Otherwise each shard has a pack of its own in flight, and no core waits for another.
//! Invariants: never a second pack of a shard before the first one's outcome is known, unless Redis'
//! `appendfsync` was changed meanwhile; a webhook's waiter hears `Ok` only after Redis confirmed its
//! pack. Deadlines are kept by [`Waiting`].

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_queue::QueueError;
use spillway_queue::append::{AppendError, Appender};
use spillway_service::error::chain;
use spillway_webhook::pack::{Packer, RAW_BYTES_TARGET};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::metrics::Metrics;
use crate::queue_state::{Health, QueueState};
use crate::reply::Refusal;
use crate::settings::Settings;
use crate::waiting::{Answer, Batch, Waiting};

/// How often a shard lets its other tasks run before it closes a pack, as long as each time brings
/// more. Past this it would only wait for itself.
const GATHER_ROUNDS_MAX: usize = 12;

/// What a group of shards shares to store its webhooks together.
pub struct Commits {
    /// Held by the shard that has a pack of all in flight.
    turn: Mutex<()>,
    /// What waits at each shard.
    shards: Vec<Arc<Waiting>>,
    /// The queue as this group sees it.
    state: QueueState,
}

/// A batch and the shard it is of.
type Taken = (usize, Batch);

/// Stores what waits, when it is its shard's turn.
pub struct Batcher {
    commits: Arc<Commits>,
    shard: usize,
    waiting: Arc<Waiting>,
    packer: Packer,
    appender: Appender,
    state: QueueState,
    metrics: Metrics,
    ack_timeout: Duration,
    generation: u64,
}

impl Commits {
    /// For so many shards.
    pub fn new(shards: usize, state: &QueueState, metrics: &Metrics) -> Arc<Self> {
        let shards = (0..shards).map(|_| Arc::new(Waiting::new(metrics.topics()))).collect();
        Arc::new(Self { turn: Mutex::new(()), shards, state: state.for_group() })
    }

    /// The queue as this group sees it.
    pub fn state(&self) -> &QueueState {
        &self.state
    }

    /// What waits at `shard`.
    pub fn waiting_at(&self, shard: usize) -> Arc<Waiting> {
        self.shards[shard].clone()
    }

    /// The oldest batch of each shard, as far as a pack has room for it; that of `first` goes first,
    /// however large it is.
    fn take(&self, first: usize) -> Vec<Taken> {
        let mut taken = Vec::with_capacity(self.shards.len());
        taken.extend(self.shards[first].take().map(|batch| (first, batch)));
        let mut room = RAW_BYTES_TARGET;
        room = taken
            .iter()
            .fold(room, |room, (_, batch)| room.saturating_sub(batch.records().bytes()));
        for shard in (first + 1..self.shards.len()).chain(0..first) {
            if let Some(batch) = self.shards[shard].try_take(room) {
                room -= batch.records().bytes();
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
        metrics: &Metrics,
    ) -> Self {
        Self {
            shard,
            waiting: commits.waiting_at(shard),
            packer: Packer::new(),
            appender: Appender::new(settings.common.redis.clone()),
            state: commits.state().clone(),
            commits,
            metrics: metrics.clone(),
            ack_timeout: settings.ack_timeout,
            generation: 0,
        }
    }

    /// Runs until what waits here is closed, and stored.
    pub async fn run(mut self) {
        let commits = self.commits.clone();
        while self.waiting.arrived().await {
            let turn = if self.state.is_synced() { Some(commits.turn.lock().await) } else { None };
            self.gather().await;
            let mut batches = match turn {
                Some(_) => commits.take(self.shard),
                None => self.waiting.take().map(|own| (self.shard, own)).into_iter().collect(),
            };
            if !batches.is_empty() {
                let answer = self.write(&mut batches).await;
                drop(turn);
                self.resolve(batches, answer);
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

    async fn write(&mut self, batches: &mut [Taken]) -> Answer {
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
        let outcome = {
            let mut append = pin!(self.appender.append(pack, count));
            // What arrives meanwhile wakes nobody: that would cost more than all else it does.
            let in_time = timeout(self.ack_timeout, &mut append).await;
            if let Ok(outcome) = in_time {
                outcome
            } else {
                // Nothing that arrives now would be answered in time.
                self.state.set_stalled(true);
                let outcome = append.await;
                self.state.set_stalled(false);
                outcome
            }
        };
        self.judge(outcome.map(|_| ()), count)
    }

    /// Others first: their threads have to wake up.
    fn resolve(&self, batches: Vec<Taken>, answer: Answer) {
        let (own, others): (Vec<_>, Vec<_>) =
            batches.into_iter().partition(|(shard, _)| *shard == self.shard);
        for (shard, batch) in others {
            self.commits.shards[shard].hand_back(batch, answer);
        }
        own.into_iter().for_each(|(_, batch)| self.waiting.resolve(batch, answer));
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

/// What a failed append says about the queue, and to those who waited for it.
fn judge(error: &AppendError) -> (Health, Refusal) {
    match error {
        AppendError::NotStored(QueueError::Full(_)) => (Health::Full, Refusal::QueueFull),
        AppendError::NotStored(_) => (Health::Unavailable, Refusal::QueueUnavailable),
        AppendError::Unknown(_) => (Health::Unavailable, Refusal::AckTimeout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::Admission;
    use crate::secrets::Source;
    use crate::waiting::tests::push;

    #[tokio::test]
    async fn a_pack_holds_what_waits_at_each_shard_as_far_as_there_is_room() {
        let metrics = Metrics::new(Source::new(&[], None).matches());
        let commits = Commits::new(4, &QueueState::new(), &metrics);
        let admission = Admission::new(64 << 20);
        let (half, huge) = (RAW_BYTES_TARGET / 2, 2 * RAW_BYTES_TARGET);
        let sizes = [(0, 10), (1, huge), (2, half), (3, half), (0, 10)];
        let shards: Vec<_> = (0..4).map(|shard| commits.waiting_at(shard)).collect();
        let _waiters: Vec<_> = sizes
            .iter()
            .map(|(shard, bytes)| {
                push(&shards[*shard], &admission, &vec![b' '; *bytes], Duration::from_secs(9))
            })
            .collect();
        let take = |first| {
            let taken = commits.take(first);
            taken.iter().map(|(shard, batch)| (*shard, batch.records().count())).collect::<Vec<_>>()
        };
        // Whoever has the turn sends its own, whatever its size; what has no room waits.
        assert_eq!(take(3), [(3, 1), (0, 2)]);
        assert_eq!(take(1), [(1, 1)]);
        assert_eq!(take(0), [(2, 1)]);
        assert_eq!(take(0), []);
    }
}
