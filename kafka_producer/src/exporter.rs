//! The worker thread, which holds all state and decides everything. Tasks around it read ahead and
//! settle. librdkafka's own threads send.
//!
//! Path of a pack: arrived → `fill` (its records are handed to librdkafka within a transaction) →
//! `commit` (the records and the cursor appear together) → `settling` (Redis advances its cursor and
//! frees the pack). A fault leads back to `begin` or to the last committed position. Invariants:
//! nothing is settled that is not committed. Sending continues only from the committed cursor or
//! from the open transaction. A webhook is given up only after it was refused in a transaction
//! without others. Bounded: packs by intake's channel, records by librdkafka's queue.

mod begin;
mod commit;
mod controls;
mod dead;
mod fill;
mod queue;
mod settling;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use spillway_consumer::settle::{self, Settled};
use spillway_consumer::{End, LeaderHandle};
use spillway_queue::controls::OperatorControls;
use spillway_queue::settle::Settlement;
use spillway_webhook::StreamId;
use spillway_webhook::pack::Packer;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::fill::Current;
use self::queue::QueueAccess;
use self::settling::Owed;
use crate::calls::Calls;
use crate::fault::{Call, Fault, KafkaFailure, judge};
use crate::format::Encoder;
use crate::instance::ProducerInstance;
use crate::intake::{self, Arrived};
use crate::link::Link;
use crate::metrics::ProducerMetrics;
use crate::open::{BYTES_MAX, BYTES_MIN, Open, RecordRef};
use crate::position::CellPosition;
use crate::settings::ProducerSettings;

/// Pause before a producer is built again.
const REBUILD_PAUSE: Duration = Duration::from_millis(500);
/// Pause before a retry after an error that only a person can fix.
const DENIED_PAUSE: Duration = Duration::from_secs(5);
/// First and longest pause between two attempts at the same records. It doubles in between.
const REDO_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Failed attempts after which their cause is shown.
const REDONE_OFTEN: u32 = 5;
/// Time within which a fenced leader learns from Redis that another instance has taken over. If
/// none did, another producer uses its transactional id.
const FENCED_PAUSE: Duration = Duration::from_secs(3);

/// All state of one leader.
pub(crate) struct Exporter {
    settings: Arc<ProducerSettings>,
    metrics: Arc<ProducerMetrics>,
    leader: LeaderHandle,
    calls: Calls,
    shutdown: CancellationToken,
    runtime: Handle,
    queue: QueueAccess,
    settling: SettleChannel,
    encoder: Encoder,
    packer: Packer,
    learned: Learned,
    trouble: LoggedTrouble,
}

/// The task that applies settlements.
struct SettleChannel {
    settlements: mpsc::Sender<Settlement>,
    settled: mpsc::Receiver<Settled>,
    is_under_way: bool,
}

/// Trouble with Kafka as `/readyz` and the log have it.
#[derive(Default)]
struct LoggedTrouble {
    /// Cause of the last failed attempt, unless a record caused it.
    last_error: RefCell<Option<String>>,
    /// Code of the last logged trouble. Empty while there is none.
    logged: RefCell<String>,
}

/// State from the building of a producer to its end.
struct ProducerSession {
    link: Link,
    arrived: mpsc::Receiver<Arrived>,
    /// Pack whose records are being sent.
    current: Option<Current>,
    /// Position up to which everything is committed in Kafka.
    committed: CellPosition,
    /// Number of webhooks of this cell up to that position.
    through: u64,
    /// Settlement of what is committed in Kafka and not yet settled in Redis.
    owed: Owed,
    /// Bits of webhooks that were given up, in packs after the cursor.
    given_up: HashMap<StreamId, Vec<u8>>,
    /// Controls set by an operator.
    controls: OperatorControls,
    /// Last version of the controls for which they were read.
    controls_looked_at: u64,
}

/// Findings of failed attempts. They outlive the producer of the attempt.
struct Learned {
    /// Records to be sent without others, because Kafka refused them among others.
    suspects: BTreeSet<RecordRef>,
    /// Attempts since the last commit.
    redone: u32,
    /// Bytes at which a transaction is committed.
    bytes_max: usize,
}

impl Default for Learned {
    fn default() -> Self {
        Self { suspects: BTreeSet::new(), redone: 0, bytes_max: BYTES_MAX }
    }
}

impl Learned {
    /// Halves the size of the next transaction, after one failed and no record was to blame. It may
    /// have been too large for its time limit.
    fn was_in_vain(&mut self, open: &Open) {
        let bytes = if open.records() == 0 { self.bytes_max } else { open.bytes() };
        self.bytes_max = (bytes.min(self.bytes_max) / 2).max(BYTES_MIN);
    }

    fn committed(&mut self, open: &Open) {
        self.redone = 0;
        self.bytes_max = self.bytes_max.saturating_mul(2).min(BYTES_MAX);
        if let Some(alone) = &open.alone {
            self.suspects.remove(&alone.place);
        }
    }
}

/// Reason for which the normal course ends.
#[derive(Debug)]
enum Stop {
    /// Abort the transaction and go back to the last committed position.
    Redo,
    /// Build a new producer and read the cursor again.
    Rebuild,
    /// This instance does not lead any more, or the process stops.
    End(End),
}

impl Exporter {
    /// Leader that has just begun, after the settlement whose mark is `mark`. Must be called within
    /// a runtime, and run outside of it.
    pub(crate) fn new(
        instance: &ProducerInstance,
        leader: LeaderHandle,
        mark: Option<String>,
        calls: Calls,
        shutdown: CancellationToken,
    ) -> Self {
        let settings = instance.settings.clone();
        let metrics = instance.metrics.clone();
        let redis = settings.common.redis.clone();
        let routes = instance.routes.clone();
        let (settlements, settled) =
            settle::start(redis.clone(), routes.name(), &leader.token, mark);
        Self {
            encoder: Encoder::new(settings.format, settings.key),
            queue: QueueAccess::of(redis, routes),
            settling: SettleChannel { settlements, settled, is_under_way: false },
            packer: Packer::new(),
            learned: Learned::default(),
            trouble: LoggedTrouble::default(),
            runtime: Handle::current(),
            settings,
            metrics,
            leader,
            calls,
            shutdown,
        }
    }

    /// Runs until leadership or the process ends. Blocks its thread.
    pub(crate) fn run(mut self) -> End {
        loop {
            match self.session() {
                Stop::End(end) => return end,
                Stop::Rebuild | Stop::Redo => {
                    self.learned.redone += 1;
                    self.tell_if_often(None);
                    if let Err(Stop::End(end)) = self.pause(REBUILD_PAUSE) {
                        return end;
                    }
                }
            }
        }
    }

    /// Runs from the building of a producer to its end.
    fn session(&mut self) -> Stop {
        let mut session = match begin::begin(self) {
            Ok(session) => session,
            Err(stop) => return stop,
        };
        loop {
            let mut open = Open::at(session.committed, self.learned.bytes_max);
            let transacted = self.transact(&mut session, &mut open);
            if transacted.is_err() {
                open.end_spans(self.metrics.tracer.as_ref(), Some("aborted"));
            }
            match transacted {
                Ok(()) => {}
                Err(Stop::Redo) => {
                    if let Err(stop) = self.redo(&mut session, open) {
                        return stop;
                    }
                }
                Err(Stop::End(end)) => {
                    self.leave(&session, &open);
                    return Stop::End(end);
                }
                Err(Stop::Rebuild) => {
                    self.learned.was_in_vain(&open);
                    return Stop::Rebuild;
                }
            }
        }
    }

    /// Fills and commits one transaction.
    fn transact(&mut self, session: &mut ProducerSession, open: &mut Open) -> Result<(), Stop> {
        fill::fill(self, session, open)?;
        if open.position != session.committed {
            commit::commit(self, session, open)?;
        }
        if self.shutdown.is_cancelled() {
            settling::settle_all(self, session)?;
            return Err(Stop::End(End::Stopped));
        }
        Ok(())
    }

    /// Aborts the open transaction and goes back to the last committed position. Notes the
    /// findings.
    fn redo(&mut self, session: &mut ProducerSession, open: Open) -> Result<(), Stop> {
        let aborted = commit::abort(self, session, &open);
        let failed = session.link.reports().take_failed();
        let is_refusal = |code| judge(Call::Delivery, KafkaFailure::of(code)) == Fault::Refused;
        let refused = failed.iter().filter(|(_, code)| is_refusal(*code));
        let refused: Vec<_> = refused.copied().collect();
        // Noted even if the outcome of the abort is unknown.
        self.learned.suspects.extend(refused.iter().filter_map(|(at, _)| open.place(*at)));
        self.learned.redone += 1;
        aborted?;
        match (&open.alone, refused.first()) {
            (Some(alone), Some((_, code))) => dead::give_up(self, session, alone, *code)?,
            (None, Some(_)) => {}
            (_, None) => {
                self.learned.was_in_vain(&open);
                // Errors of records that the abort removed from the queue have no meaning.
                let is_purged = |code| matches!(code, Code::PurgeQueue | Code::PurgeInflight);
                let code = failed.iter().map(|(_, code)| *code).find(|code| !is_purged(*code));
                self.before_again(code)?;
            }
        }
        session.current = None;
        // Not from Kafka's cursor: the entries before it may not be settled in Redis yet.
        session.arrived = self.intake(session.owed.reads_after());
        Ok(())
    }

    /// Waits before the same records are tried again. They failed for another reason than their
    /// content.
    fn before_again(&self, code: Option<Code>) -> Result<(), Stop> {
        self.tell_if_often(code);
        let (first, longest) = REDO_PAUSES;
        self.pause(first.saturating_mul(1 << self.learned.redone.min(10)).min(longest))
    }

    /// Shows the cause of failed attempts, once there were many.
    fn tell_if_often(&self, code: Option<Code>) {
        let because = code.map(|code| code.to_string()).or(self.trouble.last_error.take());
        if self.learned.redone >= REDONE_OFTEN
            && let Some(because) = because
        {
            self.trouble(format!("kafka_unavailable: again and again: {because}").into());
        }
    }

    /// Aborts the open transaction, as leadership or the process ends.
    fn leave(&self, session: &ProducerSession, open: &Open) {
        if open.has_begun {
            // The next leader would abort it as well. Until then, readers would wait.
            if let Err(error) = session.link.abort() {
                tracing::debug!(%error, "the open transaction was left to the next leader");
            }
        }
    }

    fn intake(&self, cursor: StreamId) -> mpsc::Receiver<Arrived> {
        let _runtime = self.runtime.enter();
        intake::start(&self.queue.redis, self.queue.routes.name(), cursor, self.metrics.clone())
    }

    /// Decides how to continue after an error of Kafka, and shows it where it matters.
    fn stop(&self, link: &Link, call: Call, error: &KafkaError) -> Stop {
        let fault = judge(call, KafkaFailure::from(error));
        tracing::debug!(?call, ?fault, %error, "a call to kafka failed");
        // An error that only a person can fix is shown at once.
        self.trouble.last_error.replace((fault != Fault::Denied).then(|| error.to_string()));
        match fault {
            Fault::Retry | Fault::Abort | Fault::Refused => Stop::Redo,
            Fault::Rebuild => {
                tracing::warn!(
                    ?call, %error,
                    "the producer's state is not known; building another"
                );
                Stop::Rebuild
            }
            Fault::Denied => {
                self.trouble(format!("kafka_refuses: {error}").into());
                self.pause(DENIED_PAUSE).err().unwrap_or(Stop::Rebuild)
            }
            Fault::Fenced => self.fenced(link, error),
        }
    }

    fn fenced(&self, link: &Link, error: &KafkaError) -> Stop {
        link.poll(Duration::ZERO);
        let lost = self.leader.lost.cancelled();
        let waited =
            self.runtime.block_on(async { tokio::time::timeout(FENCED_PAUSE, lost).await });
        if waited.is_ok() {
            return Stop::End(End::Lost);
        }
        tracing::warn!(
            %error,
            "fenced: the broker gave our transaction up, or somebody else uses our transactional \
             id (KAFKA_TX_ID and the cell's id)"
        );
        Stop::End(End::Stale)
    }

    /// Shows why nothing is produced: on each request for it, and once in the log. The details,
    /// such as the time that a connection took to fail, are never twice the same.
    fn trouble(&self, reason: Cow<'static, str>) {
        let code = reason.split(':').next().unwrap_or_default().to_owned();
        if *self.trouble.logged.borrow() != code {
            tracing::warn!(reason = &*reason, "no webhook gets out");
            self.trouble.logged.replace(code);
        }
        self.leader.show_trouble(Some(reason));
    }

    /// Clears the trouble: everything works.
    fn well(&self, link: &Link) {
        link.reports().forget_trouble();
        self.leader.show_trouble(None);
        if !self.trouble.logged.take().is_empty() {
            tracing::info!("webhooks get out again");
        }
    }

    /// Waits. Fails if leadership is lost or the process stops.
    fn pause(&self, pause: Duration) -> Result<(), Stop> {
        self.runtime.block_on(async {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shutdown.cancelled() => {}
                () = self.leader.lost.cancelled() => {}
            }
        });
        self.ensure_leadership()?;
        if self.shutdown.is_cancelled() {
            return Err(Stop::End(End::Stopped));
        }
        Ok(())
    }

    fn ensure_leadership(&self) -> Result<(), Stop> {
        if self.leader.lost.is_cancelled() { Err(Stop::End(End::Lost)) } else { Ok(()) }
    }
}
