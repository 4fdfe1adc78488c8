//! One connection: its time-outs, its requests, its end.
//!
//! A connection is new, idle, in a request's headers, in a request, or not done with an answer. All but
//! a request have a deadline here (a request keeps its own); a sweep over all connections finds
//! those past it, so that no timer is armed for each request. Invariant: a request whose headers
//! were read whole is answered before its connection is closed, unless the process stops first.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::handler::Handler;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use spillway_service::error::chain;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::closing::Closing;
use crate::metrics::Metrics;
use crate::receive::{Around, Receiver, receive};
use crate::reply::{NOT_HTTP, Refusal, raw_answer};
use crate::stream::{Stream, Watched};

/// The largest header block. Shopify's are about 1 KB; proxies add some.
pub const HEADER_BYTES_MAX: usize = 64 << 10;
/// How long, and how much, is read from a sender who has not noticed that it was refused. Closing
/// at once would reset the connection and destroy the answer on its way.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 1 << 20;
/// So much is read at a time, and then nothing for a while, so that all of it takes most of that time:
/// what is thrown away comes no faster than 650 KB a second. At 4 MiB and four times that, ten who
/// sent without an end made the good ones' p99 grow by two thirds.
const LINGER_TURN_BYTES: usize = 16 << 10;
const LINGER_PAUSE: Duration = Duration::from_millis(25);
/// What is read at once: a head and as much again.
const READ_BYTES_MAX: usize = 2 * HEADER_BYTES_MAX;

const IDLE: u8 = 0;
const HEADERS: u8 = 1;
/// The headers are read, the body perhaps not.
const REQUEST: u8 = 2;
/// The body is read whole: what comes now is the next request's.
const BODY_READ: u8 = 3;
/// It stays so only while the answer can't be written: its reader does not read.
const ANSWERED: u8 = 4;
/// Not a byte has come. It has the time of headers: senders connect to send, and a crowd that only
/// connects would else hold all connections for `IDLE_TIMEOUT`.
const NEW: u8 = 5;

/// Where a connection is, shared with the sweep.
#[derive(Debug)]
pub struct Phase {
    opened: Instant,
    now: AtomicU8,
    /// Milliseconds since `opened`.
    since_ms: AtomicU64,
    is_body_unread: AtomicBool,
    /// Part of the next request came before the answer to this one went out.
    has_read_ahead: AtomicBool,
    kick: Notify,
}

/// What a request knows about how it came.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// When its first byte was read.
    pub first_byte: Instant,
    /// The connection it came over.
    pub connection: Arc<Phase>,
}

/// What every connection is served with.
pub struct Serving {
    /// Answers requests.
    pub receiver: Arc<Receiver>,
    /// Counts what is answered past it.
    pub metrics: Metrics,
    /// Once it has begun, no connection should outlive its next answer.
    pub closing: Closing,
    /// Time for a request's headers, and for the first byte of a new connection.
    pub header_timeout: Duration,
    /// How long a connection may be idle after an answer.
    pub idle_timeout: Duration,
}

impl Phase {
    /// A connection that was opened now.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            now: AtomicU8::new(NEW),
            since_ms: AtomicU64::new(0),
            is_body_unread: AtomicBool::new(false),
            has_read_ahead: AtomicBool::new(false),
            kick: Notify::new(),
        })
    }

    /// Bytes were read: the first of a request starts its headers.
    pub fn bytes_arrived(&self) {
        match self.now.load(Ordering::Relaxed) {
            NEW | IDLE | ANSWERED => self.enter(HEADERS),
            BODY_READ => self.has_read_ahead.store(true, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Nothing is there to read: after an answer, the connection is idle, or waits for the rest of
    /// a request whose beginning it has read already.
    pub fn waits_for_bytes(&self) {
        if self.now.load(Ordering::Relaxed) == ANSWERED {
            self.enter(if self.has_read_ahead.load(Ordering::Relaxed) { HEADERS } else { IDLE });
        }
    }

    /// The request's body was read whole.
    pub fn body_is_read(&self) {
        self.now.store(BODY_READ, Ordering::Relaxed);
    }

    /// Whether it was.
    pub fn is_body_read(&self) -> bool {
        self.now.load(Ordering::Relaxed) == BODY_READ
    }

    /// The request was refused before its body was read whole, perhaps.
    pub fn body_may_be_unread(&self) {
        self.is_body_unread.store(true, Ordering::Relaxed);
    }

    /// Wakes the connection if it is past its deadline, or in no request while `close_idle` is set.
    pub fn sweep(&self, serving: &Serving, close_idle: bool) {
        let is_between = matches!(self.now.load(Ordering::Relaxed), NEW | IDLE | ANSWERED);
        if self.is_past_deadline(serving) || (close_idle && is_between) {
            self.kick.notify_one();
        }
    }

    fn is_past_deadline(&self, serving: &Serving) -> bool {
        let time = match self.now.load(Ordering::Relaxed) {
            NEW | HEADERS => serving.header_timeout,
            IDLE | ANSWERED => serving.idle_timeout,
            _ => return false,
        };
        self.since().elapsed() > time
    }

    fn since(&self) -> Instant {
        self.opened + Duration::from_millis(self.since_ms.load(Ordering::Relaxed))
    }

    fn enter(&self, phase: u8) {
        let since_ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.since_ms.store(since_ms, Ordering::Relaxed);
        self.now.store(phase, Ordering::Relaxed);
    }

    /// The headers are read; returns when their first byte was.
    fn begin_request(&self) -> Instant {
        let began = if self.now.load(Ordering::Relaxed) == HEADERS {
            self.since()
        } else {
            // It was in the buffer behind the request before it.
            Instant::now()
        };
        self.is_body_unread.store(false, Ordering::Relaxed);
        self.has_read_ahead.store(false, Ordering::Relaxed);
        self.now.store(REQUEST, Ordering::Relaxed);
        began
    }

    fn answered(&self) {
        self.enter(ANSWERED);
    }
}

/// Serves one connection to its end.
pub async fn serve(stream: Stream, phase: Arc<Phase>, serving: Arc<Serving>) {
    // Until something comes, there is neither a buffer nor anything of hyper's: a crowd that only
    // connects costs its sockets.
    tokio::select! {
        biased;
        // What there is to read, or what is wrong, is told by reading.
        _ = stream.readable() => Box::pin(talk(stream, phase, serving)).await,
        // It was idle for too long, or the process stops.
        () = phase.kick.notified() => close(Watched::new(stream, phase.clone()), &phase).await,
    }
}

/// Serves one connection that has brought something.
async fn talk(stream: Stream, phase: Arc<Phase>, serving: Arc<Serving>) {
    let io = TokioIo::new(Watched::new(stream, phase.clone()));
    let service = {
        let (phase, serving) = (phase.clone(), serving.clone());
        service_fn(move |request| Box::pin(answer(request, phase.clone(), serving.clone())))
    };
    // `header_read_timeout` is ours (see stream.rs); the rest is written out because the bound on
    // a hostile sender's memory hangs on it.
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_header_size(HEADER_BYTES_MAX)
        .max_buf_size(READ_BYTES_MAX)
        .half_close(false)
        .keep_alive(true)
        .serve_connection(io, service);
    let refusal = loop {
        tokio::select! {
            biased;
            ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => {
                if let Err(error) = ended {
                    tracing::debug!(error = chain(&error), "connection ended");
                    phase.body_may_be_unread();
                    if error.is_parse() {
                        serving.metrics.answered(NOT_HTTP, phase.since().elapsed());
                    }
                }
                break None;
            }
            () = phase.kick.notified() => match phase.now.load(Ordering::Relaxed) {
                HEADERS if phase.is_past_deadline(&serving) => break Some(Refusal::Slow),
                ANSWERED if phase.is_past_deadline(&serving) || serving.closing.has_begun() => {
                    break None;
                }
                NEW | IDLE => break None,
                _ => {}
            }
        }
    };
    let mut stream = connection.into_parts().io.into_inner();
    if let Some(refusal) = refusal {
        phase.body_may_be_unread();
        serving.metrics.answered(refusal.outcome(), phase.since().elapsed());
        tell(&mut stream, refusal).await;
    }
    close(stream, &phase).await;
}

/// Refuses a connection that there is no room for.
pub async fn refuse(stream: Stream) {
    let phase = Phase::new();
    phase.body_may_be_unread();
    let mut stream = Watched::new(stream, phase.clone());
    tell(&mut stream, Refusal::Overloaded).await;
    close(stream, &phase).await;
}

/// Answers past hyper. Not behind a part of another answer, which its reader does not read.
async fn tell(stream: &mut Watched, refusal: Refusal) {
    if !stream.is_write_blocked() {
        let answer = raw_answer(refusal);
        tokio::time::timeout(LINGER, stream.write_all(answer.as_bytes())).await.ok();
    }
}

async fn answer(
    request: Request<Incoming>,
    phase: Arc<Phase>,
    serving: Arc<Serving>,
) -> Result<Response<Body>, Infallible> {
    let first_byte = phase.begin_request();
    let arrival = Arrival { first_byte, connection: phase.clone() };
    let around = Around { receiver: serving.receiver.clone(), arrival };
    // Every path is the receiver's: a router would only cost.
    let mut response = receive.call(request.map(Body::new), around).await;
    phase.answered();
    if serving.closing.has_begun() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

async fn close(mut stream: Watched, phase: &Phase) {
    let is_answer_at_risk = phase.is_body_unread.load(Ordering::Relaxed) && stream.has_written();
    if stream.shutdown().await.is_err() || !is_answer_at_risk {
        return;
    }
    let drain = async {
        let mut scratch = vec![0; LINGER_TURN_BYTES];
        let (mut left, mut turn) = (LINGER_BYTES_MAX, 0);
        while left > 0 {
            match stream.read(&mut scratch).await {
                Ok(0) | Err(_) => return,
                Ok(read) => {
                    left = left.saturating_sub(read);
                    turn += read;
                }
            }
            if turn >= LINGER_TURN_BYTES {
                turn = 0;
                tokio::time::sleep(LINGER_PAUSE).await;
            }
        }
    };
    // Whoever still sends after this is cut off.
    tokio::time::timeout(LINGER, drain).await.ok();
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::receive::tests::receiver;
    use crate::secrets::Source;

    fn serving() -> Serving {
        Serving {
            receiver: Arc::new(receiver()),
            metrics: Metrics::new(Source::new(&[], None).matches()),
            closing: Closing::default(),
            header_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(75),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_has_the_time_of_headers_and_a_used_one_may_be_idle() {
        let (serving, phase) = (serving(), Phase::new());
        let is_late_after = async |seconds| {
            advance(Duration::from_secs(seconds)).await;
            phase.is_past_deadline(&serving)
        };
        assert!(!is_late_after(4).await);
        assert!(is_late_after(2).await, "not a byte has come");
        phase.bytes_arrived();
        assert!(!is_late_after(4).await);
        assert!(is_late_after(2).await, "the headers are not whole");
        phase.begin_request();
        assert!(!is_late_after(100).await, "a request keeps its own deadline");
        phase.answered();
        phase.waits_for_bytes();
        assert!(!is_late_after(70).await, "it is idle");
        assert!(is_late_after(6).await);
    }
}
