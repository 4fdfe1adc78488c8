//! A simulated backend: answers every POST after a delay, a bounded number at a time as an app
//! server with so many workers does, and says at `/stats` what it got and how late.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use clap::Parser;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::Semaphore;

/// The receiver's own default.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Latencies are kept in microseconds, to three digits, up to the time a delivery may wait.
const LATENCY_US_MAX: u64 = 48 * 3_600 * 1_000_000;

/// Answers every POST after a delay; GET /stats tells what came, DELETE /stats starts anew.
#[derive(Parser)]
struct Options {
    /// Where it listens.
    #[arg(long, default_value = "127.0.0.1:8091")]
    listen: SocketAddr,
    /// How many requests it works on at once; the others wait.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workers: u32,
    /// How long it works on each, such as 50ms or 1s.
    #[arg(long, default_value = "0ms", value_parser = parse_delay)]
    delay: Duration,
    /// What it answers.
    #[arg(long, default_value = "200")]
    status: StatusCode,
}

struct Backend {
    workers: Semaphore,
    delay: Duration,
    status: StatusCode,
    seen: Mutex<Seen>,
}

struct Seen {
    requests: u64,
    body_bytes: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    since_triggered: Histogram<u64>,
    since_received: Histogram<u64>,
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
        seen: Mutex::new(Seen::nothing()),
    };
    let router = Router::new()
        .route("/stats", get(stats).delete(forget).post(work))
        .fallback(work)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(Arc::new(backend));
    axum::serve(listener, router).await.context("cannot serve")
}

async fn work(State(backend): State<Arc<Backend>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let _worker = backend.workers.acquire().await.expect("BUG: it is never closed");
    if !backend.delay.is_zero() {
        tokio::time::sleep(backend.delay).await;
    }
    backend.seen().note(&headers, body.len());
    backend.status
}

async fn stats(State(backend): State<Arc<Backend>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], backend.seen().report().to_string())
}

async fn forget(State(backend): State<Arc<Backend>>) -> StatusCode {
    *backend.seen() = Seen::nothing();
    StatusCode::NO_CONTENT
}

impl Backend {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("BUG: nothing panics while it holds the figures")
    }
}

impl Seen {
    fn nothing() -> Self {
        let latencies = || Histogram::new_with_max(LATENCY_US_MAX, 3).expect("BUG: legal bounds");
        Self {
            requests: 0,
            body_bytes: 0,
            first: None,
            last: None,
            since_triggered: latencies(),
            since_received: latencies(),
        }
    }

    fn note(&mut self, headers: &HeaderMap, body_bytes: usize) {
        let now = Instant::now();
        self.requests += 1;
        self.body_bytes += body_bytes as u64;
        self.first.get_or_insert(now);
        self.last = Some(now);
        for (name, latencies) in [
            ("x-shopify-triggered-at", &mut self.since_triggered),
            ("spillway-received-at", &mut self.since_received),
        ] {
            if let Some(age) = age_us(headers, name) {
                latencies.saturating_record(age);
            }
        }
    }

    fn report(&self) -> Value {
        let span = self.first.zip(self.last).map(|(first, last)| last - first);
        json!({
            "requests": self.requests,
            "body_bytes": self.body_bytes,
            "seconds_first_to_last": span.unwrap_or_default().as_secs_f64(),
            "since_triggered_us": percentiles(&self.since_triggered),
            "since_received_us": percentiles(&self.since_received),
        })
    }
}

fn percentiles(latencies: &Histogram<u64>) -> Value {
    json!({
        "count": latencies.len(),
        "p50": latencies.value_at_quantile(0.50),
        "p90": latencies.value_at_quantile(0.90),
        "p99": latencies.value_at_quantile(0.99),
        "max": latencies.max(),
    })
}

/// How long ago the header's time was; a time ahead of ours counts as now.
fn age_us(headers: &HeaderMap, name: &str) -> Option<u64> {
    let then = OffsetDateTime::parse(headers.get(name)?.to_str().ok()?, &Rfc3339).ok()?;
    let age = (OffsetDateTime::now_utc() - then).whole_microseconds();
    Some(u64::try_from(age).unwrap_or(0))
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, Duration::from_millis(1)),
        (None, Some(number)) => (number, Duration::from_secs(1)),
        _ => return Err("needs a unit, such as 50ms or 1s".into()),
    };
    number.parse::<u32>().map(|number| unit * number).map_err(|error| error.to_string())
}
