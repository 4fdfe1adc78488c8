//! Leader election of a consumer: stand by, lead, lose or release the lease, stand by again.
//!
//! Invariant: work under a [`LeaderHandle`] runs only after its [`Leadership`] was taken, and it is
//! notified when the lease is lost. The handle decides if new work may be started.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_process::Readiness;
use spillway_process::error::chain;
use spillway_queue::consumers::{self, StartAt};
use spillway_queue::leader::{BUMP_EVERY, Candidacy, Confirmed, Lease, StallDetector, boottime};
use spillway_queue::{Connection, QueueError, Redis};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer_settings::ConsumerSettings;
use crate::gauges::QueueGauges;

/// Time between two looks of a standby, and between two attempts to reach Redis.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
const _: () = assert!(LOOK_EVERY.as_millis() < BUMP_EVERY.as_millis(), "a standby sees each bump");
/// Time for Redis' answer. A bump that takes longer is tried again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Reason in `/readyz` while Redis is away or loads its data.
const UNAVAILABLE: &str = "queue_unavailable";
/// Reason in `/readyz` while Redis has no room, or cannot write to its disk.
const FULL: &str = "queue_full";
/// Reason in `/readyz` while Redis answers and does not do what was asked.
const REFUSED: &str = "queue_refused";

/// State of a leader before it works, in `spillway status`.
const STARTING: &str = "starting: it reads what Redis holds";

/// Reason for which a leader's work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The work was told to stop, and everything under way is settled or out of time.
    Stopped,
    /// Another instance is the leader.
    Lost,
    /// Redis does not hold what was read: start again from its state.
    Stale,
}

/// Configuration of the leader election, and the places where its state is shown.
#[derive(Clone)]
pub struct ElectionConfig {
    /// Redis that holds the queue.
    pub redis: Redis,
    /// Name, kind and filter of the consumer.
    pub consumer: ConsumerSettings,
    /// Start position of the consumer, if it is registered for the first time.
    pub start_at: StartAt,
    /// Readiness to update, for `/readyz`.
    pub readiness: Readiness,
    /// Metrics to update.
    pub gauges: Arc<QueueGauges>,
}

/// Lease of this instance, as far as it is confirmed.
#[derive(Clone)]
pub struct LeaderHandle {
    /// Token that settlements carry.
    pub token: String,
    /// Random id of this cell.
    pub cell: u32,
    /// Cancelled when another instance became the leader.
    pub lost: CancellationToken,
    shared: Arc<ElectionState>,
}

struct ElectionState {
    /// CLOCK_BOOTTIME in ms at which the last confirmed bump was sent.
    confirmed_at_ms: AtomicU64,
    /// Redis' clock at the beginning of CLOCK_BOOTTIME, in milliseconds since the Unix epoch.
    booted_at_ms: AtomicU64,
    /// Bytes of dead letters at the last bump, and of those settled since then.
    dead_bytes: AtomicU64,
    /// Bytes of dead letters that are not settled yet.
    dying_bytes: AtomicU64,
    is_full: AtomicBool,
    /// Version of the operator's controls at the last bump.
    controls: AtomicU64,
    /// Reason why no webhook is delivered although this instance is the leader.
    trouble: Mutex<Option<Cow<'static, str>>>,
    /// Remark on what waits while other webhooks are delivered.
    note: Mutex<Option<String>>,
}

/// A lease that was just taken. Its leader first reads what Redis holds, and then holds the lease.
pub struct Leadership {
    config: ElectionConfig,
    connection: Connection,
    candidacy: Candidacy,
    leader: LeaderHandle,
    confirmed_at: Instant,
}

impl LeaderHandle {
    /// Creates the handle of a lease that is not confirmed yet.
    fn new(token: &str, cell: u32) -> Self {
        Self {
            token: token.to_owned(),
            cell,
            lost: CancellationToken::new(),
            shared: Arc::new(ElectionState {
                confirmed_at_ms: AtomicU64::new(0),
                booted_at_ms: AtomicU64::new(0),
                dead_bytes: AtomicU64::new(0),
                dying_bytes: AtomicU64::new(0),
                is_full: AtomicBool::new(false),
                controls: AtomicU64::new(0),
                trouble: Mutex::new(None),
                note: Mutex::new(None),
            }),
        }
    }

    /// True if new work may be started at `now` (CLOCK_BOOTTIME).
    pub fn holds(&self, now: Duration) -> bool {
        let confirmed_at = self.shared.confirmed_at_ms.load(Ordering::Relaxed);
        !self.lost.is_cancelled()
            && Lease::confirmed(Duration::from_millis(confirmed_at)).holds(now)
    }

    /// Time of Redis' clock, in milliseconds since the Unix epoch. Accept times are on that clock.
    /// This machine's clock may be off.
    pub fn now_ms(&self) -> u64 {
        self.shared.booted_at_ms.load(Ordering::Relaxed).saturating_add(boot_ms())
    }

    /// Time, from `now` (CLOCK_BOOTTIME), in which new work may still begin.
    pub fn lease_left(&self, now: Duration) -> Duration {
        let confirmed_at = self.shared.confirmed_at_ms.load(Ordering::Relaxed);
        if self.lost.is_cancelled() {
            return Duration::ZERO;
        }
        Lease::confirmed(Duration::from_millis(confirmed_at)).left(now)
    }

    /// True if Redis has reached its `maxmemory`.
    pub fn is_redis_full(&self) -> bool {
        self.shared.is_full.load(Ordering::Relaxed)
    }

    /// Bytes of dead letters that may still be written, of `bytes_max`: 0 while Redis is full.
    pub fn dead_room(&self, bytes_max: u64) -> u64 {
        let held = self.shared.dead_bytes.load(Ordering::Relaxed);
        if self.is_redis_full() { 0 } else { bytes_max.saturating_sub(held) }
    }

    /// Records that dead letters of `bytes` were written since the last bump.
    pub fn add_dead_bytes(&self, bytes: u64) {
        self.shared.dead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Reserves `bytes` for dead letters, if there is enough room.
    pub fn try_reserve_dead(&self, bytes: u64, bytes_max: u64) -> bool {
        let held = self.shared.dead_bytes.load(Ordering::Relaxed)
            + self.shared.dying_bytes.load(Ordering::Relaxed);
        if held + bytes > bytes_max {
            return false;
        }
        self.shared.dying_bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Records that dead letters of `bytes` are settled: Redis counts them from now on.
    pub fn settled_dead(&self, bytes: u64) {
        self.shared.dying_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.dead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Version of the operator's controls to this consumer, at most a bump old.
    pub fn controls(&self) -> u64 {
        self.shared.controls.load(Ordering::Relaxed)
    }

    /// Sets the reason why no webhook is delivered, for `/readyz`; `None` if they are. Returns true
    /// if that is new.
    pub fn show_trouble(&self, trouble: Option<Cow<'static, str>>) -> bool {
        let mut current = self.trouble();
        if *current == trouble {
            return false;
        }
        *current = trouble;
        true
    }

    /// Sets the remark on what waits while other webhooks are delivered, for `/readyz`.
    pub fn show_note(&self, note: Option<String>) {
        *self.shared.note.lock().unwrap_or_else(PoisonError::into_inner) = note;
    }

    fn note(&self) -> Option<String> {
        self.shared.note.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn trouble(&self) -> MutexGuard<'_, Option<Cow<'static, str>>> {
        self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn confirmed(&self, sent_at: Duration, confirmed: Confirmed) {
        let sent_at_ms = u64::try_from(sent_at.as_millis()).unwrap_or(0);
        self.shared.confirmed_at_ms.store(sent_at_ms, Ordering::Relaxed);
        // A slow answer sets this clock back, never forward: nothing seems older than it is.
        let booted_at_ms = confirmed.now_ms.saturating_sub(boot_ms());
        self.shared.booted_at_ms.store(booted_at_ms, Ordering::Relaxed);
        self.shared.dead_bytes.store(confirmed.dead_bytes, Ordering::Relaxed);
        self.shared.is_full.store(confirmed.is_full, Ordering::Relaxed);
        self.shared.controls.store(confirmed.controls, Ordering::Relaxed);
    }
}

fn boot_ms() -> u64 {
    u64::try_from(boottime().as_millis()).unwrap_or(u64::MAX)
}

/// Leads the consumer whenever possible, until `shutdown`. `lead` is the leader's work.
pub async fn run(
    config: &ElectionConfig,
    shutdown: &CancellationToken,
    lead: impl AsyncFn(Leadership) -> Result<End, QueueError>,
) {
    while !shutdown.is_cancelled() {
        // A standby stops at once. A leader also gets `shutdown`, and ends in its own time.
        let led = match stand_by(config, shutdown).await {
            Ok(Some(leadership)) => lead(leadership).await,
            Ok(None) => return,
            Err(error) => Err(error),
        };
        match led {
            Ok(end) => {
                tracing::info!(?end, "leadership ended");
                if end == End::Stale {
                    // The cause of the new start may occur again.
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
            Err(error) => {
                config.unavailable(&error);
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// Leaders whose kind was compared with the own one. A leader publishes its kind as it takes the lease, so the
/// first look at each shows it.
#[derive(Debug, Default)]
struct KindCheck {
    /// Token of the leader that was seen last.
    token: String,
}

impl KindCheck {
    /// True if `seen`, the value of the leader's key, is that of another leader than before.
    fn begin_check(&mut self, seen: &str) -> bool {
        let token = seen.rsplit_once(':').map_or(seen, |(token, _)| token);
        if token.is_empty() || token == self.token {
            return false;
        }
        token.clone_into(&mut self.token);
        true
    }
}

/// Waits until there is no leader, and takes the lease. Returns `None` after `shutdown`.
async fn stand_by(
    config: &ElectionConfig,
    shutdown: &CancellationToken,
) -> Result<Option<Leadership>, QueueError> {
    let ElectionConfig { redis, consumer, start_at, .. } = config;
    let register = async {
        let mut connection = redis.connect(Some(ANSWER_TIMEOUT)).await?;
        let name = Some(&*consumer.name);
        let known = consumers::register(redis, &mut connection, name, *start_at).await?;
        Ok::<_, QueueError>((connection, known))
    };
    let Some(registered) = shutdown.run_until_cancelled(register).await else { return Ok(None) };
    let (mut connection, registered) = registered?;
    let candidacy = Candidacy::new(redis.clone(), &consumer.name);
    let candidacy = candidacy.publishing(consumer.kind, &consumer.filter);
    let mut watch = StallDetector::default();
    let mut last_answer = Instant::now();
    let mut kinds = KindCheck::default();
    let (sent_at, confirmed) = loop {
        let look = candidacy.look(&mut connection);
        let Some(seen) = shutdown.run_until_cancelled(look).await else { return Ok(None) };
        let seen = seen?;
        let since_last = last_answer.elapsed();
        last_answer = Instant::now();
        if kinds.begin_check(&seen) {
            candidacy.check(&mut connection).await?;
        }
        if watch.observe(&seen, since_last) {
            let sent_at = boottime();
            // Not cut short: the lease may be taken already.
            match candidacy.take(&mut connection, &seen).await {
                Ok(confirmed) => break (sent_at, confirmed),
                Err(QueueError::Fenced) => continue,
                Err(error) => return Err(error),
            }
        }
        if config.readiness.not_ready("standby: another instance is the leader") {
            tracing::info!("another instance is the leader; standing by");
        }
        let wait = tokio::time::sleep(LOOK_EVERY);
        if shutdown.run_until_cancelled(wait).await.is_none() {
            return Ok(None);
        }
    };
    let leader = LeaderHandle::new(candidacy.token(), registered.cell);
    leader.confirmed(sent_at, confirmed);
    let confirmed_at = Instant::now();
    Ok(Some(Leadership { config: config.clone(), connection, candidacy, leader, confirmed_at }))
}

impl Leadership {
    /// Lease to pass to the work.
    pub fn leader(&self) -> &LeaderHandle {
        &self.leader
    }

    /// Connection on which the lease was taken.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Confirms the lease if that is due, for a leader that reads for long before it works.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] when the lease was lost.
    pub async fn confirm(&mut self) -> Result<(), QueueError> {
        if self.confirmed_at.elapsed() >= BUMP_EVERY {
            self.confirmed_at = Instant::now();
            let sent_at = boottime();
            let bumped = self.candidacy.bump(&mut self.connection, STARTING).await?;
            self.leader.confirmed(sent_at, bumped);
        }
        Ok(())
    }

    /// Runs `work` while another task confirms the lease regularly, and releases the lease
    /// afterwards.
    pub async fn hold(self, work: impl AsyncFnOnce(LeaderHandle) -> End) -> End {
        let Self { config, connection, candidacy, leader, .. } = self;
        config.gauges.leader.set(1);
        config.show(&leader);
        // A separate task: the lease must not wait for what the work waits for.
        let candidacy = Arc::new(candidacy);
        let keeper = keep(config.clone(), candidacy.clone(), leader.clone(), connection);
        let keeper = tokio::spawn(keeper);
        let end = work(leader).await;
        keeper.abort();
        if end != End::Lost {
            release(&config.redis, &candidacy).await;
        }
        config.gauges.leader.set(0);
        end
    }

    /// Releases a lease that was taken and is not held.
    pub async fn release(self) {
        release(&self.config.redis, &self.candidacy).await;
    }
}

/// Releases the lease, so that a standby need not wait until it has expired.
async fn release(redis: &Redis, candidacy: &Candidacy) {
    if let Ok(mut connection) = redis.connect(Some(ANSWER_TIMEOUT)).await
        && let Err(error) = candidacy.release(&mut connection).await
    {
        tracing::debug!(
            error = chain(&error),
            "the consumer was not released; a standby takes it in 8 s"
        );
    }
}

/// Confirms the lease regularly. When it is lost, cancels the handle's `lost` token.
async fn keep(
    config: ElectionConfig,
    candidacy: Arc<Candidacy>,
    leader: LeaderHandle,
    connection: Connection,
) {
    let redis = &config.redis;
    // This applies to every end of the task: without it the lease would expire, and the leader
    // would do nothing.
    let _lost = leader.lost.clone().drop_guard();
    let mut connection = Some(connection);
    loop {
        let next_bump = Instant::now() + BUMP_EVERY;
        let sent_at = boottime();
        let state = config.readiness.summary();
        let bumped = match connection.as_mut() {
            Some(connection) => candidacy.bump(connection, &state).await,
            None => match redis.connect(Some(ANSWER_TIMEOUT)).await {
                Ok(fresh) => candidacy.bump(connection.insert(fresh), &state).await,
                Err(error) => Err(error),
            },
        };
        match bumped {
            Ok(confirmed) => {
                leader.confirmed(sent_at, confirmed);
                config.show(&leader);
                tokio::time::sleep_until(next_bump).await;
            }
            Err(QueueError::Fenced) => {
                tracing::warn!("another instance became the leader");
                return;
            }
            Err(error) => {
                connection = None;
                config.unavailable(&error);
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

impl ElectionConfig {
    /// Updates readiness: Redis answers and this instance leads, so it is ready unless no webhook
    /// is delivered.
    fn show(&self, leader: &LeaderHandle) {
        match leader.trouble().as_deref() {
            Some(trouble) => self.readiness.not_ready(trouble),
            None => match leader.note() {
                Some(note) => self.readiness.ready_but(note),
                None => self.readiness.ready(),
            },
        };
    }

    /// Updates readiness: the election cannot go on.
    fn unavailable(&self, error: &QueueError) {
        let reason = reason(error);
        if !self.readiness.not_ready(format!("{reason}: {}", chain(error))) {
            return;
        }
        if reason == UNAVAILABLE {
            tracing::warn!(error = chain(error), "redis does not answer; waiting for it");
        } else {
            tracing::warn!(error = chain(error), "redis refuses what was asked; trying again");
        }
    }
}

/// Reason in `/readyz` why the election cannot go on.
fn reason(error: &QueueError) -> &'static str {
    match error {
        QueueError::Unreachable(_) | QueueError::Loading => UNAVAILABLE,
        QueueError::Full(_) => FULL,
        QueueError::Refused(_)
        | QueueError::Fenced
        | QueueError::Unregistered
        | QueueError::OutOfStep
        | QueueError::OlderPrefix
        | QueueError::Restoring
        | QueueError::NotEmpty
        | QueueError::NotPlanned
        | QueueError::AuditFull
        | QueueError::Unexpected(_) => REFUSED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_not_taken_for_a_redis_that_is_away() {
        assert_eq!(reason(&QueueError::Loading), "queue_unavailable");
        for refusal in [QueueError::OlderPrefix, QueueError::Unregistered, QueueError::Fenced] {
            assert_eq!(reason(&refusal), "queue_refused", "{refusal}");
        }
    }

    #[test]
    fn the_kind_of_each_leader_is_checked_once() {
        let mut kinds = KindCheck::default();
        let due: Vec<bool> = ["", "a:1", "a:2", "", "a:3", "b:1", "b:2", "a:1"]
            .iter()
            .map(|seen| kinds.begin_check(seen))
            .collect();
        assert_eq!(due, [false, true, false, false, false, true, false, true]);
    }
}
