//! HTTPS at `LISTEN_TLS`: certificates, and handshakes that are bounded in number and time.
//!
//! One configuration lasts as long as the process, and only its certificates change. So sessions can
//! be resumed after a reload and at any shard, and no connection notices it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use prometheus::{IntCounter, Registry};
use rustls::ServerConfig;
use rustls::crypto::ring::{self, Ticketer};
use rustls::version::{TLS12, TLS13};
use spillway_process::metrics::register;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::metrics::vec;
use crate::phase::Phase;
use crate::stream::MeteredTcp;
use crate::tls::certificates::Certificates;

pub mod certificates;
pub mod settings;

/// Handshakes under way per shard. Each takes 10 KB; a hostile one, whose first message is as long as it
/// may be, 130 KB, which is 33 MB for all. A client that answers within 100 ms is kept out only by more
/// than 2,500 new ones a second at its shard.
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
    cut_off: IntCounter,
}

/// Handshakes of a shard, the oldest first. If there are too many, the oldest is cut off: it has had
/// more time than any other, and those that clients never end become the oldest.
#[derive(Default)]
pub struct Handshakes(Mutex<VecDeque<Arc<Phase>>>);

/// A handshake under way, for as long as this lives.
struct HandshakeSlot<'a> {
    handshakes: &'a Handshakes,
    phase: Arc<Phase>,
}

impl TlsEndpoint {
    /// Serves with these certificates.
    ///
    /// # Errors
    /// If there are no random numbers.
    pub fn new(certificates: Arc<Certificates>, registry: &Registry) -> anyhow::Result<Self> {
        register(registry, certificates.expiry());
        // Its cipher suites have forward secrecy and authenticate what they encrypt, all of them.
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let mut config = builder
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(certificates);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Sessions lie at the client, encrypted with keys of this process that change every 6 hours.
        config.ticketer = Ticketer::new()?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { acceptor, metrics: TlsMetrics::new(registry) })
    }

    /// Shakes hands. Returns nothing if that fails, or is cut off: after the time for the first byte of
    /// a request, or because there are too many.
    pub async fn shake_hands(
        &self,
        stream: TcpStream,
        phase: &Arc<Phase>,
        handshakes: &Handshakes,
    ) -> Option<Box<TlsStream<MeteredTcp>>> {
        let slot = handshakes.begin(phase);
        let shaken = tokio::select! {
            biased;
            shaken = self.acceptor.accept(MeteredTcp::new(stream)) => shaken,
            () = phase.swept() => {
                self.metrics.cut_off.inc();
                return None;
            }
        };
        drop(slot);
        // It was to be cut off at the moment at which it ended.
        phase.swept().now_or_never();
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
            "TLS handshakes at LISTEN_TLS: done, failed, or cut_off because they took too long or were too many.",
            "outcome",
        );
        let of = |outcome| handshakes.with_label_values(&[outcome]);
        Self { done: of("done"), failed: of("failed"), cut_off: of("cut_off") }
    }
}

impl Handshakes {
    fn begin(&self, phase: &Arc<Phase>) -> HandshakeSlot<'_> {
        let mut under_way = self.lock();
        if under_way.len() >= HANDSHAKES_MAX
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.cut_off();
        }
        under_way.push_back(phase.clone());
        HandshakeSlot { handshakes: self, phase: phase.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Phase>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HandshakeSlot<'_> {
    fn drop(&mut self) {
        self.handshakes.lock().retain(|other| !Arc::ptr_eq(other, &self.phase));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_too_many_cuts_the_oldest_off() {
        let handshakes = Handshakes::default();
        let phases: Vec<_> = (0..=HANDSHAKES_MAX).map(|_| Phase::new()).collect();
        let mut slots: VecDeque<_> =
            phases[..HANDSHAKES_MAX].iter().map(|phase| handshakes.begin(phase)).collect();
        let is_cut_off = |place: usize| phases[place].swept().now_or_never().is_some();
        assert!(!is_cut_off(0));
        // The first one ends by itself, so there is room.
        slots.pop_front();
        slots.push_back(handshakes.begin(&phases[0]));
        assert!(!is_cut_off(1));
        let last = handshakes.begin(&phases[HANDSHAKES_MAX]);
        assert!(is_cut_off(1) && !is_cut_off(2) && !is_cut_off(0));
        assert_eq!(handshakes.lock().len(), HANDSHAKES_MAX);
        slots.clear();
        drop(last);
        assert!(handshakes.lock().is_empty());
    }
}
