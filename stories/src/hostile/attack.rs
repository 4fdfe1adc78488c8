//! What a crowd of strangers does to a receiver: each attack is what one of them does, over and over.
//!
//! The rates are bounded: what is asked is whether the attack costs more than it must, not whether
//! two cores can be kept busy.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::shape::{self, HTTP2, Shape};
use super::{play, statuses, write};
use crate::webhook::Webhook;

/// How often a slow one writes a byte: far more often than any time-out.
const DRIP: Duration = Duration::from_millis(250);
/// What an endless one writes at once.
const GUSH_BYTES: usize = 64 << 10;
/// A stream opened and reset at once: HEADERS (`:method: POST` and no more) and RST_STREAM with
/// CANCEL (RFC 9113, 6.2 and 6.4).
const OPEN_AND_RESET: &[u8] = b"\0\0\x01\x01\x05\0\0\0\x01\x83\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08";

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Nobody does anything: how much the figures vary by themselves.
    Nothing,
    /// Heads that come byte by byte (slowloris).
    SlowHeads,
    /// The same with bodies.
    SlowBodies,
    /// Connections that bring nothing.
    Idle,
    /// Heads with too many headers, or too long.
    HeaderBombs,
    /// A Content-Length that is not the body's.
    Lengths,
    /// Chunked bodies without an end, and chunks that are none.
    Chunks,
    /// Requests whose end is a matter of opinion.
    Smuggling,
    /// Many requests in one write, and nobody who waits for the answers.
    Pipelining,
    /// The preface of HTTP/2, and streams that are reset as soon as they are opened.
    RapidReset,
    /// Webhooks with a wrong signature.
    Forged,
    /// Bodies over the limit, announced and not.
    Oversized,
}

impl Attack {
    /// Every attack.
    pub const ALL: [Self; 11] = [
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
    ];

    /// How many do it at once, where `crowd` are the most that can.
    pub fn strangers(self, crowd: usize) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Idle => crowd,
            Self::SlowHeads | Self::SlowBodies => crowd / 50,
            _ => 10,
        }
    }

    /// How far apart they begin: all at once, they would all be answered at once, and come back at
    /// once, again and again.
    pub fn apart(self, strangers: usize) -> Duration {
        let round = match self {
            Self::Nothing => return Duration::ZERO,
            // More at a time than there is room for in the kernel's queue of one listener would think
            // that they were connected, and not be.
            Self::Idle => Duration::from_secs(2),
            Self::SlowHeads | Self::SlowBodies => Duration::from_secs(1),
            _ => self.pause(),
        };
        round / strangers.max(1) as u32
    }

    /// How long until it is in full swing: the first slow ones have been cut off.
    pub fn settles_after(self) -> Duration {
        Duration::from_millis(match self {
            Self::Nothing => 0,
            Self::SlowHeads => 6200,
            Self::SlowBodies => 2200,
            _ => 1000,
        })
    }

    /// How long each waits before it begins again.
    fn pause(self) -> Duration {
        Duration::from_millis(match self {
            Self::SlowHeads | Self::SlowBodies | Self::Idle => 10,
            // Twice as many as good ones.
            Self::Forged => 10,
            // Of five requests, four are good ones, and stored: half as many again.
            Self::Pipelining => 200,
            // A bandwidth that most links have: 30 MB a second.
            Self::Oversized | Self::Chunks => 1000,
            _ => 50,
        })
    }

    /// Does it for ever, telling `heard` the status of each answer.
    pub async fn go_on(self, address: SocketAddr, place: usize, mut heard: impl FnMut(u16)) {
        // Made once: to make them costs these two cores more than to send them.
        let script = self.script();
        for turn in place.. {
            let shape = (!script.is_empty()).then(|| &script[turn % script.len()]);
            self.once(address, shape, turn).await.into_iter().for_each(&mut heard);
            sleep(self.pause()).await;
        }
    }

    /// What is written in turn, where it has an end.
    fn script(self) -> Vec<Shape> {
        let one = |name, bytes| Shape { name, bytes, expected: &[0] };
        match self {
            Self::Nothing | Self::SlowHeads | Self::SlowBodies | Self::Idle | Self::RapidReset => {
                Vec::new()
            }
            Self::HeaderBombs => shape::heads().into_iter().take(4).collect(),
            Self::Lengths => shape::lengths(),
            Self::Chunks => shape::chunks(),
            Self::Smuggling => shape::smuggling(),
            Self::Pipelining => vec![shape::pipelined()],
            Self::Forged => {
                let forged = Webhook::product(1, "forged", vec![b' '; 5300]);
                vec![one("forged", forged.signed_with("a guess").encode())]
            }
            // Announced, and found out while it comes.
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

/// Writes `begin`, and then `more` now and then, until the server has enough of it.
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

/// Writes `begin`, and then `more` without an end, until the server closes.
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
