//! One delivery: sends the webhook as it was received to the backend, and returns the outcome.
//!
//! Bounded: the whole delivery and the connecting in time, the answer in bytes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::header::{HOST, RETRY_AFTER};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use spillway_consumer::LeaderHandle;
use spillway_delivery::Dispatch;
use spillway_queue::leader::boottime;
use spillway_webhook::WebhookId;
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::pack::Record;
use tokio::time::Instant;

use crate::backend::Backend;
use crate::body::LeasedBody;
use crate::connect::{CONNECT_MAX, LeaseCheck, LeaseLost, LeasedConnector};
use crate::content::PackBytes;
use crate::judge::{AttemptOutcome, parse_scope};
use crate::settings::DownstreamerSettings;

/// Response header of a 429 or 503 that limits a pause to one resource, one shop or all.
const PAUSE: HeaderName = HeaderName::from_static("spillway-pause");
/// Bytes of an answer that are kept for a dead letter.
const ANSWER_KEPT_BYTES: usize = 1024;
/// Bytes of an answer that are read. A connection with more on it is not used again.
const ANSWER_READ_BYTES: usize = 64 << 10;
const _: () = assert!(ANSWER_KEPT_BYTES <= ANSWER_READ_BYTES, "what is kept was read");
/// Time between pings on an HTTP/2 connection with deliveries under way.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(10);
/// Time after which an idle pooled connection is closed: by then the other side has likely closed
/// it.
const IDLE_CONNECTION: Duration = Duration::from_secs(30);

/// Sends webhooks to one backend.
pub(crate) struct DeliveryClient {
    backend: Backend,
    timeout: Duration,
    client: Client<LeasedConnector<HttpsConnector<HttpConnector>>, LeasedBody>,
    lease: LeaseCheck,
    /// Leadership of this instance, while it leads.
    leader: Arc<ArcSwapOption<LeaderHandle>>,
}

/// One attempt to deliver a webhook.
#[derive(Debug)]
pub(crate) struct DeliveryJob {
    /// The attempt.
    pub dispatch: Dispatch<PackBytes>,
    /// The webhook as it was received.
    pub record: Record,
    /// Id of the webhook.
    pub webhook: WebhookId,
}

/// Result of an attempt.
#[derive(Debug)]
pub(crate) struct EndedDelivery {
    /// The attempt.
    pub job: DeliveryJob,
    /// Outcome of the attempt.
    pub outcome: AttemptOutcome,
    /// The first bytes of the answer.
    pub answer: Vec<u8>,
    /// Time that the attempt took.
    pub took: Duration,
}

/// Error of a webhook that no request can be made of.
struct Unsendable;

impl EndedDelivery {
    /// Result of an attempt that was not begun, because the lease was lost before.
    pub(crate) fn not_sent(job: DeliveryJob) -> Self {
        Self { job, outcome: AttemptOutcome::LeaseLost, answer: Vec::new(), took: Duration::ZERO }
    }
}

impl DeliveryClient {
    /// Sender with a new connection pool.
    ///
    /// # Errors
    /// If the backend uses TLS and this machine knows no certificate authority.
    pub(crate) fn new(settings: &DownstreamerSettings) -> anyhow::Result<Self> {
        let connect_max = settings.delivery_timeout.min(CONNECT_MAX);
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect_max));
        let https = HttpsConnectorBuilder::new().with_tls_config(tls(&settings.backend)?);
        let https = https.https_or_http();
        let https = match &settings.backend {
            Backend::Http { server_name, .. } => {
                let resolver = FixedServerNameResolver::new(server_name.clone());
                let https = https.with_server_name_resolver(resolver);
                if takes_http2(&settings.backend) {
                    https.enable_all_versions().wrap_connector(connector)
                } else {
                    https.enable_http1().wrap_connector(connector)
                }
            }
            Backend::Discard => https.enable_http1().wrap_connector(connector),
        };
        let leader = Arc::new(ArcSwapOption::<LeaderHandle>::empty());
        let lease: LeaseCheck = {
            let leader = leader.clone();
            Arc::new(move || leader.load().as_ref().is_some_and(|one| one.holds(boottime())))
        };
        let connector = LeasedConnector::new(https, connect_max, lease.clone());
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            // Finds a dead connection before its deliveries have all timed out.
            .http2_keep_alive_interval(HTTP2_PING_EVERY)
            .pool_idle_timeout(IDLE_CONNECTION)
            .pool_max_idle_per_host(settings.bounds.concurrency_max)
            // Only for a pooled connection that was closed before a byte was sent: sending again
            // repeats nothing.
            .retry_canceled_requests(true)
            .build(connector);
        let backend = settings.backend.clone();
        Ok(Self { backend, timeout: settings.delivery_timeout, client, lease, leader })
    }

    /// Sets the leadership under which deliveries are made from now on.
    pub(crate) fn set_leader(&self, leader: LeaderHandle) {
        self.leader.store(Some(Arc::new(leader)));
    }

    /// Delivers one webhook.
    pub(crate) async fn deliver(&self, job: DeliveryJob) -> EndedDelivery {
        let began = Instant::now();
        let (outcome, answer) = match self.request(&job) {
            Ok(None) => (
                AttemptOutcome::Answered { status: 204, retry_after: None, pauses: None },
                Vec::new(),
            ),
            Err(Unsendable) => (AttemptOutcome::Unsendable, Vec::new()),
            Ok(Some(request)) => tokio::time::timeout(self.timeout, self.send(request))
                .await
                .unwrap_or((AttemptOutcome::TimedOut, Vec::new())),
        };
        EndedDelivery { job, outcome, answer, took: began.elapsed() }
    }

    async fn send(&self, request: Request<LeasedBody>) -> (AttemptOutcome, Vec<u8>) {
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(?error, "delivery broke");
                let outcome = if LeaseLost::is_cause_of(&error) {
                    AttemptOutcome::LeaseLost
                } else if error.is_connect() {
                    AttemptOutcome::Unconnected
                } else {
                    AttemptOutcome::Broken
                };
                return (outcome, Vec::new());
            }
        };
        let status = response.status().as_u16();
        let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let retry_after = text(RETRY_AFTER).map(ToOwned::to_owned);
        let pauses = text(PAUSE).and_then(parse_scope);
        match read_answer(response.into_body()).await {
            Ok(answer) => (AttemptOutcome::Answered { status, retry_after, pauses }, answer),
            // Half an answer may mean that the backend did half of the work.
            Err(error) => {
                tracing::debug!(%error, "the answer broke off");
                (AttemptOutcome::Broken, Vec::new())
            }
        }
    }

    /// Builds the request. `None` if the backend is `discard:`.
    fn request(&self, job: &DeliveryJob) -> Result<Option<Request<LeasedBody>>, Unsendable> {
        let Backend::Http { scheme, authority, path, host, .. } = &self.backend else {
            return Ok(None);
        };
        let record = &job.record;
        let mut target = Vec::with_capacity(path.len() + record.target.len());
        target.extend_from_slice(path.as_bytes());
        target.extend_from_slice(&record.target);
        let target =
            PathAndQuery::from_maybe_shared(Bytes::from(target)).map_err(|_| Unsendable)?;
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(scheme.clone());
        uri.authority = Some(authority.clone());
        uri.path_and_query = Some(target);
        let uri = Uri::from_parts(uri).map_err(|_| Unsendable)?;
        let mut request = Request::new(LeasedBody::new(record.body.clone(), self.lease.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        // With HTTP/2, Host must not be sent in addition to `:authority`: nginx answers 400. If the
        // connection is HTTP/1.1 after all, the client adds the URL's host.
        let host = (!takes_http2(&self.backend)).then_some(host.as_str());
        *request.headers_mut() = headers(record, job, host);
        Ok(Some(request))
    }
}

/// Returns true if HTTP/2 is used when the backend offers it in the TLS handshake. HTTP/2 names the
/// host by the URL, so another host name needs HTTP/1.1.
fn takes_http2(backend: &Backend) -> bool {
    match backend {
        Backend::Http { scheme, authority, host, .. } => {
            *scheme == Scheme::HTTPS && authority == host.as_str()
        }
        Backend::Discard => false,
    }
}

/// TLS settings that trust this machine's certificate authorities. None are loaded for plain HTTP.
fn tls(backend: &Backend) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if matches!(backend, Backend::Http { scheme, .. } if *scheme == Scheme::HTTPS) {
        let found = rustls_native_certs::load_native_certs();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            anyhow::bail!(
                "DOWNSTREAM_APP_URL: this machine knows no certificate authority; install \
                 ca-certificates or set SSL_CERT_FILE"
            );
        }
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

/// Headers as received, except `Host`, with those that are added to every delivery.
fn headers(record: &Record, job: &DeliveryJob, host: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(record.headers.len() + 6);
    let own = |text: String| HeaderValue::try_from(text).expect("BUG: our values are plain text");
    if let Some(host) = host {
        headers.insert(HOST, own(host.to_owned()));
    }
    for (name, value) in &record.headers {
        let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_maybe_shared(value.clone()))
        else {
            tracing::error!(webhook = %job.webhook, "a stored header is not one; left out");
            continue;
        };
        if name != HOST {
            headers.append(name, value);
        }
    }
    headers.insert("spillway-id", own(job.webhook.to_string()));
    headers.insert("spillway-attempt", own(job.dispatch.attempt.to_string()));
    headers.insert("spillway-received-at", own(rfc3339(record.received_at_ms)));
    if job.dispatch.older > 0 {
        headers.insert("spillway-coalesced", own(job.dispatch.older.to_string()));
    }
    if job.dispatch.is_replay {
        headers.insert("spillway-replayed", HeaderValue::from_static("true"));
    }
    headers
}

/// Reads an answer to its end, up to `ANSWER_READ_BYTES`, and keeps its first bytes.
async fn read_answer(mut body: Incoming) -> Result<Vec<u8>, hyper::Error> {
    let mut kept = Vec::new();
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let room = ANSWER_KEPT_BYTES - kept.len();
        kept.extend_from_slice(&data[..data.len().min(room)]);
        read += data.len();
        if read > ANSWER_READ_BYTES {
            break;
        }
    }
    Ok(kept)
}
