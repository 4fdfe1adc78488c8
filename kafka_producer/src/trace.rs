//! Spans of records: a `transaction` for each webhook whose trace is recorded, from the record that
//! librdkafka takes to the commit that makes it visible.

use spillway_trace::{SpanRole, TRACEPARENT, TRACESTATE, TraceContext, TraceSpan, Tracer};
use spillway_webhook::WebhookId;
use spillway_webhook::pack::View;
use spillway_webhook::shopify::Headers;

/// Most spans of one transaction. It may have hundreds of thousands of records.
const SPANS_MAX: usize = 4096;

/// Spans of the records of an open transaction. They end with it.
#[derive(Default)]
pub(crate) struct TransactionSpans(Vec<TraceSpan>);

impl TransactionSpans {
    /// Begins the span of a record for `topic`. `None` if the trace of its webhook is not recorded, or
    /// there are too many.
    pub(crate) fn begin(
        &self,
        tracer: Option<&Tracer>,
        webhook: &View<'_>,
        id: WebhookId,
        topic: &str,
    ) -> Option<TraceSpan> {
        let tracer = tracer?;
        let parent = TraceContext::parse(webhook.value(TRACEPARENT)?)?;
        let mut span = tracer.begin("transaction", SpanRole::Producer, Some(parent))?;
        if self.0.len() >= SPANS_MAX {
            tracer.count_dropped();
            return None;
        }
        let state = webhook.value(TRACESTATE);
        span.set_state(state.and_then(|state| std::str::from_utf8(state).ok()));
        span.set_text("messaging.system", "kafka");
        span.set_text("messaging.operation.type", "send");
        span.set_text("messaging.destination.name", topic);
        span.set_text("spillway.id", id.to_string());
        Some(span)
    }

    /// Adds the span of a record that was handed over.
    pub(crate) fn add(&mut self, span: Option<TraceSpan>) {
        self.0.extend(span);
    }

    /// Ends all, with the transaction of so many records.
    pub(crate) fn end(
        &mut self,
        tracer: Option<&Tracer>,
        records: usize,
        error: Option<&'static str>,
    ) {
        let records = i64::try_from(records).unwrap_or(i64::MAX);
        for mut span in self.0.drain(..) {
            span.set_number("messaging.batch.message_count", records);
            if let Some(tracer) = tracer {
                tracer.end(span, error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::{id, pack};

    const STORED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_record_has_a_span_if_its_trace_is_recorded_and_there_is_room() {
        let tracer = Tracer::to_nowhere(1.0);
        let mut spans = TransactionSpans::default();
        let recorded = pack("/", &[("traceparent", STORED.as_bytes())], b"{}");
        let other = pack("/", &[], b"{}");
        let begin = |spans: &TransactionSpans, tracer, pack: &spillway_webhook::pack::Pack| {
            spans.begin(tracer, &pack.view(0), id(), "webhooks")
        };
        assert!(begin(&spans, None, &recorded).is_none());
        assert!(begin(&spans, Some(&tracer), &other).is_none());
        for _ in 0..SPANS_MAX {
            let span = begin(&spans, Some(&tracer), &recorded);
            assert!(span.is_some());
            spans.add(span);
        }
        assert!(begin(&spans, Some(&tracer), &recorded).is_none());
        spans.end(Some(&tracer), SPANS_MAX, None);
        assert!(begin(&spans, Some(&tracer), &recorded).is_some());
    }
}
