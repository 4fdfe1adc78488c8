//! One delivery: sends the webhook as it was received to the backend, and returns the outcome. In
//! place of a stub, its payload is sent (`payload`).
//!
//! Bounded: the whole delivery and the connecting in time, the answer in bytes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::header::{HOST, RETRY_AFTER};
use http::response::Parts;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::BodyExt;
use spillway_consumer::LeaderHandle;
use spillway_delivery::Dispatch;
use spillway_queue::leader::boottime;
use spillway_trace::TRACEPARENT;
use spillway_webhook::WebhookId;
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::pack::Record;
use tokio::time::Instant;

use crate::access::BackendHeaders;
use crate::answer::AnswerBytes;
use crate::backend::Backend;
use crate::body::LeasedBody;
use crate::connect::{ClientOptions, LeaseCheck, LeaseLost, LeasedClient, tls};
use crate::content::PackBytes;
use crate::judge::{AttemptOutcome, parse_scope};
use crate::payload::{Payload, PayloadFetcher, PayloadResult};
use crate::pool::{BackendPool, ExchangeError};
use crate::settings::DownstreamerSettings;
use crate::trace::AttemptTrace;

/// Response header of a 429 or 503 that limits a pause to one resource, one shop or all.
const PAUSE: HeaderName = HeaderName::from_static("spillway-pause");
/// Headers that are added to every delivery.
const ID: HeaderName = HeaderName::from_static("spillway-id");
const ATTEMPT: HeaderName = HeaderName::from_static("spillway-attempt");
const RECEIVED_AT: HeaderName = HeaderName::from_static("spillway-received-at");
/// Most headers that are added to a delivery, except those of `BACKEND_HEADERS_FILE`.
const ADDED_MAX: usize = 8;

/// Sends webhooks to one backend.
pub(crate) struct DeliveryClient {
    backend: Backend,
    timeout: Duration,
    client: BackendClient,
    payloads: PayloadFetcher,
    /// `BACKEND_HEADERS_FILE`.
    headers: Option<Arc<BackendHeaders>>,
    lease: LeaseCheck,
    /// Leadership of this instance, while it leads.
    leader: Arc<ArcSwapOption<LeaderHandle>>,
}

/// Connections to the backend.
enum BackendClient {
    /// HTTP/1.1 alone. `Host` has this value.
    Http1(Box<BackendPool>, HeaderValue),
    /// HTTP/2 if the backend offers it in the TLS handshake. Also for `discard:`, where nothing is sent.
    Http2(Box<LeasedClient<LeasedBody>>),
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
    /// Spans of the attempt, if they are recorded.
    pub trace: Option<Box<AttemptTrace>>,
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
    /// First part of that time, in which the payload of a stub was fetched.
    pub fetching: Duration,
    /// Result of that; `None` if the webhook is no stub.
    pub payload: Option<PayloadResult>,
}

/// Error of a webhook that no request can be made of.
struct Unsendable;

impl EndedDelivery {
    /// Result of an attempt that was not begun, because the lease was lost before.
    pub(crate) fn not_sent(job: DeliveryJob) -> Self {
        Self {
            job,
            outcome: AttemptOutcome::LeaseLost,
            answer: Vec::new(),
            took: Duration::ZERO,
            fetching: Duration::ZERO,
            payload: None,
        }
    }
}

impl DeliveryClient {
    /// Sender with a new connection pool.
    ///
    /// # Errors
    /// If the backend, or a host of payloads, uses TLS and this machine knows no certificate
    /// authority.
    pub(crate) fn new(settings: &DownstreamerSettings) -> anyhow::Result<Self> {
        let backend = settings.backend.clone();
        let timeout = settings.delivery_timeout;
        let (has_tls, server_name) = match &backend {
            Backend::Http { scheme, server_name, .. } => {
                (*scheme == Scheme::HTTPS, Some(server_name.clone()))
            }
            Backend::Discard => (false, None),
        };
        let options = ClientOptions {
            tls: tls("DOWNSTREAM_APP_URL", has_tls, &settings.access)?,
            server_name,
            takes_http2: takes_http2(&backend),
            timeout,
            idle_max: settings.bounds.concurrency_max,
        };
        let leader = Arc::new(ArcSwapOption::<LeaderHandle>::empty());
        let lease: LeaseCheck = {
            let leader = leader.clone();
            Arc::new(move || leader.load().as_ref().is_some_and(|one| one.holds(boottime())))
        };
        let client = match &backend {
            Backend::Http { scheme, authority, host, .. } if !takes_http2(&backend) => {
                let host = HeaderValue::try_from(host)?;
                let pool = BackendPool::new(options, scheme, authority, lease.clone());
                BackendClient::Http1(Box::new(pool), host)
            }
            _ => BackendClient::Http2(Box::new(options.client(lease.clone()))),
        };
        let payloads = PayloadFetcher::new(settings.payloads.as_ref(), timeout, lease.clone())?;
        let headers = settings.access.headers.clone();
        Ok(Self { backend, timeout, client, payloads, headers, lease, leader })
    }

    /// Sets the leadership under which deliveries are made from now on.
    pub(crate) fn set_leader(&self, leader: LeaderHandle) {
        self.leader.store(Some(Arc::new(leader)));
    }

    /// Delivers one webhook.
    pub(crate) async fn deliver(&self, job: DeliveryJob) -> EndedDelivery {
        let began = Instant::now();
        let payload = match &self.backend {
            Backend::Http { .. } => self.payloads.payload(&job.record, job.webhook).await,
            Backend::Discard => Payload::Body,
        };
        let is_stub = !matches!(payload, Payload::Body);
        let fetching = if is_stub { began.elapsed() } else { Duration::ZERO };
        // Room in memory is kept up to the end of the delivery.
        let (outcome, answer) = match &payload {
            Payload::Body | Payload::Stub(_) => self.attempt(&job, None).await,
            Payload::Fetched(bytes, _room) => self.attempt(&job, Some(bytes)).await,
            Payload::Failed(_, cause) => (AttemptOutcome::Unfetched, cause.clone().into_bytes()),
            Payload::LeaseLost => (AttemptOutcome::LeaseLost, Vec::new()),
        };
        let payload = payload.result();
        EndedDelivery { job, outcome, answer, took: began.elapsed(), fetching, payload }
    }

    /// Sends a webhook, with `payload` in place of its body.
    async fn attempt(
        &self,
        job: &DeliveryJob,
        payload: Option<&Bytes>,
    ) -> (AttemptOutcome, Vec<u8>) {
        match self.request(job, payload) {
            Ok(None) => (
                AttemptOutcome::Answered { status: 204, retry_after: None, pauses: None },
                Vec::new(),
            ),
            Err(Unsendable) => (AttemptOutcome::Unsendable, Vec::new()),
            Ok(Some(request)) => tokio::time::timeout(self.timeout, self.send(request))
                .await
                .unwrap_or((AttemptOutcome::TimedOut, Vec::new())),
        }
    }

    async fn send(&self, request: Request<LeasedBody>) -> (AttemptOutcome, Vec<u8>) {
        let exchanged = match &self.client {
            BackendClient::Http1(pool, _) => pool.exchange(request).await,
            BackendClient::Http2(client) => exchange(client, request).await,
        };
        let (head, answer) = match exchanged {
            Ok(answered) => answered,
            // Half an answer may mean that the backend did half of the work.
            Err(error) => {
                tracing::debug!(?error, "delivery broke");
                let outcome = if LeaseLost::is_cause_of(&error) {
                    AttemptOutcome::LeaseLost
                } else if matches!(error, ExchangeError::Unconnected(_)) {
                    AttemptOutcome::Unconnected
                } else {
                    AttemptOutcome::Broken
                };
                return (outcome, Vec::new());
            }
        };
        let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let retry_after = text(RETRY_AFTER).map(ToOwned::to_owned);
        let pauses = text(PAUSE).and_then(parse_scope);
        let status = head.status.as_u16();
        (AttemptOutcome::Answered { status, retry_after, pauses }, answer.into_kept())
    }

    /// Builds the request. `None` if the backend is `discard:`.
    fn request(
        &self,
        job: &DeliveryJob,
        payload: Option<&Bytes>,
    ) -> Result<Option<Request<LeasedBody>>, Unsendable> {
        let Backend::Http { scheme, authority, path, .. } = &self.backend else {
            return Ok(None);
        };
        let record = &job.record;
        let mut target = Vec::with_capacity(path.len() + record.target.len());
        target.extend_from_slice(path.as_bytes());
        target.extend_from_slice(&record.target);
        let target =
            PathAndQuery::from_maybe_shared(Bytes::from(target)).map_err(|_| Unsendable)?;
        // With HTTP/2, Host must not be sent in addition to `:authority`: nginx answers 400. If the
        // connection is HTTP/1.1 after all, the client adds the URL's host.
        let (uri, host) = match &self.client {
            // The URL of an empty target would be empty, too.
            BackendClient::Http1(_, host) if target.as_str() == "/" => {
                (Uri::default(), Some(host.clone()))
            }
            BackendClient::Http1(_, host) => (Uri::from(target), Some(host.clone())),
            BackendClient::Http2(_) => {
                let mut uri = http::uri::Parts::default();
                uri.scheme = Some(scheme.clone());
                uri.authority = Some(authority.clone());
                uri.path_and_query = Some(target);
                (Uri::from_parts(uri).map_err(|_| Unsendable)?, None)
            }
        };
        let body = payload.unwrap_or(&record.body).clone();
        let mut request = Request::new(LeasedBody::new(body, self.lease.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers(record, job, host);
        if let Some(trace) = &job.trace {
            request.headers_mut().insert(TRACEPARENT, trace.traceparent());
        }
        if let Some(ours) = &self.headers {
            ours.set(request.headers_mut());
        }
        if payload.is_some() {
            request.headers_mut().insert("spillway-payload", HeaderValue::from_static("fetched"));
        }
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

/// Headers as received, except `Host`, with those that are added to every delivery.
fn headers(record: &Record, job: &DeliveryJob, host: Option<HeaderValue>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(record.headers.len() + ADDED_MAX);
    let own = |text: String| HeaderValue::try_from(text).expect("BUG: our values are plain text");
    if let Some(host) = host {
        headers.insert(HOST, host);
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
    headers.insert(ID, own(job.webhook.to_string()));
    headers.insert(ATTEMPT, own(job.dispatch.attempt.to_string()));
    headers.insert(RECEIVED_AT, own(rfc3339(record.received_at_ms)));
    if job.dispatch.older > 0 {
        headers.insert("spillway-coalesced", own(job.dispatch.older.to_string()));
    }
    if job.dispatch.is_replay {
        headers.insert("spillway-replayed", HeaderValue::from_static("true"));
    }
    headers
}

/// Sends a request by a client that drives its connections itself, and reads the answer up to its
/// bound.
async fn exchange(
    client: &LeasedClient<LeasedBody>,
    request: Request<LeasedBody>,
) -> Result<(Parts, AnswerBytes), ExchangeError> {
    let response = client.request(request).await.map_err(|error| {
        if error.is_connect() {
            ExchangeError::Unconnected(error.into())
        } else {
            ExchangeError::Broken(error.into())
        }
    })?;
    let (head, mut body) = response.into_parts();
    let mut answer = AnswerBytes::default();
    while let Some(frame) = body.frame().await {
        answer.add(frame.map_err(|error| ExchangeError::Broken(error.into()))?);
        if answer.is_full() {
            break;
        }
    }
    Ok((head, answer))
}
