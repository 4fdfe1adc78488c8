//! One owner per drain: wait as a standby, own, lose or give up, wait again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spillway_queue::drains::{self, HTTP, StartAt};
use spillway_queue::owner::{BUMP_EVERY, Claim, Confirmed, Lease, Watch, boottime};
use spillway_queue::read::Reader;
use spillway_queue::{Connection, QueueError};
use spillway_service::Readiness;
use spillway_service::clock::wall_clock_ms;
use spillway_service::error::chain;
use spillway_webhook::StreamId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::deliver::Sender;
use crate::drain::{Drain, End, Known};
use crate::metrics::Metrics;
use crate::seen::Seen;
use crate::settings::{Dedup, Settings};

/// How often a standby looks, and an unreachable Redis is tried again.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Time for Redis' answer: a bump that takes longer is tried again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// This instance's ownership of the drain, as far as it is confirmed.
#[derive(Clone)]
pub struct Tenure {
    /// What settlements carry.
    pub token: String,
    /// The random id of this cell.
    pub cell: u32,
    /// Cancelled when another instance took the drain.
    pub lost: CancellationToken,
    shared: Arc<Shared>,
}

struct Shared {
    /// CLOCK_BOOTTIME, in ms, when the last confirmed bump was sent.
    confirmed_at_ms: AtomicU64,
    /// Bytes of dead letters, as of the last bump.
    dead_bytes: AtomicU64,
    /// Bytes of those that are not settled yet.
    dying_bytes: AtomicU64,
    is_full: AtomicBool,
    /// Whether the backend refuses everything.
    is_refused: AtomicBool,
}

impl Tenure {
    /// Whether anything new may be started at `now` (CLOCK_BOOTTIME).
    pub fn holds(&self, now: Duration) -> bool {
        let confirmed_at = self.shared.confirmed_at_ms.load(Ordering::Relaxed);
        !self.lost.is_cancelled()
            && Lease::confirmed(Duration::from_millis(confirmed_at)).holds(now)
    }

    /// Takes `bytes` of the room for dead letters, if there is so much, and Redis is not full.
    pub fn has_room_for_dead(&self, bytes: u64, bytes_max: u64) -> bool {
        let held = self.shared.dead_bytes.load(Ordering::Relaxed)
            + self.shared.dying_bytes.load(Ordering::Relaxed);
        if self.shared.is_full.load(Ordering::Relaxed) || held + bytes > bytes_max {
            return false;
        }
        self.shared.dying_bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Dead letters of `bytes` are settled: Redis counts them from now on.
    pub fn settled_dead(&self, bytes: u64) {
        self.shared.dying_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.dead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes whether the backend refuses everything, for `/readyz`.
    pub fn show_refused(&self, is_refused: bool) {
        self.shared.is_refused.store(is_refused, Ordering::Relaxed);
    }

    fn confirmed(&self, sent_at: Duration, confirmed: Confirmed) {
        let sent_at_ms = u64::try_from(sent_at.as_millis()).unwrap_or(0);
        self.shared.confirmed_at_ms.store(sent_at_ms, Ordering::Relaxed);
        self.shared.dead_bytes.store(confirmed.dead_bytes, Ordering::Relaxed);
        self.shared.is_full.store(confirmed.is_full, Ordering::Relaxed);
    }
}

/// Everything an instance keeps while owners change.
#[derive(Clone)]
pub struct Instance {
    /// Its settings.
    pub settings: Arc<Settings>,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// Its connections to the backend.
    pub sender: Arc<Sender>,
    /// What `/readyz` says.
    pub readiness: Readiness,
}

/// Owns the drain whenever it can, until `shutdown`.
pub async fn run(instance: &Instance, shutdown: &CancellationToken) {
    while !shutdown.is_cancelled() {
        let owned = tokio::select! {
            owned = stand_by(instance) => owned,
            () = shutdown.cancelled() => return,
        };
        match owned {
            Ok(owned) => {
                let end = own(instance, owned, shutdown).await;
                instance.metrics.owner.set(0);
                tracing::info!(?end, "the drain is not owned any more");
                if end == End::Stale {
                    // Whatever it was that made it begin again may do so again.
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
            Err(error) => {
                instance.unavailable(&error);
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

struct Owned {
    connection: Connection,
    claim: Claim,
    tenure: Tenure,
    known: Known,
}

/// Waits until nobody owns the drain, and takes it.
async fn stand_by(instance: &Instance) -> Result<Owned, QueueError> {
    let redis = &instance.settings.common.redis;
    let mut connection = redis.connect(Some(ANSWER_TIMEOUT)).await?;
    let registered = drains::register(redis, &mut connection, Some(HTTP), StartAt::Oldest).await?;
    let claim = Claim::new(redis.clone(), HTTP);
    let mut watch = Watch::default();
    let mut last_answer = Instant::now();
    let (sent_at, confirmed) = loop {
        let seen = claim.look(&mut connection).await?;
        let since_last = last_answer.elapsed();
        last_answer = Instant::now();
        if watch.may_take(&seen, since_last) {
            let sent_at = boottime();
            match claim.take(&mut connection, &seen).await {
                Ok(confirmed) => break (sent_at, confirmed),
                Err(QueueError::Fenced) => continue,
                Err(error) => return Err(error),
            }
        }
        if instance.readiness.not_ready("standby: another instance owns the drain") {
            tracing::info!("another instance owns the drain; standing by");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let tenure = Tenure {
        token: claim.token().to_owned(),
        cell: registered.cell,
        lost: CancellationToken::new(),
        shared: Arc::new(Shared {
            confirmed_at_ms: AtomicU64::new(0),
            dead_bytes: AtomicU64::new(0),
            dying_bytes: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
        }),
    };
    tenure.confirmed(sent_at, confirmed);
    let reader = Reader::new(redis.clone(), HTTP);
    let progress = reader.progress(&mut connection).await?;
    let dedup = instance.settings.dedup;
    let seen = seen(&reader, &mut connection, &claim, &tenure, dedup).await?;
    Ok(Owned { connection, claim, tenure, known: Known { progress, seen } })
}

/// What was delivered within the window, by this instance or another. The ownership is confirmed
/// meanwhile: there may be millions to read.
async fn seen(
    reader: &Reader,
    connection: &mut Connection,
    claim: &Claim,
    tenure: &Tenure,
    dedup: Dedup,
) -> Result<Seen, QueueError> {
    let mut next_bump = Instant::now() + BUMP_EVERY;
    let mut seen = Seen::new(dedup.window, dedup.bytes);
    let mut after = StreamId { ms: seen.forgets_before_ms(wall_clock_ms()), seq: 0 };
    while seen.is_on() {
        let found = reader.seen_after(connection, after).await?;
        let Some((last, _)) = found.last() else { break };
        after = *last;
        if Instant::now() >= next_bump {
            next_bump = Instant::now() + BUMP_EVERY;
            let sent_at = boottime();
            tenure.confirmed(sent_at, claim.bump(connection).await?);
        }
        for (id, fingerprints) in found {
            fingerprints.into_iter().for_each(|one| seen.insert(one, id.ms));
        }
    }
    Ok(seen)
}

async fn own(instance: &Instance, owned: Owned, shutdown: &CancellationToken) -> End {
    let Owned { connection, claim, tenure, known } = owned;
    tracing::info!(cursor = %known.progress.cursor, "owning the drain");
    instance.metrics.owner.set(1);
    instance.readiness.ready();
    let redis = &instance.settings.common.redis;
    let (drain, around) = Drain::start(
        redis,
        HTTP,
        instance.settings.clone(),
        instance.metrics.clone(),
        instance.sender.clone(),
        tenure.clone(),
        known,
    );
    // A task of its own: the lease must not wait for whatever the drain is busy with.
    let claim = Arc::new(claim);
    let keeper = tokio::spawn(keep(instance.clone(), claim.clone(), tenure, connection));
    let end = drain.run(around, shutdown).await;
    keeper.abort();
    if end != End::Lost
        && let Ok(mut connection) = redis.connect(Some(ANSWER_TIMEOUT)).await
        && let Err(error) = claim.release(&mut connection).await
    {
        tracing::debug!(
            error = chain(&error),
            "the drain was not released; a standby takes it in 8 s"
        );
    }
    end
}

/// Confirms the ownership again and again; says when it is lost.
async fn keep(instance: Instance, claim: Arc<Claim>, tenure: Tenure, connection: Connection) {
    let redis = &instance.settings.common.redis;
    let mut connection = Some(connection);
    loop {
        let next_bump = Instant::now() + BUMP_EVERY;
        let sent_at = boottime();
        let bumped = match connection.as_mut() {
            Some(connection) => claim.bump(connection).await,
            None => match redis.connect(Some(ANSWER_TIMEOUT)).await {
                Ok(fresh) => claim.bump(connection.insert(fresh)).await,
                Err(error) => Err(error),
            },
        };
        match bumped {
            Ok(confirmed) => {
                tenure.confirmed(sent_at, confirmed);
                instance.show(&tenure);
                tokio::time::sleep_until(next_bump).await;
            }
            Err(QueueError::Fenced) => {
                tracing::warn!("another instance took the drain");
                tenure.lost.cancel();
                return;
            }
            Err(error) => {
                connection = None;
                instance.unavailable(&error);
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

impl Instance {
    /// Redis answers, and the drain is owned: ready, unless the backend refuses everything.
    fn show(&self, tenure: &Tenure) {
        if tenure.shared.is_refused.load(Ordering::Relaxed) {
            self.readiness.not_ready(
                "destination_refuses: the backend refuses most of what it gets, of every shop",
            );
        } else {
            self.readiness.ready();
        }
    }

    fn unavailable(&self, error: &QueueError) {
        if self.readiness.not_ready(format!("queue_unavailable: {}", chain(error))) {
            tracing::warn!(error = chain(error), "redis does not answer; waiting for it");
        }
    }
}
