//! Whether the queue is known to be unusable, so that a request can be refused before its body is
//! read; and the watch that finds out.

mod safety;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spillway_queue::append::AppendError;
use spillway_queue::drains::{self, StartAt};
use spillway_queue::health::{self, Durability, Facts, Verdict};
use spillway_queue::rewrite::{self, RewriteBackoff};
use spillway_queue::{Connection, QueueError, Redis, feed, status};
use spillway_service::Readiness;
use spillway_service::error::chain;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Metrics, QueueGauges};
use crate::queue_state::safety::SafetyLog;
use crate::reply::Refusal;
use crate::settings::Settings;
use crate::shares::Judge;
use crate::spill::Spill;
use crate::spill::claim::Others;

/// How often a healthy Redis is looked at: so soon is one noticed that went while nothing arrived,
/// or filled up for other reasons than us. A look costs Redis about 0.1 ms.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often one is looked at that is not usable, so that it is used again soon after it is.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// A look that takes longer is a failed one.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a receiver that does not spill stands back.
const CLAIMED: &str = "a receiver with SPILL_DIR has this cell, and is its only one: stop either";

/// What is known of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    /// Appends are expected to succeed.
    Usable = 0,
    /// Redis can't be reached, is loading, or may not be trusted.
    Unavailable = 1,
    /// No memory or disk left.
    Full = 2,
}

/// Shared by every connection, the batchers and the watch.
#[derive(Clone)]
pub struct QueueState {
    shared: Arc<Shared>,
    /// One for each shard.
    is_stalled: Arc<AtomicBool>,
}

struct Shared {
    /// Where packs go while the queue is not usable.
    spill: Option<Arc<Spill>>,
    health: AtomicU8,
    /// Grows with each connection of the watch: an older one of the appender is worth nothing.
    generation: AtomicU64,
    /// Looks that Redis answered.
    looks: AtomicU64,
    look_now: Notify,
    /// Cancelled by the first look.
    looked: CancellationToken,
}

/// Looks at Redis and says what it found.
pub struct Watch {
    redis: Redis,
    require_durable: bool,
    state: QueueState,
    readiness: Readiness,
    gauges: QueueGauges,
    /// Receivers that spill, which this one does not.
    others: Others,
    /// Shops that take too much.
    shops: Judge,
    /// Spaces rewrites of the AOF.
    rewrites: RewriteBackoff,
    safety: SafetyLog,
}

impl Default for QueueState {
    fn default() -> Self {
        Self::new(None)
    }
}

impl QueueState {
    /// Unavailable until the first look.
    pub fn new(spill: Option<Arc<Spill>>) -> Self {
        let shared = Shared {
            spill,
            health: AtomicU8::new(Health::Unavailable as u8),
            generation: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            look_now: Notify::new(),
            looked: CancellationToken::new(),
        };
        Self { shared: Arc::new(shared), is_stalled: Arc::default() }
    }

    /// As after a look that found nothing wrong: for who runs the handler without a Redis.
    pub fn usable_one() -> Self {
        let state = Self::default();
        state.set(Health::Usable);
        state
    }

    /// The same queue as another shard sees it, whose appends do not stall with this one's.
    #[must_use]
    pub fn for_shard(&self) -> Self {
        Self { shared: self.shared.clone(), is_stalled: Arc::default() }
    }

    /// # Errors
    /// Why nothing can be stored now.
    pub fn usable(&self) -> Result<(), Refusal> {
        if self.is_stalled.load(Ordering::Relaxed) {
            return Err(Refusal::QueueUnavailable);
        }
        // Whatever Redis' health: it is noted a moment before packs go the other way.
        if let Some(spill) = &self.shared.spill {
            return spill.takes();
        }
        match self.shared.health.load(Ordering::Relaxed) {
            health if health == Health::Usable as u8 => Ok(()),
            health if health == Health::Full as u8 => Err(Refusal::QueueFull),
            _ => Err(Refusal::QueueUnavailable),
        }
    }

    /// Where packs go while the queue is not usable; none unless it is set.
    pub fn spill(&self) -> Option<&Arc<Spill>> {
        self.shared.spill.as_ref()
    }

    /// Whether Redis takes appends, as far as is known.
    pub fn is_usable(&self) -> bool {
        self.has(Health::Usable)
    }

    /// What was spilled found no room in Redis.
    pub fn is_full(&self) {
        self.set(Health::Full);
        self.look();
    }

    /// Has the watch look at once.
    pub fn look(&self) {
        self.shared.look_now.notify_one();
    }

    /// An append failed, for `error`: this is what it says about the queue. The watch looks at
    /// once. Logged at the change only: while Redis is away, every append fails.
    pub fn failed(&self, health: Health, error: &AppendError) {
        let before = self.shared.health.swap(health as u8, Ordering::Relaxed);
        if before != health as u8 {
            tracing::warn!(error = chain(error), "a pack was refused; the queue is looked at");
        }
        self.set_spill(health);
        self.look();
    }

    /// An append has been without an answer for so long that no other is worth waiting for.
    pub fn set_stalled(&self, is_stalled: bool) {
        self.is_stalled.store(is_stalled, Ordering::Relaxed);
    }

    /// A number that grows when Redis had to be connected to again.
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Relaxed)
    }

    /// Has the appenders connect again: their connections were closed from Redis' side.
    pub fn renew_connections(&self) {
        self.shared.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until Redis was looked at, whatever was found.
    pub async fn looked(&self) {
        self.shared.looked.cancelled().await;
    }

    /// How many looks Redis has answered.
    pub fn looks(&self) -> u64 {
        self.shared.looks.load(Ordering::Relaxed)
    }

    fn set(&self, health: Health) {
        self.shared.health.store(health as u8, Ordering::Relaxed);
        self.set_spill(health);
    }

    fn set_spill(&self, health: Health) {
        if let Some(spill) = &self.shared.spill {
            spill.set_queue(health == Health::Usable);
        }
    }

    fn has(&self, health: Health) -> bool {
        self.shared.health.load(Ordering::Relaxed) == health as u8
    }
}

impl Watch {
    /// Puts a watch together.
    pub fn new(
        settings: &Settings,
        state: QueueState,
        readiness: Readiness,
        metrics: &Metrics,
        shops: Judge,
    ) -> Self {
        Self {
            redis: settings.common.redis.clone(),
            require_durable: settings.require_durable,
            state,
            readiness,
            gauges: metrics.queue.clone(),
            others: Others::default(),
            shops,
            rewrites: RewriteBackoff::default(),
            safety: SafetyLog::default(),
        }
    }

    /// Looks once, at start.
    ///
    /// # Errors
    /// When Redis can't be reached, or is loading its data.
    pub async fn look_once(&self) -> Result<(), QueueError> {
        let mut connection = self.redis.connect(Some(LOOK_TIMEOUT)).await?;
        // Facts are told even by a Redis that is still loading.
        health::ping(&mut connection).await?;
        health::read(&self.redis, &mut connection).await.map(|_| ())
    }

    /// Looks until `stop`: at every change the state, `/readyz` and the log say so.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut connection = None;
        loop {
            let is_usable = match self.look(&mut connection).await {
                Ok((facts, verdict)) => self.found(&facts, verdict, connection.as_mut()).await,
                Err(error) => {
                    connection = None;
                    self.gauges.unreachable();
                    self.shops.look_failed();
                    self.unusable(
                        Health::Unavailable,
                        &format!("queue_unavailable: {}", chain(&error)),
                    )
                }
            };
            self.state.shared.looked.cancel();
            let pause = if is_usable { LOOK_EVERY } else { LOOK_AGAIN };
            tokio::select! {
                () = stop.cancelled() => return,
                // After a failed append a look at once would often see Redis in mid-fall.
                () = self.state.shared.look_now.notified() => tokio::time::sleep(LOOK_AGAIN).await,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn look(
        &mut self,
        connection: &mut Option<Connection>,
    ) -> Result<(Facts, Verdict), QueueError> {
        let connected = match connection {
            Some(connected) => connected,
            None => {
                let connected = self.redis.connect(Some(LOOK_TIMEOUT)).await?;
                self.state.shared.generation.fetch_add(1, Ordering::Relaxed);
                connection.insert(connected)
            }
        };
        let facts = health::read(&self.redis, connected).await?;
        self.state.shared.looks.fetch_add(1, Ordering::Relaxed);
        let was_full = self.state.has(Health::Full);
        let mut verdict = health::judge(&facts, self.require_durable, was_full);
        if matches!(verdict, Verdict::Usable { .. }) {
            drains::register(&self.redis, connected, None, StartAt::Oldest).await?;
            // One that spills keeps the order of what comes to it, and would not know of this one.
            if self.state.spill().is_none()
                && self.others.is_alive(&feed::look(&self.redis, connected).await?)
            {
                verdict = Verdict::Refused(CLAIMED.to_owned());
            }
        }
        self.show_drains(connected).await;
        Ok((facts, verdict))
    }

    /// Shown here too: when every drain is dead, nobody else can say what piles up. A Redis that does
    /// not tell is none the less usable.
    async fn show_drains(&mut self, connection: &mut Connection) {
        match status::read(&self.redis, connection).await {
            Ok(status) => {
                self.gauges.drains.show(&status.drains);
                self.shops.look(&status);
            }
            Err(error) => {
                self.shops.look_failed();
                tracing::debug!(error = chain(&error), "the drains could not be looked at")
            }
        }
    }

    async fn found(
        &mut self,
        facts: &Facts,
        verdict: Verdict,
        connection: Option<&mut Connection>,
    ) -> bool {
        self.gauges.show(facts);
        if !matches!(verdict, Verdict::Refused(_))
            && let Some(connection) = connection
            && self.rewrites.is_due(facts, Instant::now())
        {
            self.rewrites.on_answer(rewrite(facts, connection).await);
        }
        match verdict {
            Verdict::Usable { durability, warnings } => {
                self.usable(durability, &warnings).await;
                true
            }
            Verdict::Full(why) => self.unusable(Health::Full, &format!("queue_full: {why}")),
            Verdict::Refused(why) => {
                self.unusable(Health::Unavailable, &format!("queue_refused: {why}"))
            }
        }
    }

    async fn usable(&mut self, durability: Durability, warnings: &[&'static str]) {
        self.state.set(Health::Usable);
        self.state.shared.looked.cancel();
        if let Some(spill) = self.state.spill() {
            // At a start with nothing on disk, spilling ends before it is worth a word.
            timeout(LOOK_AGAIN, spill.settled()).await.ok();
        }
        let is_spilling = self.state.spill().filter(|spill| spill.is_spilling());
        let is_news = match is_spilling {
            Some(spill) => {
                self.spilling(spill, "catching up: what was spilled is fed to redis first");
                false
            }
            None => self.readiness.ready(),
        };
        if is_news {
            tracing::info!(durability = durability as u8, "the queue is usable");
        }
        self.safety.show(durability, warnings, is_news);
    }

    fn unusable(&self, health: Health, reason: &str) -> bool {
        self.state.set(health);
        if let Some(spill) = self.state.spill() {
            self.spilling(spill, reason);
        } else if self.readiness.not_ready(reason) {
            tracing::error!(reason, "the queue is not usable; webhooks are answered 503");
        }
        false
    }

    fn spilling(&self, spill: &Spill, reason: &str) {
        if let Some(trouble) = spill.trouble() {
            let reason = format!("{trouble}; {reason}");
            if self.readiness.not_ready(reason.clone()) {
                tracing::error!(reason, "webhooks cannot be spilled; they are answered 503");
            }
        } else if self.readiness.ready_but(format!("spilling: {reason}")) {
            tracing::warn!(reason, "webhooks are taken in and spilled to disk");
        }
    }
}

/// Asks for a rewrite of the AOF; says whether Redis accepted that.
async fn rewrite(facts: &Facts, connection: &mut Connection) -> bool {
    let failures = facts.rewrite_failures;
    let started = rewrite::start(connection).await;
    match &started {
        Ok(()) => tracing::info!(bytes = facts.aof_bytes, failures, "aof rewrite started"),
        Err(error) => tracing::warn!(error = chain(error), "the aof could not be rewritten"),
    }
    started.is_ok()
}
