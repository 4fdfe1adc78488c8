//! Connects to the backend within a time limit. Fails once the lease is lost.
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
use spillway_queue::leader::{TAKE_AFTER, UNCONFIRMED_MAX};
use tower::Service;

/// Longest time for connecting, TLS included.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(2);
const _: () = assert!(
    UNCONFIRMED_MAX.as_millis() + CONNECT_MAX.as_millis() < TAKE_AFTER.as_millis(),
    "what connects at the end of a lease is sent before a standby takes over"
);

// A request that waited for its connection is sent before a standby may deliver.
const _: () =
    assert!(UNCONFIRMED_MAX.as_millis() + CONNECT_MAX.as_millis() < TAKE_AFTER.as_millis());

type BoxError = Box<dyn Error + Send + Sync>;

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
    use hyper_rustls::HttpsConnectorBuilder;
    use hyper_util::client::legacy::Client;
    use hyper_util::client::legacy::connect::HttpConnector;
    use hyper_util::rt::TokioExecutor;
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

    #[tokio::test]
    async fn a_tls_handshake_that_is_never_answered_ends_connecting_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("https://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let config = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        let https = HttpsConnectorBuilder::new().with_tls_config(config).https_only();
        let https = https.enable_http1().wrap_connector(http);
        let mut connector = LeasedConnector::new(https, SECOND / 10, always());
        let connected = connector.call(uri).await;
        assert!(connected.is_err_and(|error| error.is::<ConnectTimeout>()));
    }
}
