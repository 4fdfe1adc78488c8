//! Free TCP ports for servers that are killed and started again on the same port.
//!
//! Ports are below the kernel's range for outgoing connections (32768 on Linux). A port found by
//! binding port 0 could become the source port of a connection while its server is down.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

const LOWEST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// A loopback address on which nothing listens. This process never returns one twice.
pub fn free() -> SocketAddr {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    // Test processes that run at the same time start at different ports.
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
