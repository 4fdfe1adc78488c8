//! Worker around the delivery core: carries its effects out, and passes events to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use spillway_consumer::settle::{self, Settled};
use spillway_consumer::{DeliveredRedaction, End, LeaderHandle, Routes};
use spillway_delivery::{
    AttemptEnd, AttemptId, Controls, Core, Counts, DedupWindow, Dispatch, Effect, Event, Loaded,
    Now, PackKey, Verdict,
};
use spillway_process::clock::wall_clock_ms;
use spillway_process::error::chain;
use spillway_process::failure_log::FailureLog;
use spillway_process::supervisor::Pulse;
use spillway_queue::controls::OperatorControls;
use spillway_queue::lane::{ChunkId, LaneRow};
use spillway_queue::settle::{Dead, Settlement};
use spillway_queue::shares::Shares;
use spillway_queue::{QueueError, Redis};
use spillway_webhook::WebhookId;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::classify::Classifier;
use crate::content::{PackBytes, PauseFilter};
use crate::controls;
use crate::deliver::{DeliveryClient, DeliveryJob, EndedDelivery};
use crate::intake::{self, Arrivals};
use crate::judge::{self, AttemptOutcome, result_label};
use crate::metrics::DownstreamerMetrics;
use crate::names::Names;
use crate::reader::{ChunkRange, PackReader, Read, ReadRequest};
use crate::settings::DownstreamerSettings;
use crate::shares;
use crate::status;
use crate::trace::{self, AttemptTrace};
use crate::translate::Translator;

/// Time between updates of metrics and status from the core.
const SHOW_EVERY: Duration = Duration::from_millis(500);
/// Most deliveries, or reads, that are taken in at once.
const BATCH_MAX: usize = 64;
/// Most packs that are taken in at once, beside one that woke the worker.
const PACKS_MAX: usize = 4;
/// Chunks in one read. A large one is a megabyte, and none is indexed before all are decoded.
const CHUNKS_TOGETHER: u32 = 16;

/// State in Redis with which a leader begins.
pub(crate) struct WorkerStart {
    /// The consumer, its filter and those of the others.
    pub routes: Arc<Routes>,
    /// State of the queue.
    pub loaded: Loaded,
    /// Rows of lanes.
    pub rows: Vec<LaneRow>,
    /// Mark of the last settlement.
    pub mark: Option<String>,
    /// Webhooks delivered lately.
    pub seen: DedupWindow,
    /// An operator's controls.
    pub controls: OperatorControls,
}

/// Channels and tasks around the core.
struct Channels {
    settlements: mpsc::Sender<Settlement>,
    settled: mpsc::Receiver<Settled>,
    arrivals: Arrivals,
    controls: mpsc::Receiver<OperatorControls>,
    shares: watch::Sender<Shares>,
    reads: JoinSet<Read>,
    deliveries: JoinSet<EndedDelivery>,
    running: HashMap<AttemptId, AbortHandle>,
}

/// State of the core that was last shown, and when.
struct PublishedStatus {
    at: Instant,
    /// Counts in the metrics.
    counted: Counts,
    /// Counts in the log.
    logged: Counts,
    /// Attempts that the backend did not accept, as far as they are logged.
    failures: FailureLog,
}

/// A leader at work.
pub(crate) struct Worker {
    core: Core<PackBytes>,
    channels: Channels,
    translator: Translator,
    pack_reader: Arc<PackReader>,
    sender: Arc<DeliveryClient>,
    leader: LeaderHandle,
    settings: Arc<DownstreamerSettings>,
    metrics: Arc<DownstreamerMetrics>,
    started: Instant,
    shown: PublishedStatus,
    /// Bytes of dead letters in the settlement that is being applied.
    dead_bytes: u64,
    /// Deadline of the shutdown, once it has begun.
    ends_at: Option<Instant>,
}

impl Worker {
    /// Leader that begins with the state in Redis.
    pub(crate) fn start(
        redis: &Redis,
        settings: Arc<DownstreamerSettings>,
        metrics: Arc<DownstreamerMetrics>,
        sender: Arc<DeliveryClient>,
        leader: LeaderHandle,
        start: WorkerStart,
    ) -> Self {
        let WorkerStart { routes, loaded, rows, mark, seen, controls } = start;
        let consumer: &str = routes.name();
        let classifier = Classifier::new(settings.clone(), metrics.clone(), routes.clone());
        let (settlements, settled) = settle::start(redis.clone(), consumer, &leader.token, mark);
        let cursor = loaded.cursor;
        let channels = Channels {
            settlements,
            settled,
            arrivals: intake::start(redis, consumer, cursor, classifier.clone(), metrics.clone()),
            controls: controls::start(redis.clone(), consumer, leader.clone(), controls.version),
            shares: shares::start(redis.clone(), consumer, &leader.token),
            reads: JoinSet::new(),
            deliveries: JoinSet::new(),
            running: HashMap::new(),
        };
        let scheme = settings.key_scheme();
        let names = Names::new(scheme, &rows);
        let translator = Translator::new(leader.cell, settings.dedup.is_on(), names);
        let core = Core::new(settings.core(rand::random()), loaded, seen);
        let mut worker = Self {
            core,
            channels,
            translator,
            pack_reader: Arc::new(PackReader::new(redis.clone(), consumer, classifier)),
            sender,
            leader,
            settings,
            metrics,
            started: Instant::now(),
            shown: PublishedStatus {
                at: Instant::now(),
                counted: Counts::default(),
                logged: Counts::default(),
                failures: FailureLog::default(),
            },
            dead_bytes: 0,
            ends_at: None,
        };
        let controls = worker.controls(controls);
        let now = worker.now();
        // No deliveries: nothing was read yet.
        let effects = worker.core.on(vec![Event::Controls(controls)], now);
        debug_assert!(effects.iter().all(|effect| !matches!(effect, Effect::Send(_))));
        worker.carry_out(effects);
        worker
    }

    /// Runs until leadership or the process ends. Drops what is still under way then.
    pub(crate) async fn run(mut self, shutdown: &CancellationToken, pulse: &Pulse) -> End {
        let mut events = Vec::new();
        loop {
            // Answers once a tick at least, whatever Redis and the backend do.
            pulse.answer();
            events.push(self.lease());
            let now = self.now();
            let effects = self.core.on(std::mem::take(&mut events), now);
            if let Some(end) = self.carry_out(effects) {
                return end;
            }
            self.show();
            if let Some(at) = self.ends_at
                && (self.core.is_quiet() || at <= Instant::now())
            {
                return End::Stopped;
            }
            match self.next(shutdown).await {
                Ok(more) => events = more,
                Err(end) => return end,
            }
        }
    }

    /// Waits for the next events.
    async fn next(&mut self, shutdown: &CancellationToken) -> Result<Vec<Event<PackBytes>>, End> {
        let mut events = self.first(shutdown).await?;
        self.take_ready(&mut events)?;
        Ok(events)
    }

    /// Waits for the next event. Empty if the core needs no step for it.
    async fn first(&mut self, shutdown: &CancellationToken) -> Result<Vec<Event<PackBytes>>, End> {
        let wakes_at = self.started + self.core.wakes_at();
        let channels = &mut self.channels;
        tokio::select! {
            biased;
            () = self.leader.lost.cancelled() => Err(End::Lost),
            settled = channels.settled.recv() => match settled {
                Some(settled) => Ok(vec![self.settled(settled)?]),
                None => Err(gone("settling")),
            },
            controls = channels.controls.recv() => match controls {
                Some(controls) => Ok(vec![Event::Controls(self.controls(controls))]),
                None => Err(gone("reading controls")),
            },
            () = channels.shares.closed() => Err(gone("publishing shares")),
            () = shutdown.cancelled(), if self.ends_at.is_none() => {
                self.ends_at = Some(Instant::now() + self.settings.shutdown_timeout);
                Ok(vec![Event::Stop])
            }
            Some(delivery) = channels.deliveries.join_next() => {
                Ok(self.ended(delivery)?.into_iter().collect())
            }
            Some(read) = channels.reads.join_next() => self.on_read(read),
            replay = channels.arrivals.replays.recv(), if self.core.takes_replays() => {
                replay.map(|event| vec![event]).ok_or_else(|| gone("reading replays"))
            }
            pack = channels.arrivals.packs.recv(), if self.core.takes_packs() => {
                pack.map(|event| vec![event]).ok_or_else(|| gone("intake"))
            }
            () = tokio::time::sleep_until(wakes_at) => Ok(vec![Event::Tick]),
        }
    }

    /// Adds what is ready, so that nothing starves, and one step of the core serves all.
    fn take_ready(&mut self, events: &mut Vec<Event<PackBytes>>) -> Result<(), End> {
        if let Ok(settled) = self.channels.settled.try_recv() {
            events.push(self.settled(settled)?);
        }
        for _ in 0..BATCH_MAX {
            let Some(delivery) = self.channels.deliveries.try_join_next() else { break };
            events.extend(self.ended(delivery)?);
        }
        for _ in 0..BATCH_MAX {
            let Some(read) = self.channels.reads.try_join_next() else { break };
            events.extend(self.on_read(read)?);
        }
        let arrivals = &mut self.channels.arrivals;
        for number in 0..PACKS_MAX {
            let takes_pack = self.core.takes_packs() && (number == 0 || self.core.has_much_room());
            let replay = self.core.takes_replays().then(|| arrivals.replays.try_recv().ok());
            let pack = takes_pack.then(|| arrivals.packs.try_recv().ok());
            events.extend(replay.flatten().into_iter().chain(pack.flatten()));
        }
        Ok(())
    }

    fn settled(&mut self, settled: Settled) -> Result<Event<PackBytes>, End> {
        match settled {
            Ok(()) => {
                self.leader.add_dead_bytes(std::mem::take(&mut self.dead_bytes));
                Ok(Event::Settled)
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "settling failed; leadership ends");
                Err(end_of(&error))
            }
        }
    }

    /// Carries effects out. Returns the reason for which the leader ends, if it does.
    fn carry_out(&mut self, effects: Vec<Effect<PackBytes>>) -> Option<End> {
        let mut chunks = Vec::new();
        let mut again = Vec::new();
        for effect in effects {
            match effect {
                Effect::Send(dispatch) => self.send(self.job(*dispatch)),
                Effect::Cancel(id) => {
                    if let Some(running) = self.channels.running.remove(&id) {
                        running.abort();
                    }
                }
                Effect::Read(PackKey::Chunk(lane, number)) => again.push(ChunkId { lane, number }),
                Effect::Read(PackKey::Main(entry)) => self.read(ReadRequest::Main(entry)),
                Effect::Read(PackKey::Replay(id)) => self.read(ReadRequest::Replay(id)),
                Effect::ReadFront(entries) => self.read(ReadRequest::Front(entries)),
                Effect::ReadChunks { lane, first, count } => {
                    chunks.push(ChunkRange { lane, first, count });
                }
                Effect::ReadRest { lane, entry } => self.read(ReadRequest::Rest(lane, entry)),
                Effect::Settle(settlement) => {
                    if let Some(tracer) = &self.metrics.tracer {
                        trace::given_up(tracer, &settlement.dead, self.leader.cell);
                    }
                    let from_ms = self.core.remembers_from_ms();
                    let Some(settlement) = self.translator.translate(*settlement, from_ms) else {
                        return Some(End::Stale);
                    };
                    self.dead_bytes = settlement.dead.iter().map(Dead::size_bytes).sum();
                    // The channel holds one settlement, and none is under way.
                    if self.channels.settlements.try_send(settlement).is_err() {
                        return Some(gone("settling"));
                    }
                }
                Effect::Restart(reason) => {
                    tracing::error!(reason, "beginning again from what redis holds");
                    return Some(End::Stale);
                }
            }
        }
        for together in together(chunks) {
            self.read(ReadRequest::Chunks(together));
        }
        for together in again.chunks(CHUNKS_TOGETHER as usize) {
            self.read(ReadRequest::ChunksAgain(together.to_vec()));
        }
        None
    }

    fn job(&self, dispatch: Dispatch<PackBytes>) -> DeliveryJob {
        let record = dispatch.content.0.record(dispatch.record_index);
        let position = dispatch.position;
        let cell = self.leader.cell;
        let webhook = WebhookId { cell, entry: position.entry(), index: position.index };
        let tracer = self.metrics.tracer.as_ref();
        let trace = AttemptTrace::begin(tracer, &record, webhook, dispatch.attempt);
        DeliveryJob { dispatch, record, webhook, trace }
    }

    fn send(&mut self, job: DeliveryJob) {
        let lane = job.dispatch.lane;
        let shop = job.dispatch.shop;
        self.translator.names.learn(lane, shop, &job.record);
        let id = job.dispatch.id;
        let sender = self.sender.clone();
        let leader = self.leader.clone();
        let settings = self.settings.clone();
        let running = self.channels.deliveries.spawn(async move {
            // The process may have been suspended since this was decided.
            if !leader.holds(spillway_queue::leader::boottime()) {
                return EndedDelivery::not_sent(job);
            }
            let ended = sender.deliver(job).await;
            if let Some(redaction) = delivered_redaction(&ended, &settings) {
                redaction.note(&settings.common.redis, &settings.consumer.name).await;
            }
            ended
        });
        self.channels.running.insert(id, running);
    }

    fn read(&mut self, request: ReadRequest) {
        let pack_reader = self.pack_reader.clone();
        self.channels.reads.spawn(async move { pack_reader.read(request).await });
    }

    /// Returns the events of a read, and starts reads of the rest.
    fn on_read(&mut self, read: Result<Read, JoinError>) -> Result<Vec<Event<PackBytes>>, End> {
        let Read { events, left } = read.map_err(|_| gone("a read"))?;
        left.into_iter().for_each(|request| self.read(request));
        Ok(events)
    }

    /// Returns the event of a delivery that ended. `None` for one that was cut off.
    fn ended(
        &mut self,
        delivery: Result<EndedDelivery, JoinError>,
    ) -> Result<Option<Event<PackBytes>>, End> {
        let EndedDelivery { mut job, outcome, answer, took, fetching, payload } = match delivery {
            Ok(delivery) => delivery,
            Err(error) if error.is_cancelled() => return Ok(None),
            Err(_) => return Err(gone("a delivery")),
        };
        let id = job.dispatch.id;
        if self.channels.running.remove(&id).is_none() {
            return Ok(None);
        }
        let judged = judge::judge(&outcome, &self.settings);
        if let Some(trace) = job.trace.take() {
            trace.end(&outcome, judged);
        }
        if outcome != AttemptOutcome::Unfetched {
            self.metrics.attempted(result_label(&outcome, judged), took - fetching);
        }
        if let Some(result) = payload {
            self.metrics.stubs.count(result);
        }
        if let Some(last) = judge::failure_of(&outcome)
            && let Some(attempts) = self.shown.failures.on_failure(Instant::now())
        {
            tracing::warn!(
                %last,
                attempts,
                "the backend did not accept attempts: their webhooks are tried again, or are dead letters"
            );
        }
        if judged == Verdict::Delivered {
            self.metrics.delivered(job.record.received_at_ms, wall_clock_ms());
        }
        Ok(Some(Event::Ended(AttemptEnd {
            id,
            verdict: judged,
            signal: judge::signal(&outcome, judged),
            is_unconnected: outcome == AttemptOutcome::Unconnected,
            took,
            fetching,
            evidence: judge::evidence(&outcome, answer),
        })))
    }

    fn lease(&self) -> Event<PackBytes> {
        let left = self.leader.lease_left(spillway_queue::leader::boottime());
        Event::Lease {
            until: self.started.elapsed() + left,
            dead_room: self.leader.dead_room(self.settings.dead_bytes_max),
            may_move: !self.leader.is_redis_full() || self.metrics.queue.is_only_consumer(),
        }
    }

    fn controls(&mut self, controls: OperatorControls) -> Controls<PauseFilter> {
        if controls.version > 0 {
            tracing::info!(
                version = controls.version,
                pauses = controls.pauses.len(),
                entries_with_drops = controls.dropping.main.len() + controls.dropping.replays.len(),
                "an operator changed the controls"
            );
        }
        for shop in controls.pauses.iter().filter_map(|pause| pause.filter.only_shop()) {
            self.translator.names.learn_shop(shop);
        }
        self.metrics.pauses.show(&controls.pauses);
        controls::of(controls, self.leader.cell)
    }

    fn show(&mut self) {
        let counts = self.core.counts();
        self.metrics.counted(&self.shown.counted, counts);
        self.shown.counted.clone_from(counts);
        if self.shown.at.elapsed() < SHOW_EVERY {
            return;
        }
        let status = self.core.status();
        let names = &self.translator.names;
        self.metrics.show(&status);
        status::log(&self.shown.logged, counts, &status, names);
        let (trouble, note) = status::explain(&status, names);
        self.leader.show_trouble(trouble.map(Into::into));
        self.leader.show_note(note);
        self.channels.shares.send_replace(shares::named(&self.core.shares(), names));
        self.shown.logged.clone_from(counts);
        self.shown.at = Instant::now();
    }

    fn now(&self) -> Now {
        Now { at: self.started.elapsed(), wall_ms: self.leader.now_ms() }
    }
}

/// The webhook, if it is a redaction and the backend accepted it. It is noted before it is settled: nobody would know
/// of it any more.
fn delivered_redaction(
    ended: &EndedDelivery,
    settings: &DownstreamerSettings,
) -> Option<DeliveredRedaction> {
    if judge::judge(&ended.outcome, settings) != Verdict::Delivered {
        return None;
    }
    let DeliveryJob { dispatch, webhook, .. } = &ended.job;
    DeliveredRedaction::of(&dispatch.content.0, dispatch.record_index, *webhook)
}

/// Groups ranges that are read in one go. Otherwise lanes of one chunk would cost two round trips
/// each.
fn together(ranges: Vec<ChunkRange>) -> Vec<Vec<ChunkRange>> {
    let mut all = Vec::<Vec<ChunkRange>>::new();
    let mut count = 0;
    for range in ranges {
        count += range.count;
        match all.last_mut().filter(|_| count <= CHUNKS_TOGETHER) {
            Some(last) => last.push(range),
            None => {
                count = range.count;
                all.push(vec![range]);
            }
        }
    }
    all
}

/// Logs that a task around the core ended early. The leader begins again with the state in Redis.
fn gone(what: &'static str) -> End {
    tracing::error!(what, "BUG: a task ended early; beginning again");
    End::Stale
}

/// Returns `Stale` for an error after which the leader must begin again, `Lost` for any other.
fn end_of(error: &QueueError) -> End {
    match error {
        QueueError::Unregistered => End::Stale,
        _ => End::Lost,
    }
}
