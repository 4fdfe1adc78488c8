//! Admin endpoint: `GET /livez`, `/readyz` and `/metrics`, on a separate address. Its
//! connections are bounded in `connections`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::background::Background;
use crate::metrics::encode;
use crate::metrics_token::MetricsToken;
use crate::process_args::ProcessSettings;

mod connections;

/// Last line of a consumer's `/readyz`.
pub const NO_GATE: &str =
    "a consumer takes no requests: use /livez as its probe, and never /readyz";

/// Readiness of this process, and the reason if it is not ready.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<Mutex<Condition>>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Ready,
    /// Ready, with a remark that an operator should read.
    ReadyBut(String),
    NotReady(String),
    /// The last state: later changes of Redis or a backend are ignored.
    Stopping,
}

impl Readiness {
    /// Creates a readiness that is not ready, for `reason`: a code and a sentence.
    fn not_yet(reason: impl Into<String>) -> Self {
        Self(Arc::new(Mutex::new(Condition::NotReady(reason.into()))))
    }

    /// Sets ready. Returns true if that is new.
    pub fn ready(&self) -> bool {
        self.set(Condition::Ready)
    }

    /// Sets ready with the remark `reason`: a code and a sentence. Returns true if that is new.
    pub fn ready_but(&self, reason: impl Into<String>) -> bool {
        self.set(Condition::ReadyBut(reason.into()))
    }

    /// Sets not ready, for `reason`. Returns true if that is new.
    pub fn not_ready(&self, reason: impl Into<String>) -> bool {
        self.set(Condition::NotReady(reason.into()))
    }

    /// Sets stopping, for good: the process was told to stop.
    pub fn stopping(&self) {
        self.set(Condition::Stopping);
    }

    /// Sets stopping as soon as `shutdown` is cancelled.
    pub fn stops_with(&self, shutdown: &CancellationToken) {
        let readiness = self.clone();
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            shutdown.cancelled().await;
            readiness.stopping();
        });
    }

    /// Returns the reason why the process is not ready; `None` if it is.
    pub fn reason(&self) -> Option<String> {
        match &*self.lock() {
            Condition::Ready | Condition::ReadyBut(_) => None,
            Condition::NotReady(reason) => Some(reason.clone()),
            Condition::Stopping => Some("stopping".to_owned()),
        }
    }

    /// Returns the answer of `/readyz` in one line, for an operator who cannot reach this address.
    pub fn summary(&self) -> String {
        match &*self.lock() {
            Condition::Ready => "ready".to_owned(),
            Condition::ReadyBut(note) => format!("ready; {note}"),
            Condition::NotReady(reason) => reason.clone(),
            Condition::Stopping => "stopping".to_owned(),
        }
    }

    /// Returns the remark of a ready process, if there is one.
    fn note(&self) -> Option<String> {
        match &*self.lock() {
            Condition::ReadyBut(note) => Some(note.clone()),
            Condition::Ready | Condition::NotReady(_) | Condition::Stopping => None,
        }
    }

    fn set(&self, condition: Condition) -> bool {
        let mut current = self.lock();
        if *current == Condition::Stopping || *current == condition {
            return false;
        }
        *current = condition;
        true
    }

    fn lock(&self) -> MutexGuard<'_, Condition> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Admin endpoint of a process, before it is started.
pub struct AdminEndpoint<'a> {
    address: SocketAddr,
    registry: &'a Registry,
    metrics_token: Option<Arc<MetricsToken>>,
    /// True if requests may depend on `/readyz`.
    gates_traffic: bool,
}

/// State that the pages of the endpoint show.
#[derive(Clone)]
struct AdminPages {
    readiness: Readiness,
    background: Background,
    registry: Registry,
    metrics_token: Option<Arc<MetricsToken>>,
    gates_traffic: bool,
}

impl<'a> AdminEndpoint<'a> {
    /// Endpoint of a process that takes requests.
    pub fn new(address: SocketAddr, settings: &ProcessSettings, registry: &'a Registry) -> Self {
        let metrics_token = settings.metrics_token.clone();
        Self { address, registry, metrics_token, gates_traffic: true }
    }

    /// Endpoint of a consumer, which takes no requests.
    pub fn of_consumer(
        address: SocketAddr,
        settings: &ProcessSettings,
        registry: &'a Registry,
    ) -> Self {
        Self { gates_traffic: false, ..Self::new(address, settings, registry) }
    }

    /// Starts serving. This happens before Redis is asked, so that /readyz can name what the process
    /// waits for. Serves as one of the tasks of `background`, until the token is cancelled.
    ///
    /// # Errors
    /// When the address is in use or does not belong to this machine.
    pub async fn start(
        self,
        background: &Background,
    ) -> anyhow::Result<(Readiness, CancellationToken)> {
        let address = self.address;
        let listener = TcpListener::bind(address).await.map_err(|error| {
            anyhow::anyhow!(
                "ADMIN_LISTEN: cannot listen on {address}: {error}; set another address"
            )
        })?;
        let readiness = Readiness::not_yet("queue_unavailable: redis was not reached yet");
        let after_all = CancellationToken::new();
        let pages = AdminPages {
            readiness: readiness.clone(),
            background: background.clone(),
            registry: self.registry.clone(),
            metrics_token: self.metrics_token,
            gates_traffic: self.gates_traffic,
        };
        let serving =
            connections::serve(listener, router(pages), connections::LIMITS, after_all.clone());
        background.spawn("the admin endpoint", serving);
        Ok((readiness, after_all))
    }
}

fn router(pages: AdminPages) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(pages)
}

/// 503 if a part of the process is stuck: a restart is all that helps.
async fn livez(State(pages): State<AdminPages>) -> (StatusCode, String) {
    let stuck = pages.background.stuck();
    if stuck.is_empty() {
        return (StatusCode::OK, "alive\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: {}\n", stuck.join(", ")))
}

async fn readyz(State(pages): State<AdminPages>) -> (StatusCode, String) {
    let (status, mut text) = match pages.readiness.reason() {
        None => {
            let note = pages.readiness.note().map(|note| format!("{note}\n")).unwrap_or_default();
            (StatusCode::OK, format!("ready\n{note}"))
        }
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    };
    if !pages.gates_traffic {
        text.push_str(NO_GATE);
        text.push('\n');
    }
    (status, text)
}

/// 401 without one of the tokens of `METRICS_TOKEN_FILE`, if that is set.
async fn metrics(State(pages): State<AdminPages>, headers: HeaderMap) -> Response {
    if pages.metrics_token.is_some_and(|token| !token.admits(&headers)) {
        let text = "METRICS_TOKEN_FILE asks for a bearer token\n";
        return (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], text).into_response();
    }
    encode(&pages.registry).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_news_and_stopping_is_the_last() {
        let readiness = Readiness::not_yet("a");
        assert!(!readiness.not_ready("a"));
        assert!(readiness.not_ready("b"));
        assert!(readiness.ready());
        assert!(!readiness.ready());
        assert_eq!(readiness.reason(), None);
        assert!(readiness.ready_but("c"));
        assert!(!readiness.ready_but("c"));
        assert_eq!((readiness.reason(), readiness.note()), (None, Some("c".to_owned())));
        assert_eq!(readiness.summary(), "ready; c");
        readiness.stopping();
        assert!(!readiness.ready());
        assert!(!readiness.not_ready("c"));
        assert_eq!(readiness.reason(), Some("stopping".to_owned()));
    }
}
