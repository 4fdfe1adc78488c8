//! One connection: its requests, their answers, its end.
//!
//! Invariant: a request whose headers were read whole is answered before its connection is closed,
//! unless the process stops first.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
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

use crate::closing::Closing;
use crate::metrics::Metrics;
use crate::phase::{Arrival, Phase, PhaseTimes, Swept};
use crate::receive::{Receiver, RequestContext, receive};
use crate::reply::{NOT_HTTP, Refusal, raw_answer};
use crate::settings::HEADER_BYTES_MAX;
use crate::stream::{Stream, Watched};

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

/// What every connection is served with.
pub struct Serving {
    /// Answers requests.
    pub receiver: Arc<Receiver>,
    /// Counts what is answered past it.
    pub metrics: Metrics,
    /// Once it has begun, no connection should outlive its next answer.
    pub closing: Closing,
    /// Times that connections have.
    pub times: PhaseTimes,
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
        () = phase.swept() => close(Watched::new(stream, phase.clone()), &phase).await,
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
                        serving.metrics.answered(NOT_HTTP, phase.elapsed());
                    }
                }
                break None;
            }
            () = phase.swept() => {
                match phase.after_sweep(serving.times, serving.closing.has_begun()) {
                    Swept::Stays => {}
                    Swept::Closed => break None,
                    Swept::Refused => break Some(Refusal::Slow),
                }
            }
        }
    };
    let mut stream = connection.into_parts().io.into_inner();
    if let Some(refusal) = refusal {
        phase.body_may_be_unread();
        serving.metrics.answered(refusal.outcome(), phase.elapsed());
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
    let context = RequestContext { receiver: serving.receiver.clone(), arrival };
    // Every path is the receiver's: a router would only cost.
    let mut response = receive.call(request.map(Body::new), context).await;
    phase.answered();
    if serving.closing.has_begun() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

async fn close(mut stream: Watched, phase: &Phase) {
    let is_answer_at_risk = phase.is_body_unread() && stream.has_written();
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
