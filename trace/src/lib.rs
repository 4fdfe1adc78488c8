//! Traces: spans of a webhook's way through Spillway, and their export.
//!
//! A [`TraceContext`] names a span, as `traceparent` carries it from process to process. A [`Tracer`]
//! decides which traces are recorded, begins a [`TraceSpan`] in them, and hands each that ended to the
//! [`TraceExport`], which sends them to a collector in the background. No caller waits: a span that finds
//! no room is dropped and counted.
//!
//! This crate knows no webhook. Each process names its own spans.

mod context;
mod export;
mod otlp;
mod span;
mod tracer;

pub use crate::context::{TRACEPARENT, TRACESTATE, TraceContext};
pub use crate::export::TraceExport;
#[doc(hidden)]
pub use crate::span::EndedSpans;
pub use crate::span::{SpanRole, TraceSpan};
pub use crate::tracer::Tracer;
