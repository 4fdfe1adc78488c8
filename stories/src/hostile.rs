//! Attackers: what they write on a connection ([`shape`]), what many of them do at once
//! ([`attack`], [`siege`]), and what a hostile backend answers ([`answers`]).
//!
//! A webhook that can get in only through a misread request is signed. Only reading the request
//! correctly keeps it out. Its id begins with [`HIDDEN`].

pub mod answers;
pub mod attack;
pub mod shape;
pub mod siege;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::{sleep, timeout};

use crate::webhook::Webhook;

/// Prefix of the ids of webhooks that must never be stored.
pub const HIDDEN: &str = "hidden-";

/// Longer than any of the receiver's own timeouts in these tests.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes that an attacker writes at once, followed by a short pause: 16 MB per second, as a link of
/// 130 Mbit/s would deliver. At loopback speed, one call of the kernel keeps a core busy until all
/// bytes are copied.
const PIECE_BYTES: usize = 16 << 10;
const BETWEEN_PIECES: Duration = Duration::from_millis(1);

/// A complete signed request that must never be accepted as one.
pub fn hidden() -> Vec<u8> {
    let id = format!("{HIDDEN}{:016x}", rand::random::<u64>());
    Webhook::product(666, &id, br#"{"id":666}"#.to_vec()).encode()
}

/// Writes these bytes and reads up to `answers` answers, or until the connection ends. Returns the
/// statuses.
pub async fn play(address: SocketAddr, bytes: &[u8], answers: usize) -> Vec<u16> {
    let Ok(stream) = TcpStream::connect(address).await else { return Vec::new() };
    let (mut incoming, mut outgoing) = stream.into_split();
    let mut read = Vec::new();
    let exchange = async {
        // A refusal may come, and the connection may close, long before everything is written.
        let writing = async {
            write(&mut outgoing, bytes).await.ok();
            std::future::pending::<()>().await;
        };
        let reading = async {
            while statuses(&read).len() < answers {
                if !matches!(incoming.read_buf(&mut read).await, Ok(1..)) {
                    return;
                }
            }
        };
        tokio::select! { () = writing => {}, () = reading => {} }
    };
    assert!(timeout(PATIENCE, exchange).await.is_ok(), "the server keeps the connection open");
    statuses(&read)
}

/// Writes everything, no faster than an attacker's link.
async fn write(outgoing: &mut OwnedWriteHalf, bytes: &[u8]) -> io::Result<()> {
    for piece in bytes.chunks(PIECE_BYTES) {
        outgoing.write_all(piece).await?;
        if piece.len() == PIECE_BYTES {
            sleep(BETWEEN_PIECES).await;
        }
    }
    Ok(())
}

/// Statuses of all answers in these bytes. No body of our servers looks like a status line.
pub fn statuses(read: &[u8]) -> Vec<u16> {
    const VERSION: &[u8] = b"HTTP/1.1 ";
    let begins = |window: &[u8]| window.starts_with(VERSION);
    let lines = read.windows(VERSION.len() + 3).filter(|window| begins(window));
    let number = |line: &[u8]| std::str::from_utf8(&line[VERSION.len()..]).ok()?.parse().ok();
    lines.filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::statuses;

    #[test]
    fn statuses_are_found_in_their_order() {
        let read = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 401 Unauthorized\r\n";
        assert_eq!(statuses(read), [200, 401]);
        assert_eq!(statuses(b"HTTP/1.1 2"), [0; 0]);
    }
}
