//! Baseline for the comparison with Spillway's receiver: a bare server that reads the body, checks
//! the signature, answers, and does nothing else. It is served in the simplest way, as a first
//! version with the same crates would be.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use bench::signature::Secret;
use clap::Parser;

/// A bare axum server that checks the signature and answers 200 or 401.
#[derive(Parser)]
struct Options {
    /// Address to listen on.
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// Client secret of the app.
    #[arg(long, env = "SHOPIFY_CLIENT_SECRET", hide_env_values = true)]
    shopify_client_secret: String,
    /// Largest accepted body. The default is the receiver's, so that both read the same bodies.
    #[arg(long, env = "BODY_BYTES_MAX", default_value_t = 16 << 20)]
    body_bytes_max: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let listener = tokio::net::TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("cannot listen on {}", options.listen))?;
    let router = Router::new()
        .fallback(receive)
        .layer(DefaultBodyLimit::max(options.body_bytes_max))
        .with_state(Arc::new(Secret::new(&options.shopify_client_secret)));
    axum::serve(listener, router).await.context("cannot serve")
}

async fn receive(State(secret): State<Arc<Secret>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    match headers.get("x-shopify-hmac-sha256") {
        Some(header) if secret.verifies(header.as_bytes(), &body) => StatusCode::OK,
        _ => StatusCode::UNAUTHORIZED,
    }
}
