//! Accepts connections, bounds them, and lets them finish when the process stops.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use futures_util::FutureExt;
use spillway_service::listen::Listener;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::{self, Phase, Serving};
use crate::receive::{Receiver, receive};
use crate::reply::Refusal;
use crate::settings::Settings;
use crate::stream::Stream;

/// Connections over the limit that are told so, at once; further ones wait to be accepted.
const REFUSED_AT_ONCE: usize = 256;
/// How often connections are looked at for their deadlines.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// How long a live connection may still bring a request after SIGTERM, to be answered with
/// `Connection: close`; one that stays idle for so long is closed.
const LAST_CALL: Duration = Duration::from_secs(5);
/// Out of file descriptors: accepting again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The kernel holds no more than this for one listener (net.core.somaxconn's default).
const BACKLOG_MAX: usize = 4096;

/// What accepted connections are handed to.
struct Acceptor {
    receiver: Arc<Receiver>,
    serving: Arc<Serving>,
    connections: Arc<Connections>,
    tasks: TaskTracker,
    slots: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
}

/// All live connections, for the sweep.
#[derive(Default)]
struct Connections(Mutex<Vec<Weak<Phase>>>);

/// Accepts until `shutdown`, then waits for the connections to finish.
pub async fn until(
    listener: Listener,
    receiver: Arc<Receiver>,
    settings: &Settings,
    shutdown: &CancellationToken,
) {
    let serving = Arc::new(Serving {
        router: Router::new().fallback(any(receive)).with_state(receiver.clone()),
        is_closing: AtomicBool::new(false),
        header_timeout: settings.header_timeout,
        idle_timeout: settings.idle_timeout,
    });
    let connections = Arc::new(Connections::default());
    let tasks = TaskTracker::new();
    let slots = Arc::new(Semaphore::new(settings.connections_max));
    let refusals = Arc::new(Semaphore::new(REFUSED_AT_ONCE));
    let sweep = tokio::spawn(connections.clone().sweep(serving.clone()));
    let acceptor = Acceptor { receiver, serving, connections, tasks, slots, refusals };
    loop {
        tokio::select! {
            accepted = accept(&listener) => acceptor.take(accepted).await,
            () = shutdown.cancelled() => break,
        }
    }
    // What the kernel has accepted for us is served: closing the listener would reset it.
    for _ in 0..BACKLOG_MAX {
        match accept(&listener).now_or_never() {
            Some(accepted) => acceptor.take(accepted).await,
            None => break,
        }
    }
    drop(listener);
    acceptor.finish(settings.shutdown_timeout).await;
    sweep.abort();
}

impl Acceptor {
    async fn take(&self, accepted: io::Result<Stream>) {
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                return;
            }
        };
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            let served = connection::serve(stream, self.connections.open(), self.serving.clone());
            self.tasks.spawn(async move {
                served.await;
                drop(slot);
            });
            return;
        }
        self.receiver.count(Refusal::Overloaded);
        let Ok(slot) = self.refusals.clone().acquire_owned().await else { return };
        self.tasks.spawn(async move {
            connection::refuse(stream).await;
            drop(slot);
        });
    }

    /// Every connection ends with its next answer; those that stay idle are closed after the last
    /// call, and whatever is left at the deadline is cut.
    async fn finish(self, time: Duration) {
        let began = Instant::now();
        self.serving.is_closing.store(true, Ordering::Relaxed);
        self.tasks.close();
        let last_call = LAST_CALL.min(time / 2);
        if tokio::time::timeout_at(began + last_call, self.tasks.wait()).await.is_ok() {
            return;
        }
        let left = async {
            while !self.tasks.is_empty() {
                self.connections.each(|phase| phase.sweep(&self.serving, true));
                tokio::time::sleep(SWEEP_EVERY).await;
            }
        };
        if tokio::time::timeout_at(began + time, left).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), "cut off at the shutdown deadline");
        }
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

async fn accept(listener: &Listener) -> io::Result<Stream> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Answers are small: waiting to fill a segment would only delay them.
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        }
        Listener::Unix(listener) => Ok(Stream::Unix(listener.accept().await?.0)),
    }
}
