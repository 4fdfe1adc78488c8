//! Store: takes batches, appends them to the queue or writes them to the overflow log, and answers
//! the senders that wait in them.
//!
//! [`mode`] decides where batches go, and [`gate`] lets them pass. [`append`] is one append.
//! [`log`] is the overflow log as the store sees it. [`watch`] looks at Redis, and [`looks`] holds
//! what it finds. [`claim`] checks if another receiver has the cell. [`running`] keeps appends of several
//! shards in order.
//!
//! Each shard has one batch under way, and the appends that hang. No core waits for another. If
//! there is a log, an append that hangs is awaited in the background. Other batches go into the
//! log, and are restored once its outcome is known. A batch that Redis refused for certain goes
//! into the log, too. A batch that may be stored is answered that nothing is known, and is not
//! written again. No shard appends while an append of another has outlived one of its senders.

pub mod append;
pub mod claim;
pub mod gate;
pub mod log;
pub mod looks;
pub mod mode;
pub mod running;
pub mod safety;
#[cfg(test)]
pub(crate) mod simulation;
pub mod watch;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spillway_process::error::chain;
use spillway_process::supervisor::Pulse;
use spillway_webhook::pack::Packer;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::batch::{Batch, Batches};
use crate::gaps::GapLog;
use crate::metrics::ReceiverMetrics;
use crate::reply::Refusal;
use crate::settings::ReceiverSettings;
use crate::store::append::{AppendEnd, AppenderView, RunningAppend, ShardAppender};
use crate::store::gate::{AppendPass, Gate, GatePass, WritePass};
use crate::store::log::OverflowLog;
use crate::store::looks::{QueueHealth, RedisLooks};
use crate::store::mode::StoreMode;
use crate::store::running::{AppendState, ListedAppend, RunningAppends, all_settled};

/// Divisor of ACK_TIMEOUT: time after which an append counts as hanging, if there is a log.
/// Webhooks that arrive from then on go into the log, with most of their time left.
const STALL_PART: u32 = 6;
/// Upper limit of that time for any ACK_TIMEOUT. The shard stores nothing else meanwhile.
const STALL_MAX: Duration = Duration::from_secs(1);
/// Part of the time after which an append hangs that is left after the script that a new connection begins with. If that
/// hangs, no pack was sent, which is known soon enough to write it to the log.
const RUN_LEFT: Duration = Duration::from_millis(50);
/// Divisor of ACK_TIMEOUT: time for which a shard waits for an append of another shard that has
/// outlived a sender, before that shard may give it up.
const PRESS_PART: u32 = 4;
/// Time that a batch may wait at the gate before it is cut. Longer than the wait for the gate's
/// lock.
const RECHECK_AFTER: Duration = Duration::from_millis(5);
const _: () = assert!(STALL_PART >= 2, "a hanging append is left before its senders give up");
const _: () = assert!(
    RECHECK_AFTER.as_millis() < STALL_MAX.as_millis(),
    "a held batch is not one that hangs"
);

/// Gate, health, overflow log and gaps, as requests see them. `ShardStore` stores.
#[derive(Clone)]
pub struct Store {
    gate: Arc<Gate>,
    looks: Arc<RedisLooks>,
    log: Option<Arc<dyn OverflowLog>>,
    gaps: Arc<GapLog>,
    running: Arc<RunningAppends>,
    /// Set while the shard's batch takes longer than its senders wait.
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
    hanging: JoinSet<()>,
    pulse: ShardPulse,
}

/// Heartbeat of a shard while it waits for Redis or the disk.
struct ShardPulse {
    pulse: Pulse,
    store: Store,
}

/// State that is needed to complete a batch.
#[derive(Clone)]
struct StoreContext {
    store: Store,
    batches: Arc<Batches>,
    metrics: ReceiverMetrics,
}

impl Store {
    /// A store with or without a log.
    pub fn new(gate: Arc<Gate>, looks: Arc<RedisLooks>, log: Option<Arc<dyn OverflowLog>>) -> Self {
        let running = RunningAppends::new(log.is_some());
        Self { gate, looks, log, gaps: Arc::default(), running, is_stalled: Arc::default() }
    }

    /// A store without a log.
    pub fn without_log() -> Self {
        let gate = Gate::new(false, Duration::ZERO);
        let looks = RedisLooks::new(gate.clone());
        Self::new(gate, looks, None)
    }

    /// A store as after a look that found nothing wrong. For callers that run the handler without
    /// Redis.
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

    /// Checks if a webhook that comes now would be stored, as far as is known.
    ///
    /// # Errors
    /// The answer to the webhook, if it would not.
    pub fn takes(&self) -> Result<(), Refusal> {
        if self.is_stalled.load(Ordering::Relaxed) {
            return Err(Refusal::QueueUnavailable);
        }
        match (self.gate.mode(), &self.log) {
            (StoreMode::StandingBack, _) => Err(Refusal::QueueUnavailable),
            // The log decides, whatever the health of Redis: that changes a moment before batches
            // go into the log.
            (_, Some(log)) => log.takes(),
            (StoreMode::Direct, None) => Ok(()),
            (_, None) => Err(self.looks.refusal()),
        }
    }

    /// Gate that batches pass.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// State of Redis as the last looks found it.
    pub fn looks(&self) -> &Arc<RedisLooks> {
        &self.looks
    }

    /// The overflow log, if there is one.
    pub fn log(&self) -> Option<&Arc<dyn OverflowLog>> {
        self.log.as_ref()
    }

    /// Collector of what may be missing.
    pub fn gaps(&self) -> &Arc<GapLog> {
        &self.gaps
    }

    /// Waits until Redis and the log have been looked at.
    pub async fn looked(&self) {
        self.looks.looked().await;
        if let Some(log) = &self.log {
            log.first_turn_over().cancelled().await;
        }
    }

    /// Passes the gate once these appends have ended, or batches do not go to Redis directly.
    async fn pass_after(&self, outlived: &[Arc<AppendState>], press_at: Instant) -> GatePass {
        let must_wait = || self.gate.mode() == StoreMode::Direct;
        loop {
            all_settled(outlived, press_at, must_wait).await;
            match self.gate.pass().await {
                // The mode has changed and changed back.
                GatePass::Append(pass) if outlived.iter().any(|append| append.may_end()) => {
                    pass.ended(true);
                }
                passed => return passed,
            }
        }
    }

    pub(crate) fn set_stalled(&self, is_stalled: bool) {
        self.is_stalled.store(is_stalled, Ordering::Relaxed);
    }
}

impl ShardStore {
    /// Store for the batches of one shard. `pulse` answers to the supervisor.
    pub fn new(
        store: Store,
        batches: Arc<Batches>,
        settings: &ReceiverSettings,
        metrics: ReceiverMetrics,
        pulse: Pulse,
    ) -> Self {
        let ack_timeout = settings.ack_timeout;
        let stall_after = match &store.log {
            Some(_) => (ack_timeout / STALL_PART).min(STALL_MAX),
            None => ack_timeout,
        };
        let run_within = stall_after - RUN_LEFT.min(stall_after / 2);
        let Store { looks, gaps, running, .. } = &store;
        let appender_view =
            AppenderView::new(looks.clone(), gaps.clone(), running.clone(), run_within);
        Self {
            pulse: ShardPulse { pulse, store: store.clone() },
            context: StoreContext { store, batches, metrics },
            packer: Packer::new(),
            appender: ShardAppender::new(settings.common.redis.clone(), appender_view),
            ack_timeout,
            stall_after,
            hanging: JoinSet::new(),
        }
    }

    /// Stores a batch in the queue or in the log. Returns when the next batch may be formed.
    pub async fn store(&mut self, mut batch: Batch) {
        let formed = Instant::now();
        let too_late = formed + self.ack_timeout;
        let store = &self.context.store;
        // What is in the batch by now may be a repeat, or follow one. Senders that are answered later
        // send to later batches.
        let outlived = store.running.outlived();
        let passed = if outlived.is_empty() {
            Ok(store.gate.pass().await)
        } else {
            let press_at = formed + self.ack_timeout / PRESS_PART;
            let passing = timeout_at(too_late, store.pass_after(&outlived, press_at));
            self.pulse.attend(passing, too_late).await
        };
        let Ok(passed) = passed else {
            self.context.batches.complete(batch, Err(Refusal::AckTimeout));
            return self.pulse.pulse.answer();
        };
        match passed {
            GatePass::Append(pass) => {
                // Senders that were answered while the batch was held may have sent their webhook
                // again, and later ones.
                if formed.elapsed() > RECHECK_AFTER && !batch.cut(Instant::now()) {
                    pass.ended(true);
                    self.context.batches.complete(batch, Err(Refusal::AckTimeout));
                } else {
                    self.append(batch, pass, too_late).await;
                }
            }
            GatePass::Write(pass) => {
                let writing = self.context.write(batch, pass, &mut self.packer);
                self.pulse.attend(writing, too_late).await;
            }
            GatePass::Refused => {
                let refusal = store.takes().err().unwrap_or(Refusal::QueueUnavailable);
                self.context.batches.complete(batch, Err(refusal));
            }
        }
        self.pulse.pulse.answer();
    }

    /// Awaits appends that hang, and answers the supervisor, while there is nothing to store.
    pub async fn idle(&mut self) -> Infallible {
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.hanging.join_next() => {
                    // Nothing is restored before each append that hangs has ended. After a panic
                    // that would be never.
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

    async fn append(&mut self, mut batch: Batch, mut pass: AppendPass, too_late: Instant) {
        let looks = self.context.store.looks.clone();
        let append = loop {
            let records = batch.records();
            let count = records.count();
            let pack = self.packer.pack(records);
            let mut append = self.appender.start(pack, count, batch.outlived());
            let ended = self.pulse.attend(append.within(self.stall_after), too_late).await;
            let Some((appender, end)) = ended else { break append };
            self.appender.put_back(appender);
            let ended = (end, append.into_listed());
            if matches!(ended.0, AppendEnd::Unsent) && batch.cut(Instant::now()) {
                ended.1.end(true);
                continue;
            }
            let finishing = self.context.append_ended(batch, pass, ended, &mut self.packer);
            return self.pulse.attend(finishing, too_late).await;
        };
        pass.hangs();
        append.hangs();
        looks.look_soon();
        let finishing = self.context.clone().await_hanging_append(append, batch, pass);
        if self.context.store.log.is_some() {
            self.hanging.spawn(finishing);
        } else {
            self.pulse.attend(finishing, too_late).await;
        }
    }
}

impl ShardPulse {
    /// Waits for work that may take longer than senders wait. Past that time, requests are refused,
    /// since nothing that arrives would be answered in time. The supervisor is answered meanwhile:
    /// a restart would not help a slow Redis or disk, and would lose what is in flight.
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
    /// Completes a batch whose append has ended, or writes it to the log. Other shards see that it has
    /// ended before any sender does, and after the gate.
    async fn append_ended(
        &self,
        mut batch: Batch,
        pass: AppendPass,
        (end, listed): (AppendEnd, ListedAppend),
        packer: &mut Packer,
    ) {
        let count = batch.records().count();
        match end.error() {
            // It was given up because others waited, not because Redis may have gone.
            Some(_)
                if listed.is_pressed()
                    && matches!(end, AppendEnd::Unknown { may_arrive: false, .. }) =>
            {
                self.store.looks.look_soon();
            }
            Some(error) => {
                tracing::debug!(error = chain(error), webhooks = count, "pack refused");
                self.store.looks.append_failed(end.health(), error);
            }
            None => {}
        }
        let is_late = matches!(end, AppendEnd::Unsent) && !batch.cut(Instant::now());
        let (answer, write) = match &end {
            AppendEnd::Stored(entry) => {
                self.store.looks.stored().on_confirmed(entry.ms);
                self.metrics.packed(count);
                pass.ended(true);
                (Ok(()), None)
            }
            AppendEnd::Unknown { .. } => {
                pass.ended(end.is_final());
                (Err(Refusal::AckTimeout), None)
            }
            AppendEnd::Unsent if is_late => {
                pass.ended(true);
                (Err(Refusal::AckTimeout), None)
            }
            AppendEnd::Refused(_) | AppendEnd::Unsent => {
                (Err(end.health().refusal()), pass.refused())
            }
        };
        listed.end(end.is_final());
        match write {
            Some(pass) => self.write(batch, pass, packer).await,
            None => self.batches.complete(batch, answer),
        }
    }

    /// Waits for the end of an append that hangs for as long as the connection may
    /// live.
    async fn await_hanging_append(self, append: RunningAppend, batch: Batch, pass: AppendPass) {
        let ended = append.end(&self.store.looks).await;
        self.append_ended(batch, pass, ended, &mut Packer::new()).await;
    }

    /// Writes a batch to the log.
    async fn write(&self, mut batch: Batch, _pass: WritePass, packer: &mut Packer) {
        let Some(log) = &self.store.log else {
            debug_assert!(false, "BUG: passed to a log that is not there");
            return self.batches.complete(batch, Err(Refusal::QueueUnavailable));
        };
        // Senders that were answered meanwhile may have sent their webhook again, and later ones.
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
