//! HTTPS at `LISTEN_TLS`: certificates, and handshakes that are bounded in number and time.
//!
//! One configuration lasts as long as the process, and only its certificates change. So sessions can
//! be resumed after a reload and at any shard, and no connection notices it.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
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
/// may be, 130 KB, which is 33 MB for all.
const HANDSHAKES_MAX: usize = 256;

/// Handshakes of one network from which on it loses its oldest, and not the one that has the oldest of
/// all. Below, many networks with one each that never ends could cut off who has two.
const NETWORK_MAX: usize = HANDSHAKES_MAX / 8;

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

/// Handshakes of a shard. If there are too many, the oldest is cut off, which has had more time than any
/// other. If one network has far too many, it loses its own oldest: nobody who opens connections and
/// never ends a handshake keeps others out.
#[derive(Default)]
pub struct Handshakes(Mutex<UnderWay>);

#[derive(Default)]
struct UnderWay {
    /// The oldest first.
    queue: VecDeque<(IpAddr, Arc<Phase>)>,
    by_network: HashMap<IpAddr, usize>,
}

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
        // A client that is gone already has no address, and its handshake fails.
        let peer = stream.peer_addr().map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |peer| peer.ip());
        let slot = handshakes.begin(network(peer), phase);
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
    fn begin(&self, network: IpAddr, phase: &Arc<Phase>) -> HandshakeSlot<'_> {
        let mut under_way = self.lock();
        under_way.queue.push_back((network, phase.clone()));
        *under_way.by_network.entry(network).or_default() += 1;
        if under_way.queue.len() > HANDSHAKES_MAX {
            let most = under_way.by_network.values().copied().max().unwrap_or(0);
            let loses = |one| most <= NETWORK_MAX || under_way.by_network[one] == most;
            let place = under_way.queue.iter().position(|(one, _)| loses(one));
            if let Some(phase) = place.and_then(|place| under_way.remove(place)) {
                phase.cut_off();
            }
        }
        HandshakeSlot { handshakes: self, phase: phase.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay {
    fn remove(&mut self, place: usize) -> Option<Arc<Phase>> {
        let (network, phase) = self.queue.remove(place)?;
        if let Some(count) = self.by_network.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.by_network.remove(&network);
            }
        }
        Some(phase)
    }
}

impl Drop for HandshakeSlot<'_> {
    fn drop(&mut self) {
        let mut under_way = self.handshakes.lock();
        let place = under_way.queue.iter().position(|(_, one)| Arc::ptr_eq(one, &self.phase));
        if let Some(place) = place {
            under_way.remove(place);
        }
    }
}

/// Network of one customer of a provider: an IPv4 address, or 64 bits of an IPv6 address.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    fn is_cut_off(phase: &Phase) -> bool {
        phase.swept().now_or_never().is_some()
    }

    #[tokio::test]
    async fn one_too_many_cuts_the_oldest_off() {
        let handshakes = Handshakes::default();
        let phases: Vec<_> = (0..=HANDSHAKES_MAX).map(|_| Phase::new()).collect();
        let mut slots: VecDeque<_> =
            phases[..HANDSHAKES_MAX].iter().map(|phase| handshakes.begin(ONE, phase)).collect();
        assert!(!is_cut_off(&phases[0]));
        // The first one ends by itself, so there is room.
        slots.pop_front();
        slots.push_back(handshakes.begin(ONE, &phases[0]));
        assert!(!is_cut_off(&phases[1]));
        let last = handshakes.begin(ONE, &phases[HANDSHAKES_MAX]);
        assert!(is_cut_off(&phases[1]) && !is_cut_off(&phases[2]) && !is_cut_off(&phases[0]));
        assert_eq!(handshakes.lock().queue.len(), HANDSHAKES_MAX);
        slots.clear();
        drop(last);
        let under_way = handshakes.lock();
        assert!(under_way.queue.is_empty() && under_way.by_network.is_empty());
    }

    #[tokio::test]
    async fn a_network_with_many_handshakes_cuts_no_other_off() {
        let handshakes = Handshakes::default();
        let honest: Vec<_> = (0..8).map(|_| Phase::new()).collect();
        let hostile: Vec<_> = (0..3 * HANDSHAKES_MAX).map(|_| Phase::new()).collect();
        let mut slots: Vec<_> =
            honest[..4].iter().map(|phase| handshakes.begin(OTHER, phase)).collect();
        slots.extend(hostile.iter().map(|phase| handshakes.begin(ONE, phase)));
        slots.extend(honest[4..].iter().map(|phase| handshakes.begin(OTHER, phase)));
        assert!(!honest.iter().any(|phase| is_cut_off(phase)));
        let left: Vec<bool> = hostile.iter().map(|phase| !is_cut_off(phase)).collect();
        let count = left.iter().filter(|is_left| **is_left).count();
        assert_eq!(count, HANDSHAKES_MAX - honest.len());
        assert!(!left[0] && left[left.len() - 1], "the oldest go");
    }

    #[tokio::test]
    async fn of_many_networks_none_is_to_blame_and_the_oldest_goes() {
        let handshakes = Handshakes::default();
        let strangers: Vec<_> = (0..=HANDSHAKES_MAX).map(|_| Phase::new()).collect();
        let honest = [Phase::new(), Phase::new()];
        let each = |at: usize| IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(at).expect("few")));
        let mut slots: Vec<_> = strangers[..HANDSHAKES_MAX - 2]
            .iter()
            .enumerate()
            .map(|(at, phase)| handshakes.begin(each(at), phase))
            .collect();
        slots.extend(honest.iter().map(|phase| handshakes.begin(OTHER, phase)));
        slots.push(handshakes.begin(each(HANDSHAKES_MAX), &strangers[HANDSHAKES_MAX]));
        assert!(is_cut_off(&strangers[0]) && !honest.iter().any(|phase| is_cut_off(phase)));
    }

    #[test]
    fn a_network_is_an_address_or_half_of_a_long_one() {
        let of = |text: &str| network(text.parse().expect("an address")).to_string();
        assert_eq!(of("192.0.2.1"), "192.0.2.1");
        assert_eq!(of("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }
}
