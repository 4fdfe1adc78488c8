//! A span: one step of a webhook's way, with its time, its context in the trace, and attributes.

use std::borrow::Cow;
use std::time::SystemTime;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tokio::sync::mpsc;

use crate::context::TraceContext;

/// Role of a span, which tells a viewer what causes what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanRole {
    /// A request is answered.
    Server,
    /// A request is sent.
    Client,
    /// A message is stored for others.
    Producer,
    /// A stored message is processed.
    Consumer,
}

/// Span under way. A tracer ends it; one that is dropped is not exported.
#[derive(Debug)]
pub struct TraceSpan {
    name: &'static str,
    role: SpanRole,
    context: TraceContext,
    parent: Option<u64>,
    /// True if the parent is a span of another process.
    is_parent_remote: bool,
    /// Value of `tracestate`.
    state: Option<String>,
    start: SystemTime,
    attributes: Vec<KeyValue>,
}

/// Span that ended.
#[derive(Debug)]
pub(crate) struct EndedSpan {
    pub(crate) span: TraceSpan,
    pub(crate) end: SystemTime,
    pub(crate) error: Option<&'static str>,
}

/// Spans that a tracer ended, for tests.
#[doc(hidden)]
#[derive(Debug)]
pub struct EndedSpans(mpsc::Receiver<EndedSpan>);

impl EndedSpans {
    pub(crate) fn new(ended: mpsc::Receiver<EndedSpan>) -> Self {
        Self(ended)
    }

    /// Takes the spans that ended since the last call: their names and errors.
    pub fn take(&mut self) -> Vec<(&'static str, Option<&'static str>)> {
        std::iter::from_fn(|| self.0.try_recv().ok())
            .map(|ended| (ended.span.name, ended.error))
            .collect()
    }
}

impl TraceSpan {
    /// Span at `context`, whose parent is a span of another process, or none.
    pub(crate) fn first(
        name: &'static str,
        role: SpanRole,
        context: TraceContext,
        parent: Option<u64>,
    ) -> Self {
        Self {
            name,
            role,
            context,
            parent,
            is_parent_remote: parent.is_some(),
            state: None,
            start: SystemTime::now(),
            attributes: Vec::new(),
        }
    }

    /// Begins a span whose parent is this one.
    pub fn child(&self, name: &'static str, role: SpanRole) -> Self {
        let context = self.context.with_span(rand::random());
        let state = self.state.clone();
        let child = Self::first(name, role, context, Some(self.context.span));
        Self { is_parent_remote: false, state, ..child }
    }

    /// Context of this span, for what it causes elsewhere.
    pub fn context(&self) -> TraceContext {
        self.context
    }

    /// Sets the context of this span, where another process names it, too.
    pub fn set_context(&mut self, context: TraceContext) {
        self.context = context;
    }

    /// Sets the time at which this span began.
    pub fn set_start(&mut self, start: SystemTime) {
        self.start = start;
    }

    /// Sets the value of the `tracestate` that came with the parent.
    pub fn set_state(&mut self, state: Option<&str>) {
        self.state = state.map(ToOwned::to_owned);
    }

    /// Adds an attribute with a text.
    pub fn set_text(&mut self, key: &'static str, value: impl Into<String>) {
        let value: String = value.into();
        self.attributes.push(KeyValue::new(key, value));
    }

    /// Adds an attribute with a number.
    pub fn set_number(&mut self, key: &'static str, value: impl Into<i64>) {
        let value: i64 = value.into();
        self.attributes.push(KeyValue::new(key, value));
    }
}

impl EndedSpan {
    /// The span as the exporter takes it.
    pub(crate) fn into_data(self, scope: &InstrumentationScope) -> SpanData {
        let Self { span, end, error } = self;
        let state = span.state.and_then(|state| state.parse().ok()).unwrap_or_default();
        let id = |span: u64| SpanId::from_bytes(span.to_be_bytes());
        SpanData {
            span_context: SpanContext::new(
                TraceId::from_bytes(span.context.trace.to_be_bytes()),
                id(span.context.span),
                TraceFlags::SAMPLED,
                false,
                state,
            ),
            parent_span_id: id(span.parent.unwrap_or(0)),
            parent_span_is_remote: span.is_parent_remote,
            span_kind: match span.role {
                SpanRole::Server => SpanKind::Server,
                SpanRole::Client => SpanKind::Client,
                SpanRole::Producer => SpanKind::Producer,
                SpanRole::Consumer => SpanKind::Consumer,
            },
            name: Cow::Borrowed(span.name),
            start_time: span.start,
            // A clock that was set back must not make a span end before its start.
            end_time: end.max(span.start),
            attributes: span.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: error.map_or(Status::Unset, Status::error),
            instrumentation_scope: scope.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_child_is_of_its_parents_trace() {
        let value = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let remote = TraceContext::parse(value).expect("it is well formed");
        let mut receive =
            TraceSpan::first("receive", SpanRole::Server, remote.with_span(7), Some(remote.span));
        receive.set_state(Some("vendor=1"));
        let store = receive.child("store", SpanRole::Producer);
        let scope = InstrumentationScope::builder("test").build();
        let end = receive.start - Duration::from_secs(1);
        let store = EndedSpan { span: store, end, error: Some("ack_timeout") }.into_data(&scope);
        let receive = EndedSpan { span: receive, end, error: None }.into_data(&scope);
        assert_eq!(receive.span_context.trace_id(), store.span_context.trace_id());
        assert_eq!(receive.parent_span_id.to_string(), "00f067aa0ba902b7");
        assert!(receive.parent_span_is_remote && !store.parent_span_is_remote);
        assert_eq!(store.parent_span_id, receive.span_context.span_id());
        assert_eq!(store.span_context.trace_state().header(), "vendor=1");
        assert_eq!(store.status, Status::error("ack_timeout"));
        assert_eq!(receive.end_time, receive.start_time);
    }
}
