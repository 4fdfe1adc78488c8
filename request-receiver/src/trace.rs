//! Spans of one request: `receive`, from its first byte to its answer, and in it `store`, from the
//! batch to the confirmation of the store.
//!
//! The context of `store` is stored with the webhook as its `traceparent`. What consumers do with it
//! belongs to the same trace. Only a webhook with a good signature leaves spans: strangers can fill
//! no collector. It leaves them also if its request is dropped before the answer, as when the sender
//! hangs up.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};
use spillway_trace::{SpanRole, TRACEPARENT, TRACESTATE, TraceContext, TraceSpan, Tracer};
use spillway_webhook::Webhook;
use spillway_webhook::shopify::Headers;

const PARENT: HeaderName = HeaderName::from_static(TRACEPARENT);
const STATE: HeaderName = HeaderName::from_static(TRACESTATE);

/// Error of the spans of a request that was dropped before its answer.
const CUT_OFF: &str = "cut_off";

/// Spans of a request whose trace is recorded. Boxed, so that the others do not make room for them.
pub struct RequestTrace {
    tracer: Tracer,
    /// `None` once they have ended.
    spans: Option<RequestSpans>,
}

struct RequestSpans {
    receive: TraceSpan,
    store: TraceSpan,
    is_verified: bool,
    is_storing: bool,
}

impl RequestTrace {
    /// Begins the spans of a webhook whose first byte came `waited` ago, and sets its `traceparent`.
    /// `None`, and no change, if its trace is not recorded.
    pub fn begin(tracer: &Tracer, webhook: &mut Webhook, waited: Duration) -> Option<Box<Self>> {
        let headers = &mut webhook.headers;
        let parent = parent(headers);
        let mut receive = tracer.begin("receive", SpanRole::Server, parent)?;
        receive.set_start(SystemTime::now() - waited);
        match parent {
            Some(_) => {
                receive.set_state(headers.get(STATE).and_then(|value| value.to_str().ok()));
            }
            // It belongs to the parent that is not there.
            None => {
                headers.remove(STATE);
            }
        }
        let store = receive.child("store", SpanRole::Producer);
        let context = HeaderValue::try_from(store.context().to_string());
        headers.insert(PARENT, context.expect("BUG: a context is plain text"));
        let spans = RequestSpans { receive, store, is_verified: false, is_storing: false };
        Some(Box::new(Self { tracer: tracer.clone(), spans: Some(spans) }))
    }

    /// Describes the webhook, which is verified by now. From now on it leaves spans.
    pub fn describe(&mut self, webhook: &Webhook) {
        let Some(spans) = &mut self.spans else { return };
        spans.is_verified = true;
        let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into();
        let headers = &webhook.headers;
        let shop: String = text(headers.shop());
        let topic: String = text(headers.topic().as_deref());
        let receive = &mut spans.receive;
        receive.set_text("http.request.method", "POST");
        receive.set_text("url.path", webhook.target.path());
        receive.set_number("http.request.body.size", size(webhook.body.len()));
        receive.set_text("spillway.shop", shop);
        receive.set_text("spillway.topic", topic);
        spans.store.set_text("messaging.system", "redis");
        spans.store.set_text("messaging.operation.type", "send");
    }

    /// Notes that the webhook is in a batch from now on.
    pub fn storing(&mut self) {
        let Some(spans) = &mut self.spans else { return };
        spans.store.set_start(SystemTime::now());
        spans.is_storing = true;
    }

    /// Ends the spans of a webhook that was answered 200, or refused with the code `error`.
    pub fn end(mut self, outcome: &'static str, error: Option<&'static str>) {
        if let Some(spans) = &mut self.spans {
            spans.receive.set_text("spillway.outcome", outcome);
        }
        self.end_spans(error);
    }

    /// Ends the spans, once. A webhook that is not verified leaves none.
    fn end_spans(&mut self, error: Option<&'static str>) {
        let Some(spans) = self.spans.take().filter(|spans| spans.is_verified) else { return };
        if spans.is_storing {
            self.tracer.end(spans.store, error);
        }
        self.tracer.end(spans.receive, error);
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        self.end_spans(Some(CUT_OFF));
    }
}

/// Context in a trace that a request names. Of several values, none counts.
fn parent(headers: &HeaderMap) -> Option<TraceContext> {
    let mut values = headers.get_all(PARENT).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    TraceContext::parse(value.as_bytes())
}

fn size(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const SENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(values: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn one_traceparent_counts_and_several_do_not() {
        let one = parent(&headers(&[("traceparent", SENT)]));
        assert_eq!(one.map(|one| one.to_string()).as_deref(), Some(SENT));
        assert_eq!(parent(&headers(&[])), None);
        assert_eq!(parent(&headers(&[("traceparent", SENT), ("traceparent", SENT)])), None);
        assert_eq!(parent(&headers(&[("traceparent", "00-1-1-01")])), None);
    }

    #[test]
    fn the_stored_place_is_in_the_trace_of_the_sender() {
        let tracer = Tracer::to_nowhere(1.0);
        let mut webhook = Webhook {
            received_at_ms: 0,
            target: "/hooks?a=1".parse().expect("a path"),
            headers: headers(&[("traceparent", SENT), ("tracestate", "vendor=1")]),
            body: Bytes::new(),
        };
        let trace = RequestTrace::begin(&tracer, &mut webhook, Duration::ZERO);
        let stored = parent(&webhook.headers).expect("it is there").to_string();
        assert_eq!((&stored[..36], &stored[53..]), (&SENT[..36], "01"));
        assert_ne!(stored, SENT);
        assert_eq!(webhook.headers["tracestate"], "vendor=1");
        assert!(trace.is_some());
        // A new trace keeps no state of another one.
        webhook.headers = headers(&[("traceparent", "none"), ("tracestate", "vendor=1")]);
        assert!(RequestTrace::begin(&tracer, &mut webhook, Duration::ZERO).is_some());
        assert!(!webhook.headers.contains_key("tracestate"));
    }

    #[test]
    fn a_request_that_is_dropped_leaves_spans_if_its_webhook_is_verified() {
        let (tracer, mut ended) = Tracer::to_memory(10);
        let begin = || {
            let mut webhook = Webhook {
                received_at_ms: 0,
                target: "/".parse().expect("a path"),
                headers: HeaderMap::new(),
                body: Bytes::new(),
            };
            let trace = RequestTrace::begin(&tracer, &mut webhook, Duration::ZERO);
            (trace.expect("all are recorded"), webhook)
        };
        drop(begin());
        assert!(ended.take().is_empty(), "it may be forged");
        let (mut trace, webhook) = begin();
        trace.describe(&webhook);
        drop(trace);
        assert_eq!(ended.take(), [("receive", Some("cut_off"))]);
        let (mut trace, webhook) = begin();
        trace.describe(&webhook);
        trace.storing();
        drop(trace);
        assert_eq!(ended.take(), [("store", Some("cut_off")), ("receive", Some("cut_off"))]);
        let (mut trace, webhook) = begin();
        trace.describe(&webhook);
        trace.end("ignored", None);
        assert_eq!(ended.take(), [("receive", None)]);
    }

    #[test]
    fn what_is_not_recorded_is_not_changed() {
        let tracer = Tracer::to_nowhere(0.0);
        let sent = headers(&[("traceparent", "x"), ("tracestate", "vendor=1")]);
        let mut webhook = Webhook {
            received_at_ms: 0,
            target: "/".parse().expect("a path"),
            headers: sent.clone(),
            body: Bytes::new(),
        };
        assert!(RequestTrace::begin(&tracer, &mut webhook, Duration::ZERO).is_none());
        assert_eq!(webhook.headers, sent);
    }
}
