//! Connections to the admin endpoint, bounded in number and in time.
//!
//! In a pod the endpoint listens on all addresses: anybody may connect and send nothing. That must
//! not take the descriptors of the process, and must not keep a probe out.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::chain;

/// Limits of the admin endpoint. A kubelet, two Prometheus and an operator need fewer than ten
/// connections. 32 are half of the descriptors that the receiver reserves for all except webhooks.
pub(super) const LIMITS: AdminLimits =
    AdminLimits { connections_max: 32, head_within: Duration::from_secs(5) };
/// Pause after a failed accept. Without file descriptors, accepting again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Limits of the connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdminLimits {
    /// Connections that are served at once.
    connections_max: usize,
    /// Time for the head of a request, from the connection or from the answer before it. So it is
    /// also the time for which a connection may be idle.
    head_within: Duration,
}

/// Connections that are served.
struct AdminConnections {
    /// One for each connection, which closes it. The least recently used is first.
    by_use: Mutex<VecDeque<Arc<CancellationToken>>>,
    free: Arc<Semaphore>,
}

/// One of the connections that may be served at once, until it is dropped.
struct AdminSlot {
    all: Arc<AdminConnections>,
    closed: Arc<CancellationToken>,
    _permit: OwnedSemaphorePermit,
}

/// Serves until `stop`. Then idle connections are closed, and the others with their next answer.
pub(super) async fn serve(
    listener: TcpListener,
    pages: Router,
    limits: AdminLimits,
    stop: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_within);
    let all = Arc::new(AdminConnections {
        by_use: Mutex::default(),
        free: Arc::new(Semaphore::new(limits.connections_max)),
    });
    let tasks = TaskTracker::new();
    let spawn = |stream, slot| {
        tasks.spawn(serve_one(http.clone(), stream, pages.clone(), slot, stop.clone()));
    };
    stop.run_until_cancelled(accept_all(&listener, &all, spawn)).await;
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

async fn accept_all(
    listener: &TcpListener,
    all: &Arc<AdminConnections>,
    spawn: impl Fn(TcpStream, AdminSlot),
) -> Infallible {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let slot = all.slot().await;
                spawn(stream, slot);
            }
            Err(error) if is_of_peer(error.kind()) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection to the admin endpoint could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns true if the connection that was to be accepted has failed, and not the listener.
fn is_of_peer(error: ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
    )
}

async fn serve_one(
    http: http1::Builder,
    stream: TcpStream,
    pages: Router,
    slot: AdminSlot,
    stop: CancellationToken,
) {
    let closed = slot.closed.clone();
    let pages = TowerToHyperService::new(pages);
    let service = service_fn(move |request: Request<Incoming>| {
        slot.note_use();
        pages.call(request)
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let served = async {
        tokio::select! {
            served = connection.as_mut() => served,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.as_mut().await
            }
        }
    };
    match closed.run_until_cancelled(served).await {
        Some(Ok(())) => {}
        Some(Err(error)) => {
            tracing::debug!(error = chain(&error), "a connection to the admin endpoint ended");
        }
        None => tracing::debug!("a connection to the admin endpoint was closed for another"),
    }
}

impl AdminConnections {
    /// Returns a slot for one more connection. If none is free, closes the least recently used
    /// connection, and waits until its descriptor is free.
    ///
    /// To wait for a slot alone would take up to [`AdminLimits::head_within`] for each 32 strangers,
    /// and a kubelet gives a probe up after a second. A page is answered at once, without waiting for
    /// anything. So the connection whose last request, or whose beginning, is the longest ago has no
    /// request in progress, or has not read its answer for as long. A probe that was just accepted is
    /// closed only if 32 others arrive in the moment that its request takes.
    async fn slot(self: &Arc<Self>) -> AdminSlot {
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let oldest = self.lock().pop_front();
                if let Some(oldest) = oldest {
                    oldest.cancel();
                }
                let permit = self.free.clone().acquire_owned().await;
                permit.expect("BUG: the semaphore is never closed")
            }
        };
        let closed = Arc::new(CancellationToken::new());
        self.lock().push_back(closed.clone());
        AdminSlot { all: self.clone(), closed, _permit: permit }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<CancellationToken>>> {
        self.by_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdminSlot {
    /// Notes that a request came: this connection is now the most recently used.
    fn note_use(&self) {
        let mut by_use = self.all.lock();
        let at = by_use.iter().position(|one| Arc::ptr_eq(one, &self.closed));
        if let Some(used) = at.and_then(|at| by_use.remove(at)) {
            by_use.push_back(used);
        }
    }
}

impl Drop for AdminSlot {
    fn drop(&mut self) {
        self.all.lock().retain(|one| !Arc::ptr_eq(one, &self.closed));
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;

    /// Long after everything here is over.
    const LATE: Duration = Duration::from_secs(60);

    struct Serving {
        address: SocketAddr,
        stop: CancellationToken,
        task: JoinHandle<()>,
    }

    impl Serving {
        async fn start(limits: AdminLimits) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("it is bound");
            let stop = CancellationToken::new();
            let pages = Router::new().route("/", get(|| async { "alive" }));
            let task = tokio::spawn(serve(listener, pages, limits, stop.clone()));
            Self { address, stop, task }
        }

        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.expect("it listens")
        }
    }

    async fn expect_answer(stream: &mut TcpStream) {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("it is open");
        let mut answer = Vec::new();
        while !answer.ends_with(b"alive") {
            let read = timeout(LATE, stream.read_buf(&mut answer)).await.expect("in time");
            assert!(read.is_ok_and(|bytes| bytes > 0), "closed after {answer:?}");
        }
    }

    async fn expect_closed(stream: &mut TcpStream) {
        let read = timeout(LATE, stream.read(&mut [0])).await.expect("it stays open");
        assert!(!read.is_ok_and(|bytes| bytes > 0));
    }

    fn is_open(stream: &TcpStream) -> bool {
        stream.try_read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    #[tokio::test]
    async fn a_probe_gets_through_idle_strangers_and_the_least_recently_used_is_closed() {
        let limits = AdminLimits { connections_max: 8, head_within: 10 * LATE };
        let serving = Serving::start(limits).await;
        let mut scraper = serving.connect().await;
        expect_answer(&mut scraper).await;
        let mut strangers = Vec::new();
        for _ in 0..limits.connections_max - 2 {
            strangers.push(serving.connect().await);
        }
        // Connections are accepted in order: with this answer, all are.
        let mut last = serving.connect().await;
        expect_answer(&mut last).await;
        assert!(strangers.iter().all(is_open));
        expect_answer(&mut scraper).await;
        let mut probe = serving.connect().await;
        expect_answer(&mut probe).await;
        expect_closed(&mut strangers[0]).await;
        assert!(strangers[1..].iter().chain([&last, &scraper]).all(is_open), "one was needed");
        // More of them than there are slots, with a part of a head.
        for _ in 0..3 * limits.connections_max {
            let mut stranger = serving.connect().await;
            stranger.write_all(b"GET / HT").await.ok();
            strangers.push(stranger);
        }
        let mut probe = serving.connect().await;
        expect_answer(&mut probe).await;
        let first_open = strangers.len() - (limits.connections_max - 1);
        for stranger in &mut strangers[..first_open] {
            expect_closed(stranger).await;
        }
        assert!(strangers[first_open..].iter().all(is_open));
    }

    #[tokio::test]
    async fn a_connection_without_a_whole_head_is_closed_in_time() {
        let limits = AdminLimits { connections_max: 8, head_within: Duration::from_secs(1) };
        let serving = Serving::start(limits).await;
        let mut silent = serving.connect().await;
        let mut slow = serving.connect().await;
        slow.write_all(b"GET / HT").await.expect("it is open");
        let mut kept_alive = serving.connect().await;
        expect_answer(&mut kept_alive).await;
        for stream in [&mut silent, &mut slow, &mut kept_alive] {
            expect_closed(stream).await;
        }
    }

    #[tokio::test]
    async fn the_end_closes_idle_connections_and_waits_for_no_other() {
        let limits = AdminLimits { connections_max: 8, head_within: 10 * LATE };
        let serving = Serving::start(limits).await;
        let mut silent = serving.connect().await;
        let mut kept_alive = serving.connect().await;
        expect_answer(&mut kept_alive).await;
        serving.stop.cancel();
        timeout(LATE, serving.task).await.expect("in time").expect("it does not panic");
        expect_closed(&mut silent).await;
        expect_closed(&mut kept_alive).await;
    }
}
