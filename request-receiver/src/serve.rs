//! Accepts connections, bounds their number, and spreads them over the shards.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};
use spillway_service::background::{Background, TaskEnded};
use spillway_service::listen::Listener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection;
use crate::descriptors::ConnectionLimits;
use crate::metrics::Metrics;
use crate::reply::Refusal;
use crate::shard::{Shard, Slot};
use crate::stream::Accepted;

/// Out of file descriptors: accepting again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The kernel holds no more than this for one listener (net.core.somaxconn's default).
const BACKLOG_MAX: usize = 4096;

/// How long a live connection may still bring a request after SIGTERM, to be answered with
/// `Connection: close`. A second more is the shards': one that is used every 5 s is never cut off.
const LAST_CALL: Duration = Duration::from_secs(4);

/// What accepted connections are handed to.
pub struct Acceptor {
    listeners: Vec<Listener>,
    /// The listener that is asked first for the next connection.
    turn: usize,
    /// Accepted, and not handed over yet: kept here when the process is told to stop meanwhile.
    in_hand: Option<Accepted>,
    shards: Vec<Shard>,
    /// The shards and everything else that must not end before the process.
    background: Background,
    next: usize,
    slots: Arc<Semaphore>,
    /// Connections that are not over, refused ones excepted.
    live: TaskTracker,
    refusals: Arc<Semaphore>,
    refusing: TaskTracker,
    metrics: Metrics,
}

impl Acceptor {
    /// Puts an acceptor together; `background` is the one that its shards were started with.
    pub fn new(
        listeners: Vec<Listener>,
        shards: Vec<Shard>,
        background: Background,
        limits: ConnectionLimits,
        metrics: Metrics,
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

    /// Accepts until `shutdown`.
    ///
    /// # Errors
    /// When a shard or a background task ends first: without it, connections would be taken and not
    /// served, or webhooks refused for ever.
    pub async fn accept_until(&mut self, shutdown: &CancellationToken) -> Result<(), TaskEnded> {
        let background = self.background.clone();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => Ok(()),
            ended = background.ended() => Err(ended),
            never = self.accept_all() => match never {},
        }
    }

    /// Goes on accepting until all older connections have had their last answer or `time_left` is
    /// nearly half over. The next process starts only when this one has ended: who connected
    /// meanwhile would wait for connections that are idle.
    ///
    /// # Errors
    /// When a shard or a background task ends first.
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

    /// Serves what the kernel has accepted for us, waits for the shards to finish, and cuts off
    /// what is left at `stop_by`.
    pub async fn finish(mut self, stop_by: Instant) {
        // Closing the listeners at once would reset those connections.
        if timeout_at(stop_by, self.take_backlog()).await.is_err() {
            tracing::warn!("connections that were not taken yet are reset");
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
            // Unconstrained: a task that has done much is told to yield by a listener that seems
            // to have nothing.
            let next = accept(&self.listeners, &mut self.turn);
            match tokio::task::unconstrained(next).now_or_never() {
                Some(accepted) => self.take(accepted).await,
                None => return,
            }
        }
    }

    async fn take(&mut self, accepted: io::Result<Accepted>) {
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

    /// Hands the connection in hand to a shard if it is among those allowed; else it is refused, if
    /// it is among those told so. Waits until it is either.
    async fn place(&mut self) {
        let (slots, refusals) = (self.slots.clone(), self.refusals.clone());
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
        // In turn: senders keep their connections for long and use them alike.
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
            if let Ok(stream) = accepted.into_stream() {
                connection::refuse(stream).await;
            }
            drop(turn);
        });
    }
}

/// Accepts from the first listener, from `turn` on, that has a connection; the one after it has the
/// next turn. A crowd at one listener can't keep the others waiting.
async fn accept(listeners: &[Listener], turn: &mut usize) -> io::Result<Accepted> {
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

fn poll_accept(listener: &Listener, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
    match listener {
        Listener::Tcp(listener) => listener.poll_accept(cx).map(|accepted| {
            let (stream, _) = accepted?;
            // Answers are small: waiting to fill a segment would only delay them.
            stream.set_nodelay(true)?;
            Ok(Accepted::Tcp(stream.into_std()?))
        }),
        Listener::Unix(listener) => {
            listener.poll_accept(cx).map(|accepted| Ok(Accepted::Unix(accepted?.0.into_std()?)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use spillway_service::listen::{Address, Endpoint, SocketAccess};

    use super::*;
    use crate::reply::OUTCOMES;

    async fn without_shards(background: &Background) -> Acceptor {
        let metrics = Metrics::new(&OUTCOMES);
        let limits = ConnectionLimits { served: 1, refused: 1 };
        Acceptor::new(listening().await, Vec::new(), background.clone(), limits, metrics)
    }

    async fn listening() -> Vec<Listener> {
        let address = Address::Tcp(([127, 0, 0, 1], 0).into());
        Listener::all(&Endpoint { address, access: SocketAccess::default() }).await.unwrap()
    }

    #[tokio::test]
    async fn a_crowd_at_one_listener_does_not_keep_another_waiting() {
        let mut listeners = listening().await;
        listeners.extend(listening().await);
        let [busy, quiet] = [0, 1].map(|place: usize| listeners[place].to_string());
        let _crowd = [&busy, &busy, &busy, &quiet].map(|at| TcpStream::connect(at).unwrap());
        let (mut turn, mut accepted_at) = (0, Vec::new());
        for _ in 0..4 {
            let accepted = accept(&listeners, &mut turn).await.unwrap();
            let Accepted::Tcp(stream) = accepted else { panic!("not TCP") };
            accepted_at.push(stream.local_addr().unwrap().to_string());
        }
        assert_eq!(accepted_at, [&busy, &quiet, &busy, &busy].map(String::clone));
    }

    #[tokio::test]
    async fn a_shard_that_ends_early_ends_the_process_with_an_error() {
        let (background, shutdown) = (Background::default(), CancellationToken::new());
        drop(background.guard("a shard"));
        let mut acceptor = without_shards(&background).await;
        assert!(acceptor.accept_until(&shutdown).await.is_err());
        // Once the process was told to stop, shards are expected to end.
        shutdown.cancel();
        assert!(acceptor.accept_until(&shutdown).await.is_ok());
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
