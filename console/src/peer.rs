//! Peers: the addresses from which connections come.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Address of the client, among the extensions of each request. Behind a proxy it is the proxy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

/// Network of an address, for what is bounded for each. A subscriber with IPv6 has a /64 at least.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}
