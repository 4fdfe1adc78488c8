//! Handles one request, step by step. [`RequestHandler`] holds the path that a webhook takes.

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body::Body;
use spillway_process::clock::wall_clock_ms;
use spillway_webhook::{Verified, Webhook};
use tokio::time::Instant;

use crate::admit::{Admission, Permit};
use crate::apps::{App, Apps, name_app};
use crate::batch::{Batches, Ticket};
use crate::body;
use crate::head::RequestHead;
use crate::ignored::Ignored;
use crate::inspect::InspectionRules;
use crate::metrics::ReceiverMetrics;
use crate::phase::RequestArrival;
use crate::reply::Refusal;
use crate::secrets::ShardSecrets;
use crate::shared::ShardContext;
use crate::shares::ShopShares;
use crate::store::Store;
use crate::topics::TopicMetrics;
use crate::trace::RequestTrace;

const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// State that all requests of a shard share.
pub struct RequestHandler {
    admission: Admission,
    secrets: ShardSecrets,
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

impl RequestHandler {
    /// Handler for one shard, with the store and the batches of that shard.
    pub fn new(shared: ShardContext, store: Store, batches: Arc<Batches>) -> Self {
        let ShardContext { settings, admission, secrets, apps, ignored, .. } = shared;
        let ShardContext { shares, metrics, topics, .. } = shared;
        Self {
            admission,
            secrets: ShardSecrets::new(secrets),
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

    /// Drops copies of secrets that no longer serve. The shard's sweep calls it.
    pub fn tick(&self) {
        self.secrets.sweep();
    }

    async fn take<B>(
        &self,
        head: &RequestHead,
        request: &mut Request<B>,
        arrival: &RequestArrival,
    ) -> Result<Taken, Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let admitted =
            head.check(request).and_then(|()| Ok((self.app(request)?, self.admit(head)?)));
        let (app, permit) = match admitted {
            Ok(admitted) => admitted,
            // Others may read this request in another way, also its end: the connection ends with it.
            Err(Refusal::Malformed) => return Err(Refusal::Malformed),
            Err(refusal) => {
                self.store.gaps().refused(request.headers(), refusal, wall_clock_ms());
                if body::discard(request).await {
                    arrival.connection.note_body_read();
                }
                return Err(refusal);
            }
        };
        let taken = self.take_for(app.as_deref(), permit, head, request, arrival).await;
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
        head: &RequestHead,
        request: &mut Request<B>,
        arrival: &RequestArrival,
    ) -> Result<Taken, Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let body = self.read_body(request, &mut permit).await?;
        arrival.connection.note_body_read();
        let now_ms = wall_clock_ms();
        let waited = arrival.first_byte.elapsed();
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(0);
        if app.is_some() || head.names_app {
            name_app(request.headers_mut(), app);
        }
        let mut webhook = webhook_of(request, body, now_ms.saturating_sub(waited_ms))?;
        let gaps = self.store.gaps();
        let tracer = self.metrics.tracer.as_ref();
        let mut trace = tracer.and_then(|tracer| RequestTrace::begin(tracer, &mut webhook, waited));
        let deadline = arrival.first_byte + self.ack_timeout;
        let verified = match app {
            None => self.secrets.verify(&webhook, deadline).await,
            Some(app) => app.verify(&webhook).await,
        };
        let verified =
            verified.inspect_err(|refusal| gaps.refused(&webhook.headers, *refusal, now_ms))?;
        let pair = gaps.arrived(&webhook.headers, now_ms);
        if let Some(trace) = &mut trace {
            trace.describe(&webhook);
        }
        let rules = app.map_or(&self.rules, |app| &app.rules);
        let request = VerifiedRequest { verified, permit, now_ms, deadline };
        let pushed = self.push(head, rules, request).await;
        // Dropped before the wait: the headers and the body lie in the connection's read buffer.
        drop(webhook);
        let taken = match pushed {
            Ok(Some(ticket)) => {
                if let Some(trace) = &mut trace {
                    trace.storing();
                }
                ticket.answer().await.map(|()| Taken::Stored)
            }
            Ok(None) => Ok(Taken::Ignored),
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = &taken {
            gaps.refused_verified(pair, *refusal, now_ms);
        }
        if let Some(trace) = trace {
            trace.end(outcome_of(&taken), taken.as_ref().err().map(|refusal| refusal.outcome()));
        }
        taken
    }

    async fn read_body<B>(
        &self,
        request: &mut Request<B>,
        permit: &mut Permit,
    ) -> Result<Bytes, Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let BodyLimits { bytes_max, timeout } = self.body;
        let body = body::read(request.body_mut(), bytes_max, timeout, permit).await;
        if let Err(refusal) = &body {
            self.store.gaps().refused(request.headers(), *refusal, wall_clock_ms());
        }
        body
    }

    /// Puts a verified webhook into a batch, if the rules allow it. `None` if it is ignored.
    async fn push(
        &self,
        head: &RequestHead,
        rules: &InspectionRules,
        request: VerifiedRequest<'_>,
    ) -> Result<Option<Ticket>, Refusal> {
        let VerifiedRequest { verified, permit, now_ms, deadline } = request;
        let webhook = verified.webhook();
        let is_timed = rules.inspect(head, webhook, now_ms)?;
        if !is_timed {
            self.metrics.without_time.inc();
        }
        let topic = self.topics.verified(head.topic, &webhook.headers);
        if let Some(by) = self.ignored.by(&webhook.headers) {
            self.topics.ignored(topic, by);
            return Ok(None);
        }
        self.shares.admit(&webhook.headers)?;
        Ok(Some(self.batches.push(verified, topic, permit, deadline).await))
    }

    /// App that a request is for, if there are several.
    fn app<B>(&self, request: &Request<B>) -> Result<Option<Arc<App>>, Refusal> {
        let Some(apps) = &self.apps else { return Ok(None) };
        apps.route(request.uri(), request.headers())
    }

    /// Reserves memory for a request before its body is read. Refuses it if the store takes
    /// nothing.
    fn admit(&self, head: &RequestHead) -> Result<Permit, Refusal> {
        self.store.takes()?;
        if head.announced_bytes > self.body.bytes_max {
            // A 503 takes precedence over the 413.
            self.admission.admit(head.bytes, 0)?;
            return Err(Refusal::TooLarge);
        }
        self.admission.admit(head.bytes, head.announced_bytes)
    }
}

/// Request whose webhook is verified.
struct VerifiedRequest<'a> {
    verified: Verified<'a>,
    permit: Permit,
    /// Wall clock at the end of the body.
    now_ms: u64,
    /// Time by which the sender is answered.
    deadline: Instant,
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
    pub handler: Arc<RequestHandler>,
    /// Connection and time of arrival of this request.
    pub arrival: RequestArrival,
}

/// Answers one request.
pub async fn receive<B>(context: RequestContext, mut request: Request<B>) -> Response
where
    B: Body<Data = Bytes> + Unpin,
{
    let RequestContext { handler, arrival } = context;
    let head = RequestHead::read(&request, &handler.topics);
    let taken = handler.take(&head, &mut request, &arrival).await;
    let outcome = outcome_of(&taken);
    let is_body_read = arrival.connection.is_body_read();
    handler.metrics.answered(outcome, arrival.connection.answered() - arrival.first_byte);
    match taken {
        Ok(_) => StatusCode::OK.into_response(),
        Err(refusal) => {
            tracing::debug!(outcome, "refused");
            handler.topics.refused(head.topic, refusal);
            let mut response = refusal.into_response();
            if !is_body_read {
                // Announces the close to the sender, which would otherwise use the connection
                // again.
                arrival.connection.note_body_unread();
                response.headers_mut().insert(header::CONNECTION, CLOSE);
            }
            response
        }
    }
}

/// Webhook of a request whose body is read.
fn webhook_of<B>(
    request: &mut Request<B>,
    body: Bytes,
    received_at_ms: u64,
) -> Result<Webhook, Refusal> {
    let target = take(request.uri_mut()).into_parts().path_and_query;
    let target = target.ok_or(Refusal::Malformed)?;
    Ok(Webhook { received_at_ms, target, headers: take(request.headers_mut()), body })
}

/// Label of an outcome.
fn outcome_of(taken: &Result<Taken, Refusal>) -> &'static str {
    match taken {
        Ok(Taken::Stored) => "accepted",
        Ok(Taken::Ignored) => "ignored",
        Err(refusal) => refusal.outcome(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use futures_util::FutureExt;
    use http_body_util::Full;
    use spillway_process::metrics::encode;
    use spillway_trace::Tracer;
    use spillway_webhook::freshness::FreshnessWindow;
    use spillway_webhook::stable_hash;
    use zeroize::Zeroizing;

    use super::*;
    use crate::inspect::BodyKinds;
    use crate::phase::Phase;
    use crate::reply::OUTCOMES;
    use crate::secrets::settings::SecretSettings;
    use crate::secrets::{ClientSecrets, HASHED_AT_ONCE_BYTES_MAX};
    use crate::shares::ShareLevel;

    const BODY: &[u8] = br#"{"id":1}"#;

    fn handler() -> RequestHandler {
        let secrets = Vec::from([Zeroizing::new("hush".to_owned())]);
        let secrets = SecretSettings { secrets, ..SecretSettings::default() };
        let secrets = Arc::new(ClientSecrets::new(secrets, None).expect("random numbers"));
        let metrics = ReceiverMetrics::new(&OUTCOMES);
        let topics = TopicMetrics::new(&metrics.registry);
        RequestHandler {
            admission: Admission::new(64 << 20),
            secrets: ShardSecrets::new(secrets),
            apps: None,
            store: Store::usable_one(),
            ignored: Arc::default(),
            shares: Arc::default(),
            batches: Arc::new(Batches::new(topics.clone())),
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

    async fn take(
        handler: &RequestHandler,
        mut request: Request<Full<Bytes>>,
        arrival: &RequestArrival,
    ) -> Result<Taken, Refusal> {
        let head = RequestHead::read(&request, &handler.topics);
        handler.take(&head, &mut request, arrival).await
    }

    #[tokio::test]
    async fn a_forged_webhook_allocates_nothing_but_its_body() {
        let handler = handler();
        let arrival =
            RequestArrival { first_byte: tokio::time::Instant::now(), connection: Phase::new() };
        let forged = spillway_webhook::Secrets::new(&[Zeroizing::new("guess".to_owned())]);
        // The first webhook of a thread makes it cache the secrets in force.
        take(&handler, request(""), &arrival).await.expect_err("it is forged");
        for signature in [forged.sign(BODY).as_str(), "", "not base64"] {
            let request = request(signature);
            let mut taken = None;
            let allocated = allocation_counter::measure(|| {
                let mut take = pin!(take(&handler, request, &arrival));
                taken = Some(take.as_mut().poll(&mut Context::from_waker(Waker::noop())));
            });
            assert!(matches!(taken, Some(Poll::Ready(Err(Refusal::BadSignature)))));
            assert_eq!(allocated.count_total, 0, "{signature:?}: {allocated:?}");
        }
    }

    /// Number of requests refused under a topic, as shown in the metrics.
    fn refused(handler: &RequestHandler, topic: &str) -> u64 {
        let page = encode(&handler.metrics.registry);
        let sample = format!("spillway_refused_total{{topic=\"{topic}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&sample));
        value.map_or(0, |value| value.parse().expect("a count"))
    }

    #[tokio::test]
    async fn forged_requests_count_under_no_topic_that_they_name() {
        let handler = Arc::new(handler());
        let context = || RequestContext {
            handler: handler.clone(),
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
        assert_eq!(refused(&handler, "products/update"), 0);
        assert_eq!(refused(&handler, "other"), 5);
        // Refused after a good signature, or refused by a 503 before the signature is checked.
        handler.shares.show(HashMap::from([(stable_hash::of(&[b""]), ShareLevel::Over)]));
        let over = receive(context(), request(&hush.sign(BODY))).await;
        assert_eq!(over.status(), StatusCode::SERVICE_UNAVAILABLE);
        handler.store.set_stalled(true);
        receive(context(), request(&hush.sign(BODY))).await;
        assert_eq!(refused(&handler, "products/update"), 2);
        assert_eq!(refused(&handler, "other"), 5);
    }

    #[tokio::test]
    async fn a_sender_that_hangs_up_leaves_spans_if_its_webhook_is_signed() {
        let (tracer, mut ended) = Tracer::to_memory(10);
        let mut handler = handler();
        handler.metrics.tracer = Some(tracer);
        let handler = Arc::new(handler);
        let hush = spillway_webhook::Secrets::new(&[Zeroizing::new("hush".to_owned())]);
        // No batcher runs here: without a hang-up, the first one would wait for ever.
        for (signature, expected) in [
            (hush.sign(BODY), &[("store", Some("cut_off")), ("receive", Some("cut_off"))][..]),
            ("forged".to_owned(), &[][..]),
        ] {
            let arrival = RequestArrival {
                first_byte: tokio::time::Instant::now(),
                connection: Phase::new(),
            };
            let context = RequestContext { handler: handler.clone(), arrival };
            drop(receive(context, request(&signature)).now_or_never());
            assert_eq!(ended.take(), expected);
        }
    }

    #[tokio::test]
    async fn a_large_forged_body_lets_others_run_while_it_is_hashed() {
        let handler = handler();
        let arrival =
            RequestArrival { first_byte: tokio::time::Instant::now(), connection: Phase::new() };
        for (bytes, pauses) in [(HASHED_AT_ONCE_BYTES_MAX, 0), (3 << 20, 11)] {
            let forged = Request::post("/")
                .header("x-shopify-hmac-sha256", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
                .body(Full::new(Bytes::from(vec![b' '; bytes])))
                .expect("it is well formed");
            let mut take = pin!(take(&handler, forged, &arrival));
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
        let handler = handler();
        let arrival =
            RequestArrival { first_byte: tokio::time::Instant::now(), connection: Phase::new() };
        handler.shares.show(HashMap::from([(stable_hash::of(&[b""]), ShareLevel::Over)]));
        let forged = take(&handler, request("forged"), &arrival).await;
        assert_eq!(forged, Err(Refusal::BadSignature));
        let signature = spillway_webhook::Secrets::new(&[Zeroizing::new("hush".to_owned())]);
        let own = take(&handler, request(&signature.sign(BODY)), &arrival).await;
        assert_eq!(own, Err(Refusal::ShopQueueFull));
    }
}
