//! Free TCP ports for servers that are killed and started again on the same port.
//!
//! Ports are below the kernel's range for outgoing connections (32768 on Linux). A port found by
//! binding port 0 could become the source port of a connection while its server is down. Each test
//! process has a block of ports for itself, so no other one takes the port of a server that is down.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::net::TcpSocket;

const LOWEST: u16 = 12_000;
const BLOCK: u16 = 500;
const BLOCKS: u16 = 40;

/// Ports of this process. Whoever listens on the first has the others.
struct Block {
    first: TcpListener,
    next: AtomicU16,
}

/// A loopback address on which nothing listens. This process never returns one twice, unless it
/// needs more than there are in its block.
pub fn free() -> SocketAddr {
    static OWN: OnceLock<Block> = OnceLock::new();
    let own = OWN.get_or_init(Block::take);
    let first = own.first.local_addr().expect("a bound socket has an address").port();
    for _ in 1..BLOCK {
        let port = first + 1 + own.next.fetch_add(1, Ordering::Relaxed) % (BLOCK - 1);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port from {first} to {}", first + BLOCK - 1);
}

/// Listens on `address` with a backlog of `backlog` connections, as systemd does for a socket unit:
/// also while connections of an earlier process on it wait for their last packets.
///
/// # Errors
/// If another process listens on it.
pub fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(backlog)?.into_std()
}

impl Block {
    fn take() -> Self {
        let first = |block| TcpListener::bind((Ipv4Addr::LOCALHOST, LOWEST + block * BLOCK)).ok();
        let first = (0..BLOCKS).find_map(first);
        let first = first.expect("fewer test processes than blocks of ports");
        Self { first, next: AtomicU16::new(0) }
    }
}
