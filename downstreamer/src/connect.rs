//! Clients for HTTP that connect within a time limit, and fail once the lease is lost.
//!
//! A delivery checks the lease when it begins. Connecting may take a while after that, and a
//! standby may take over meanwhile. So the time limit is less than the margin of the lease, and the
//! lease is checked again before a byte of the request is sent.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::body::Body;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use spillway_queue::leader::{TAKE_AFTER, UNCONFIRMED_MAX};
use tower::Service;

use crate::access::BackendAccess;

/// Longest time for connecting, TLS included.
const CONNECT_MAX: Duration = Duration::from_secs(2);
const _: () = assert!(
    UNCONFIRMED_MAX.as_millis() + CONNECT_MAX.as_millis() < TAKE_AFTER.as_millis(),
    "what connects at the end of a lease is sent before a standby takes over"
);

/// Time between pings on an HTTP/2 connection with requests under way.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(10);
/// Time after which an idle pooled connection is closed: by then the other side has likely closed
/// it.
pub(crate) const IDLE_CONNECTION: Duration = Duration::from_secs(30);

/// Time without a sign of the other machine after which a connection is dead. A machine that fails does
/// not close its connections, and a delivery on one would hang up to its time limit, as if its webhook
/// were slow. Five retransmissions of a lost segment take less (6 s), and a delivery has more by default
/// (30 s). A machine that takes no byte of a request for so long counts as dead, too.
const DEAD_AFTER: Duration = Duration::from_secs(10);
const _: () = assert!(
    DEAD_AFTER.as_millis() < IDLE_CONNECTION.as_millis(),
    "a dead connection is closed before it would be for being idle"
);
/// Time between two probes of a connection that does not answer them.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Probes without an answer after which a connection is dead.
const PROBES_MAX: u32 = 5;

/// Error of any kind.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Connector for http and https.
pub(crate) type BackendConnector = LeasedConnector<HttpsConnector<HttpConnector>>;

/// Client with a connection pool.
pub(crate) type LeasedClient<B> = Client<BackendConnector, B>;

/// Function that returns true if the lease holds now.
pub(crate) type LeaseCheck = Arc<dyn Fn() -> bool + Send + Sync>;

/// Error: no connection within the time limit.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
pub(crate) struct ConnectTimeout(Duration);

/// Error: the lease was lost before the request was sent.
#[derive(Debug, thiserror::Error)]
#[error("the lease was lost while connecting")]
pub(crate) struct LeaseLost;

/// Properties of a client.
pub(crate) struct ClientOptions {
    /// TLS settings, of [`tls`].
    pub tls: ClientConfig,
    /// TLS server name, if it is not the URL's host.
    pub server_name: Option<ServerName<'static>>,
    /// True if HTTP/2 is used where the server offers it.
    pub takes_http2: bool,
    /// Time for connecting, at most [`CONNECT_MAX`].
    pub timeout: Duration,
    /// Most idle connections to one host.
    pub idle_max: usize,
}

impl ClientOptions {
    /// Connector with these properties.
    pub(crate) fn connector(self, lease: LeaseCheck) -> BackendConnector {
        let connect_max = self.timeout.min(CONNECT_MAX);
        let connector = tcp_connector(connect_max);
        let https = HttpsConnectorBuilder::new().with_tls_config(self.tls).https_or_http();
        let https = match self.server_name {
            Some(name) => https.with_server_name_resolver(FixedServerNameResolver::new(name)),
            None => https,
        };
        let https = if self.takes_http2 {
            https.enable_all_versions().wrap_connector(connector)
        } else {
            https.enable_http1().wrap_connector(connector)
        };
        LeasedConnector::new(https, connect_max, lease)
    }

    /// Client with a new connection pool.
    pub(crate) fn client<B>(self, lease: LeaseCheck) -> LeasedClient<B>
    where
        B: Body + Send,
        B::Data: Send,
    {
        Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            // Finds a dead connection before its requests have all timed out.
            .http2_keep_alive_interval(HTTP2_PING_EVERY)
            .pool_idle_timeout(IDLE_CONNECTION)
            .pool_max_idle_per_host(self.idle_max)
            // Only for a pooled connection that was closed before a byte was sent: sending again
            // repeats nothing.
            .retry_canceled_requests(true)
            .build(self.connector(lease))
    }
}

/// Connector for TCP, whose connections end once the other machine has vanished: by probes while they
/// are idle, and by the user timeout while bytes are not acknowledged.
fn tcp_connector(connect_max: Duration) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect_max));
    connector.set_keepalive(Some(DEAD_AFTER / 2));
    connector.set_keepalive_interval(Some(PROBE_EVERY));
    connector.set_keepalive_retries(Some(PROBES_MAX));
    connector.set_tcp_user_timeout(Some(DEAD_AFTER));
    connector
}

/// TLS settings. They trust the authorities of `access`, or this machine's. None are loaded unless
/// `setting` names https.
///
/// # Errors
/// If this machine knows no authority.
pub(crate) fn tls(
    setting: &str,
    is_needed: bool,
    access: &BackendAccess,
) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if let Some(authorities) = &access.authorities {
        roots = authorities.clone();
    } else if is_needed {
        let found = rustls_native_certs::load_native_certs();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            anyhow::bail!(
                "{setting}: this machine knows no certificate authority; install ca-certificates \
                 or set SSL_CERT_FILE"
            );
        }
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let Some(identity) = access.identity.clone() else { return Ok(builder.with_no_client_auth()) };
    let mut config = builder.with_client_cert_resolver(identity);
    // A session that is resumed would be one of the certificate that was shown when it began.
    config.resumption = Resumption::disabled();
    Ok(config)
}

impl LeaseLost {
    /// Returns true if `error` is this error, or was caused by it.
    pub(crate) fn is_cause_of(error: &(dyn Error + 'static)) -> bool {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if error.is::<Self>() {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

/// Connector with a time limit. Its connections fail once the lease is lost.
#[derive(Clone)]
pub(crate) struct LeasedConnector<C> {
    connector: C,
    timeout: Duration,
    lease: LeaseCheck,
}

impl<C> LeasedConnector<C> {
    /// Wraps `connector`, which does all of the connecting: name resolution, TCP and TLS.
    pub(crate) fn new(connector: C, timeout: Duration, lease: LeaseCheck) -> Self {
        Self { connector, timeout, lease }
    }
}

impl<C> Service<Uri> for LeasedConnector<C>
where
    C: Service<Uri>,
    C::Response: Send,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(self.timeout, self.connector.call(uri));
        let timeout = self.timeout;
        let lease = self.lease.clone();
        Box::pin(async move {
            let connection = connecting.await.map_err(|_| ConnectTimeout(timeout))?;
            let connection = connection.map_err(Into::into)?;
            if lease() { Ok(connection) } else { Err(LeaseLost.into()) }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
    use http_body_util::Full;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::time::Instant;
    use tower::service_fn;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn backend() -> Uri {
        Uri::from_static("https://backend.example")
    }

    fn always() -> LeaseCheck {
        Arc::new(|| true)
    }

    #[tokio::test(start_paused = true)]
    async fn connecting_is_given_up_after_its_time() {
        let never = service_fn(|_: Uri| std::future::pending::<Result<(), Infallible>>());
        let began = Instant::now();
        let connected = LeasedConnector::new(never, CONNECT_MAX, always()).call(backend()).await;
        assert!(connected.is_err_and(|error| error.is::<ConnectTimeout>()));
        assert_eq!(began.elapsed(), CONNECT_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_not_used_if_the_lease_was_lost_while_it_was_made() {
        let slow = service_fn(|_: Uri| async {
            tokio::time::sleep(SECOND).await;
            Ok::<_, Infallible>(())
        });
        let is_held = Arc::new(AtomicBool::new(true));
        let lease: LeaseCheck = {
            let is_held = is_held.clone();
            Arc::new(move || is_held.load(Ordering::Relaxed))
        };
        let mut connector = LeasedConnector::new(slow, CONNECT_MAX, lease);
        assert!(connector.call(backend()).await.is_ok());
        let connecting = connector.call(backend());
        is_held.store(false, Ordering::Relaxed);
        let error = connecting.await.expect_err("the lease was lost");
        assert!(LeaseLost::is_cause_of(&*error));
    }

    #[tokio::test]
    async fn no_byte_of_a_request_is_sent_once_the_lease_is_lost() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        let lost: LeaseCheck = Arc::new(|| false);
        let connector = LeasedConnector::new(HttpConnector::new(), CONNECT_MAX, lost);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let request = http::Request::post(uri).body(Full::new(Bytes::from_static(b"{}"))).unwrap();
        let error = client.request(request).await.expect_err("the lease is lost");
        assert!(LeaseLost::is_cause_of(&error), "{error:?}");
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut received = Vec::new();
        connection.read_to_end(&mut received).await.unwrap();
        assert!(received.is_empty(), "{received:?}");
    }

    /// Timer of the kernel for the connection to a port of this machine, as /proc/net/tcp has it: its
    /// kind, and the hundredths of a second that it has left.
    fn timer(port: u16) -> (String, u64) {
        let port = format!(":{port:04X}");
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let connection = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|fields| fields[2].ends_with(&port))
            .expect("a connection to the port");
        let (kind, left) = connection[5].split_once(':').unwrap();
        (kind.to_owned(), u64::from_str_radix(left, 16).unwrap())
    }

    #[tokio::test]
    async fn a_connection_that_is_idle_is_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let options = ClientOptions {
            tls: tls("DOWNSTREAM_APP_URL", false, &BackendAccess::default()).unwrap(),
            server_name: None,
            takes_http2: false,
            timeout: CONNECT_MAX,
            idle_max: 1,
        };
        let uri = format!("http://{address}/").parse().unwrap();
        let _connection = options.connector(always()).call(uri).await.unwrap();
        let (kind, left) = timer(address.port());
        assert_eq!(kind, "02", "the timer of probes");
        assert!(Duration::from_millis(10 * left) <= DEAD_AFTER / 2, "{left}");
    }

    #[tokio::test]
    async fn a_tls_handshake_that_is_never_answered_ends_connecting_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("https://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let config = tls("DOWNSTREAM_APP_URL", false, &BackendAccess::default()).unwrap();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        let https = HttpsConnectorBuilder::new().with_tls_config(config).https_only();
        let https = https.enable_http1().wrap_connector(http);
        let mut connector = LeasedConnector::new(https, SECOND / 10, always());
        let connected = connector.call(uri).await;
        assert!(connected.is_err_and(|error| error.is::<ConnectTimeout>()));
    }
}
