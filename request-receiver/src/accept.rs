//! Accepts connections, bounds their number, and spreads them over the shards.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};
use spillway_process::background::{Background, TaskEnded};
use spillway_process::listen::Listener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection;
use crate::descriptors::ConnectionLimits;
use crate::metrics::ReceiverMetrics;
use crate::reply::Refusal;
use crate::shard::{Shard, Slot};
use crate::stream::AcceptedConnection;

/// Pause after a failed accept. Without file descriptors, accepting again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that the kernel holds for one listener at most (net.core.somaxconn's default).
const BACKLOG_MAX: usize = 4096;

/// Time after SIGTERM in which a live connection may still bring a request. It is answered with
/// `Connection: close`. The shards add a second: a connection that is used every 5 s is never cut
/// off.
const LAST_CALL: Duration = Duration::from_secs(4);
const _: () = assert!(LAST_CALL.as_millis() < 5_000, "Shopify gives up after 5 s");

/// Accepts connections and hands them to the shards.
pub struct Acceptor {
    listeners: Vec<Listener>,
    /// Index of the listener that is polled first for the next connection.
    turn: usize,
    /// Connection that is accepted and not handed over yet. It survives here when the accept loop
    /// is cancelled.
    in_hand: Option<AcceptedConnection>,
    shards: Vec<Shard>,
    /// The shards and all other tasks that must not end before the process.
    background: Background,
    next: usize,
    slots: Arc<Semaphore>,
    /// Connections that are not over, except refused ones.
    live: TaskTracker,
    refusals: Arc<Semaphore>,
    refusing: TaskTracker,
    metrics: ReceiverMetrics,
}

impl Acceptor {
    /// Puts an acceptor together. The shards were started with the same `background`.
    pub fn new(
        listeners: Vec<Listener>,
        shards: Vec<Shard>,
        background: Background,
        limits: ConnectionLimits,
        metrics: ReceiverMetrics,
    ) -> Self {
        Self {
            listeners,
            turn: 0,
            in_hand: None,
            shards,
            background,
            next: 0,
            slots: Arc::new(Semaphore::new(limits.served)),
            live: TaskTracker::new(),
            refusals: Arc::new(Semaphore::new(limits.refused)),
            refusing: TaskTracker::new(),
            metrics,
        }
    }

    /// Accepts until `stop`.
    ///
    /// # Errors
    /// If a shard or a background task ends first. Without it, connections would be accepted and
    /// not served, or webhooks refused for ever.
    pub async fn accept_until(&mut self, stop: &CancellationToken) -> Result<(), TaskEnded> {
        let background = self.background.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            ended = background.ended() => Err(ended),
            never = self.accept_all() => match never {},
        }
    }

    /// Goes on accepting until all older connections have had their last answer, for at most 4 s
    /// or two fifths of `time_left`, whichever is less. The next process starts only when this one
    /// has ended. Otherwise new connections would wait for idle ones.
    ///
    /// # Errors
    /// If a shard or a background task ends first.
    pub async fn last_call(&mut self, time_left: Duration) -> Result<(), TaskEnded> {
        let older = std::mem::take(&mut self.live);
        older.close();
        let over = CancellationToken::new();
        let until_over = async {
            timeout(LAST_CALL.min(time_left * 2 / 5), older.wait()).await.ok();
            over.cancel();
        };
        tokio::join!(until_over, self.accept_until(&over)).1
    }

    /// Serves what the kernel has accepted, waits for the shards to finish, and cuts off what is
    /// left at `stop_by`.
    pub async fn finish(mut self, stop_by: Instant) {
        // Closing the listeners at once would reset those connections.
        if timeout_at(stop_by, self.take_backlog()).await.is_err() {
            tracing::warn!("connections in the backlog are reset");
        }
        drop(self.listeners);
        join_all(self.shards.into_iter().map(|shard| shard.finish(stop_by))).await;
        self.refusing.close();
        timeout_at(stop_by, self.refusing.wait()).await.ok();
    }

    async fn accept_all(&mut self) -> Infallible {
        loop {
            let accepted = accept(&self.listeners, &mut self.turn).await;
            self.take(accepted).await;
        }
    }

    async fn take_backlog(&mut self) {
        if self.in_hand.is_some() {
            self.place().await;
        }
        for _ in 0..BACKLOG_MAX * self.listeners.len() {
            // Unconstrained: with its budget spent, a task would see a listener that seems to have
            // nothing.
            let next = accept(&self.listeners, &mut self.turn);
            match tokio::task::unconstrained(next).now_or_never() {
                Some(accepted) => self.take(accepted).await,
                None => return,
            }
        }
    }

    async fn take(&mut self, accepted: io::Result<AcceptedConnection>) {
        match accepted {
            Ok(accepted) => {
                self.in_hand = Some(accepted);
                self.place().await;
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    /// Hands the accepted connection to a shard if a slot is free. Otherwise refuses it, if fewer
    /// than the limit are being refused. Waits until either is possible.
    async fn place(&mut self) {
        let slots = self.slots.clone();
        let refusals = self.refusals.clone();
        tokio::select! {
            biased;
            Ok(allowed) = slots.acquire_owned() => {
                let counted = self.live.token();
                self.hand_over(Slot { allowed, counted }).await;
            }
            Ok(turn) = refusals.acquire_owned() => self.refuse(turn),
            else => {}
        }
    }

    async fn hand_over(&mut self, slot: Slot) {
        let Some(accepted) = self.in_hand.take() else { return };
        let mut incoming = (accepted, slot);
        // Round robin: senders keep their connections for long and use them alike.
        for _ in 0..self.shards.len() {
            self.next = (self.next + 1) % self.shards.len();
            match self.shards[self.next].try_take(incoming) {
                Ok(()) => return,
                Err(returned) => incoming = returned,
            }
        }
        let (accepted, slot) = incoming;
        self.in_hand = Some(accepted);
        let rooms = self.shards.iter().map(|shard| Box::pin(shard.room()));
        let (room, _, _) = select_all(rooms).await;
        if let (Ok(room), Some(accepted)) = (room, self.in_hand.take()) {
            room.send((accepted, slot));
        }
    }

    fn refuse(&mut self, turn: OwnedSemaphorePermit) {
        let Some(accepted) = self.in_hand.take() else { return };
        self.metrics.answered(Refusal::Overloaded.outcome(), Duration::ZERO);
        self.refusing.spawn(async move {
            // Before a handshake nothing can be answered, and one more costs what is short.
            if !accepted.is_tls()
                && let Ok(stream) = accepted.into_stream()
            {
                connection::refuse(stream).await;
            }
            drop(turn);
        });
    }
}

/// Accepts from the first listener, from `turn` on, that has a connection. The next listener has
/// the next turn. Many connections at one listener can't keep the others waiting.
async fn accept(listeners: &[Listener], turn: &mut usize) -> io::Result<AcceptedConnection> {
    poll_fn(|cx| {
        for offset in 0..listeners.len() {
            let place = (*turn + offset) % listeners.len();
            if let Poll::Ready(accepted) = poll_accept(&listeners[place], cx) {
                *turn = (place + 1) % listeners.len();
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    })
    .await
}

fn poll_accept(listener: &Listener, cx: &mut Context<'_>) -> Poll<io::Result<AcceptedConnection>> {
    match listener {
        Listener::Tcp(listener) => listener.poll_accept(cx).map(|accepted| {
            let (stream, _) = accepted?;
            // Answers are small. Waiting to fill a segment would only delay them.
            stream.set_nodelay(true)?;
            Ok(AcceptedConnection::Tcp(stream.into_std()?))
        }),
        Listener::Tls(listener) => listener.poll_accept(cx).map(|accepted| {
            let (stream, _) = accepted?;
            stream.set_nodelay(true)?;
            Ok(AcceptedConnection::Tls(stream.into_std()?))
        }),
        Listener::Unix(listener) => listener
            .poll_accept(cx)
            .map(|accepted| Ok(AcceptedConnection::Unix(accepted?.0.into_std()?))),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use spillway_process::listen::{Address, ListenEndpoint, SocketAccess};

    use super::*;
    use crate::reply::OUTCOMES;

    async fn without_shards(background: &Background) -> Acceptor {
        let metrics = ReceiverMetrics::new(&OUTCOMES);
        let limits = ConnectionLimits { served: 1, refused: 1 };
        Acceptor::new(listening().await, Vec::new(), background.clone(), limits, metrics)
    }

    async fn listening() -> Vec<Listener> {
        let address = Address::Tcp(([127, 0, 0, 1], 0).into());
        let endpoint = ListenEndpoint { address, access: SocketAccess::default() };
        Listener::all(&endpoint, None).await.unwrap()
    }

    #[tokio::test]
    async fn a_crowd_at_one_listener_does_not_keep_another_waiting() {
        let mut listeners = listening().await;
        listeners.extend(listening().await);
        let [busy, quiet] = [0, 1].map(|place: usize| listeners[place].to_string());
        let _crowd = [&busy, &busy, &busy, &quiet].map(|at| TcpStream::connect(at).unwrap());
        let mut turn = 0;
        let mut accepted_at = Vec::new();
        for _ in 0..4 {
            let accepted = accept(&listeners, &mut turn).await.unwrap();
            let AcceptedConnection::Tcp(stream) = accepted else { panic!("not TCP") };
            accepted_at.push(stream.local_addr().unwrap().to_string());
        }
        assert_eq!(accepted_at, [&busy, &quiet, &busy, &busy].map(String::clone));
    }

    #[tokio::test]
    async fn a_shard_that_ends_early_ends_the_process_with_an_error() {
        let background = Background::default();
        let stop = CancellationToken::new();
        drop(background.guard("a shard"));
        let mut acceptor = without_shards(&background).await;
        assert!(acceptor.accept_until(&stop).await.is_err());
        // Once the process stops, shards are expected to end.
        stop.cancel();
        assert!(acceptor.accept_until(&stop).await.is_ok());
    }

    #[tokio::test]
    async fn a_background_task_that_panics_ends_the_process_with_an_error() {
        let background = Background::default();
        let mut acceptor = without_shards(&background).await;
        background.spawn("the watch", async { panic!("as a test asks for") });
        let ended = acceptor.accept_until(&CancellationToken::new()).await;
        assert_eq!(
            ended.unwrap_err().to_string(),
            "BUG: the watch ended before the process was told to stop"
        );
    }
}
