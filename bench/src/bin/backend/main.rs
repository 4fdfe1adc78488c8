//! A simulated backend. It answers every request after a delay, with a bounded number at a time, as an
//! app server with that many workers does. `/stats` reports the received webhooks, their delays and
//! their order.

mod seen;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::get;
use clap::Parser;
use tokio::sync::Semaphore;

use crate::seen::Seen;

/// Default of the receiver.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Answers every request after a delay. GET /stats reports the requests, DELETE /stats resets the
/// figures.
#[derive(Parser)]
struct Options {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:8091")]
    listen: SocketAddr,
    /// Number of requests processed at once; the others wait.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workers: u32,
    /// Processing time of each request, such as 50ms or 1s.
    #[arg(long, default_value = "0ms", value_parser = parse_delay)]
    delay: Duration,
    /// Status of the answers.
    #[arg(long, default_value = "200")]
    status: StatusCode,
    /// Body of the answers.
    #[arg(long, default_value = "")]
    answer: String,
    /// Beginning of the paths that it knows; others are answered 404.
    #[arg(long, default_value = "/")]
    only: String,
    /// Answers a JSON object with the body of the answers, which must be JSON, for each of the names
    /// that follow the last `=` of the URL, comma separated.
    #[arg(long)]
    each: bool,
    /// Domain of a shop whose webhooks are counted separately.
    #[arg(long)]
    flooding_shop: Option<String>,
}

struct Backend {
    workers: Semaphore,
    delay: Duration,
    status: StatusCode,
    answer: Bytes,
    only: String,
    each: bool,
    seen: Mutex<Seen>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let listener = tokio::net::TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("cannot listen on {}", options.listen))?;
    let backend = Backend {
        workers: Semaphore::new(options.workers as usize),
        delay: options.delay,
        status: options.status,
        answer: options.answer.into(),
        only: options.only,
        each: options.each,
        seen: Mutex::new(Seen::nothing(options.flooding_shop)),
    };
    let router = Router::new()
        .route("/stats", get(stats).delete(forget).post(work))
        .fallback(work)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(Arc::new(backend));
    axum::serve(listener, router).await.context("cannot serve")
}

async fn work(
    State(backend): State<Arc<Backend>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, Bytes) {
    let _worker = backend.workers.acquire().await.expect("BUG: it is never closed");
    if !backend.delay.is_zero() {
        tokio::time::sleep(backend.delay).await;
    }
    backend.seen().note(&headers, body.len());
    if !uri.path().starts_with(&backend.only) {
        return (StatusCode::NOT_FOUND, Bytes::new());
    }
    let names = uri.query().and_then(|query| query.rsplit('=').next());
    match names.filter(|_| backend.each) {
        Some(names) => (backend.status, object(names, &backend.answer)),
        None => (backend.status, backend.answer.clone()),
    }
}

/// Returns a JSON object with the same value for each of the names, comma separated.
fn object(names: &str, value: &[u8]) -> Bytes {
    let mut text = Vec::new();
    for name in names.split(',') {
        text.extend_from_slice(if text.is_empty() { b"{\"" } else { b",\"" });
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b"\":");
        text.extend_from_slice(value);
    }
    text.push(b'}');
    text.into()
}

async fn stats(State(backend): State<Arc<Backend>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], backend.seen().report().to_string())
}

async fn forget(State(backend): State<Arc<Backend>>) -> StatusCode {
    backend.seen().forget();
    StatusCode::NO_CONTENT
}

impl Backend {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("BUG: nothing panics while it holds the figures")
    }
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, Duration::from_millis(1)),
        (None, Some(number)) => (number, Duration::from_secs(1)),
        _ => return Err("needs a unit, such as 50ms or 1s".into()),
    };
    number.parse::<u32>().map(|number| unit * number).map_err(|error| error.to_string())
}
