//! Spans of deliveries: `dispatch`, from the acceptance of a webhook to its outcome, and in it an
//! `attempt` for each try.
//!
//! Attempts may lie hours and leaders apart. So the id of `dispatch` follows from the webhook: each
//! attempt knows its parent, and the leader at the end exports it.

use std::time::{Duration, UNIX_EPOCH};

use http::HeaderValue;
use spillway_delivery::{GivenUp, Verdict};
use spillway_trace::{SpanRole, TRACEPARENT, TRACESTATE, TraceContext, TraceSpan, Tracer};
use spillway_webhook::pack::Record;
use spillway_webhook::shopify::Headers;
use spillway_webhook::{WebhookId, stable_hash};

use crate::content::PackBytes;
use crate::judge::{AttemptOutcome, result_label};

/// Error of an attempt whose outcome nobody waits for any more.
const CUT_OFF: &str = "cut_off";

/// Spans of one attempt, if the trace of its webhook is recorded. One that is dropped before its end
/// was cut off.
#[derive(Debug)]
pub(crate) struct AttemptTrace {
    tracer: Tracer,
    dispatch: Option<TraceSpan>,
    attempt: Option<TraceSpan>,
    context: TraceContext,
}

impl AttemptTrace {
    /// Begins an attempt to deliver `record`.
    pub(crate) fn begin(
        tracer: Option<&Tracer>,
        record: &Record,
        webhook: WebhookId,
        attempt: u32,
    ) -> Option<Box<Self>> {
        let tracer = tracer?;
        let dispatch = dispatch(tracer, record, record.received_at_ms, webhook)?;
        let mut span = dispatch.child("attempt", SpanRole::Client);
        span.set_text("http.request.method", "POST");
        span.set_number("spillway.attempt", attempt);
        let context = span.context();
        let tracer = tracer.clone();
        let dispatch = Some(dispatch);
        Some(Box::new(Self { tracer, dispatch, attempt: Some(span), context }))
    }

    /// Value of `traceparent` for the backend.
    pub(crate) fn traceparent(&self) -> HeaderValue {
        HeaderValue::try_from(self.context.to_string()).expect("BUG: a context is plain text")
    }

    /// Ends the attempt, and the dispatch if the webhook is delivered.
    pub(crate) fn end(mut self, outcome: &AttemptOutcome, verdict: Verdict) {
        let attempt = self.attempt.take();
        let dispatch = self.dispatch.take();
        if verdict == Verdict::NotSent {
            return;
        }
        let label = result_label(outcome, verdict);
        let is_delivered = verdict == Verdict::Delivered;
        if let Some(mut attempt) = attempt {
            if let AttemptOutcome::Answered { status, .. } = outcome {
                attempt.set_number("http.response.status_code", *status);
            }
            attempt.set_text("spillway.result", label);
            self.tracer.end(attempt, (!is_delivered).then_some(label));
        }
        if let Some(mut dispatch) = dispatch.filter(|_| is_delivered) {
            dispatch.set_text("spillway.result", label);
            self.tracer.end(dispatch, None);
        }
    }
}

impl Drop for AttemptTrace {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            self.tracer.end(attempt, Some(CUT_OFF));
        }
    }
}

/// Ends the dispatches of webhooks that become dead letters.
pub(crate) fn given_up(tracer: &Tracer, dead: &[GivenUp<PackBytes>], cell: u32) {
    for letter in dead {
        let view = letter.content.0.view(letter.record_index);
        let entry = letter.position.entry();
        let webhook = WebhookId { cell, entry, index: letter.position.index };
        if let Some(mut dispatch) = dispatch(tracer, &view, view.received_at_ms, webhook) {
            dispatch.set_text("spillway.result", "dead");
            dispatch.set_number("spillway.attempts", letter.attempts);
            tracer.end(dispatch, Some(letter.reason));
        }
    }
}

/// The dispatch of a webhook, if its trace is recorded.
fn dispatch(
    tracer: &Tracer,
    headers: &impl Headers,
    received_at_ms: u64,
    webhook: WebhookId,
) -> Option<TraceSpan> {
    // The receiver gave it one, or its trace is not recorded.
    let stored = headers.value(TRACEPARENT)?;
    let parent = TraceContext::parse(stored)?;
    let mut span = tracer.begin("dispatch", SpanRole::Consumer, Some(parent))?;
    let id = webhook.to_string();
    span.set_context(span.context().with_span(stable_hash::of(&[stored, id.as_bytes()])));
    span.set_state(headers.value(TRACESTATE).and_then(|state| std::str::from_utf8(state).ok()));
    span.set_start(UNIX_EPOCH + Duration::from_millis(received_at_ms));
    let text =
        |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
    span.set_text("messaging.system", "redis");
    span.set_text("messaging.operation.type", "process");
    span.set_text("spillway.id", id);
    span.set_text("spillway.shop", text(headers.shop()));
    span.set_text("spillway.topic", text(headers.topic().as_deref()));
    Some(span)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use spillway_webhook::StreamId;

    use super::*;

    const STORED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn record(stored: &'static str) -> Record {
        Record {
            received_at_ms: 7,
            target: Bytes::from_static(b"/"),
            headers: vec![(
                Bytes::from_static(b"traceparent"),
                Bytes::from_static(stored.as_bytes()),
            )],
            body: Bytes::new(),
        }
    }

    fn id(index: u32) -> WebhookId {
        WebhookId { cell: 1, entry: StreamId { ms: 7, seq: 0 }, index }
    }

    #[test]
    fn all_attempts_of_a_webhook_have_one_parent_and_places_of_their_own() {
        let tracer = Tracer::to_nowhere(1.0);
        let begin = |index, attempt| {
            let begun = AttemptTrace::begin(Some(&tracer), &record(STORED), id(index), attempt);
            begun.expect("it is recorded")
        };
        let parent = |one: &AttemptTrace| one.dispatch.as_ref().map(TraceSpan::context);
        let attempts = [begin(0, 1), begin(0, 2), begin(1, 1)];
        assert_eq!(parent(&attempts[0]), parent(&attempts[1]));
        assert_ne!(parent(&attempts[0]), parent(&attempts[2]), "of another webhook");
        assert_ne!(attempts[0].traceparent(), attempts[1].traceparent());
        for attempt in &attempts {
            let sent = attempt.traceparent();
            assert_eq!(&sent.as_bytes()[..36], &STORED.as_bytes()[..36], "the same trace");
        }
    }

    #[test]
    fn a_failed_attempt_is_an_error_and_its_webhook_goes_on() {
        let (tracer, mut ended) = Tracer::to_memory(10);
        let begin = |attempt| {
            AttemptTrace::begin(Some(&tracer), &record(STORED), id(0), attempt)
                .expect("it is recorded")
        };
        let retry = Verdict::Retry { pause: Duration::ZERO, scope: None, is_refusal: false };
        let timed_out = result_label(&AttemptOutcome::TimedOut, retry);
        begin(1).end(&AttemptOutcome::TimedOut, retry);
        assert_eq!(ended.take(), [("attempt", Some(timed_out))]);
        drop(begin(2));
        assert_eq!(ended.take(), [("attempt", Some(CUT_OFF))]);
        let answered = AttemptOutcome::Answered { status: 200, retry_after: None, pauses: None };
        begin(3).end(&answered, Verdict::Delivered);
        assert_eq!(ended.take(), [("attempt", None), ("dispatch", None)]);
        begin(4).end(&AttemptOutcome::LeaseLost, Verdict::NotSent);
        assert_eq!(ended.take(), []);
    }

    #[test]
    fn a_webhook_without_a_recorded_trace_has_no_spans() {
        let tracer = Tracer::to_nowhere(1.0);
        let begin = |tracer, record: &Record| AttemptTrace::begin(tracer, record, id(0), 1);
        assert!(begin(None, &record(STORED)).is_none());
        assert!(begin(Some(&tracer), &record("nonsense")).is_none());
        let not_sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        assert!(begin(Some(&tracer), &record(not_sampled)).is_none());
        let without = Record { headers: Vec::new(), ..record(STORED) };
        assert!(begin(Some(&tracer), &without).is_none());
    }
}
