//! Watch over Redis: looks at it, reports the result, and shows it in the metrics.
//!
//! Readiness and log lines follow from the store mode and from the result of the look.

use std::time::{Duration, Instant};

use spillway_process::Readiness;
use spillway_process::clock::wall_clock_ms;
use spillway_process::error::chain;
use spillway_queue::consumers::{self, StartAt};
use spillway_queue::gaps::{note_run, read_run};
use spillway_queue::health::{
    self, Durability, DurabilityPolicy, FirstAof, HealthVerdict, RedisInfo,
};
use spillway_queue::rewrite::{self, RewriteBackoff};
use spillway_queue::{AofDisk, Connection, QueueError, Redis, permissions, restore, status};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::gaps::losses::ConnectionFacts;
use crate::metrics::{ReceiverMetrics, ReceiverQueueGauges};
use crate::settings::ReceiverSettings;
use crate::shares::Judge;
use crate::store::Store;
use crate::store::claim::ClaimFollower;
use crate::store::log::OverflowLog;
use crate::store::looks::QueueHealth;
use crate::store::mode::{StoreEvent, StoreMode};
use crate::store::safety::SafetyLog;

/// Time between looks at a healthy Redis. So soon it is noticed that Redis went away while nothing
/// arrived, or that others filled it. A look costs Redis about 0.1 ms.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between looks at a Redis that is not usable, so that it is used soon after it recovers.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Time after which a look counts as failed.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// Reason for which a receiver with a log stands back.
const CLAIMED_BY_A_LOG: &str =
    "spill_claimed: another receiver holds this cell's overflow claim; stop one of them";
/// Reason for which a receiver without a log stands back.
const CLAIMED: &str =
    "queue_refused: a receiver with SPILL_DIR must be its cell's only one; stop one of them";

/// Looks at Redis and reports what it found.
pub struct RedisWatch {
    redis: Redis,
    durability: DurabilityPolicy,
    store: Store,
    readiness: Readiness,
    gauges: ReceiverQueueGauges,
    /// Follows the claim of a receiver with a log, where this one has none.
    claim: ClaimFollower,
    /// Judges which shops take too much of the queue.
    shops: Judge,
    first_aof: FirstAof,
    /// Disk of the AOF. It may hang, and this task must not: `/livez` watches it.
    disk: AofDisk,
    /// Suspicions when the last look began.
    suspicions: u64,
    /// Spaces rewrites of the AOF.
    rewrites: RewriteBackoff,
    safety: SafetyLog,
}

impl RedisWatch {
    /// Puts a watch together.
    pub fn new(
        settings: &ReceiverSettings,
        store: Store,
        readiness: Readiness,
        metrics: &ReceiverMetrics,
        shops: Judge,
    ) -> Self {
        Self {
            redis: settings.common.redis.clone(),
            durability: settings.durability,
            store,
            readiness,
            gauges: metrics.queue.clone(),
            claim: ClaimFollower::default(),
            shops,
            first_aof: FirstAof::default(),
            disk: AofDisk::default(),
            suspicions: 0,
            rewrites: RewriteBackoff::default(),
            safety: SafetyLog::default(),
        }
    }

    /// Looks once, at start.
    ///
    /// # Errors
    /// If Redis can't be reached, or is loading its data.
    pub async fn look_once(&self) -> Result<(), QueueError> {
        let mut connection = self.redis.connect(Some(LOOK_TIMEOUT)).await?;
        // A Redis that is still loading answers INFO, but not PING.
        health::ping(&mut connection).await?;
        health::read(&self.redis, &mut connection, &mut AofDisk::default()).await.map(|_| ())
    }

    /// Looks until `stop`. The store mode, `/readyz` and the log follow each change.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut connection = None;
        let looks = self.store.looks().clone();
        loop {
            let before = std::mem::replace(&mut self.suspicions, looks.suspicions());
            if before != self.suspicions {
                connection = None;
            }
            let is_usable = match self.look(&mut connection).await {
                Ok((facts, verdict)) => self.found(&facts, verdict, connection.as_mut()).await,
                Err(error) => {
                    connection = None;
                    self.gauges.unreachable();
                    self.shops.look_failed();
                    let reason = format!("queue_unavailable: {}", chain(&error));
                    self.unusable(QueueHealth::Unavailable, &reason)
                }
            };
            self.store.gaps().on_look(self.store.takes().is_ok(), wall_clock_ms());
            looks.set_looked();
            let pause = if is_usable { LOOK_EVERY } else { LOOK_AGAIN };
            tokio::select! {
                () = stop.cancelled() => return,
                // Right after a failed append, a look would often see Redis while it is still
                // failing.
                () = looks.asked() => tokio::time::sleep(LOOK_AGAIN).await,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn look(
        &mut self,
        connection: &mut Option<Connection>,
    ) -> Result<(RedisInfo, HealthVerdict), QueueError> {
        let looks = self.store.looks().clone();
        let connected = match connection {
            Some(connected) => connected,
            None => {
                let mut connected = self.redis.connect(Some(LOOK_TIMEOUT)).await?;
                // Before the shards connect: what they append here would hide a loss.
                let stored_ms = looks.stored().ms();
                if let Ok(run) = read_run(&self.redis, &mut connected).await {
                    let mut losses = self.store.gaps().losses();
                    losses.on_stream_end(stored_ms, run.newest.ms, wall_clock_ms());
                }
                looks.renew_connections();
                connection.insert(connected)
            }
        };
        let mut facts = health::read(&self.redis, connected, &mut self.disk).await?;
        self.first_aof.look(&mut facts);
        looks.count_answer();
        let mut verdict = health::judge(&facts, self.durability, looks.is_full());
        let missing = permissions::missing(&self.redis, connected).await?;
        if !missing.is_empty() {
            let missing = missing.join(", ");
            verdict = HealthVerdict::Refused(format!(
                "the redis user may not use {missing} on the keys of this cell: docs/redis.md has the rule"
            ));
            // The connection may still queue commands.
            *connection = None;
            return Ok((facts, verdict));
        }
        if matches!(verdict, HealthVerdict::Usable { .. }) {
            match consumers::register(&self.redis, connected, None, StartAt::Oldest).await {
                Err(error @ (QueueError::OlderPrefix | QueueError::Restoring)) => {
                    return Ok((facts, HealthVerdict::Refused(error.to_string())));
                }
                registered => registered?,
            };
            if self.store.log().is_none() {
                let held = restore::look(&self.redis, connected).await?;
                let is_alive = self.claim.observe(&held);
                let event = if is_alive { StoreEvent::ClaimTheirs } else { StoreEvent::ClaimFree };
                self.store.gate().on(event);
            }
        }
        if !matches!(verdict, HealthVerdict::Refused(_)) {
            self.note_losses(connected, &facts).await;
        }
        self.show_consumers(connected).await;
        Ok((facts, verdict))
    }

    /// Notes what Redis may have lost, once for each connection. A Redis that fails here is still usable, and is asked
    /// again with the next look.
    async fn note_losses(&mut self, connection: &mut Connection, facts: &RedisInfo) {
        let gaps = self.store.gaps();
        let generation = self.store.looks().generation();
        if gaps.losses().is_known(generation) {
            return gaps.losses().on_answer(wall_clock_ms());
        }
        // Read first: an append that is confirmed from now on is not of the past.
        let stored_ms = self.store.looks().stored().ms();
        let durability = health::durability(facts, self.durability.is_vouched);
        let keeps_all = durability == Durability::Vouched
            || durability == Durability::Always && self.redis.is_local();
        let noting = async {
            let run = read_run(&self.redis, connection).await?;
            let facts = ConnectionFacts { stored_ms, keeps_all, now_ms: wall_clock_ms() };
            let lost = gaps.losses().on_run(&run, facts);
            note_run(&self.redis, connection, &run, lost.as_ref()).await.map(|()| lost)
        };
        match noting.await {
            Ok(lost) => gaps.losses().on_noted(generation, lost.as_ref(), wall_clock_ms()),
            Err(error) => {
                tracing::debug!(error = chain(&error), "the run of redis could not be noted");
            }
        }
    }

    /// Shows all consumers in the metrics. Every process does this, for the case that all consumers
    /// are dead. A Redis that fails here is still usable.
    async fn show_consumers(&mut self, connection: &mut Connection) {
        match status::read(&self.redis, connection).await {
            Ok(status) => {
                self.gauges.consumers.show(&status.consumers);
                self.shops.look(&status);
            }
            Err(error) => {
                self.shops.look_failed();
                tracing::debug!(error = chain(&error), "the consumers could not be looked at")
            }
        }
    }

    async fn found(
        &mut self,
        facts: &RedisInfo,
        verdict: HealthVerdict,
        connection: Option<&mut Connection>,
    ) -> bool {
        self.gauges.show(facts, self.durability.is_vouched);
        if !matches!(verdict, HealthVerdict::Refused(_))
            && let Some(connection) = connection
            && self.rewrites.try_begin(facts, Instant::now())
        {
            self.rewrites.on_answer(rewrite(facts, connection).await);
        }
        match verdict {
            HealthVerdict::Usable { durability, warnings } => {
                self.usable(durability, &warnings).await
            }
            HealthVerdict::Full(why) => {
                if self.may_restore(facts) {
                    self.store.looks().set_short(self.suspicions);
                } else {
                    self.store.looks().set(QueueHealth::Full);
                }
                self.report_unusable(&format!("queue_full: {why}"));
                false
            }
            HealthVerdict::Refused(why) => {
                self.unusable(QueueHealth::Unavailable, &format!("queue_refused: {why}"))
            }
        }
    }

    async fn usable(&mut self, durability: Durability, warnings: &[&'static str]) -> bool {
        if !self.store.looks().set_usable(self.suspicions) {
            // The look may have been at another Redis.
            return false;
        }
        self.store.looks().set_looked();
        if let Some(log) = self.store.log() {
            // At a start with an empty log, spilling ends before it is worth a log line.
            timeout(LOOK_AGAIN, log.first_turn_over().cancelled()).await.ok();
        }
        let is_news = match (self.store.gate().mode(), self.store.log()) {
            (StoreMode::Direct, _) => self.readiness.ready(),
            (StoreMode::StandingBack, log) => {
                self.refusing(if log.is_some() { CLAIMED_BY_A_LOG } else { CLAIMED });
                false
            }
            (_, Some(log)) => {
                self.spilling(&**log, "restoring the overflow to redis before new webhooks");
                false
            }
            // An append has just failed. The next look knows more.
            (_, None) => false,
        };
        if is_news {
            tracing::info!(durability = durability as u8, "the queue is usable");
        }
        self.safety.show(durability, warnings, is_news);
        self.store.gate().mode() != StoreMode::StandingBack
    }

    fn unusable(&self, health: QueueHealth, reason: &str) -> bool {
        self.store.looks().set(health);
        self.report_unusable(reason);
        false
    }

    fn report_unusable(&self, reason: &str) {
        match self.store.log() {
            Some(_) if self.store.gate().mode() == StoreMode::StandingBack => {
                self.refusing(CLAIMED_BY_A_LOG);
            }
            Some(log) => self.spilling(&**log, reason),
            None => self.refusing(reason),
        }
    }

    /// Returns true if a log on Redis' own disk may be restored though that disk is short of room.
    /// Restoring takes no more room than it frees, and without it there would never be more room.
    fn may_restore(&self, facts: &RedisInfo) -> bool {
        let device = self.store.log().and_then(|log| log.device());
        device.is_some() && device == facts.disk_device && health::is_short_of_disk_only(facts)
    }

    fn refusing(&self, reason: &str) {
        if self.readiness.not_ready(reason) {
            tracing::error!(reason, "the queue is not usable; webhooks are answered 503");
        }
    }

    fn spilling(&self, log: &dyn OverflowLog, reason: &str) {
        if let Some(trouble) = log.trouble() {
            let reason = format!("{trouble}; {reason}");
            if self.readiness.not_ready(reason.clone()) {
                tracing::error!(reason, "webhooks cannot be spilled; they are answered 503");
            }
        } else if self.readiness.ready_but(format!("spilling: {reason}")) {
            tracing::warn!(reason, "webhooks are taken in and spilled to disk");
        }
    }
}

/// Asks for a rewrite of the AOF. Returns true if Redis accepted it.
async fn rewrite(facts: &RedisInfo, connection: &mut Connection) -> bool {
    let failures = facts.rewrite_failures;
    let started = rewrite::start(connection).await;
    match &started {
        Ok(()) => tracing::info!(bytes = facts.aof_bytes, failures, "aof rewrite started"),
        Err(error) => tracing::warn!(error = chain(error), "the aof could not be rewritten"),
    }
    started.is_ok()
}
