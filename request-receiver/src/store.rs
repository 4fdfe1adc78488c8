//! Store: takes batches, appends them to the queue or writes them to the overflow log, and answers
//! those who wait in them.
//!
//! [`mode`] decides where batches go, [`gate`] lets them pass, [`append`] is one append, [`log`] the
//! overflow log as seen from here, [`looks`] what is known of Redis, [`watch`] finds that out, [`claim`]
//! sees whether another receiver has the cell.
//!
//! Each shard has one batch under way, and no core waits for another. An append that hangs is left to
//! itself where there is a log: other batches go there, and are restored once its outcome is known.
//! A batch that Redis refused for certain goes into the log, too. One that may be stored is answered that
//! nothing is known, and is not written again.

pub mod append;
pub mod claim;
pub mod gate;
pub mod log;
pub mod looks;
pub mod mode;
pub mod safety;
#[cfg(test)]
mod simulation;
pub mod watch;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spillway_service::error::chain;
use spillway_service::supervisor::Pulse;
use spillway_webhook::pack::Packer;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::batch::{Batch, Batches};
use crate::metrics::Metrics;
use crate::reply::Refusal;
use crate::settings::Settings;
use crate::store::append::{AppendEnd, RunningAppend, ShardAppender};
use crate::store::gate::{AppendPass, Gate, Passed, WritePass};
use crate::store::log::OverflowLog;
use crate::store::looks::{Looks, QueueHealth};
use crate::store::mode::StoreMode;

/// Time after which an append counts as hanging where there is a log, as a part of ACK_TIMEOUT: what
/// arrives from then on goes into the log, with most of its time left.
const STALL_PART: u32 = 6;
/// However long ACK_TIMEOUT is: the shard stores nothing else meanwhile.
const STALL_MAX: Duration = Duration::from_secs(1);
/// Longer than a batch waits for the gate's lock.
const HELD: Duration = Duration::from_millis(5);

/// Way of webhooks into the queue, or into the overflow log, as one shard sees it.
#[derive(Clone)]
pub struct Store {
    gate: Arc<Gate>,
    looks: Arc<Looks>,
    log: Option<Arc<dyn OverflowLog>>,
    /// Set while this shard's batch takes longer than its senders wait.
    is_stalled: Arc<AtomicBool>,
}

/// Stores the batches of one shard, one after the other.
pub struct ShardStore {
    context: StoreContext,
    packer: Packer,
    appender: ShardAppender,
    ack_timeout: Duration,
    /// Time after which an append counts as hanging.
    stall_after: Duration,
    /// Appends that hang, with their batches.
    late: JoinSet<()>,
    pulse: ShardPulse,
}

/// Signs of life of a shard while it waits for Redis or the disk.
struct ShardPulse {
    pulse: Pulse,
    store: Store,
}

/// What is needed to bring a batch to its end.
#[derive(Clone)]
struct StoreContext {
    store: Store,
    batches: Arc<Batches>,
    metrics: Metrics,
}

impl Store {
    /// A store with this log, or with none.
    pub fn new(gate: Arc<Gate>, looks: Arc<Looks>, log: Option<Arc<dyn OverflowLog>>) -> Self {
        Self { gate, looks, log, is_stalled: Arc::default() }
    }

    /// A store without a log.
    pub fn without_log() -> Self {
        let gate = Gate::new(false, Duration::ZERO);
        let looks = Looks::new(gate.clone());
        Self::new(gate, looks, None)
    }

    /// As after a look that found nothing wrong: for who runs the handler without a Redis.
    pub fn usable_one() -> Self {
        let store = Self::without_log();
        store.looks.set(QueueHealth::Usable);
        store
    }

    /// The same store as another shard sees it.
    #[must_use]
    pub fn for_shard(&self) -> Self {
        Self { is_stalled: Arc::default(), ..self.clone() }
    }

    /// Whether a webhook that comes now would be stored, as far as is known.
    ///
    /// # Errors
    /// What is answered instead.
    pub fn takes(&self) -> Result<(), Refusal> {
        if self.is_stalled.load(Ordering::Relaxed) {
            return Err(Refusal::QueueUnavailable);
        }
        match (self.gate.mode(), &self.log) {
            (StoreMode::StandingBack, _) => Err(Refusal::QueueUnavailable),
            // Whatever Redis' health: it is noted a moment before batches go into the log.
            (_, Some(log)) => log.takes(),
            (StoreMode::Direct, None) => Ok(()),
            (_, None) => Err(self.looks.refusal()),
        }
    }

    /// Gate that the batches pass.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// What is known of Redis.
    pub fn looks(&self) -> &Arc<Looks> {
        &self.looks
    }

    /// The overflow log, if there is one.
    pub fn log(&self) -> Option<&Arc<dyn OverflowLog>> {
        self.log.as_ref()
    }

    /// Waits until Redis was looked at, and the log as well.
    pub async fn looked(&self) {
        self.looks.looked().await;
        if let Some(log) = &self.log {
            log.settled().cancelled().await;
        }
    }

    pub(crate) fn set_stalled(&self, is_stalled: bool) {
        self.is_stalled.store(is_stalled, Ordering::Relaxed);
    }
}

impl ShardStore {
    /// A store for the batches of one shard. `pulse` answers to the supervisor.
    pub fn new(
        store: Store,
        batches: Arc<Batches>,
        settings: &Settings,
        metrics: Metrics,
        pulse: Pulse,
    ) -> Self {
        let ack_timeout = settings.ack_timeout;
        let stall_after = match &store.log {
            Some(_) => (ack_timeout / STALL_PART).min(STALL_MAX),
            None => ack_timeout,
        };
        Self {
            pulse: ShardPulse { pulse, store: store.clone() },
            context: StoreContext { store, batches, metrics },
            packer: Packer::new(),
            appender: ShardAppender::new(settings.common.redis.clone()),
            ack_timeout,
            stall_after,
            late: JoinSet::new(),
        }
    }

    /// Stores a batch, wherever it has to go. Returns when the next one may be formed.
    pub async fn store(&mut self, mut batch: Batch) {
        let formed = Instant::now();
        let too_late = formed + self.ack_timeout;
        let store = &self.context.store;
        match store.gate.pass().await {
            Passed::Append(pass) => {
                // Those who were answered while it was held may have sent it again, and what came after it.
                if formed.elapsed() > HELD && !batch.cut(Instant::now()) {
                    pass.ended(true);
                    self.context.batches.complete(batch, Err(Refusal::AckTimeout));
                } else {
                    self.append(batch, pass, too_late).await;
                }
            }
            Passed::Write(pass) => {
                let writing = self.context.write(batch, pass, &mut self.packer);
                self.pulse.attend(writing, too_late).await;
            }
            Passed::Refused => {
                let refusal = store.takes().err().unwrap_or(Refusal::QueueUnavailable);
                self.context.batches.complete(batch, Err(refusal));
            }
        }
        self.pulse.pulse.answer();
    }

    /// Attends to appends that hang, and to the supervisor, while there is nothing to store.
    pub async fn idle(&mut self) -> Infallible {
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.late.join_next() => {
                    // Nothing is restored before each append that hangs has ended: with a panic, never.
                    if let Err(panic) = ended.map_err(tokio::task::JoinError::try_into_panic)
                        && let Ok(panic) = panic
                    {
                        std::panic::resume_unwind(panic);
                    }
                }
                () = self.pulse.pulse.asked() => self.pulse.pulse.answer(),
            }
        }
    }

    async fn append(&mut self, batch: Batch, mut pass: AppendPass, too_late: Instant) {
        let records = batch.records();
        let count = records.count();
        let looks = self.context.store.looks.clone();
        let pack = self.packer.pack(records);
        let mut append = self.appender.start(pack, count, looks.generation());
        let ended = self.pulse.attend(append.within(self.stall_after), too_late).await;
        if let Some((appender, end)) = ended {
            self.appender.put_back(appender);
            let settling = self.context.settle(batch, pass, end, &mut self.packer);
            return self.pulse.attend(settling, too_late).await;
        }
        pass.hangs();
        looks.look_soon();
        let settling = self.context.clone().settle_late(append, batch, pass);
        if self.context.store.log.is_some() {
            self.late.spawn(settling);
        } else {
            self.pulse.attend(settling, too_late).await;
        }
    }
}

impl ShardPulse {
    /// Waits for something that may take longer than senders wait. Then requests are refused, as nothing
    /// that arrives now would be answered in time. The supervisor is answered meanwhile: a restart would
    /// not help what Redis or the disk is slow with, and would lose what is in flight.
    async fn attend<T>(&self, work: impl Future<Output = T>, too_late: Instant) -> T {
        let mut work = pin!(work);
        let mut is_stalled = false;
        let done = loop {
            tokio::select! {
                biased;
                done = &mut work => break done,
                () = self.pulse.asked() => self.pulse.answer(),
                () = sleep_until(too_late), if !is_stalled => {
                    is_stalled = true;
                    self.store.set_stalled(true);
                }
            }
        };
        if is_stalled {
            self.store.set_stalled(false);
        }
        done
    }
}

impl StoreContext {
    /// Brings a batch to its end whose append has ended.
    async fn settle(&self, batch: Batch, pass: AppendPass, end: AppendEnd, packer: &mut Packer) {
        let count = batch.records().count();
        if let Some(error) = end.error() {
            tracing::debug!(error = chain(error), webhooks = count, "pack refused");
            self.store.looks.append_failed(end.health(), error);
        }
        match end {
            AppendEnd::Stored => {
                self.metrics.packed(count);
                pass.ended(true);
                self.batches.complete(batch, Ok(()));
            }
            AppendEnd::Unknown { may_arrive, .. } => {
                pass.ended(!may_arrive);
                self.batches.complete(batch, Err(Refusal::AckTimeout));
            }
            AppendEnd::Refused(_) => {
                let refusal = end.health().refusal();
                match pass.refused() {
                    Some(pass) => self.write(batch, pass, packer).await,
                    None => self.batches.complete(batch, Err(refusal)),
                }
            }
        }
    }

    /// The same for an append that hangs: waits for its end for as long as its connection may live.
    async fn settle_late(self, append: RunningAppend, batch: Batch, pass: AppendPass) {
        let end = append.end(&self.store.looks).await;
        self.settle(batch, pass, end, &mut Packer::new()).await;
    }

    /// Writes a batch to the log.
    async fn write(&self, mut batch: Batch, _pass: WritePass, packer: &mut Packer) {
        let Some(log) = &self.store.log else {
            debug_assert!(false, "BUG: passed to a log that is not there");
            return self.batches.complete(batch, Err(Refusal::QueueUnavailable));
        };
        // Those who were answered meanwhile may have sent it again, and what came after it.
        if !batch.cut(Instant::now()) {
            return self.batches.complete(batch, Err(Refusal::AckTimeout));
        }
        let count = batch.records().count();
        let pack = packer.pack(batch.records()).to_vec();
        let answer = log.write(pack, count).await;
        if answer.is_ok() {
            self.metrics.packed(count);
        }
        self.batches.complete(batch, answer);
    }
}
