//! Free TCP ports for servers that are killed and started again on the same port.
//!
//! Ports are below the kernel's range for outgoing connections (32768 on Linux). A port found by
//! binding port 0 could become the source port of a connection while its server is down. Each test
//! process has a block of ports for itself, so no other one takes the port of a server that is down.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::binaries;

const LOWEST: u16 = 12_000;
const BLOCK: u16 = 500;
const BLOCKS: u16 = 40;

/// Ports of this process.
struct Block {
    first: u16,
    next: AtomicU16,
    /// Locked while this process lives.
    _lock: File,
}

/// A loopback address on which nothing listens. This process never returns one twice, unless it
/// needs more than there are in its block.
pub fn free() -> SocketAddr {
    static OWN: OnceLock<Block> = OnceLock::new();
    let own = OWN.get_or_init(Block::take);
    for _ in 0..BLOCK {
        let port = own.first + own.next.fetch_add(1, Ordering::Relaxed) % BLOCK;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port from {} to {}", own.first, own.first + BLOCK - 1);
}

impl Block {
    fn take() -> Self {
        // Another checkout has locks of its own, so the search begins anywhere.
        let start = rand::random_range(0..BLOCKS);
        let mut blocks = (0..BLOCKS).map(|step| (start + step) % BLOCKS);
        let taken = blocks.find_map(|block| {
            let lock = binaries::lock_file(&format!("ports-{block}"));
            let first = LOWEST + block * BLOCK;
            lock.try_lock().is_ok().then(|| Self { first, next: AtomicU16::new(0), _lock: lock })
        });
        taken.expect("fewer test processes than blocks of ports")
    }
}
