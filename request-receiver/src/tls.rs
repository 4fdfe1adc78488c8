//! HTTPS at `LISTEN_TLS`: certificates, and handshakes that are bounded in number and time.
//!
//! One configuration lasts as long as the process, and only its certificates change. So sessions can
//! be resumed after a reload, and no connection notices it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use prometheus::{IntCounter, Registry};
use rustls::ServerConfig;
use rustls::crypto::ring::{self, Ticketer};
use rustls::version::{TLS12, TLS13};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::metrics::vec;
use crate::phase::Phase;
use crate::tls::certificates::Certificates;

pub mod certificates;
pub mod settings;

/// Handshakes under way per shard. Each takes about 40 KB.
const HANDSHAKES_MAX: usize = 256;

/// Accepts TLS connections.
#[derive(Clone)]
pub struct TlsEndpoint {
    acceptor: TlsAcceptor,
    metrics: TlsMetrics,
}

/// Counters of handshakes.
#[derive(Clone)]
struct TlsMetrics {
    done: IntCounter,
    failed: IntCounter,
    cut: IntCounter,
}

/// Handshakes of a shard. If there are too many, the oldest is cut off: it takes longer than any
/// other, and so do those of clients that never end them.
#[derive(Default)]
pub struct Handshakes(Mutex<VecDeque<Weak<Phase>>>);

impl TlsEndpoint {
    /// Serves with these certificates.
    ///
    /// # Errors
    /// If there are no random numbers.
    pub fn new(certificates: Arc<Certificates>, registry: &Registry) -> anyhow::Result<Self> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let mut config = builder
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(certificates);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Without state for each session: a client that comes back to another shard resumes it, too.
        config.ticketer = Ticketer::new()?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), metrics: TlsMetrics::new(registry) })
    }

    /// Shakes hands. Returns nothing if that fails, or is cut off: after the time for the first byte of
    /// a request, or because there are too many.
    pub async fn shake_hands(
        &self,
        stream: TcpStream,
        phase: &Arc<Phase>,
        handshakes: &Handshakes,
    ) -> Option<Box<TlsStream<TcpStream>>> {
        handshakes.begin(phase);
        let shaken = tokio::select! {
            biased;
            shaken = self.acceptor.accept(stream) => shaken,
            () = phase.swept() => {
                self.metrics.cut.inc();
                return None;
            }
        };
        handshakes.end(phase);
        match shaken {
            Ok(stream) => {
                self.metrics.done.inc();
                Some(Box::new(stream))
            }
            Err(error) => {
                tracing::debug!(%error, "a TLS handshake failed");
                self.metrics.failed.inc();
                None
            }
        }
    }
}

impl TlsMetrics {
    fn new(registry: &Registry) -> Self {
        let handshakes = vec(
            registry,
            "spillway_tls_handshakes_total",
            "TLS handshakes at LISTEN_TLS: done, failed, or cut off because they took too long.",
            "outcome",
        );
        let of = |outcome| handshakes.with_label_values(&[outcome]);
        Self { done: of("done"), failed: of("failed"), cut: of("cut") }
    }
}

impl Handshakes {
    fn begin(&self, phase: &Arc<Phase>) {
        let mut under_way = self.lock();
        if under_way.len() >= HANDSHAKES_MAX
            && let Some(oldest) = under_way.pop_front().and_then(|oldest| oldest.upgrade())
        {
            oldest.cut_off();
        }
        under_way.push_back(Arc::downgrade(phase));
    }

    fn end(&self, phase: &Arc<Phase>) {
        let is_other = |other: &Weak<Phase>| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(phase));
        self.lock().retain(is_other);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Weak<Phase>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
