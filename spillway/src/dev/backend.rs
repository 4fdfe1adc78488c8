//! The demo backend: accepts every delivery, checks its signature as a real backend would, and
//! prints it on one line.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Method, Uri};
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{Secrets, Webhook};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::failure::Failure;
use crate::out::{line, printable};

/// Largest body that the receiver can be configured to accept.
const BODY_BYTES_MAX: usize = 128 << 20;

/// The demo backend. It serves until this value is dropped.
pub(super) struct DemoBackend {
    seen: Arc<ReceivedCounts>,
    _serving: AbortOnDropHandle<()>,
}

struct ReceivedCounts {
    secrets: Secrets,
    awaited: Mutex<Option<(String, oneshot::Sender<Instant>)>>,
}

impl DemoBackend {
    /// Starts the backend.
    pub(super) async fn start(listen: SocketAddr, secrets: Secrets) -> Result<Self, Failure> {
        let taken =
            |error| Failure::Failed(format!("DEMO_LISTEN: cannot listen on {listen}: {error}"));
        let listener = TcpListener::bind(listen).await.map_err(taken)?;
        let seen = Arc::new(ReceivedCounts { secrets, awaited: Mutex::new(None) });
        let router = Router::new()
            .fallback(take)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(seen.clone());
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("spillway: the demo backend stopped: {error}");
            }
        });
        Ok(Self { seen, _serving: AbortOnDropHandle::new(serving) })
    }

    /// Resolves to the arrival time of the webhook with this Shopify id, after its line is printed.
    pub(super) fn expect(&self, webhook_id: &str) -> oneshot::Receiver<Instant> {
        let (sender, receiver) = oneshot::channel();
        let awaited = Some((webhook_id.to_owned(), sender));
        *self.seen.awaited.lock().unwrap_or_else(PoisonError::into_inner) = awaited;
        receiver
    }
}

async fn take(
    State(seen): State<Arc<ReceivedCounts>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) {
    let arrived = Instant::now();
    let text = describe(&method, &uri, &headers, &body);
    let awaiting = seen.awaiting(&headers);
    let webhook =
        Webhook { received_at_ms: 0, target: PathAndQuery::from_static("/"), headers, body };
    // Webhooks left over from a run with another secret are accepted too: this is only a demo.
    let signed =
        if seen.secrets.verify(&webhook).is_ok() { "" } else { "  SIGNATURE DOES NOT MATCH" };
    // A closed standard output is no reason to refuse a delivery.
    line(format_args!("{text}{signed}")).ok();
    if let Some(awaiting) = awaiting {
        // The send fails only if nobody waits any more.
        awaiting.send(arrived).ok();
    }
}

impl ReceivedCounts {
    /// Returns the sender to notify about this delivery, if there is one.
    fn awaiting(&self, headers: &HeaderMap) -> Option<oneshot::Sender<Instant>> {
        let id = headers.shopify("webhook-id").unwrap_or_default();
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.take_if(|(wanted, _)| wanted.as_bytes() == id).map(|(_, sender)| sender)
    }
}

fn describe(method: &Method, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> String {
    let text = |value: Option<&[u8]>| printable(value.unwrap_or(b"-"));
    format!(
        "delivered  {method} {uri}  {}  {}  {}  {} bytes  {}  attempt {}",
        text(headers.topic().as_deref()),
        text(headers.shop()),
        Resource::of(headers, body),
        body.len(),
        text(headers.value("spillway-id")),
        text(headers.value("spillway-attempt")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_one_line() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-shopify-topic", "orders/create"),
            ("x-shopify-shop-domain", "a.myshopify.com"),
            ("spillway-id", "a1b2c3d4-1-2-3"),
            ("spillway-attempt", "2"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let text = describe(
            &Method::POST,
            &"/hooks?x=1".parse().unwrap(),
            &headers,
            &Bytes::from_static(b"{\"id\":7}"),
        );
        let expected = "delivered  POST /hooks?x=1  orders/create  a.myshopify.com  order/7  \
                        8 bytes  a1b2c3d4-1-2-3  attempt 2";
        assert_eq!(text, expected);
    }
}
