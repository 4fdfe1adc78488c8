//! Free TCP ports for servers that are killed and started again on the same port.
//!
//! Taken from below the kernel's range for outgoing connections (32768 on Linux): a port found by
//! binding port 0 could become the source of some connection while its server is down.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

const LOWEST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// An address on the loopback on which nothing listens, never handed out twice by this process.
pub fn free() -> SocketAddr {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    // Two test processes at once start at different places.
    let next = NEXT.get_or_init(|| AtomicU16::new(rand::random_range(0..COUNT)));
    for _ in 0..COUNT {
        let port = LOWEST + next.fetch_add(1, Ordering::Relaxed) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port between {LOWEST} and {}", LOWEST + COUNT);
}
