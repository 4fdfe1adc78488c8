//! The demo backend: accepts every delivery, checks its signature as a real backend would, and
//! prints it on one line. The console's page can tell it to fail, at a path that nobody else knows.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::RETRY_AFTER;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::get;
use rand::RngExt;
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{Secrets, Webhook};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::demo::{DemoMode, DemoOrder, DemoSender};
use crate::failure::Failure;
use crate::http::reachable;
use crate::out::{line, printable};

/// Largest body that the receiver can be configured to accept.
const BODY_BYTES_MAX: usize = 128 << 20;
/// Seconds for which a backend that has too much asks to pause.
const PAUSE_SECONDS: &str = "2";

/// The demo backend. It serves until this value is dropped.
pub(super) struct DemoBackend {
    seen: Arc<ReceivedCounts>,
    control_url: String,
    _serving: AbortOnDropHandle<()>,
}

struct ReceivedCounts {
    secrets: Secrets,
    awaited: Mutex<Option<(String, oneshot::Sender<Instant>)>>,
    mode: Mutex<DemoMode>,
    sender: DemoSender,
}

impl DemoBackend {
    /// Starts the backend. `sender` sends what the page orders.
    pub(super) async fn start(
        listen: SocketAddr,
        secrets: Secrets,
        sender: DemoSender,
    ) -> Result<Self, Failure> {
        let taken =
            |error| Failure::Failed(format!("DEMO_LISTEN: cannot listen on {listen}: {error}"));
        let listener = TcpListener::bind(listen).await.map_err(taken)?;
        let (awaited, mode) = Default::default();
        let seen = Arc::new(ReceivedCounts { secrets, awaited, mode, sender });
        // Webhooks come to any path, also to one that a stranger chose.
        let control = format!("/.spillway-demo/{:032x}", rand::rng().random::<u128>());
        let router = Router::new()
            .route(&control, get(told_mode).post(obey))
            .fallback(take)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(seen.clone());
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("spillway: the demo backend stopped: {error}");
            }
        });
        let control_url = format!("http://{}{control}", reachable(listen));
        Ok(Self { seen, control_url, _serving: AbortOnDropHandle::new(serving) })
    }

    /// URL at which the backend takes orders.
    pub(super) fn control_url(&self) -> &str {
        &self.control_url
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
) -> impl IntoResponse {
    let arrived = Instant::now();
    let (status, delay) = seen.mode().answer(headers.shop().unwrap_or_default());
    tokio::time::sleep(delay).await;
    let text = describe(status, &method, &uri, &headers, &body);
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
    let pause = [(RETRY_AFTER, PAUSE_SECONDS)];
    (status, (status == StatusCode::TOO_MANY_REQUESTS).then_some(pause), ())
}

/// Name of the mode.
async fn told_mode(State(seen): State<Arc<ReceivedCounts>>) -> &'static str {
    seen.mode().name()
}

/// Carries out an order: at once, or in the background if it takes time.
async fn obey(
    State(seen): State<Arc<ReceivedCounts>>,
    order: String,
) -> Result<&'static str, (StatusCode, String)> {
    let order = order.parse::<DemoOrder>().map_err(|problem| (StatusCode::BAD_REQUEST, problem))?;
    match order {
        DemoOrder::Answer(mode) => {
            *seen.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
            line(format_args!("the demo backend is told: {}", mode.name())).ok();
        }
        DemoOrder::Send(count) => {
            let seen = seen.clone();
            tokio::spawn(async move {
                if let Err(failure) = seen.sender.send(count).await {
                    eprintln!("spillway: {failure}");
                }
            });
        }
    }
    Ok(seen.mode().name())
}

impl ReceivedCounts {
    fn mode(&self) -> DemoMode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sender to notify about this delivery, if there is one.
    fn awaiting(&self, headers: &HeaderMap) -> Option<oneshot::Sender<Instant>> {
        let id = headers.shopify("webhook-id").unwrap_or_default();
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.take_if(|(wanted, _)| wanted.as_bytes() == id).map(|(_, sender)| sender)
    }
}

fn describe(
    status: StatusCode,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &Bytes,
) -> String {
    let text = |value: Option<&[u8]>| printable(value.unwrap_or(b"-"));
    let answer =
        if status.is_success() { "delivered".to_owned() } else { format!("answered {status}") };
    format!(
        "{answer}  {method} {uri}  {}  {}  {}  {} bytes  {}  attempt {}",
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
            StatusCode::OK,
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
