//! The drain: one thread that holds all state and decides everything. Reading ahead and settling
//! happen in tasks around it, sending happens in librdkafka's own threads.
//!
//! The path of a pack: arrived → `fill` (its records handed to librdkafka within a transaction) →
//! `commit` (the records and the cursor appear together) → `settle` (Redis is told, and frees it).
//! A fault leads back to `begin` or to the last committed place. Invariants: nothing is settled
//! that is not committed; nothing is sent behind a place that is not the committed cursor's or the
//! open transaction's; a webhook is given up only after it was refused in a transaction of its own.
//! Bounded: packs by intake's channel, records by librdkafka's queue.

mod begin;
mod commit;
mod dead;
mod fill;
mod orders;
mod settling;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use spillway_drain::settle::{self, Settled};
use spillway_drain::{End, Tenure};
use spillway_queue::drains::KAFKA;
use spillway_queue::orders::Orders;
use spillway_queue::read::Reader;
use spillway_queue::settle::Settlement;
use spillway_queue::{Connection, Redis};
use spillway_webhook::StreamId;
use spillway_webhook::pack::Packer;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::fill::Current;
use self::settling::Owed;
use crate::calls::Calls;
use crate::fault::{Call, Failure, Fault, judge};
use crate::format::Encoder;
use crate::intake::{self, Arrived};
use crate::link::Link;
use crate::metrics::Metrics;
use crate::open::{BYTES_MAX, BYTES_MIN, Open, Place};
use crate::ownership::Instance;
use crate::position::Position;
use crate::settings::Settings;

/// Before a producer is built again.
const REBUILD_PAUSE: Duration = Duration::from_millis(500);
/// Before something is tried again that only a person can mend.
const DENIED_PAUSE: Duration = Duration::from_secs(5);
/// The first and the longest pause between two attempts at the same records; doubled in between.
const REDO_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Records that failed so often are worth a word.
const REDONE_OFTEN: u32 = 5;
/// A fenced owner learns from Redis within this time that another took the drain; if none did,
/// somebody else uses its transactional id.
const FENCED_PAUSE: Duration = Duration::from_secs(3);

/// All state of one drain while it is owned.
pub struct Drain {
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    tenure: Tenure,
    calls: Calls,
    shutdown: CancellationToken,
    runtime: Handle,
    redis: Redis,
    reader: Reader,
    /// For the few reads of the drain itself.
    connection: Option<Connection>,
    orders: mpsc::Sender<Settlement>,
    settled: mpsc::Receiver<Settled>,
    is_settling: bool,
    encoder: Encoder,
    packer: Packer,
    learned: Learned,
    /// Why the last attempt failed, if it was not for a record's sake.
    because: RefCell<Option<String>>,
    /// The code of the trouble that was logged last; empty while there is none.
    troubled: RefCell<String>,
}

/// What goes on between a producer's building and its end.
struct Session {
    link: Link,
    arrived: mpsc::Receiver<Arrived>,
    /// The pack whose records are being sent.
    current: Option<Current>,
    /// Up to here, everything is committed in Kafka.
    committed: Position,
    /// Webhooks of this cell up to there.
    through: u64,
    /// Committed in Kafka, and not yet told to Redis.
    owed: Owed,
    /// Webhooks given up in packs that are not yet passed.
    given_up: HashMap<StreamId, Vec<u8>>,
    /// An operator's orders.
    orders: Orders,
    /// The version of a bump after which they were read.
    orders_looked_at: u64,
}

/// What failed attempts taught. It outlives the producer they were made with.
struct Learned {
    /// Records to be sent by themselves, because Kafka refused them among others.
    suspects: BTreeSet<Place>,
    /// Attempts since the last commit.
    redone: u32,
    /// A transaction ends when it has so many bytes.
    bytes_max: usize,
}

impl Default for Learned {
    fn default() -> Self {
        Self { suspects: BTreeSet::new(), redone: 0, bytes_max: BYTES_MAX }
    }
}

impl Learned {
    /// Nothing came of a transaction, and no record was to blame: it may have been too much for the
    /// time that it has. The next has half of it.
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

/// Why the way forward ended.
#[derive(Debug)]
enum Stop {
    /// Abort the transaction and go back to the last committed place.
    Redo,
    /// Build a new producer and read the cursor again.
    Rebuild,
    /// The drain is not this instance's any more, or it was told to stop.
    End(End),
}

impl Drain {
    /// A drain for a tenure that has just begun, after the settlement whose mark is `mark`. To be
    /// called within a runtime, and run outside.
    pub fn new(
        instance: &Instance,
        tenure: Tenure,
        mark: Option<String>,
        calls: Calls,
        shutdown: CancellationToken,
    ) -> Self {
        let (settings, metrics) = (instance.settings.clone(), instance.metrics.clone());
        let redis = settings.common.redis.clone();
        let (orders, settled) = settle::start(redis.clone(), KAFKA, &tenure.token, mark);
        Self {
            encoder: Encoder::new(settings.format, settings.key),
            reader: Reader::new(redis.clone(), KAFKA),
            redis,
            connection: None,
            orders,
            settled,
            is_settling: false,
            packer: Packer::new(),
            learned: Learned::default(),
            because: RefCell::default(),
            troubled: RefCell::default(),
            runtime: Handle::current(),
            settings,
            metrics,
            tenure,
            calls,
            shutdown,
        }
    }

    /// Runs until it ends. Blocks its thread.
    pub fn run(mut self) -> End {
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

    /// From a producer's building to its end.
    fn session(&mut self) -> Stop {
        let mut session = match self.begin() {
            Ok(session) => session,
            Err(stop) => return stop,
        };
        loop {
            let mut open = Open::at(session.committed, self.learned.bytes_max);
            match self.transact(&mut session, &mut open) {
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

    /// One transaction.
    fn transact(&mut self, session: &mut Session, open: &mut Open) -> Result<(), Stop> {
        self.fill(session, open)?;
        if open.position != session.committed {
            self.commit(session, open)?;
        }
        if self.shutdown.is_cancelled() {
            self.settle_all(session)?;
            return Err(Stop::End(End::Stopped));
        }
        Ok(())
    }

    /// Aborts what is open and goes back to the last committed place, with what was learned.
    fn redo(&mut self, session: &mut Session, open: Open) -> Result<(), Stop> {
        let aborted = self.abort(session, &open);
        let failed = session.link.reports().take_failed();
        let is_refusal = |code| judge(Call::Delivery, Failure::of(code)) == Fault::Refused;
        let refused = failed.iter().filter(|(_, code)| is_refusal(*code));
        let refused: Vec<_> = refused.copied().collect();
        // Learned also where the abort's own end is unknown.
        self.learned.suspects.extend(refused.iter().filter_map(|(at, _)| open.place(*at)));
        self.learned.redone += 1;
        aborted?;
        match (&open.alone, refused.first()) {
            (Some(alone), Some((_, code))) => self.give_up(session, alone, *code)?,
            (None, Some(_)) => {}
            (_, None) => {
                self.learned.was_in_vain(&open);
                // What the abort took out of the queue says nothing.
                let is_purged = |code| matches!(code, Code::PurgeQueue | Code::PurgeInflight);
                let code = failed.iter().map(|(_, code)| *code).find(|code| !is_purged(*code));
                self.before_again(code)?;
            }
        }
        session.current = None;
        // Not from Kafka's cursor, where Redis has not been told of all up to it.
        session.arrived = self.intake(session.owed.reads_after());
        Ok(())
    }

    /// Waits before the same records are tried again, which failed for a reason that is not theirs.
    fn before_again(&self, code: Option<Code>) -> Result<(), Stop> {
        self.tell_if_often(code);
        let (first, longest) = REDO_PAUSES;
        self.pause(first.saturating_mul(1 << self.learned.redone.min(10)).min(longest))
    }

    /// Says what attempts fail for, once they have failed often.
    fn tell_if_often(&self, code: Option<Code>) {
        let because = code.map(|code| code.to_string()).or(self.because.take());
        if self.learned.redone >= REDONE_OFTEN
            && let Some(because) = because
        {
            self.trouble(format!("kafka_unavailable: again and again: {because}").into());
        }
    }

    /// The end of this owner's time: what is open will never appear.
    fn leave(&self, session: &Session, open: &Open) {
        if open.has_begun {
            // Whoever comes next would abort it as well; until then, readers would wait.
            if let Err(error) = session.link.abort() {
                tracing::debug!(%error, "the open transaction was left to the next owner");
            }
        }
    }

    fn intake(&self, cursor: StreamId) -> mpsc::Receiver<Arrived> {
        let _runtime = self.runtime.enter();
        intake::start(&self.redis, cursor, self.metrics.clone())
    }

    /// What an error of Kafka leads to, once it is said where it shows.
    fn stop(&self, link: &Link, call: Call, error: &KafkaError) -> Stop {
        let fault = judge(call, Failure::from(error));
        tracing::debug!(?call, ?fault, %error, "a call to kafka failed");
        // What only a person can mend is said at once.
        self.because.replace((fault != Fault::Denied).then(|| error.to_string()));
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
        let lost = self.tenure.lost.cancelled();
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

    /// Says why no webhook gets out: each time where it is asked for, and once in the log, since
    /// its details (how long a connection took to fail) are never twice the same.
    fn trouble(&self, reason: Cow<'static, str>) {
        let code = reason.split(':').next().unwrap_or_default().to_owned();
        if *self.troubled.borrow() != code {
            tracing::warn!(reason = &*reason, "no webhook gets out");
            self.troubled.replace(code);
        }
        self.tenure.show_trouble(Some(reason));
    }

    /// Everything works.
    fn well(&self, link: &Link) {
        link.reports().forget_trouble();
        self.tenure.show_trouble(None);
        if !self.troubled.take().is_empty() {
            tracing::info!("webhooks get out again");
        }
    }

    /// Waits, unless this owner's time is over.
    fn pause(&self, pause: Duration) -> Result<(), Stop> {
        self.runtime.block_on(async {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shutdown.cancelled() => {}
                () = self.tenure.lost.cancelled() => {}
            }
        });
        self.is_mine()?;
        if self.shutdown.is_cancelled() {
            return Err(Stop::End(End::Stopped));
        }
        Ok(())
    }

    fn is_mine(&self) -> Result<(), Stop> {
        if self.tenure.lost.is_cancelled() { Err(Stop::End(End::Lost)) } else { Ok(()) }
    }
}
