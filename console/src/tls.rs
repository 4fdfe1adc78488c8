//! TLS of the console. The configuration lasts as long as the process, and only its certificate changes.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use tokio_rustls::TlsAcceptor;

/// Certificate that the console shows, and its key. Without one, every handshake fails.
#[derive(Debug)]
pub struct ShownCertificate(ArcSwapOption<CertifiedKey>);

impl ShownCertificate {
    /// Shows this certificate, if there is one yet.
    pub fn new(pair: Option<CertifiedKey>) -> Self {
        Self(ArcSwapOption::from_pointee(pair))
    }

    /// The one that is shown now.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }

    /// Shows this one from now on. Connections that are open keep theirs.
    pub fn replace(&self, pair: CertifiedKey) {
        self.0.store(Some(Arc::new(pair)));
    }
}

impl ResolvesServerCert for ShownCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}

/// Makes what accepts TLS connections: TLS 1.2 or 1.3.
///
/// # Panics
/// If the provider can't speak these versions, which is a bug.
pub fn acceptor(certificate: Arc<ShownCertificate>) -> TlsAcceptor {
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config = builder
        .with_protocol_versions(&[&TLS13, &TLS12])
        .expect("BUG: ring speaks both")
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}
