//! One thread with everything that a webhook needs on its way to Redis: connections, a batcher, a
//! connection to the queue.
//!
//! No other thread is woken for a webhook that goes to Redis. That would cost more than all other
//! work on the webhook except the hash and the compression.

use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity, set_name};
use tokio::sync::mpsc::error::{SendError, TrySendError};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::batch::Batches;
use crate::batcher::Batcher;
use crate::connection::{self, Serving};
use crate::phase::{Phase, PhaseTimes};
use crate::receive::RequestHandler;
use crate::shared::ShardContext;
use crate::store::ShardStore;
use crate::stream::AcceptedConnection;
use crate::tls::Handshakes;

/// Connections on their way to a shard. The shard takes them at once unless it is busy with a huge
/// body.
const INCOMING_MAX: usize = 128;
/// Time between sweeps over the connections for their deadlines.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// Connections that a sweep visits before other tasks run. To visit five thousand that lie
/// scattered in memory takes longer than most webhooks do.
const SWEPT_AT_ONCE: usize = 256;
/// Time in which the connections that were taken last may still bring their request, once no more
/// are taken. Senders connect to send: their request is on its way.
const FIRST_BYTE: Duration = Duration::from_secs(1);
/// Time after the deadline that a shard may take to close what it cuts off.
const CUT_TIME: Duration = Duration::from_millis(250);
const _: () =
    assert!(SWEEP_EVERY.as_millis() < FIRST_BYTE.as_millis(), "the sweep finds it in time");
const _: () = assert!(CUT_TIME.as_millis() < FIRST_BYTE.as_millis(), "a cut connection ends first");

/// A connection with its slot.
type Incoming = (AcceptedConnection, Slot);

/// Slot of a connection. It is free again when the connection ends.
pub struct Slot {
    /// Permit of the limit on connections.
    pub allowed: OwnedSemaphorePermit,
    /// Counts the connection with those from before the shutdown began, or with those after.
    pub counted: TaskTrackerToken,
}

/// Handle of a shard. The shard ends once the handle is closed and its work is finished.
pub struct Shard {
    incoming: mpsc::Sender<Incoming>,
    thread: JoinHandle<()>,
}

/// All live connections, for the sweep.
#[derive(Default)]
struct Connections(Mutex<Vec<Weak<Phase>>>);

impl Shard {
    /// Starts the shard with this number on a new thread, bound to `core` if that is given.
    ///
    /// # Errors
    /// If no runtime can be built.
    pub fn start(
        shared: ShardContext,
        number: usize,
        core: Option<usize>,
    ) -> std::io::Result<Self> {
        let (sender, incoming) = mpsc::channel(INCOMING_MAX);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = tokio::task::spawn_blocking(move || {
            let _guard = shared.background.guard("a shard");
            core.inspect(|core| stay_on(*core));
            name_thread(number);
            let pulse = shared.background.watch(format!("shard {number}"));
            runtime.block_on(pulse.attend(run(shared, number, incoming)));
            // A name that is still being resolved must not delay the end.
            runtime.shutdown_background();
        });
        Ok(Self { incoming: sender, thread })
    }

    /// Hands a connection over. Returns it if the shard is busy.
    ///
    /// # Errors
    /// The connection, if there is no room for it.
    pub fn try_take(&self, incoming: Incoming) -> Result<(), Incoming> {
        self.incoming.try_send(incoming).map_err(TrySendError::into_inner)
    }

    /// Waits for room for a connection.
    ///
    /// # Errors
    /// If the shard has ended.
    pub async fn room(&self) -> Result<mpsc::Permit<'_, Incoming>, SendError<()>> {
        self.incoming.reserve().await
    }

    /// Closes the shard. It takes no more connections, and ends when its connections are finished
    /// and its webhooks are stored. It ends soon after `stop_by` at the latest.
    pub async fn finish(self, stop_by: Instant) {
        drop(self.incoming);
        match timeout_at(stop_by + CUT_TIME, self.thread).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "a shard panicked"),
            Err(_) => tracing::warn!("a shard did not stop in time"),
        }
    }
}

/// Binds the thread to a core. Otherwise Linux runs shards that wake each other's senders on one
/// core while another is idle.
fn stay_on(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    if let Err(error) = sched_setaffinity(None, &only) {
        tracing::debug!(%error, core, "a shard is not bound to its core");
    }
}

/// Names the thread, as `top -H` and profilers show it.
fn name_thread(number: usize) {
    let name = CString::new(format!("shard {number}")).unwrap_or_default();
    if let Err(error) = set_name(&name) {
        tracing::debug!(%error, "a shard's thread has no name");
    }
}

async fn run(shared: ShardContext, number: usize, mut incoming: mpsc::Receiver<Incoming>) {
    let shutdown = shared.shutdown.clone();
    let batches = Arc::new(Batches::new(shared.topics.clone()));
    let store = shared.store.for_shard();
    let mut batcher = tokio::spawn({
        let pulse = shared.background.watch(format!("batcher of shard {number}"));
        let store = store.clone();
        let metrics = shared.metrics.clone();
        let store = ShardStore::new(store, batches.clone(), &shared.settings, metrics, pulse);
        Batcher::new(batches.clone(), store).run()
    });
    let mut keeper = tokio::spawn({
        let batches = batches.clone();
        async move { batches.keep_deadlines().await }
    });
    let serving = Arc::new(Serving {
        shutdown: shutdown.clone(),
        times: PhaseTimes {
            headers: shared.settings.header_timeout,
            idle: shared.settings.idle_timeout,
        },
        metrics: shared.metrics.clone(),
        tls: shared.tls.clone(),
        handshakes: Handshakes::default(),
        handler: Arc::new(RequestHandler::new(shared, store, batches.clone())),
    });
    let connections = Arc::new(Connections::default());
    let mut sweep = tokio::spawn(connections.clone().sweep(serving.clone()));
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            next = incoming.recv() => match next {
                Some(next) => serve(next, &mut tasks, &connections, &serving),
                None => break,
            },
            Some(_) = tasks.join_next() => {}
            ended = &mut batcher => {
                tracing::error!(?ended, "BUG: a batcher ended before its shard");
                return;
            }
            ended = &mut keeper => {
                tracing::error!(?ended, "BUG: a shard's deadlines are not kept any more");
                return;
            }
            ended = &mut sweep => {
                tracing::error!(?ended, "BUG: a shard's connections are not swept any more");
                return;
            }
        }
    }
    let stop_by = shutdown.stop_by();
    finish(&mut tasks, &connections, &serving, stop_by).await;
    sweep.abort();
    // The batcher ends by itself once everything accepted is stored.
    batches.close();
    if timeout_at(stop_by, batcher).await.is_err() {
        tracing::warn!("stopped before redis answered; those webhooks were not answered 200");
    }
    keeper.abort();
}

fn serve(
    (accepted, slot): Incoming,
    tasks: &mut JoinSet<()>,
    connections: &Connections,
    serving: &Arc<Serving>,
) {
    match accepted.into_stream() {
        Ok(stream) => {
            let served = connection::serve(stream, connections.open(), serving.clone());
            tasks.spawn(async move {
                served.await;
                drop(slot);
            });
        }
        Err(error) => tracing::warn!(%error, "a connection could not be taken over"),
    }
}

/// Finishes all connections. Each ends with its next answer. Idle ones are closed soon. A tenth of
/// the time before the deadline, the rest is cut off: that time is for the batcher.
async fn finish(
    tasks: &mut JoinSet<()>,
    connections: &Connections,
    serving: &Serving,
    stop_by: Instant,
) {
    let now = Instant::now();
    let time = stop_by.duration_since(now);
    if timeout_at(now + FIRST_BYTE.min(time / 6), all_ended(tasks)).await.is_ok() {
        return;
    }
    let mut tick = tokio::time::interval(SWEEP_EVERY);
    let left = async {
        loop {
            tokio::select! {
                () = all_ended(tasks) => return,
                _ = tick.tick() => {
                    connections.each(|phase| phase.sweep(serving.times, true)).await;
                }
            }
        }
    };
    if timeout_at(stop_by - time / 10, left).await.is_err() {
        tracing::warn!(connections = tasks.len(), "cut off at the shutdown deadline");
        tasks.shutdown().await;
    }
}

async fn all_ended(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
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
            self.each(|phase| phase.sweep(serving.times, false)).await;
            serving.handler.tick();
        }
    }

    /// Visits all connections, a few at a time. In between, other tasks run.
    async fn each(&self, visit: impl Fn(&Phase)) {
        let mut next = Some(0);
        while let Some(place) = next {
            next = self.some(place, &visit);
            yield_now().await;
        }
    }

    /// Visits a few connections, from index `place` on. Returns the index of the next one.
    fn some(&self, mut place: usize, visit: impl Fn(&Phase)) -> Option<usize> {
        let mut phases = self.lock();
        for _ in 0..SWEPT_AT_ONCE {
            match phases.get(place)?.upgrade() {
                Some(phase) => {
                    visit(&phase);
                    place += 1;
                }
                None => {
                    phases.swap_remove(place);
                }
            }
        }
        Some(place)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Phase>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
