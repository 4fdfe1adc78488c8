//! Connections of each network: one stranger can't take all that there are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::peer::network;
use crate::proxy::TrustedProxies;

/// Connections at once from one network: a quarter of all. A browser has six, and one more for each page with events.
pub(crate) const SLOTS_MAX: usize = 64;

/// Room for a bounded number of connections from each network. Trusted proxies have no bound of their own.
#[derive(Debug, Clone)]
pub(crate) struct PeerSlots {
    proxies: TrustedProxies,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// Room for one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct PeerSlot {
    slots: PeerSlots,
    /// `None` for a trusted proxy.
    network: Option<IpAddr>,
}

impl PeerSlots {
    /// All free.
    pub(crate) fn new(proxies: TrustedProxies) -> Self {
        Self { proxies, taken: Arc::default() }
    }

    /// Takes room for a connection; `None` if its network has no more.
    pub(crate) fn take(&self, peer: IpAddr) -> Option<PeerSlot> {
        if self.proxies.contains(peer) {
            return Some(PeerSlot { slots: self.clone(), network: None });
        }
        let network = network(peer);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(network).or_default();
        if *count >= SLOTS_MAX {
            return None;
        }
        *count += 1;
        Some(PeerSlot { slots: self.clone(), network: Some(network) })
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        let Some(network) = self.network else { return };
        let mut taken = self.slots.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_has_its_share_and_a_trusted_proxy_all() {
        let slots = PeerSlots::new(TrustedProxies::parse("10.0.0.1").unwrap());
        let take = |peer: &str| slots.take(address(peer));
        let mut held: Vec<_> = (0..SLOTS_MAX).map(|_| take("2001:db8::1")).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(take("2001:db8::2").is_none(), "it is the same network");
        assert!(take("2001:db8:0:1::1").is_some() && take("192.0.2.1").is_some());
        held.pop();
        assert!(take("2001:db8::2").is_some(), "one has ended");
        let proxied: Vec<_> = (0..2 * SLOTS_MAX).map(|_| take("10.0.0.1")).collect();
        assert!(proxied.iter().all(Option::is_some));
        drop((held, proxied));
        assert!(slots.taken.lock().unwrap().is_empty());
    }
}
