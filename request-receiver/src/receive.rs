//! Handles one request, step by step. [`Receiver`] holds the path that a webhook takes.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body::Body;
use spillway_process::clock::wall_clock_ms;
use spillway_webhook::{Webhook, target};

use crate::admit::{Admission, Permit};
use crate::apps::{App, Apps, name_app};
use crate::batch::Batches;
use crate::body;
use crate::ignored::Ignored;
use crate::inspect::InspectionRules;
use crate::metrics::ReceiverMetrics;
use crate::phase::RequestArrival;
use crate::reply::Refusal;
use crate::secrets::ClientSecrets;
use crate::shared::ShardContext;
use crate::shares::ShopShares;
use crate::store::Store;
use crate::topics::TopicMetrics;

const CLOSE: HeaderValue = HeaderValue::from_static("close");
/// Part of the names of all headers of Shopify.
const SHOPIFY: &[u8] = b"shopify-";

/// State that all requests of a shard share.
pub struct Receiver {
    admission: Admission,
    secrets: Arc<ClientSecrets>,
    apps: Option<Arc<Apps>>,
    store: Store,
    ignored: Arc<Ignored>,
    shares: Arc<ShopShares>,
    batches: Arc<Batches>,
    metrics: ReceiverMetrics,
    topics: TopicMetrics,
    rules: InspectionRules,
    body: BodyLimits,
    ack_timeout: Duration,
}

/// Limits of one body.
#[derive(Debug, Clone, Copy)]
struct BodyLimits {
    bytes_max: usize,
    /// Time for it, from the end of the headers.
    timeout: Duration,
}

impl Receiver {
    /// Receiver for one shard, with the store and the batches of that shard.
    pub fn new(shared: ShardContext, store: Store, batches: Arc<Batches>) -> Self {
        let ShardContext { settings, admission, secrets, apps, ignored, .. } = shared;
        let ShardContext { shares, metrics, topics, .. } = shared;
        Self {
            admission,
            secrets,
            apps,
            store,
            ignored,
            shares,
            batches,
            metrics,
            topics,
            rules: settings.rules,
            body: BodyLimits { bytes_max: settings.body_bytes_max, timeout: settings.body_timeout },
            ack_timeout: settings.ack_timeout,
        }
    }

    async fn take<B>(&self, request: Request<B>, arrival: &RequestArrival) -> Result<Taken, Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let (head, mut body) = request.into_parts();
        let admitted = check_head(&head).and_then(|()| Ok((self.app(&head)?, self.admit(&head)?)));
        let (app, permit) = match admitted {
            Ok(admitted) => admitted,
            // The end of the body is ambiguous, so the connection ends with this request.
            Err(Refusal::Malformed) => return Err(Refusal::Malformed),
            Err(refusal) => {
                if body::discard(&mut body, &head.headers).await {
                    arrival.connection.note_body_read();
                }
                return Err(refusal);
            }
        };
        let taken = self.take_for(app.as_deref(), permit, head, body, arrival).await;
        if let (Some(apps), Some(app)) = (&self.apps, &app) {
            apps.count(app, outcome_of(&taken));
        }
        taken
    }

    /// Takes a webhook for an app, or for the one that the receiver's own secrets are of.
    async fn take_for<B>(
        &self,
        app: Option<&App>,
        mut permit: Permit,
        mut head: Parts,
        body: B,
        arrival: &RequestArrival,
    ) -> Result<Taken, Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let body = body::read(body, self.body.bytes_max, self.body.timeout, &mut permit).await?;
        arrival.connection.note_body_read();
        let now_ms = wall_clock_ms();
        let waited_ms = u64::try_from(arrival.first_byte.elapsed().as_millis()).unwrap_or(0);
        let received_at_ms = now_ms.saturating_sub(waited_ms);
        let target = head.uri.into_parts().path_and_query.ok_or(Refusal::Malformed)?;
        name_app(&mut head.headers, app);
        let webhook = Webhook { received_at_ms, target, headers: head.headers, body };
        let deadline = arrival.first_byte + self.ack_timeout;
        let verified = match app {
            None => self.secrets.verify(webhook, deadline).await?,
            Some(app) => app.verify(webhook).await?,
        };
        let rules = app.map_or(&self.rules, |app| &app.rules);
        let is_timed = rules.inspect(verified.get(), now_ms)?;
        if !is_timed {
            self.metrics.without_time.inc();
        }
        let headers = &verified.get().headers;
        if let Some(by) = self.ignored.by(headers) {
            self.topics.ignored(headers, by);
            return Ok(Taken::Ignored);
        }
        self.shares.admit(headers)?;
        self.batches.push(verified, permit, deadline).await.map(|()| Taken::Stored)
    }

    /// App that a request is for, if there are several.
    fn app(&self, head: &Parts) -> Result<Option<Arc<App>>, Refusal> {
        self.apps.as_ref().map_or(Ok(None), |apps| apps.route(head))
    }

    /// Reserves memory for a request before its body is read. Refuses it if the store takes
    /// nothing.
    fn admit(&self, head: &Parts) -> Result<Permit, Refusal> {
        self.store.takes()?;
        let announced = announced_bytes(head);
        let head_bytes = head_bytes(head);
        if announced > self.body.bytes_max {
            // A 503 takes precedence over the 413.
            self.admission.admit(head_bytes, 0)?;
            return Err(Refusal::TooLarge);
        }
        self.admission.admit(head_bytes, announced)
    }
}

/// Outcome of a webhook that is answered 200.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Stored,
    Ignored,
}

/// Shared state and arrival of a request.
pub struct RequestContext {
    /// State that all requests share.
    pub receiver: Arc<Receiver>,
    /// Connection and time of arrival of this request.
    pub arrival: RequestArrival,
}

/// Answers one request.
pub async fn receive<B>(context: RequestContext, request: Request<B>) -> Response
where
    B: Body<Data = Bytes> + Unpin,
{
    let RequestContext { receiver, arrival } = context;
    let claim = receiver.topics.claim(request.headers());
    let taken = receiver.take(request, &arrival).await;
    let outcome = outcome_of(&taken);
    receiver.metrics.answered(outcome, arrival.first_byte.elapsed());
    match taken {
        Ok(_) => StatusCode::OK.into_response(),
        Err(refusal) => {
            tracing::debug!(outcome, "refused");
            receiver.topics.refused(claim, refusal);
            let mut response = refusal.into_response();
            if !arrival.connection.is_body_read() {
                // Announces the close to the sender, which would otherwise use the connection
                // again.
                arrival.connection.note_body_unread();
                response.headers_mut().insert(header::CONNECTION, CLOSE);
            }
            response
        }
    }
}

/// Label of an outcome.
fn outcome_of(taken: &Result<Taken, Refusal>) -> &'static str {
    match taken {
        Ok(Taken::Stored) => "accepted",
        Ok(Taken::Ignored) => "ignored",
        Err(refusal) => refusal.outcome(),
    }
}

fn check_head(head: &Parts) -> Result<(), Refusal> {
    if is_ambiguous(&head.headers) {
        return Err(Refusal::Malformed);
    }
    let Some(target) = target_with_path(&head.uri) else {
        // CONNECT names only an authority.
        let is_connect = head.method == Method::CONNECT;
        return Err(if is_connect { Refusal::NotPost } else { Refusal::Malformed });
    };
    if target::has_dot_segment(target.as_bytes()) {
        return Err(Refusal::DotSegment);
    }
    if head.method != Method::POST {
        return Err(Refusal::NotPost);
    }
    Ok(())
}

/// Returns the target from its path on. `None` if it has no path, as `*`, `host:80` or
/// `http://host`.
fn target_with_path(uri: &Uri) -> Option<&str> {
    let target = uri.path_and_query()?.as_str();
    // `http` makes the same value of `http://host` as of `http://host/`. But a path that was
    // received stands right after the authority, in one buffer.
    let is_received = uri.authority().is_none_or(|authority| {
        authority.as_str().as_bytes().as_ptr_range().end == target.as_ptr()
    });
    // `*` is for OPTIONS alone (RFC 9112, section 3.2.4).
    (is_received && target.starts_with('/')).then_some(target)
}

/// Returns true if a proxy in front may have read the head in another way than hyper does. Transfer
/// codings other than `chunked` leave open where the request ends. Two hosts leave open whom it is
/// for (RFC 9112, sections 6.1 and 3.2). A Content-Length next to `chunked` never gets here: hyper
/// removes it, and ends the connection with that request.
fn is_ambiguous(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_plain =
        codings.next().is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    !is_plain
        || codings.next().is_some()
        || headers.get_all(header::HOST).iter().nth(1).is_some()
        || headers.get_all(header::CONNECTION).iter().any(names_shopify)
        || headers.keys().any(is_disguised)
}

/// Returns true for a header such as `Spillway_App`. Many backends read `_` in a name as `-`: they
/// would take it for a header that Spillway or Shopify alone may set.
fn is_disguised(name: &HeaderName) -> bool {
    let name = name.as_str();
    let reserved = ["spillway-", "shopify-", "x-shopify-"];
    name.starts_with(['s', 'x'])
        && name.contains('_')
        && reserved.iter().any(|start| name.replace('_', "-").starts_with(start))
}

/// Returns true if a `Connection` header names one of Shopify's. What it names is not stored: the
/// webhook would be checked by other headers than it is delivered with.
fn names_shopify(connection: &HeaderValue) -> bool {
    let mut parts = connection.as_bytes().windows(SHOPIFY.len());
    parts.any(|part| part.eq_ignore_ascii_case(SHOPIFY))
}

/// Bytes of the request's target and headers.
fn head_bytes(head: &Parts) -> usize {
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let headers = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    target + headers.sum::<usize>()
}

/// Length of the body as announced. 0 if it is sent in chunks.
fn announced_bytes(head: &Parts) -> usize {
    let length = head.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    // hyper has already refused a length that is not a number.
    length.map_or(0, |length| length.parse().unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use futures_util::FutureExt;
    use http_body_util::Full;
    use spillway_process::metrics::encode;
    use spillway_webhook::freshness::FreshnessWindow;
    use spillway_webhook::stable_hash;
    use zeroize::Zeroizing;

    use super::*;
    use crate::inspect::BodyKinds;
    use crate::phase::Phase;
    use crate::reply::OUTCOMES;
    use crate::secrets::HASHED_AT_ONCE_BYTES_MAX;
    use crate::secrets::settings::SecretSettings;
    use crate::topics::Topics;

    const BODY: &[u8] = br#"{"id":1}"#;

    fn receiver() -> Receiver {
        let secrets = Vec::from([Zeroizing::new("hush".to_owned())]);
        let secrets = SecretSettings { secrets, ..SecretSettings::default() };
        let secrets = Arc::new(ClientSecrets::new(secrets, None).expect("random numbers"));
        let metrics = ReceiverMetrics::new(&OUTCOMES);
        let topics = TopicMetrics::new(&metrics.registry);
        Receiver {
            admission: Admission::new(64 << 20),
            secrets,
            apps: None,
            store: Store::usable_one(),
            ignored: Arc::default(),
            shares: Arc::default(),
            batches: Arc::new(Batches::new(Topics::new(topics.clone()))),
            metrics,
            topics,
            rules: InspectionRules {
                body_kinds: BodyKinds { json: true, xml: true, any: false },
                window: FreshnessWindow {
                    age_max: Duration::from_secs(3600),
                    skew_max: Duration::from_secs(60),
                    required: false,
                },
            },
            body: BodyLimits { bytes_max: 16 << 20, timeout: Duration::from_secs(5) },
            ack_timeout: Duration::from_secs(3),
        }
    }

    fn request(signature: &str) -> Request<Full<Bytes>> {
        Request::post("/webhooks?shop=1")
            .header(header::CONTENT_LENGTH, BODY.len())
            .header("x-shopify-topic", "products/update")
            .header("x-shopify-hmac-sha256", signature)
            .body(Full::new(Bytes::from_static(BODY)))
            .expect("it is well formed")
    }

    #[tokio::test]
    async fn a_forged_webhook_allocates_nothing_but_its_body() {
        let receiver = receiver();
        let arrival =
            RequestArrival { first_byte: tokio::time::Instant::now(), connection: Phase::new() };
        let forged = spillway_webhook::Secrets::new(&[Zeroizing::new("guess".to_owned())]);
        // The first webhook of a thread makes it cache the secrets in force.
        receiver.take(request(""), &arrival).await.expect_err("it is forged");
        for signature in [forged.sign(BODY).as_str(), "", "not base64"] {
            let request = request(signature);
            let mut taken = None;
            let allocated = allocation_counter::measure(|| {
                let mut take = pin!(receiver.take(request, &arrival));
                taken = Some(take.as_mut().poll(&mut Context::from_waker(Waker::noop())));
            });
            assert!(matches!(taken, Some(Poll::Ready(Err(Refusal::BadSignature)))));
            assert_eq!(allocated.count_total, 0, "{signature:?}: {allocated:?}");
        }
    }

    #[test]
    fn a_target_is_taken_by_its_path_and_refused_without_one() {
        let checked = |method: &str, target: &'static str| {
            // Built as hyper does it, from a slice of its buffer.
            let uri = Uri::from_maybe_shared(Bytes::from_static(target.as_bytes()));
            let request = Request::builder().method(method).uri(uri.expect("a target"));
            let (head, ()) = request.body(()).expect("a request").into_parts();
            check_head(&head).map(|()| head.uri.path_and_query().map(ToString::to_string))
        };
        for (target, path) in [
            ("/", "/"),
            ("/webhooks?shop=1", "/webhooks?shop=1"),
            ("http://other.example/", "/"),
            ("http://other.example:80/a?b", "/a?b"),
            ("https://other.example/a", "/a"),
        ] {
            assert_eq!(checked("POST", target), Ok(Some(path.to_owned())), "{target}");
        }
        for target in ["*", "other.example:80", "other.example", "http://other.example"] {
            assert_eq!(checked("POST", target), Err(Refusal::Malformed), "{target}");
        }
        for target in ["http://other.example?a=/b", "http://other.example#a"] {
            assert_eq!(checked("POST", target), Err(Refusal::Malformed), "{target}");
        }
        assert_eq!(checked("CONNECT", "other.example:80"), Err(Refusal::NotPost));
        assert_eq!(checked("GET", "http://other.example/"), Err(Refusal::NotPost));
    }

    /// Number of requests refused under a topic, as shown in the metrics.
    fn refused(receiver: &Receiver, topic: &str) -> u64 {
        let page = encode(&receiver.metrics.registry);
        let sample = format!("spillway_refused_total{{topic=\"{topic}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&sample));
        value.map_or(0, |value| value.parse().expect("a count"))
    }

    #[tokio::test]
    async fn forged_requests_count_under_no_topic_that_they_name() {
        let receiver = Arc::new(receiver());
        let context = || RequestContext {
            receiver: receiver.clone(),
            arrival: RequestArrival {
                first_byte: tokio::time::Instant::now(),
                connection: Phase::new(),
            },
        };
        let hush = spillway_webhook::Secrets::new(&[Zeroizing::new("hush".to_owned())]);
        // The topic is known from then on. No batcher runs here to store the webhook.
        let signed = receive(context(), request(&hush.sign(BODY))).now_or_never();
        assert!(signed.is_none());
        for _ in 0..5 {
            let answer = receive(context(), request("forged")).await;
            assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        }
        assert_eq!(refused(&receiver, "products/update"), 0);
        assert_eq!(refused(&receiver, "other"), 5);
        // Refused after a good signature, or refused by a 503 before the signature is checked.
        receiver.shares.show(HashSet::from([stable_hash::of(&[b""])]));
        let over = receive(context(), request(&hush.sign(BODY))).await;
        assert_eq!(over.status(), StatusCode::SERVICE_UNAVAILABLE);
        receiver.store.set_stalled(true);
        receive(context(), request(&hush.sign(BODY))).await;
        assert_eq!(refused(&receiver, "products/update"), 2);
        assert_eq!(refused(&receiver, "other"), 5);
    }

    #[tokio::test]
    async fn a_large_forged_body_lets_others_run_while_it_is_hashed() {
        let receiver = receiver();
        let arrival =
            RequestArrival { first_byte: tokio::time::Instant::now(), connection: Phase::new() };
        for (bytes, pauses) in [(HASHED_AT_ONCE_BYTES_MAX, 0), (3 << 20, 11)] {
            let forged = Request::post("/")
                .header("x-shopify-hmac-sha256", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
                .body(Full::new(Bytes::from(vec![b' '; bytes])))
                .expect("it is well formed");
            let mut take = pin!(receiver.take(forged, &arrival));
            let mut paused = 0;
            let refused = loop {
                match take.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(refused) => break refused,
                    Poll::Pending => paused += 1,
                }
            };
            assert_eq!((refused, paused), (Err(Refusal::BadSignature), pauses), "{bytes}");
        }
    }

    #[tokio::test]
    async fn a_stranger_is_not_told_that_a_shop_is_over_its_share() {
        let receiver = receiver();
        let arrival =
            RequestArrival { first_byte: tokio::time::Instant::now(), connection: Phase::new() };
        receiver.shares.show(HashSet::from([stable_hash::of(&[b""])]));
        let forged = receiver.take(request("forged"), &arrival).await;
        assert_eq!(forged, Err(Refusal::BadSignature));
        let signature = spillway_webhook::Secrets::new(&[Zeroizing::new("hush".to_owned())]);
        let own = receiver.take(request(&signature.sign(BODY)), &arrival).await;
        assert_eq!(own, Err(Refusal::ShopQueueFull));
    }
}
