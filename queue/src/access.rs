//! Credentials for Redis that are not part of the URL: certificates and a password.

use std::fmt;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::{
    Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, RedisResult, TlsCertificates,
};
use zeroize::Zeroizing;

/// Time without a sign of the other machine after which a connection is dead.
const DEAD_AFTER: Duration = Duration::from_secs(10);

/// Certificates and password for Redis, for the same Redis as its Sentinels name it, and for the
/// nodes of its cluster.
#[derive(Clone, Default)]
pub struct Access {
    /// PEM of the certificate authorities that may have signed Redis' certificate. `None`: those of
    /// the system.
    pub authorities: Option<Vec<u8>>,
    /// PEM of our certificate and of its key.
    pub identity: Option<(Vec<u8>, Zeroizing<Vec<u8>>)>,
    /// Password that replaces one in the URL.
    pub password: Option<Zeroizing<String>>,
}

// Written by hand: no part of it may appear in a log.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

impl Access {
    /// True if there are certificates.
    pub fn has_certificates(&self) -> bool {
        self.authorities.is_some() || self.identity.is_some()
    }

    /// Creates a client for a URL. `None` if the URL or a certificate is invalid. The error of the
    /// redis crate is dropped, because it may repeat the URL and with it a password.
    pub(crate) fn client(&self, url: &str) -> Option<Client> {
        self.open(url.into_connection_info().ok()?).ok()
    }

    fn open(&self, info: ConnectionInfo) -> RedisResult<Client> {
        // Install a provider here, so that TLS does not depend on the other crates in the build.
        rustls::crypto::ring::default_provider().install_default().ok();
        let mut info = info.set_tcp_settings(tcp_settings());
        if let Some(password) = &self.password {
            let settings = info.redis_settings().clone().set_password(password.as_str());
            info = info.set_redis_settings(settings);
        }
        if !self.has_certificates() {
            return Client::open(info);
        }
        let identity = self.identity.as_ref().map(|(certificate, key)| ClientTlsConfig {
            client_cert: certificate.clone(),
            client_key: key.to_vec(),
        });
        let certificates =
            TlsCertificates { client_tls: identity, root_cert: self.authorities.clone() };
        Client::build_with_tls(info, certificates)
    }
}

/// TCP settings that detect a dead connection. A Redis on another machine may vanish without
/// closing it, and the appender waits for a reply as long as the connection lives.
fn tcp_settings() -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(DEAD_AFTER / 2)
        .with_interval(Duration::from_secs(1))
        .with_retries(5);
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive).set_user_timeout(DEAD_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_is_tls_whatever_else_is_built() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let client = Access::default().client(&format!("rediss://127.0.0.1:{port}/0"));
        let client = client.expect("a URL");
        let connecting =
            tokio::spawn(
                async move { client.get_multiplexed_async_connection().await.map(|_| ()) },
            );
        drop(listener.accept().await);
        connecting.await.expect("it does not panic").expect_err("nobody is there");
    }
}
