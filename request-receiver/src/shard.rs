//! One thread with everything a webhook needs from its connection to Redis: its connections, its
//! batcher, its connection to the queue.
//!
//! A webhook never leaves its thread, so nobody is woken across threads for it: that wake-up cost
//! more than all other work on it but the hash and the compression. Redis commits the shards' packs
//! together, since it syncs once for all it has read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::admit::Admission;
use crate::connection::{self, Phase, Serving};
use crate::enqueue::Enqueue;
use crate::metrics::Metrics;
use crate::queue_state::QueueState;
use crate::receive::{Receiver, receive};
use crate::settings::Settings;
use crate::stream::Accepted;

/// Connections on their way to a shard: they are taken at once unless it is busy with a huge body.
const INCOMING_MAX: usize = 128;
/// How often connections are looked at for their deadlines.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// How long a live connection may still bring a request after SIGTERM, to be answered with
/// `Connection: close`; one that stays idle for so long is closed.
const LAST_CALL: Duration = Duration::from_secs(5);

/// A connection and its place among those allowed.
type Incoming = (Accepted, OwnedSemaphorePermit);

/// A handle on a shard; it ends once this is closed and what it was given is finished.
pub struct Shard {
    incoming: mpsc::Sender<Incoming>,
    thread: JoinHandle<()>,
}

/// What all shards share.
#[derive(Clone)]
pub struct Shared {
    /// The receiver's settings.
    pub settings: Arc<Settings>,
    /// Bounds what is in flight.
    pub admission: Admission,
    /// What is known of the queue.
    pub state: QueueState,
    /// What is counted.
    pub metrics: Metrics,
}

/// All live connections, for the sweep.
#[derive(Default)]
struct Connections(Mutex<Vec<Weak<Phase>>>);

impl Shard {
    /// Starts a shard on a thread of its own.
    ///
    /// # Errors
    /// When no runtime can be made.
    pub fn start(shared: Shared) -> std::io::Result<Self> {
        let (sender, incoming) = mpsc::channel(INCOMING_MAX);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = tokio::task::spawn_blocking(move || runtime.block_on(run(shared, incoming)));
        Ok(Self { incoming: sender, thread })
    }

    /// Hands a connection over.
    pub async fn take(&self, accepted: Accepted, slot: OwnedSemaphorePermit) {
        if self.incoming.send((accepted, slot)).await.is_err() {
            tracing::error!("BUG: a shard ended before its acceptor");
        }
    }

    /// Takes no more; ends when its connections are finished and its webhooks are stored.
    pub async fn finish(self) {
        drop(self.incoming);
        if let Err(error) = self.thread.await {
            tracing::error!(%error, "a shard panicked");
        }
    }
}

async fn run(shared: Shared, mut incoming: mpsc::Receiver<Incoming>) {
    let time = shared.settings.shutdown_timeout;
    let state = shared.state.for_shard();
    let (enqueue, batcher) = Enqueue::start(&shared.settings, state.clone(), &shared.metrics);
    let serving = Arc::new(Serving {
        is_closing: AtomicBool::new(false),
        header_timeout: shared.settings.header_timeout,
        idle_timeout: shared.settings.idle_timeout,
        router: Router::new()
            .fallback(any(receive))
            .with_state(Arc::new(Receiver::new(shared, state, enqueue))),
    });
    let connections = Arc::new(Connections::default());
    let sweep = tokio::spawn(connections.clone().sweep(serving.clone()));
    let tasks = TaskTracker::new();
    while let Some((accepted, slot)) = incoming.recv().await {
        let stream = match accepted.into_stream() {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken over");
                continue;
            }
        };
        let served = connection::serve(stream, connections.open(), serving.clone());
        tasks.spawn(async move {
            served.await;
            drop(slot);
        });
    }
    let deadline = Instant::now() + time;
    finish(&tasks, &connections, &serving, deadline).await;
    sweep.abort();
    // With the last connection the last sender into the batcher is gone: it ends by itself once
    // what was accepted is stored.
    drop((serving, tasks));
    if tokio::time::timeout_at(deadline, batcher).await.is_err() {
        tracing::warn!("stopped before redis answered; those webhooks were answered 503");
    }
}

/// Every connection ends with its next answer; those that stay idle are closed after the last
/// call, and whatever is left at the deadline is cut.
async fn finish(
    tasks: &TaskTracker,
    connections: &Connections,
    serving: &Serving,
    deadline: Instant,
) {
    serving.is_closing.store(true, Ordering::Relaxed);
    tasks.close();
    let time = deadline.duration_since(Instant::now());
    let last_call = Instant::now() + LAST_CALL.min(time / 2);
    if tokio::time::timeout_at(last_call, tasks.wait()).await.is_ok() {
        return;
    }
    let left = async {
        while !tasks.is_empty() {
            connections.each(|phase| phase.sweep(serving, true));
            tokio::time::sleep(SWEEP_EVERY).await;
        }
    };
    if tokio::time::timeout_at(deadline, left).await.is_err() {
        tracing::warn!(connections = tasks.len(), "cut off at the shutdown deadline");
    }
}

impl Connections {
    fn open(&self) -> Arc<Phase> {
        let phase = Phase::new();
        self.lock().push(Arc::downgrade(&phase));
        phase
    }

    async fn sweep(self: Arc<Self>, serving: Arc<Serving>) {
        let mut tick = tokio::time::interval(SWEEP_EVERY);
        loop {
            tick.tick().await;
            self.each(|phase| phase.sweep(&serving, false));
        }
    }

    fn each(&self, visit: impl Fn(&Phase)) {
        self.lock().retain(|phase| match phase.upgrade() {
            Some(phase) => {
                visit(&phase);
                true
            }
            None => false,
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Phase>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
