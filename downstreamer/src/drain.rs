//! The drain: one task that holds all state and decides everything; reading, delivering and
//! settling happen in tasks around it.
//!
//! The path of a webhook: arrived → `dispatch` → delivered → `judge` → finished →
//! `settle` → settled, and only then is its resource free for the next. Invariants: one
//! delivery at a time per resource; nothing new is started without a lease; one settlement at a
//! time. Bounded: the index by its room, deliveries by the destination's concurrency, the cache in
//! bytes.

mod judging;
mod park;
mod settling;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use spillway_queue::owner::boottime;
use spillway_queue::read::Progress;
use spillway_queue::settle::{Dead, Settlement};
use spillway_queue::{QueueError, Redis};
use spillway_webhook::pack::Pack;
use spillway_webhook::{StreamId, WebhookId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cache::Cache;
use crate::deliver::{Delivery, Job, Sender};
use crate::destination::Destination;
use crate::fetch::{Fetched, Fetcher};
use crate::index::{Index, OpenPack, PackKey, Place, ResourceKey, State};
use crate::intake::{Arrived, Intake};
use crate::metrics::Metrics;
use crate::ownership::Tenure;
use crate::settings::Settings;
use crate::settle::{self, Settled};

/// Decoded packs at hand.
const CACHE_BYTES: usize = 32 << 20;
/// At most this long between two looks at timers, lease and parking.
const TICK: Duration = Duration::from_millis(200);

/// How many ready resources are looked at for one that has not failed yet.
const PROBE_PICKS: usize = 8;

/// Deliveries that may wait for their settlement, beside those under way: what a crash can repeat.
const UNSETTLED_MAX: usize = 256;

/// Why the drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was asked to, and everything under way is settled or out of time.
    Stopped,
    /// Another instance owns the drain.
    Lost,
    /// What Redis holds is not what was read: begin again from its state.
    Stale,
}

/// What runs around the drain.
pub struct Around {
    /// Says when everything is settled.
    pub settled: mpsc::Receiver<Settled>,
    /// Takes settlements.
    pub orders: mpsc::Sender<Settlement>,
    /// What intake found.
    pub arrived: mpsc::Receiver<Arrived>,
    /// Packs that were read again.
    pub fetched: JoinSet<Fetched>,
    /// Deliveries under way.
    pub deliveries: JoinSet<Delivery>,
}

/// All state of one drain while it is owned.
pub struct Drain {
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    sender: Arc<Sender>,
    fetcher: Arc<Fetcher>,
    tenure: Tenure,
    cell: u32,
    started: Instant,
    index: Index,
    cache: Cache,
    destination: Destination,
    /// Settled webhooks of packs that have not arrived yet.
    bits: HashMap<StreamId, Vec<u8>>,
    /// Attempts and time already spent on parked webhooks, and whether they were replayed.
    parked: HashMap<PackKey, Tried>,
    is_parked_loaded: bool,
    ready: VecDeque<ResourceKey>,
    due: BinaryHeap<Reverse<(Instant, ResourceKey)>>,
    /// Webhooks that have failed.
    trials: HashMap<Place, Trial>,
    /// Resources whose head's pack is being read again.
    awaiting: HashMap<PackKey, Vec<ResourceKey>>,
    awaiting_count: usize,
    finished: Vec<Finished>,
    tries: HashMap<PackKey, (u32, Duration)>,
    is_dead_room_short: bool,
    corrupt: Vec<StreamId>,
    corrupt_parked: Vec<StreamId>,
    settling: Option<settling::Settling>,
    parks_due: Instant,
    is_stopping: bool,
}

/// What was tried before.
#[derive(Debug, Clone, Copy, Default)]
struct Tried {
    attempts: u32,
    spent: Duration,
    replayed: bool,
}

/// What a webhook that failed has been through.
#[derive(Debug, Clone, Copy)]
struct Trial {
    resource: ResourceKey,
    attempts: u32,
    /// Time spent before this owner's first attempt.
    spent_before: Duration,
    /// The retry clock at this owner's first attempt.
    since: Duration,
    due: Instant,
}

/// A head that is done with.
struct Finished {
    resource: ResourceKey,
    place: Place,
    dead: Option<Dead>,
}

impl Drain {
    /// A drain that begins where `progress` says, with all that runs around it.
    pub fn start(
        redis: &Redis,
        name: &str,
        settings: Arc<Settings>,
        metrics: Arc<Metrics>,
        sender: Arc<Sender>,
        tenure: Tenure,
        progress: Progress,
    ) -> (Self, Around) {
        let (orders, settled) = settle::start(redis.clone(), name, &tenure.token);
        let arrived =
            Intake::start(redis, name, progress.cursor, settings.order_by, metrics.clone());
        let around = Around {
            settled,
            orders,
            arrived,
            fetched: JoinSet::new(),
            deliveries: JoinSet::new(),
        };
        let drain = Self {
            sender,
            metrics,
            fetcher: Arc::new(Fetcher::new(redis.clone(), name)),
            cell: tenure.cell,
            tenure,
            started: Instant::now(),
            index: Index::new(settings.index_bytes),
            cache: Cache::new(CACHE_BYTES),
            destination: Destination::new(settings.concurrency_max),
            bits: progress.done,
            parked: HashMap::new(),
            is_parked_loaded: false,
            ready: VecDeque::new(),
            due: BinaryHeap::new(),
            trials: HashMap::new(),
            awaiting: HashMap::new(),
            awaiting_count: 0,
            finished: Vec::new(),
            tries: HashMap::new(),
            is_dead_room_short: false,
            corrupt: Vec::new(),
            corrupt_parked: Vec::new(),
            settling: None,
            parks_due: Instant::now(),
            is_stopping: false,
            settings,
        };
        (drain, around)
    }

    /// Runs until it ends; whatever is still under way then is dropped.
    pub async fn run(mut self, mut around: Around, shutdown: &CancellationToken) -> End {
        let lost = self.tenure.lost.clone();
        let mut stop_at = None;
        loop {
            self.wake_due();
            self.dispatch(&mut around);
            self.settle(&mut around);
            self.show(&around);
            let now = Instant::now();
            if self.is_stopping && (self.is_quiet(&around) || stop_at.is_some_and(|at| at <= now)) {
                return End::Stopped;
            }
            let wake_at = self.wakes_at(now);
            let ended = tokio::select! {
                biased;
                () = lost.cancelled() => Some(End::Lost),
                settled = around.settled.recv() => match settled {
                    Some(settled) => self.settled(settled),
                    None => Some(gone("settling")),
                },
                Some(delivery) = around.deliveries.join_next() => match delivery {
                    Ok(delivery) => {
                        self.judge(delivery);
                        while let Some(Ok(more)) = around.deliveries.try_join_next() {
                            self.judge(more);
                        }
                        None
                    }
                    Err(_) => Some(gone("a delivery")),
                },
                Some(fetched) = around.fetched.join_next() => match fetched {
                    Ok(fetched) => self.fetched(fetched, &mut around),
                    Err(_) => Some(gone("reading a pack again")),
                },
                arrived = around.arrived.recv(), if self.index.has_room() => match arrived {
                    Some(arrived) => {
                        self.arrived(arrived);
                        None
                    }
                    None => Some(gone("intake")),
                },
                () = shutdown.cancelled(), if !self.is_stopping => {
                    self.is_stopping = true;
                    stop_at = Some(now + self.settings.shutdown_timeout);
                    None
                }
                () = tokio::time::sleep_until(wake_at) => None,
            };
            if let Some(end) = ended {
                return end;
            }
        }
    }

    fn arrived(&mut self, arrived: Arrived) {
        match arrived {
            Arrived::Pack { id, resources, pack } => {
                let bits = self.bits.remove(&id);
                let open = OpenPack::main(id, pack.count(), bits.as_ref());
                let settled: Vec<bool> =
                    (0..pack.count()).map(|index| open.is_settled(index)).collect();
                let key = self.index.add_pack(open);
                self.cache.offer(key, pack);
                for ((index, resource), settled) in (0..).zip(resources).zip(settled) {
                    if !settled && self.index.add(resource, Place { pack: key, index }) {
                        self.ready.push_back(resource);
                    }
                }
            }
            Arrived::Parked { parked, resource, pack } => {
                let WebhookId { entry, index, .. } = parked.webhook;
                let key = self.index.add_pack(OpenPack::parked(parked.id, entry));
                self.cache.offer(key, pack);
                let tried = Tried {
                    attempts: parked.attempts,
                    spent: parked.spent,
                    replayed: parked.replayed,
                };
                self.parked.insert(key, tried);
                let place = Place { pack: key, index };
                let is_ready = self.index.add(resource, place);
                // A replay may have come before a head that waits for its retry.
                let is_next = self.index.state(resource) == Some(State::Delayed)
                    && self.index.head(resource) == Some(place);
                if is_ready || is_next {
                    self.release(resource);
                }
            }
            Arrived::ParkedLoaded => self.is_parked_loaded = true,
            Arrived::Corrupt(id) => {
                self.index.add_pack(OpenPack::main(id, 0, None));
                self.corrupt.push(id);
            }
            Arrived::CorruptParked(id) => self.corrupt_parked.push(id),
        }
    }

    /// Starts deliveries while there is room for them.
    fn dispatch(&mut self, around: &mut Around) {
        // What was parked is older than the main stream: nothing goes before it has arrived,
        // unless there is more of it than the index holds.
        let is_loaded = self.is_parked_loaded || !self.index.has_room();
        if self.is_stopping || !is_loaded || self.ready.is_empty() {
            return;
        }
        if !self.tenure.holds(boottime()) {
            return;
        }
        let limit = self.destination.concurrency(self.now());
        let unsettled = self.finished.len() + self.settling.as_ref().map_or(0, |s| s.heads.len());
        while around.deliveries.len() + self.awaiting_count < limit
            && around.deliveries.len() + unsettled < limit + UNSETTLED_MAX
        {
            let Some(resource) = self.next_ready() else { break };
            self.begin(resource, around);
        }
    }

    /// The resource that has waited longest. While the backend counts as down, any that has not
    /// failed yet: behind a row of failing resources, a healthy backend would look dead for long.
    fn next_ready(&mut self) -> Option<ResourceKey> {
        if self.destination.is_down() && !self.ready.is_empty() {
            let picks = (0..PROBE_PICKS).map(|_| rand::random_range(0..self.ready.len()));
            let untried = |at: &usize| self.trial(self.ready[*at]).is_none();
            if let Some(at) = picks.into_iter().find(untried) {
                return self.ready.remove(at);
            }
        }
        self.ready.pop_front()
    }

    fn begin(&mut self, resource: ResourceKey, around: &mut Around) {
        let Some(place) = self.index.head(resource) else { return };
        self.index.set_state(resource, State::Busy);
        if let Some(pack) = self.cache.get(place.pack) {
            self.deliver(resource, place, pack, around);
            return;
        }
        self.awaiting_count += 1;
        self.fetch(place.pack, around).push(resource);
    }

    /// Has a pack read again, unless it is being read; hands out who waits for it.
    fn fetch(&mut self, key: PackKey, around: &mut Around) -> &mut Vec<ResourceKey> {
        let (index, fetcher) = (&self.index, &self.fetcher);
        self.awaiting.entry(key).or_insert_with(|| {
            if let Some(open) = index.pack(key) {
                let (fetcher, source, id) = (fetcher.clone(), open.source, open.id);
                around.fetched.spawn(async move { fetcher.fetch(key, source, id).await });
            }
            Vec::new()
        })
    }

    fn fetched(&mut self, fetched: Fetched, around: &mut Around) -> Option<End> {
        let waiting = self.awaiting.remove(&fetched.key).unwrap_or_default();
        self.awaiting_count -= waiting.len();
        let Some(pack) = fetched.pack else {
            // Parking may have looked ahead at a pack that is settled by now.
            let is_needed = self.index.pack(fetched.key).is_some_and(|open| open.left > 0);
            if waiting.is_empty() && !is_needed {
                return None;
            }
            tracing::error!("a pack that waits is not in redis any more: its data was lost");
            return Some(End::Stale);
        };
        self.cache.put(fetched.key, pack.clone());
        if self.is_stopping {
            return None;
        }
        for resource in waiting {
            if let Some(place) = self.index.head(resource) {
                self.deliver(resource, place, pack.clone(), around);
            }
        }
        None
    }

    fn deliver(
        &mut self,
        resource: ResourceKey,
        place: Place,
        pack: Arc<Pack>,
        around: &mut Around,
    ) {
        let Some(open) = self.index.pack(place.pack) else { return };
        let tried = self.parked.get(&place.pack).copied().unwrap_or_default();
        let attempts = self.trials.get(&place).map_or(tried.attempts, |trial| trial.attempts);
        let job = Job {
            resource,
            place,
            record_index: open.record_index(place.index),
            webhook: WebhookId { cell: self.cell, entry: open.origin, index: place.index },
            pack,
            attempt: attempts + 1,
            replayed: tried.replayed,
            began_active: self.destination.active(self.now()),
        };
        let (sender, tenure) = (self.sender.clone(), self.tenure.clone());
        around.deliveries.spawn(async move {
            // The process may have been stopped, or Redis away, since this was decided. If the
            // drain was lost meanwhile, this task is dropped with it.
            while !tenure.holds(boottime()) {
                tokio::time::sleep(TICK).await;
            }
            sender.deliver(job).await
        });
    }

    /// Resources whose wait is over are ready again.
    fn wake_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, resource))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            let is_due = self.trial(resource).is_none_or(|trial| trial.due <= now);
            if is_due && self.index.state(resource) == Some(State::Delayed) {
                self.release(resource);
            }
        }
    }

    /// A resource whose head may be delivered is ready, unless that waits for its retry.
    fn release(&mut self, resource: ResourceKey) {
        match self.trial(resource).map(|trial| trial.due) {
            Some(due) if due > Instant::now() => {
                self.index.set_state(resource, State::Delayed);
                self.due.push(Reverse((due, resource)));
            }
            _ => {
                self.index.set_state(resource, State::Ready);
                self.ready.push_back(resource);
            }
        }
    }

    /// What the head of a resource has been through.
    fn trial(&self, resource: ResourceKey) -> Option<&Trial> {
        self.index.head(resource).and_then(|place| self.trials.get(&place))
    }

    fn wakes_at(&self, now: Instant) -> Instant {
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        let pause = self.destination.pause_ends(self.now()).map(|end| self.started + end);
        due.into_iter().chain(pause).min().unwrap_or(now + TICK).clamp(now, now + TICK)
    }

    fn is_quiet(&self, around: &Around) -> bool {
        around.deliveries.is_empty() && self.finished.is_empty() && self.settling.is_none()
    }

    fn show(&self, around: &Around) {
        let in_use = i64::try_from(around.deliveries.len()).unwrap_or(i64::MAX);
        self.metrics.concurrency_in_use.set(in_use);
        let limit = self.destination.concurrency(self.now());
        self.metrics.concurrency_limit.set(i64::try_from(limit).unwrap_or(i64::MAX));
        self.metrics.paused.set(i64::from(limit == 0 || self.destination.is_down()));
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A task around the drain ended before it: the drain begins again from what Redis holds.
fn gone(what: &'static str) -> End {
    tracing::error!(what, "BUG: a task ended early; beginning again");
    End::Stale
}

/// Whether an error means that this owner's time is over, or that it must begin again.
fn end_of(error: &QueueError) -> End {
    match error {
        QueueError::Unregistered => End::Stale,
        _ => End::Lost,
    }
}
