//! The drain: one task that holds all state and decides everything; reading, delivering and
//! settling happen in tasks around it.
//!
//! The path of a webhook: arrived → `turns` (whose turn is it?) → delivered → `judging` →
//! finished → `settling` → settled, and only then is its resource free for the next. Invariants: one
//! delivery at a time per resource; nothing new is started without a lease; one settlement at a
//! time. Bounded: the index by its room, deliveries by the limiter, the cache in bytes.

mod arriving;
mod judging;
mod park;
mod reading;
mod settling;
mod standing;
mod turns;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use spillway_drain::settle::{self, Settled};
use spillway_drain::{End, Tenure};
use spillway_queue::orders::Orders;
use spillway_queue::read::Progress;
use spillway_queue::settle::{Dead, Settlement};
use spillway_queue::{QueueError, Redis};
use spillway_service::supervisor::Pulse;
use spillway_webhook::StreamId;
use spillway_webhook::fingerprint::Fingerprint;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::reading::Reading;
use self::standing::Standing;
use crate::cache::Cache;
use crate::deliver::{Delivery, Sender};
use crate::destination::{Allowed, Destination};
use crate::fetch::{Fetched, Fetcher};
use crate::index::{Index, PackKey, Place, ResourceKey, State};
use crate::intake::{self, Arrived};
use crate::limit::Limiter;
use crate::metrics::Metrics;
use crate::schedule::{Class, Schedule, ShopKey, Turn};
use crate::seen::Seen;
use crate::settings::Settings;

/// Decoded packs at hand.
const CACHE_BYTES: usize = 32 << 20;
/// What `/readyz` says while the brake holds.
const BRAKED: &str = "destination_refuses: the backend refuses most of what it gets, of every shop";
/// What it says while nothing else can be read for what is paused.
const FULL_OF_PAUSED: &str = "index_full: what is paused fills INDEX_MEMORY, and nothing behind it is read; resume it, pause \
     whole shops instead, or raise INDEX_MEMORY";
/// At most this long between two looks at timers, lease and parking.
const TICK: Duration = Duration::from_millis(200);

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
    /// What an operator orders.
    pub ordered: mpsc::Receiver<Orders>,
}

/// What Redis holds of the drain when it begins.
pub struct Known {
    /// How far it has come.
    pub progress: Progress,
    /// What it delivered lately.
    pub seen: Seen,
    /// An operator's orders.
    pub orders: Orders,
}

/// All state of one drain while it is owned.
pub struct Drain {
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    sender: Arc<Sender>,
    fetcher: Arc<Fetcher>,
    tenure: Tenure,
    cell: u32,
    /// Shops and resources are known by their hashes.
    hasher: RandomState,
    started: Instant,
    index: Index,
    cache: Cache,
    schedule: Schedule,
    /// A turn that waits until the backend has room.
    next: Option<Turn>,
    destination: Destination,
    limiter: Limiter,
    seen: Seen,
    /// Settled webhooks of packs that have not arrived yet.
    bits: HashMap<StreamId, Vec<u8>>,
    /// Attempts and time already spent on parked webhooks, and whether they were replayed.
    parked: HashMap<PackKey, Tried>,
    is_parked_loaded: bool,
    is_caught_up: bool,
    /// Up to here, the main stream is known.
    read_to: StreamId,
    /// Resources whose newest event is not known before all that was there at start has arrived.
    unread: Vec<ResourceKey>,
    due: BinaryHeap<Reverse<(Instant, ResourceKey)>>,
    /// Heads that have failed.
    trials: HashMap<Place, Trial>,
    reading: Reading,
    finished: Vec<Finished>,
    tries: HashMap<PackKey, (u32, Duration)>,
    is_dead_room_short: bool,
    corrupt: Vec<StreamId>,
    corrupt_parked: Vec<StreamId>,
    settling: Option<settling::Settling>,
    standing: Standing,
    parks_due: Instant,
    /// When it ends at the latest, and how: nothing new is begun meanwhile.
    ends: Option<(Instant, End)>,
    /// Whether something paused was passed over, for want of room in the index.
    has_gaps: bool,
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

/// A head that is done with, and what it spoke for.
struct Finished {
    resource: ResourceKey,
    end: Ended,
    /// What it is found by in the history; 0 if nothing.
    key: u64,
    attempts: u32,
}

/// How it ended.
enum Ended {
    /// The backend has it.
    Delivered(Option<Fingerprint>),
    /// The backend had it before.
    Duplicate,
    /// It is given up.
    Dead(Box<Dead>),
}

impl Drain {
    /// A drain that begins where Redis says, with all that runs around it.
    pub fn start(
        redis: &Redis,
        name: &str,
        settings: Arc<Settings>,
        metrics: Arc<Metrics>,
        sender: Arc<Sender>,
        tenure: Tenure,
        known: Known,
    ) -> (Self, Around) {
        let Known { progress, seen, orders: standing_orders } = known;
        let hasher = RandomState::new();
        let (orders, settled) = settle::start(redis.clone(), name, &tenure.token, progress.mark);
        let (sorted_by, counted) = (settings.clone(), metrics.clone());
        let arrived =
            intake::start(redis, name, progress.cursor, sorted_by, counted, hasher.clone());
        let around = Around {
            settled,
            orders,
            arrived,
            fetched: JoinSet::new(),
            deliveries: JoinSet::new(),
            ordered: standing::start(redis.clone(), name, tenure.clone(), standing_orders.version),
        };
        let mut drain = Self {
            sender,
            metrics,
            fetcher: Arc::new(Fetcher::new(redis.clone(), name)),
            cell: tenure.cell,
            hasher,
            tenure,
            started: Instant::now(),
            index: Index::new(settings.index_bytes, settings.keeps_fingerprints()),
            cache: Cache::new(CACHE_BYTES),
            schedule: Schedule::new(settings.shop_bounds),
            next: None,
            destination: Destination::default(),
            limiter: Limiter::new(settings.bounds),
            seen,
            bits: progress.done,
            parked: HashMap::new(),
            is_parked_loaded: false,
            is_caught_up: false,
            read_to: progress.cursor,
            unread: Vec::new(),
            due: BinaryHeap::new(),
            trials: HashMap::new(),
            reading: Reading::default(),
            finished: Vec::new(),
            tries: HashMap::new(),
            is_dead_room_short: false,
            corrupt: Vec::new(),
            corrupt_parked: Vec::new(),
            settling: None,
            standing: Standing::default(),
            parks_due: Instant::now(),
            ends: None,
            has_gaps: false,
            settings,
        };
        drain.ordered(standing_orders);
        (drain, around)
    }

    /// Runs until it ends; whatever is still under way then is dropped.
    pub async fn run(
        mut self,
        mut around: Around,
        shutdown: &CancellationToken,
        pulse: &Pulse,
    ) -> End {
        let lost = self.tenure.lost.clone();
        loop {
            // Once a tick at least, whatever Redis and the backend do.
            pulse.answer();
            self.wake_due();
            self.drop_under_way();
            self.dispatch(&mut around);
            self.read(&mut around);
            self.settle(&mut around);
            self.show(&around);
            let now = Instant::now();
            if let Some((at, end)) = self.ends
                && (self.is_quiet(&around) || at <= now)
            {
                return end;
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
                    Ok(fetched) => self.fetched(fetched),
                    Err(_) => Some(gone("reading a pack again")),
                },
                arrived = around.arrived.recv(), if self.index.has_room() => match arrived {
                    Some(arrived) => self.arrived(arrived),
                    None => Some(gone("intake")),
                },
                Some(orders) = around.ordered.recv() => {
                    self.ordered(orders);
                    None
                }
                () = shutdown.cancelled(), if !self.is_stopping() => {
                    self.end_soon(End::Stopped);
                    None
                }
                () = tokio::time::sleep_until(wake_at) => None,
            };
            if let Some(end) = ended {
                return end;
            }
        }
    }

    /// Resources whose wait is over are ready again.
    fn wake_due(&mut self) {
        self.schedule.wake(self.now());
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

    /// A resource whose head may be delivered is ready, unless that waits for its retry, or for
    /// others of its shop.
    fn release(&mut self, resource: ResourceKey) {
        if let Some(due) = self.trial(resource).map(|trial| trial.due)
            && due > Instant::now()
        {
            self.index.set_state(resource, State::Delayed);
            self.due.push(Reverse((due, resource)));
            return;
        }
        let (Some((shop, class)), Some(position)) =
            (self.index.turn(resource), self.index.head_position(resource))
        else {
            return;
        };
        if self.schedule.is_open(shop, position) {
            self.index.set_state(resource, State::Ready);
            self.push_ready(shop, class, resource);
        } else {
            self.index.set_state(resource, State::Held);
            self.schedule.hold(shop, position, resource);
        }
    }

    /// A resource's turn comes in stream order within its shop.
    fn push_ready(&mut self, shop: ShopKey, class: Class, resource: ResourceKey) {
        if let Some(place) = self.index.lead(resource) {
            self.schedule.push(shop, class, place, resource);
        }
    }

    /// What the head of a resource has been through.
    fn trial(&self, resource: ResourceKey) -> Option<&Trial> {
        self.index.head(resource).and_then(|place| self.trials.get(&place))
    }

    fn wakes_at(&self, now: Instant) -> Instant {
        let since_start = self.now();
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        let probe = self.destination.probes_at(since_start);
        let room = self.limiter.wakes_at(since_start);
        let others = [probe, room, self.schedule.wakes_at()].into_iter().flatten();
        let due = due.into_iter().chain(self.reading.wakes_at().filter(|_| self.ends.is_none()));
        let wakes = due.chain(others.map(|at| self.started + at));
        wakes.min().unwrap_or(now + TICK).clamp(now, now + TICK)
    }

    fn is_stopping(&self) -> bool {
        matches!(self.ends, Some((_, End::Stopped)))
    }

    /// Ends once everything under way is settled or out of time.
    fn end_soon(&mut self, end: End) {
        let at = Instant::now() + self.settings.shutdown_timeout;
        self.ends = Some((at, end));
    }

    fn is_quiet(&self, around: &Around) -> bool {
        around.deliveries.is_empty() && self.finished.is_empty() && self.settling.is_none()
    }

    fn show(&self, around: &Around) {
        let in_use = i64::try_from(around.deliveries.len()).unwrap_or(i64::MAX);
        self.metrics.concurrency_in_use.set(in_use);
        let now = self.now();
        let limit = match self.destination.allows(now) {
            Allowed::Nothing => 0,
            Allowed::Probe => self.limiter.concurrency(now).min(1),
            Allowed::All => self.limiter.concurrency(now),
        };
        self.metrics.concurrency_limit.set(i64::try_from(limit).unwrap_or(i64::MAX));
        let is_paused = self.standing.is_all_paused || self.destination.is_stopped();
        self.metrics.paused.set(i64::from(limit == 0 || is_paused));
        let is_braked = self.destination.is_braked();
        self.metrics.brake.set(i64::from(is_braked));
        let is_stuck = around.deliveries.is_empty() && self.is_full_of_paused();
        let trouble = if is_braked { Some(BRAKED) } else { is_stuck.then_some(FULL_OF_PAUSED) };
        self.tenure.show_trouble(trouble.map(Into::into));
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
