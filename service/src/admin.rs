//! `GET /livez`, `/readyz` and `/metrics`, on an address of their own.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::encode;

/// Whether this process does its work, and if not, why.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<Mutex<Option<String>>>);

impl Readiness {
    /// Not ready, for `reason`: a code and a sentence.
    pub fn not_yet(reason: impl Into<String>) -> Self {
        Self(Arc::new(Mutex::new(Some(reason.into()))))
    }

    /// Ready; says whether that is news.
    pub fn ready(&self) -> bool {
        self.lock().take().is_some()
    }

    /// Not ready, for `reason`; says whether that is news.
    pub fn not_ready(&self, reason: impl Into<String>) -> bool {
        let reason = reason.into();
        let before = self.lock().replace(reason.clone());
        before.is_none_or(|before| before != reason)
    }

    /// `None` if ready, else the reason.
    pub fn reason(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Binds the admin address.
///
/// # Errors
/// When the address is taken or not ours.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        anyhow::anyhow!("ADMIN_LISTEN: cannot listen on {address}: {error}; set another address")
    })
}

/// Serves until `stop`.
pub async fn serve(
    listener: TcpListener,
    registry: Registry,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let router = Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .with_state(readiness)
        .route("/metrics", get(move || async move { encode(&registry) }));
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::error!(%error, "the admin endpoint stopped");
    }
}

async fn readyz(State(readiness): State<Readiness>) -> (StatusCode, String) {
    match readiness.reason() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}
