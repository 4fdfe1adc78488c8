//! Attacks of a crowd on a receiver. Each attacker repeats the same action.
//!
//! The rates are bounded: the question is if an attack costs more than necessary, not if two cores
//! can be kept busy.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::shape::{self, HTTP2, Shape};
use super::{play, statuses, write};
use crate::webhook::Webhook;

/// Time between two bytes of a slow attacker, much shorter than any timeout.
const DRIP: Duration = Duration::from_millis(250);
/// Bytes that an endless attacker writes at once.
const GUSH_BYTES: usize = 64 << 10;
/// A stream opened and reset at once: HEADERS (`:method: POST` and no more) and RST_STREAM with
/// CANCEL (RFC 9113, 6.2 and 6.4).
const OPEN_AND_RESET: &[u8] = b"\0\0\x01\x01\x05\0\0\0\x01\x83\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08";
/// Begin of a handshake: of a record of 512 bytes, and of a ClientHello of 508 (RFC 8446, 4.1.2 and 5.1).
const HELLO: &[u8] = b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03";

/// An attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// No attack: shows how much the figures vary by themselves.
    Nothing,
    /// Heads that come byte by byte (slowloris).
    SlowHeads,
    /// Bodies that come byte by byte.
    SlowBodies,
    /// Connections that send nothing.
    Idle,
    /// Heads with too many headers, or too long.
    HeaderBombs,
    /// A Content-Length that differs from the length of the body.
    Lengths,
    /// Chunked bodies without an end, and invalid chunks.
    Chunks,
    /// Requests with an ambiguous end.
    Smuggling,
    /// Many requests in one write, without waiting for the answers.
    Pipelining,
    /// The preface of HTTP/2, and streams that are reset as soon as they are opened.
    RapidReset,
    /// Webhooks with a wrong signature.
    Forged,
    /// Bodies over the limit, announced and not.
    Oversized,
    /// TLS handshakes that come byte by byte.
    SlowHandshakes,
    /// TLS handshakes that are begun and never ended.
    HalfHandshakes,
}

impl Attack {
    /// Every attack.
    pub const ALL: [Self; 13] = [
        Self::SlowHeads,
        Self::SlowBodies,
        Self::Idle,
        Self::HeaderBombs,
        Self::Lengths,
        Self::Chunks,
        Self::Smuggling,
        Self::Pipelining,
        Self::RapidReset,
        Self::Forged,
        Self::Oversized,
        Self::SlowHandshakes,
        Self::HalfHandshakes,
    ];

    /// True if attackers wait for answers and get some.
    pub fn is_answered(self) -> bool {
        !matches!(self, Self::Nothing | Self::Idle | Self::RapidReset) && !self.is_of_tls()
    }

    /// True if it is an attack on a port for TLS.
    pub fn is_of_tls(self) -> bool {
        matches!(self, Self::SlowHandshakes | Self::HalfHandshakes)
    }

    /// Number of attackers at once, of at most `crowd`.
    pub fn strangers(self, crowd: usize) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Idle => crowd,
            Self::SlowHeads | Self::SlowBodies | Self::SlowHandshakes => crowd / 50,
            Self::HalfHandshakes => crowd / 10,
            _ => 10,
        }
    }

    /// Time between the starts of two attackers. If all started at once, all would be answered at
    /// once and return at once, repeatedly.
    pub fn apart(self, strangers: usize) -> Duration {
        let round = match self {
            Self::Nothing => return Duration::ZERO,
            // With more connections at a time than the kernel's accept queue holds, some clients
            // would believe that they are connected although they are not.
            Self::Idle => Duration::from_secs(2),
            Self::SlowHeads | Self::SlowBodies | Self::SlowHandshakes => Duration::from_secs(1),
            _ => self.pause(),
        };
        round / strangers.max(1) as u32
    }

    /// Time until the attack has its full effect: the first slow attackers have been disconnected.
    pub fn settles_after(self) -> Duration {
        Duration::from_millis(match self {
            Self::Nothing => 0,
            Self::SlowHeads | Self::SlowHandshakes => 6200,
            Self::SlowBodies => 2200,
            _ => 1000,
        })
    }

    /// Time that each attacker waits before it repeats.
    fn pause(self) -> Duration {
        Duration::from_millis(match self {
            Self::SlowHeads | Self::SlowBodies | Self::SlowHandshakes | Self::Idle => 10,
            // Twice the rate of good webhooks.
            Self::Forged => 10,
            // Four of five requests are good and stored: half as many again as the good webhooks.
            Self::Pipelining => 200,
            // 30 MB per second, a bandwidth that most links have.
            Self::Oversized | Self::Chunks => 1000,
            // At most 1,000 new connections per second.
            Self::HalfHandshakes => 1000,
            _ => 50,
        })
    }

    /// Repeats the attack forever. It passes the status of each answer to `heard`.
    pub async fn go_on(self, address: SocketAddr, place: usize, mut heard: impl FnMut(u16)) {
        // Made once, because making the requests costs these two cores more than sending them.
        let script = self.script();
        for turn in place.. {
            let shape = (!script.is_empty()).then(|| &script[turn % script.len()]);
            self.once(address, shape, turn).await.into_iter().for_each(&mut heard);
            sleep(self.pause()).await;
        }
    }

    /// Requests to write in turn, if they are finite.
    fn script(self) -> Vec<Shape> {
        let one = |name, bytes| Shape { name, bytes, expected: &[0] };
        match self {
            Self::Nothing | Self::SlowHeads | Self::SlowBodies | Self::Idle | Self::RapidReset => {
                Vec::new()
            }
            Self::SlowHandshakes | Self::HalfHandshakes => Vec::new(),
            Self::HeaderBombs => shape::heads().into_iter().take(4).collect(),
            Self::Lengths => shape::lengths(),
            Self::Chunks => shape::chunks(),
            Self::Smuggling => shape::smuggling(),
            Self::Pipelining => vec![shape::pipelined()],
            Self::Forged => {
                let forged = Webhook::product(1, "forged", vec![b' '; 5300]);
                vec![one("forged", forged.signed_with("a guess").encode())]
            }
            // Announced as too long, or found to be too long while it comes.
            Self::Oversized => {
                let webhook = Webhook::any().body(vec![b' '; 3 << 20]);
                vec![
                    one("announced", webhook.encode()),
                    one("chunked", webhook.encode_chunked(GUSH_BYTES)),
                ]
            }
        }
    }

    async fn once(self, address: SocketAddr, shape: Option<&Shape>, turn: usize) -> Vec<u16> {
        match (self, shape) {
            (Self::SlowHeads, _) => drip(address, b"POST / HTTP/1.1\r\n", b"a: b\r\n").await,
            (Self::SlowBodies, _) => drip(address, &Webhook::any().head(100_000), b" ").await,
            (Self::SlowHandshakes, _) => drip(address, HELLO, b"\0").await,
            (Self::HalfHandshakes, _) => drip(address, HELLO, b"").await,
            (Self::RapidReset, _) => gush(address, HTTP2, OPEN_AND_RESET).await,
            (Self::Chunks, _) if turn.is_multiple_of(2) => {
                let head = Webhook::any().head_with("Transfer-Encoding: chunked");
                let chunk = format!("{GUSH_BYTES:x}\r\n{}\r\n", "a".repeat(GUSH_BYTES));
                gush(address, &head, chunk.as_bytes()).await
            }
            (_, Some(shape)) => play(address, &shape.bytes, shape.expected.len()).await,
            (_, None) => drip(address, b"", b"").await,
        }
    }
}

/// Writes `begin`, and then `more` at intervals, until the server closes the connection.
async fn drip(address: SocketAddr, begin: &[u8], more: &[u8]) -> Vec<u16> {
    let Ok(mut stream) = TcpStream::connect(address).await else { return Vec::new() };
    let mut read = Vec::new();
    if stream.write_all(begin).await.is_err() {
        return Vec::new();
    }
    loop {
        tokio::select! {
            got = stream.read_buf(&mut read) => {
                if !matches!(got, Ok(1..)) || !statuses(&read).is_empty() {
                    return statuses(&read);
                }
            }
            () = sleep(DRIP), if !more.is_empty() => {
                if stream.write_all(more).await.is_err() {
                    return statuses(&read);
                }
            }
        }
    }
}

/// Writes `begin`, and then `more` endlessly, until the server closes.
async fn gush(address: SocketAddr, begin: &[u8], more: &[u8]) -> Vec<u16> {
    let Ok(stream) = TcpStream::connect(address).await else { return Vec::new() };
    let (mut incoming, mut outgoing) = stream.into_split();
    let mut read = Vec::new();
    let writing = async {
        let more = more.repeat(GUSH_BYTES.div_ceil(more.len()));
        let mut goes_on = write(&mut outgoing, begin).await.is_ok();
        while goes_on {
            goes_on = write(&mut outgoing, &more).await.is_ok();
        }
    };
    let reading = async { while matches!(incoming.read_buf(&mut read).await, Ok(1..)) {} };
    tokio::join!(writing, reading);
    statuses(&read)
}
