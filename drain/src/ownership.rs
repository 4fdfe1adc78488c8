//! One owner per drain: wait as a standby, own, lose or give up, wait again.
//!
//! Invariant: whoever works under a [`Tenure`] has held the drain since its [`Seat`] was taken, and
//! is told when it is lost. Whether anything new may be started is the tenure's to say.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_queue::drains::{self, StartAt};
use spillway_queue::owner::{BUMP_EVERY, Claim, Confirmed, Lease, Watch, boottime};
use spillway_queue::{Connection, QueueError, Redis};
use spillway_service::Readiness;
use spillway_service::error::chain;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::gauges::QueueGauges;

/// How often a standby looks, and an unreachable Redis is tried again.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Time for Redis' answer: a bump that takes longer is tried again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Why the work under a tenure ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was asked to, and everything under way is settled or out of time.
    Stopped,
    /// Another instance owns the drain.
    Lost,
    /// What Redis holds is not what was read: begin again from its state.
    Stale,
}

/// The drain that an instance wants to own, and where it says so.
#[derive(Clone)]
pub struct Place {
    /// Where the queue is.
    pub redis: Redis,
    /// The drain's name.
    pub drain: &'static str,
    /// Where the drain begins, if it is registered for the first time.
    pub start_at: StartAt,
    /// What `/readyz` says.
    pub readiness: Readiness,
    /// Shows who owns it.
    pub gauges: Arc<QueueGauges>,
}

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
    /// Redis' clock at the beginning of CLOCK_BOOTTIME, in milliseconds since the Unix epoch.
    booted_at_ms: AtomicU64,
    /// Bytes of dead letters, as of the last bump.
    dead_bytes: AtomicU64,
    /// Bytes of those that are not settled yet.
    dying_bytes: AtomicU64,
    is_full: AtomicBool,
    /// Version of the operator's orders, as of the last bump.
    orders: AtomicU64,
    /// Why no webhook gets out although the drain is owned.
    trouble: Mutex<Option<Cow<'static, str>>>,
    /// What waits while others flow.
    note: Mutex<Option<String>>,
}

/// The drain, just taken: its owner reads what Redis holds, and then holds it.
pub struct Seat {
    place: Place,
    connection: Connection,
    claim: Claim,
    tenure: Tenure,
    confirmed_at: Instant,
}

impl Tenure {
    /// Whether anything new may be started at `now` (CLOCK_BOOTTIME).
    pub fn holds(&self, now: Duration) -> bool {
        let confirmed_at = self.shared.confirmed_at_ms.load(Ordering::Relaxed);
        !self.lost.is_cancelled()
            && Lease::confirmed(Duration::from_millis(confirmed_at)).holds(now)
    }

    /// Redis' clock, in milliseconds since the Unix epoch: what was accepted, and when, is on it, and this machine's
    /// may be off.
    pub fn now_ms(&self) -> u64 {
        self.shared.booted_at_ms.load(Ordering::Relaxed).saturating_add(boot_ms())
    }

    /// Time for which new work may still begin at `now` (CLOCK_BOOTTIME).
    pub fn lease_left(&self, now: Duration) -> Duration {
        let confirmed_at = self.shared.confirmed_at_ms.load(Ordering::Relaxed);
        if self.lost.is_cancelled() {
            return Duration::ZERO;
        }
        Lease::confirmed(Duration::from_millis(confirmed_at)).left(now)
    }

    /// Whether Redis has reached its `maxmemory`.
    pub fn is_redis_full(&self) -> bool {
        self.shared.is_full.load(Ordering::Relaxed)
    }

    /// Bytes of dead letters that may still be written, of `bytes_max`: none while Redis is full.
    pub fn dead_room(&self, bytes_max: u64) -> u64 {
        let held = self.shared.dead_bytes.load(Ordering::Relaxed);
        if self.is_redis_full() { 0 } else { bytes_max.saturating_sub(held) }
    }

    /// Dead letters of `bytes` were written since the last bump.
    pub fn wrote_dead(&self, bytes: u64) {
        self.shared.dead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes `bytes` of the room for dead letters, if there is so much, and Redis is not full.
    pub fn has_room_for_dead(&self, bytes: u64, bytes_max: u64) -> bool {
        !self.shared.is_full.load(Ordering::Relaxed) && self.takes_dead(bytes, bytes_max)
    }

    /// Takes `bytes` of the room for dead letters, if there is so much.
    pub fn takes_dead(&self, bytes: u64, bytes_max: u64) -> bool {
        let held = self.shared.dead_bytes.load(Ordering::Relaxed)
            + self.shared.dying_bytes.load(Ordering::Relaxed);
        if held + bytes > bytes_max {
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

    /// Version of the operator's orders to this drain, at most a bump old.
    pub fn orders(&self) -> u64 {
        self.shared.orders.load(Ordering::Relaxed)
    }

    /// Notes why no webhook gets out, for `/readyz`; `None` when they do. Says whether that is
    /// news.
    pub fn show_trouble(&self, trouble: Option<Cow<'static, str>>) -> bool {
        let mut current = self.trouble();
        if *current == trouble {
            return false;
        }
        *current = trouble;
        true
    }

    /// Notes what waits while others flow, for `/readyz`.
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
        // An answer that took long puts that clock back rather than on: nothing seems older than it is.
        let booted_at_ms = confirmed.now_ms.saturating_sub(boot_ms());
        self.shared.booted_at_ms.store(booted_at_ms, Ordering::Relaxed);
        self.shared.dead_bytes.store(confirmed.dead_bytes, Ordering::Relaxed);
        self.shared.is_full.store(confirmed.is_full, Ordering::Relaxed);
        self.shared.orders.store(confirmed.orders, Ordering::Relaxed);
    }
}

fn boot_ms() -> u64 {
    u64::try_from(boottime().as_millis()).unwrap_or(u64::MAX)
}

/// Owns the drain whenever it can, until `shutdown`; what an owner does is `own`.
pub async fn run(
    place: &Place,
    shutdown: &CancellationToken,
    own: impl AsyncFn(Seat) -> Result<End, QueueError>,
) {
    while !shutdown.is_cancelled() {
        let owned = async { own(stand_by(place).await?).await };
        match owned_until(owned, place, shutdown).await {
            Some(Ok(end)) => {
                tracing::info!(?end, "the drain is not owned any more");
                if end == End::Stale {
                    // Whatever it was that made it begin again may do so again.
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
            Some(Err(error)) => {
                place.unavailable(&error);
                tokio::time::sleep(LOOK_EVERY).await;
            }
            None => return,
        }
    }
}

/// A standby stops at once; an owner is asked to by `shutdown`, and ends in its own time.
async fn owned_until(
    owned: impl Future<Output = Result<End, QueueError>>,
    place: &Place,
    shutdown: &CancellationToken,
) -> Option<Result<End, QueueError>> {
    let mut owned = std::pin::pin!(owned);
    tokio::select! {
        end = &mut owned => return Some(end),
        () = shutdown.cancelled() => {}
    }
    if place.gauges.owner.get() == 0 {
        return None;
    }
    Some(owned.await)
}

/// Waits until nobody owns the drain, and takes it.
async fn stand_by(place: &Place) -> Result<Seat, QueueError> {
    let Place { redis, drain, start_at, .. } = place;
    let mut connection = redis.connect(Some(ANSWER_TIMEOUT)).await?;
    let registered = drains::register(redis, &mut connection, Some(drain), *start_at).await?;
    let claim = Claim::new(redis.clone(), drain);
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
        if place.readiness.not_ready("standby: another instance owns the drain") {
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
            booted_at_ms: AtomicU64::new(0),
            dead_bytes: AtomicU64::new(0),
            dying_bytes: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            orders: AtomicU64::new(0),
            trouble: Mutex::new(None),
            note: Mutex::new(None),
        }),
    };
    tenure.confirmed(sent_at, confirmed);
    let confirmed_at = Instant::now();
    Ok(Seat { place: place.clone(), connection, claim, tenure, confirmed_at })
}

impl Seat {
    /// What the work under this ownership is given.
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// The connection by which the drain was taken.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Confirms the ownership if that is due: for an owner that reads for long before it works.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] when it was lost.
    pub async fn confirm(&mut self) -> Result<(), QueueError> {
        if self.confirmed_at.elapsed() >= BUMP_EVERY {
            self.confirmed_at = Instant::now();
            let sent_at = boottime();
            self.tenure.confirmed(sent_at, self.claim.bump(&mut self.connection).await?);
        }
        Ok(())
    }

    /// Does `work` while the ownership is confirmed again and again beside it, and gives the drain
    /// up afterwards.
    pub async fn hold(self, work: impl AsyncFnOnce(Tenure) -> End) -> End {
        let Self { place, connection, claim, tenure, .. } = self;
        place.gauges.owner.set(1);
        place.show(&tenure);
        // A task of its own: the lease must not wait for whatever the drain is busy with.
        let claim = Arc::new(claim);
        let keeper = keep(place.clone(), claim.clone(), tenure.clone(), connection);
        let keeper = tokio::spawn(keeper);
        let end = work(tenure).await;
        keeper.abort();
        if end != End::Lost
            && let Ok(mut connection) = place.redis.connect(Some(ANSWER_TIMEOUT)).await
            && let Err(error) = claim.release(&mut connection).await
        {
            tracing::debug!(
                error = chain(&error),
                "the drain was not released; a standby takes it in 8 s"
            );
        }
        place.gauges.owner.set(0);
        end
    }
}

/// Confirms the ownership again and again; says when it is lost.
async fn keep(place: Place, claim: Arc<Claim>, tenure: Tenure, connection: Connection) {
    let redis = &place.redis;
    // However this ends: without it the lease runs out, and the instance would own and do nothing.
    let _lost = tenure.lost.clone().drop_guard();
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
                place.show(&tenure);
                tokio::time::sleep_until(next_bump).await;
            }
            Err(QueueError::Fenced) => {
                tracing::warn!("another instance took the drain");
                return;
            }
            Err(error) => {
                connection = None;
                place.unavailable(&error);
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

impl Place {
    /// Redis answers, and the drain is owned: ready, unless no webhook gets out.
    fn show(&self, tenure: &Tenure) {
        match tenure.trouble().as_deref() {
            Some(trouble) => self.readiness.not_ready(trouble),
            None => match tenure.note() {
                Some(note) => self.readiness.ready_but(note),
                None => self.readiness.ready(),
            },
        };
    }

    fn unavailable(&self, error: &QueueError) {
        if self.readiness.not_ready(format!("queue_unavailable: {}", chain(error))) {
            tracing::warn!(error = chain(error), "redis does not answer; waiting for it");
        }
    }
}
