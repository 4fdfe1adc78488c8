//! Accepts connections, bounds their number, and spreads them over the shards.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use spillway_service::listen::Listener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection;
use crate::metrics::Metrics;
use crate::reply::Refusal;
use crate::shard::Shard;
use crate::stream::Accepted;

/// Connections over the limit that are told so, at once; further ones wait to be accepted.
const REFUSED_AT_ONCE: usize = 256;
/// Out of file descriptors: accepting again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The kernel holds no more than this for one listener (net.core.somaxconn's default).
const BACKLOG_MAX: usize = 4096;

/// What accepted connections are handed to.
struct Acceptor {
    shards: Vec<Shard>,
    next: usize,
    slots: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    refusing: TaskTracker,
    metrics: Metrics,
}

/// Accepts until `shutdown`, then waits for the shards to finish.
pub async fn until(
    listener: Listener,
    shards: Vec<Shard>,
    connections_max: usize,
    metrics: Metrics,
    shutdown: &CancellationToken,
) {
    let mut acceptor = Acceptor {
        shards,
        next: 0,
        slots: Arc::new(Semaphore::new(connections_max)),
        refusals: Arc::new(Semaphore::new(REFUSED_AT_ONCE)),
        refusing: TaskTracker::new(),
        metrics,
    };
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
    futures_util::future::join_all(acceptor.shards.into_iter().map(Shard::finish)).await;
    acceptor.refusing.close();
    acceptor.refusing.wait().await;
}

impl Acceptor {
    async fn take(&mut self, accepted: io::Result<Accepted>) {
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                return;
            }
        };
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            // In turn: senders keep their connections for long and use them alike.
            self.next = (self.next + 1) % self.shards.len();
            self.shards[self.next].take(accepted, slot).await;
            return;
        }
        self.metrics.answered(Refusal::Overloaded.outcome(), Duration::ZERO);
        let Ok(slot) = self.refusals.clone().acquire_owned().await else { return };
        self.refusing.spawn(async move {
            if let Ok(stream) = accepted.into_stream() {
                connection::refuse(stream).await;
            }
            drop(slot);
        });
    }
}

async fn accept(listener: &Listener) -> io::Result<Accepted> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Answers are small: waiting to fill a segment would only delay them.
            stream.set_nodelay(true)?;
            Ok(Accepted::Tcp(stream.into_std()?))
        }
        Listener::Unix(listener) => Ok(Accepted::Unix(listener.accept().await?.0.into_std()?)),
    }
}
