//! Accepts connections, with or without TLS, and serves HTTP/1.1 on them. Connections are bounded in
//! number, for each network too, and in the time that the head of a request and each write may take. When most of them
//! are taken, idle ones make room for others.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::http::header::HOST;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bounded_writes::BoundedWrites;
use crate::headers::require_https;
use crate::idle::{IdleConnections, OpenConnection};
use crate::peer::PeerAddress;
use crate::peer_slots::{PeerSlot, PeerSlots, SLOTS_MAX};
use crate::proxy::TrustedProxies;

/// Connections at once. Ten people with some tabs each, and a few scripts.
const CONNECTIONS_MAX: usize = 256;
/// Connections that stay free as long as others are idle: those who come next wait for nobody.
const CONNECTIONS_FREE: usize = 32;
/// Time for the head of a request, from the connection or from the answer before it, and for the TLS
/// handshake. So it is also the time for which a connection may be idle.
const HEAD_WITHIN: Duration = Duration::from_secs(15);
/// Time for answers under way when the process stops.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Pause after a failed accept. Without file descriptors, accepting again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
const _: () = assert!(SLOTS_MAX < CONNECTIONS_MAX, "one network never takes all connections");
const _: () = assert!(CONNECTIONS_FREE < CONNECTIONS_MAX, "a few idle ones are kept");

/// Listener of the console, with what makes TLS of its connections.
pub struct ConsoleListener {
    /// Listening socket.
    pub tcp: TcpListener,
    /// TLS, if there is a certificate.
    pub tls: Option<TlsAcceptor>,
    /// Proxies, each of which may have more connections than another address.
    pub proxies: TrustedProxies,
}

/// Parts that every connection needs.
#[derive(Clone)]
struct ConnectionParts {
    http: http1::Builder,
    tls: Option<TlsAcceptor>,
    router: Router,
    stop: CancellationToken,
}

impl ConsoleListener {
    /// Serves until `stop`. Then idle connections are closed, and others with their next answer. A stream of
    /// events has to end with `stop` by itself.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
        let parts = ConnectionParts { http, tls: self.tls, router, stop: stop.clone() };
        let tasks = TaskTracker::new();
        let slots = PeerSlots::new(self.proxies);
        stop.run_until_cancelled(accept_all(&self.tcp, &parts, slots, &tasks)).await;
        drop(self.tcp);
        tasks.close();
        if timeout(STOP_WITHIN, tasks.wait()).await.is_err() {
            tracing::warn!("stopping although some answers of the console are not complete");
        }
    }
}

async fn accept_all(
    listener: &TcpListener,
    parts: &ConnectionParts,
    slots: PeerSlots,
    tasks: &TaskTracker,
) -> Infallible {
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let idle = IdleConnections::default();
    loop {
        let permit = free.clone().acquire_owned().await;
        let permit = permit.expect("BUG: the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(slot) = slots.take(peer.ip()) else {
                    tracing::debug!(%peer, "too many connections to the console from one network");
                    continue;
                };
                if free.available_permits() < CONNECTIONS_FREE && idle.close_oldest() {
                    tracing::debug!("an idle connection to the console makes room");
                }
                let parts = parts.clone();
                let connection = idle.open();
                tasks.spawn(parts.serve_one(stream, PeerAddress(peer), connection, (permit, slot)));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "a connection to the console could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl ConnectionParts {
    /// Serves a connection, which has its room until it ends, or makes room.
    async fn serve_one(
        self,
        stream: TcpStream,
        peer: PeerAddress,
        connection: Arc<OpenConnection>,
        _room: (OwnedSemaphorePermit, PeerSlot),
    ) {
        let served = self.speak(stream, peer, connection.clone());
        tokio::select! {
            () = served => {}
            () = connection.closed() => {}
        }
    }

    async fn speak(self, stream: TcpStream, peer: PeerAddress, connection: Arc<OpenConnection>) {
        let Some(tls) = self.tls.clone() else {
            return self.speak_http(stream, peer, connection).await;
        };
        match timeout(HEAD_WITHIN, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.speak_http(stream, peer, connection).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake with the console failed"),
            Err(_) => tracing::debug!("a TLS handshake with the console took too long"),
        }
    }

    async fn speak_http<I>(self, stream: I, peer: PeerAddress, open: Arc<OpenConnection>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let router = TowerToHyperService::new(self.router);
        let is_tls = self.tls.is_some();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            let busy = open.begin();
            let host = request.headers().get(HOST).cloned();
            let answer = router.call(request);
            async move {
                let mut answer = answer.await?;
                if is_tls {
                    require_https(&mut answer, host.as_ref());
                }
                // The body keeps the connection busy until all of it is taken to be sent, or it is given up.
                let keep = move |_: &Frame<Bytes>| {
                    let _busy = &busy;
                };
                Ok::<_, Infallible>(answer.map(|body| Body::new(body.inspect_frame(keep))))
            }
        });
        let stream = TokioIo::new(BoundedWrites::new(stream));
        let mut connection = pin!(self.http.serve_connection(stream, service));
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.as_mut().await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a connection to the console ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    use super::*;

    /// Connects from another address of loopback, each of which is a network.
    async fn connect(from: u8, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, from), 0));
        socket.bind(from).expect("an address of loopback");
        socket.connect(to).await.expect("a connection")
    }

    #[tokio::test]
    async fn connections_that_ask_nothing_keep_nobody_out() {
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = tcp.local_addr().expect("an address");
        let router = Router::new().route("/", get(|| async { "here" }));
        let stop = CancellationToken::new();
        let listener = ConsoleListener { tcp, tls: None, proxies: TrustedProxies::default() };
        let asking = async {
            let mut idle = Vec::new();
            for number in 0..CONNECTIONS_MAX {
                let network = 2 + u8::try_from(number / SLOTS_MAX).expect("a few networks");
                idle.push(connect(network, address).await);
            }
            let mut guest = connect(9, address).await;
            let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            guest.write_all(request).await.expect("written");
            let mut answer = String::new();
            let read = timeout(HEAD_WITHIN / 3, guest.read_to_string(&mut answer)).await;
            read.expect("it is answered before the others have to end").expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"), "{answer}");
            stop.cancel();
        };
        tokio::join!(listener.serve(router, stop.clone()), asking);
    }
}
