//! Watch over Redis: looks at it, reports what it found, and shows it in the metrics.
//!
//! Readiness and log lines follow from the store mode and from what the look found.

use std::time::{Duration, Instant};

use spillway_queue::drains::{self, StartAt};
use spillway_queue::health::{self, Durability, DurabilityPolicy, Facts, FirstAof, Verdict};
use spillway_queue::rewrite::{self, RewriteBackoff};
use spillway_queue::{Connection, QueueError, Redis, feed, permissions, status};
use spillway_service::Readiness;
use spillway_service::error::chain;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Metrics, QueueGauges};
use crate::settings::Settings;
use crate::shares::Judge;
use crate::store::Store;
use crate::store::claim::ClaimFollower;
use crate::store::log::OverflowLog;
use crate::store::looks::QueueHealth;
use crate::store::mode::{StoreEvent, StoreMode};
use crate::store::safety::SafetyLog;

/// Time between looks at a healthy Redis: so soon is one noticed that went while nothing arrived,
/// or filled up for other reasons than us. A look costs Redis about 0.1 ms.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same of one that is not usable, so that it is used again soon after it is.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// A look that takes longer is a failed one.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a receiver with a log stands back.
const CLAIMED_BY_A_LOG: &str =
    "spill_claimed: another receiver has this cell, and answers for it: stop either";
/// Why a receiver without a log stands back.
const CLAIMED: &str =
    "queue_refused: a receiver with SPILL_DIR has this cell, and is its only one: stop either";

/// Looks at Redis and reports what it found.
pub struct Watch {
    redis: Redis,
    durability: DurabilityPolicy,
    store: Store,
    readiness: Readiness,
    gauges: QueueGauges,
    /// Receivers with a log, where this one has none.
    claim: ClaimFollower,
    /// Shops that take too much.
    shops: Judge,
    first_aof: FirstAof,
    /// Those that there were when the look began.
    suspicions: u64,
    /// Spaces rewrites of the AOF.
    rewrites: RewriteBackoff,
    safety: SafetyLog,
}

impl Watch {
    /// Puts a watch together.
    pub fn new(
        settings: &Settings,
        store: Store,
        readiness: Readiness,
        metrics: &Metrics,
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
            suspicions: 0,
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

    /// Looks until `stop`: at every change the store mode, `/readyz` and the log follow.
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
            looks.set_looked();
            let pause = if is_usable { LOOK_EVERY } else { LOOK_AGAIN };
            tokio::select! {
                () = stop.cancelled() => return,
                // After a failed append a look at once would often see Redis in mid-fall.
                () = looks.asked() => tokio::time::sleep(LOOK_AGAIN).await,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn look(
        &mut self,
        connection: &mut Option<Connection>,
    ) -> Result<(Facts, Verdict), QueueError> {
        let looks = self.store.looks().clone();
        let connected = match connection {
            Some(connected) => connected,
            None => {
                let connected = self.redis.connect(Some(LOOK_TIMEOUT)).await?;
                looks.renew_connections();
                connection.insert(connected)
            }
        };
        let mut facts = health::read(&self.redis, connected).await?;
        self.first_aof.look(&mut facts);
        looks.count_answer();
        let mut verdict = health::judge(&facts, self.durability, looks.is_full());
        let missing = permissions::missing(&self.redis, connected).await?;
        if !missing.is_empty() {
            let missing = missing.join(", ");
            verdict = Verdict::Refused(format!(
                "the redis user may not use {missing} on the keys of this cell: docs/redis.md has the rule"
            ));
            // It may still queue commands.
            *connection = None;
            return Ok((facts, verdict));
        }
        if matches!(verdict, Verdict::Usable { .. }) {
            match drains::register(&self.redis, connected, None, StartAt::Oldest).await {
                Err(error @ QueueError::OlderPrefix) => {
                    return Ok((facts, Verdict::Refused(error.to_string())));
                }
                registered => registered?,
            };
            if self.store.log().is_none() {
                let held = feed::look(&self.redis, connected).await?;
                let is_alive = self.claim.is_alive(&held);
                let event = if is_alive { StoreEvent::ClaimTheirs } else { StoreEvent::ClaimFree };
                self.store.gate().on(event);
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
        self.gauges.show(facts, self.durability.is_vouched);
        if !matches!(verdict, Verdict::Refused(_))
            && let Some(connection) = connection
            && self.rewrites.is_due(facts, Instant::now())
        {
            self.rewrites.on_answer(rewrite(facts, connection).await);
        }
        match verdict {
            Verdict::Usable { durability, warnings } => self.usable(durability, &warnings).await,
            Verdict::Full(why) => {
                if self.may_restore(facts) {
                    self.store.looks().set_short(self.suspicions);
                } else {
                    self.store.looks().set(QueueHealth::Full);
                }
                self.report_unusable(&format!("queue_full: {why}"));
                false
            }
            Verdict::Refused(why) => {
                self.unusable(QueueHealth::Unavailable, &format!("queue_refused: {why}"))
            }
        }
    }

    async fn usable(&mut self, durability: Durability, warnings: &[&'static str]) -> bool {
        if !self.store.looks().set_usable(self.suspicions) {
            // It may have been another Redis that was looked at.
            return false;
        }
        self.store.looks().set_looked();
        if let Some(log) = self.store.log() {
            // At a start with an empty log, spilling ends before it is worth a word.
            timeout(LOOK_AGAIN, log.settled().cancelled()).await.ok();
        }
        let is_news = match (self.store.gate().mode(), self.store.log()) {
            (StoreMode::Direct, _) => self.readiness.ready(),
            (StoreMode::StandingBack, log) => {
                self.refusing(if log.is_some() { CLAIMED_BY_A_LOG } else { CLAIMED });
                false
            }
            (_, Some(log)) => {
                self.spilling(&**log, "catching up: what was spilled is fed to redis first");
                false
            }
            // An append has just failed: the next look says more.
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

    /// Whether a log on Redis' own disk may be restored though that is short of room: it takes no more than it
    /// leaves, and without it there would never be more.
    fn may_restore(&self, facts: &Facts) -> bool {
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
