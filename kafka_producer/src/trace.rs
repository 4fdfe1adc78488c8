//! Spans of records: a `transaction` for each webhook whose trace is recorded, from the record that
//! librdkafka takes to the commit that makes it visible.

use spillway_trace::{SpanRole, TRACEPARENT, TRACESTATE, TraceContext, TraceSpan, Tracer};
use spillway_webhook::WebhookId;
use spillway_webhook::pack::View;
use spillway_webhook::shopify::Headers;

/// Most spans of one transaction, however long the tracer's queue is: they take memory until the
/// commit. A transaction may have hundreds of thousands of records.
const SPANS_MAX: usize = 4096;

/// Spans of the records of an open transaction. They end with it.
#[derive(Default)]
pub(crate) struct TransactionSpans(Vec<TraceSpan>);

impl TransactionSpans {
    /// Begins the span of a record for `topic`. `None` if the trace of its webhook is not recorded, or
    /// there are too many: all of them end at once, and the tracer takes only so many.
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
        if self.0.len() >= SPANS_MAX.min(tracer.burst_max()) {
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
        let (tracer, _ended) = Tracer::to_memory(4 * SPANS_MAX);
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

    #[test]
    fn a_commit_hands_over_no_more_spans_than_half_of_the_queue() {
        let recorded = pack("/", &[("traceparent", STORED.as_bytes())], b"{}");
        for (queue_max, expected) in [(1, 1), (9, 4), (2048, 1024)] {
            let (tracer, mut ended) = Tracer::to_memory(queue_max);
            let mut spans = TransactionSpans::default();
            let begin = |spans: &TransactionSpans| {
                spans.begin(Some(&tracer), &recorded.view(0), id(), "webhooks")
            };
            while let Some(span) = begin(&spans) {
                spans.add(Some(span));
            }
            spans.end(Some(&tracer), expected, None);
            assert_eq!(ended.take().len(), expected, "of {queue_max}");
        }
    }
}
