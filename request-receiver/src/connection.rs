//! Serves one connection: its requests, its answers and its end.
//!
//! Invariant: a request whose headers were read is answered before its connection is closed, unless
//! the process stops first.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use spillway_process::error::chain;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::metrics::ReceiverMetrics;
use crate::phase::{Phase, PhaseTimes, RequestArrival, Swept};
use crate::receive::{RequestContext, RequestHandler, receive};
use crate::reply::{NOT_HTTP, Refusal, raw_answer};
use crate::settings::HEADER_BYTES_MAX;
use crate::shutdown::Shutdown;
use crate::stream::{PhasedStream, Stream};
use crate::tls::{Handshakes, TlsEndpoint};

/// Limits on reading from a sender that has not noticed a refusal yet. Closing at once would reset
/// the connection and destroy the answer on its way.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 1 << 20;
/// Bytes that are read before each pause. Together with the pause they limit what is thrown away to
/// 650 KB a second. With 4 MiB in all and four times that rate, ten endless senders made the p99 of
/// the others grow by two thirds.
const LINGER_TURN_BYTES: usize = 16 << 10;
const LINGER_PAUSE: Duration = Duration::from_millis(25);
const _: () = assert!(LINGER_TURN_BYTES < LINGER_BYTES_MAX, "a sender is read in several turns");
const _: () =
    assert!(LINGER_PAUSE.as_millis() < LINGER.as_millis(), "a sender is read in several turns");
/// Limit of hyper's read buffer: two heads.
const READ_BYTES_MAX: usize = 2 * HEADER_BYTES_MAX;

/// State that all connections of a shard share.
pub struct Serving {
    /// Answers requests.
    pub handler: Arc<RequestHandler>,
    /// Counts answers that are written without hyper.
    pub metrics: ReceiverMetrics,
    /// Once it has begun, each connection closes with its next answer.
    pub shutdown: Shutdown,
    /// Time limits of connections.
    pub times: PhaseTimes,
    /// HTTPS, if it is served.
    pub tls: Option<TlsEndpoint>,
    /// TLS handshakes under way.
    pub handshakes: Handshakes,
}

/// Serves one connection to its end.
pub async fn serve(stream: Stream, phase: Arc<Phase>, serving: Arc<Serving>) {
    // A connection has no buffer and no hyper state until something comes. Clients that only
    // connect cost no more than their sockets.
    tokio::select! {
        biased;
        // Reading shows what there is, or which error.
        _ = stream.readable() => match stream {
            Stream::BeforeTls(stream) => Box::pin(serve_https(stream, phase, serving)).await,
            stream => Box::pin(serve_http(stream, phase, serving)).await,
        },
        // The connection was idle for too long, or the process stops.
        () = phase.swept() => close(PhasedStream::new(stream, phase.clone()), &phase).await,
    }
}

/// Shakes hands, and serves the connection if that succeeds.
async fn serve_https(stream: TcpStream, phase: Arc<Phase>, serving: Arc<Serving>) {
    let Some(tls) = &serving.tls else { return };
    let shaken = tls.shake_hands(stream, &phase, &serving.handshakes).await;
    if let Some(stream) = shaken {
        serve_http(Stream::Tls(stream), phase, serving).await;
    }
}

/// Serves a connection that has something to read.
async fn serve_http(stream: Stream, phase: Arc<Phase>, serving: Arc<Serving>) {
    let io = TokioIo::new(PhasedStream::new(stream, phase.clone()));
    let service = {
        let phase = phase.clone();
        let serving = serving.clone();
        service_fn(move |request| Box::pin(answer(request, phase.clone(), serving.clone())))
    };
    // phase.rs replaces `header_read_timeout`. The other options are explicit because they bound
    // the memory that a hostile sender can take.
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_header_size(HEADER_BYTES_MAX)
        .max_buf_size(READ_BYTES_MAX)
        .half_close(false)
        .keep_alive(true)
        // An answer is one short buffer: `write` costs the kernel less than `writev`.
        .writev(false)
        .serve_connection(io, service);
    let refusal = loop {
        tokio::select! {
            biased;
            ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => {
                if let Err(error) = ended {
                    tracing::debug!(error = chain(&error), "connection ended");
                    phase.note_body_unread();
                    if error.is_parse() {
                        serving.metrics.answered(NOT_HTTP, phase.elapsed());
                    }
                }
                break None;
            }
            () = phase.swept() => {
                match phase.after_sweep(serving.times, serving.shutdown.has_begun()) {
                    Swept::Stays => {}
                    Swept::Closed => break None,
                    Swept::Refused => break Some(Refusal::Slow),
                }
            }
        }
    };
    let mut stream = connection.into_parts().io.into_inner();
    if let Some(refusal) = refusal {
        phase.note_body_unread();
        serving.metrics.answered(refusal.outcome(), phase.elapsed());
        write_refusal(&mut stream, refusal).await;
    }
    close(stream, &phase).await;
}

/// Refuses a connection over the limit.
pub async fn refuse(stream: Stream) {
    let phase = Phase::new();
    phase.note_body_unread();
    let mut stream = PhasedStream::new(stream, phase.clone());
    write_refusal(&mut stream, Refusal::Overloaded).await;
    close(stream, &phase).await;
}

/// Writes an answer without hyper. Writes nothing after a part of another answer: its reader does
/// not read.
async fn write_refusal(stream: &mut PhasedStream, refusal: Refusal) {
    if !stream.is_write_blocked() {
        let answer = raw_answer(refusal);
        let writing = async {
            stream.write_all(answer.as_bytes()).await?;
            stream.flush().await
        };
        tokio::time::timeout(LINGER, writing).await.ok();
    }
}

async fn answer(
    request: Request<Incoming>,
    phase: Arc<Phase>,
    serving: Arc<Serving>,
) -> Result<Response<Body>, Infallible> {
    let first_byte = phase.begin_request();
    let arrival = RequestArrival { first_byte, connection: phase };
    let context = RequestContext { handler: serving.handler.clone(), arrival };
    // No router and no handler of axum's: every path is the receiver's, and both box what they pass on.
    let mut response = receive(context, request).await;
    if serving.shutdown.has_begun() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

async fn close(mut stream: PhasedStream, phase: &Phase) {
    let is_answer_at_risk = phase.is_body_unread() && stream.has_written();
    // The end of TLS is a record of its own. It waits for a client that does not read what is before it.
    let ended = tokio::time::timeout(LINGER, stream.shutdown()).await;
    if !matches!(ended, Ok(Ok(()))) || !is_answer_at_risk {
        return;
    }
    let linger = async {
        let mut scratch = vec![0; LINGER_TURN_BYTES];
        let mut left = LINGER_BYTES_MAX;
        let mut turn = 0;
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
    // A sender that still sends after this is cut off.
    tokio::time::timeout(LINGER, linger).await.ok();
}
