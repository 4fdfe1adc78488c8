//! The HTTP client of this command: plain or TLS, with limits on time and size of an answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;

use crate::failure::Failure;

/// Request timeout, longer than any receiver or backend may take.
const TIMEOUT: Duration = Duration::from_secs(35);
/// Largest answer that is read. Only the message of an answer matters.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A client with its connection pool.
#[derive(Clone)]
pub(crate) struct HttpClient(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

/// A complete answer.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    /// Status code.
    pub status: StatusCode,
    /// Body; empty if it was too long.
    pub body: Bytes,
}

impl HttpClient {
    /// A client for `http` only.
    pub(crate) fn plain() -> Self {
        let config = rustls::ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("BUG: ring supports the default protocol versions")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        Self::over(
            HttpsConnectorBuilder::new()
                .with_tls_config(config)
                .https_or_http()
                .enable_http1()
                .build(),
        )
    }

    /// A client for `uri`, which uses the system's certificates for `https`. `name` replaces the
    /// URL's host in the TLS handshake.
    pub(crate) fn for_uri(uri: &http::Uri, name: Option<&str>) -> Result<Self, Failure> {
        if uri.scheme_str() != Some("https") {
            return Ok(Self::plain());
        }
        let unusable = |error: &dyn std::fmt::Display| {
            Failure::Failed(format!("https cannot be used: {error}; install ca-certificates"))
        };
        let builder = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(ring::default_provider())
            .map_err(|error| unusable(&error))?
            .https_or_http();
        let Some(name) = name else { return Ok(Self::over(builder.enable_http1().build())) };
        let host = name.rsplit_once(':').map_or(name, |(host, _)| host).to_owned();
        let name = ServerName::try_from(host).map_err(|error| unusable(&error))?;
        let resolver = FixedServerNameResolver::new(name);
        Ok(Self::over(builder.with_server_name_resolver(resolver).enable_http1().build()))
    }

    fn over(connector: HttpsConnector<HttpConnector>) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            // Shopify spells headers in title case; some proxies and people compare
            // case-sensitively.
            .http1_title_case_headers(true)
            .build(connector);
        Self(client)
    }

    /// Sends one request and reads the answer. The error is a sentence.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Result<HttpAnswer, String> {
        self.send_up_to(request, ANSWER_BYTES_MAX).await
    }

    /// Sends one request and reads an answer of up to `bytes_max`. The error is a sentence.
    pub(crate) async fn send_up_to(
        &self,
        request: Request<Full<Bytes>>,
        bytes_max: usize,
    ) -> Result<HttpAnswer, String> {
        let exchange = async {
            let response = self.0.request(request).await.map_err(|error| chain(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), bytes_max).collect().await;
            Ok(HttpAnswer { status, body: body.map(|body| body.to_bytes()).unwrap_or_default() })
        };
        let timed = tokio::time::timeout(TIMEOUT, exchange).await;
        timed.unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs())))
    }

    /// Sends a GET request to `url`.
    pub(crate) async fn get(&self, url: &str) -> Result<HttpAnswer, String> {
        self.get_up_to(url, ANSWER_BYTES_MAX).await
    }

    /// Sends a GET request to `url` and reads an answer of up to `bytes_max`.
    pub(crate) async fn get_up_to(
        &self,
        url: &str,
        bytes_max: usize,
    ) -> Result<HttpAnswer, String> {
        let request = Request::get(url).body(Full::default()).map_err(|error| error.to_string())?;
        self.send_up_to(request, bytes_max).await
    }
}

/// An error with all its causes. Hyper's own text is only "client error (Connect)".
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

/// Address by which a listener can be reached from this machine.
pub(crate) fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_is_reached_on_this_machine() {
        for (listen, expected) in [
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::]:80", "[::1]:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), expected);
        }
    }
}
