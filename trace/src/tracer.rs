//! Decides which traces are recorded, begins their spans, and hands ended spans to the export.

use std::sync::Arc;
use std::time::SystemTime;

use prometheus::IntCounter;
use spillway_process::trace_args::Sampling;
use tokio::sync::mpsc;

use crate::context::TraceContext;
use crate::span::{EndedSpan, EndedSpans, SpanRole, TraceSpan};

/// Number of values of the 63 bits by which traces are chosen, as a fraction's denominator.
const CHOICES: f64 = 9_223_372_036_854_775_808.0;

/// Begins and ends spans. Its clones share one queue. No call waits.
#[derive(Debug, Clone)]
pub struct Tracer(Arc<TracerState>);

#[derive(Debug)]
struct TracerState {
    sampler: Sampler,
    ended: mpsc::Sender<EndedSpan>,
    dropped: IntCounter,
}

/// Chooses traces by their ids, so that all who choose the same part choose the same traces. The SDKs
/// of OpenTelemetry choose alike.
#[derive(Debug, Clone, Copy)]
struct Sampler {
    is_parent_based: bool,
    /// A trace is chosen if this part of its id is below.
    below: u128,
}

impl Sampler {
    fn new(sampling: Sampling) -> Self {
        debug_assert!((0.0..=1.0).contains(&sampling.ratio), "the settings are checked");
        // No other conversion of a fraction exists.
        Self {
            is_parent_based: sampling.is_parent_based,
            below: (sampling.ratio * CHOICES) as u128,
        }
    }

    fn is_chosen(self, trace: u128, parent: Option<TraceContext>) -> bool {
        match parent {
            Some(parent) if self.is_parent_based => parent.is_sampled,
            _ => (trace & u128::from(u64::MAX)) >> 1 < self.below,
        }
    }
}

impl Tracer {
    /// Tracer whose spans go to `ended`. `dropped` counts those that find no room.
    pub(crate) fn new(
        sampling: Sampling,
        ended: mpsc::Sender<EndedSpan>,
        dropped: IntCounter,
    ) -> Self {
        Self(Arc::new(TracerState { sampler: Sampler::new(sampling), ended, dropped }))
    }

    /// Tracer of a part of all traces, whose spans go nowhere: for tests.
    #[doc(hidden)]
    pub fn to_nowhere(ratio: f64) -> Self {
        let dropped = IntCounter::new("dropped", "Spans.").expect("BUG: a constant name is valid");
        Self::new(Sampling { is_parent_based: true, ratio }, mpsc::channel(1).0, dropped)
    }

    /// Tracer of all traces with room for `queue_max` ended spans, and these spans: for tests.
    #[doc(hidden)]
    pub fn to_memory(queue_max: usize) -> (Self, EndedSpans) {
        let dropped = IntCounter::new("dropped", "Spans.").expect("BUG: a constant name is valid");
        let (sender, ended) = mpsc::channel(queue_max);
        let all = Sampling { is_parent_based: true, ratio: 1.0 };
        (Self::new(all, sender, dropped), EndedSpans::new(ended))
    }

    /// Begins this process' first span in the trace of `parent`, or in a new one. `None` if the trace is
    /// not recorded.
    pub fn begin(
        &self,
        name: &'static str,
        role: SpanRole,
        parent: Option<TraceContext>,
    ) -> Option<TraceSpan> {
        let trace = parent.map_or_else(|| rand::random::<u128>().max(1), |parent| parent.trace);
        if !self.0.sampler.is_chosen(trace, parent) {
            return None;
        }
        let context = TraceContext { trace, span: 0, is_sampled: true }.with_span(rand::random());
        Some(TraceSpan::first(name, role, context, parent.map(|parent| parent.span)))
    }

    /// Ends a span now. `error` is a code; `None` if all went well.
    pub fn end(&self, span: TraceSpan, error: Option<&'static str>) {
        let ended = EndedSpan { span, end: SystemTime::now(), error };
        if self.0.ended.try_send(ended).is_err() {
            self.0.dropped.inc();
        }
    }

    /// Most spans that may be ended at once: half of the queue. Something may wait there already, and
    /// the export empties it batch by batch.
    pub fn burst_max(&self) -> usize {
        (self.0.ended.max_capacity() / 2).max(1)
    }

    /// Counts a span that was not begun for want of room.
    pub fn count_dropped(&self) {
        self.0.dropped.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(
        is_parent_based: bool,
        ratio: f64,
        room: usize,
    ) -> (Tracer, mpsc::Receiver<EndedSpan>, IntCounter) {
        let (sender, ended) = mpsc::channel(room);
        let dropped = IntCounter::new("dropped", "Spans.").expect("a good name");
        let tracer = Tracer::new(Sampling { is_parent_based, ratio }, sender, dropped.clone());
        (tracer, ended, dropped)
    }

    fn parent(is_sampled: bool) -> TraceContext {
        TraceContext { trace: 5, span: 6, is_sampled }
    }

    #[test]
    fn a_parent_decides_only_where_the_sampler_says_so() {
        for (is_parent_based, ratio, is_sampled, expected) in [
            (true, 1.0, false, false),
            (true, 0.0, true, true),
            (false, 1.0, false, true),
            (false, 0.0, true, false),
        ] {
            let (tracer, ..) = tracer(is_parent_based, ratio, 1);
            let begun = tracer.begin("receive", SpanRole::Server, Some(parent(is_sampled)));
            assert_eq!(begun.is_some(), expected, "{is_parent_based} {ratio} {is_sampled}");
            if let Some(span) = begun {
                assert_eq!((span.context().trace, span.context().is_sampled), (5, true));
            }
        }
    }

    #[test]
    fn a_part_of_the_new_traces_is_recorded() {
        let count = |ratio| {
            let (tracer, ..) = tracer(true, ratio, 1);
            let begin = |_: &u32| tracer.begin("receive", SpanRole::Server, None).is_some();
            (0..10_000).filter(begin).count()
        };
        assert_eq!(count(0.0), 0);
        assert_eq!(count(1.0), 10_000);
        let tenth = count(0.1);
        // Nine standard deviations.
        assert!((730..1270).contains(&tenth), "{tenth}");
    }

    #[test]
    fn a_span_that_finds_no_room_is_counted() {
        let (tracer, mut ended, dropped) = tracer(true, 1.0, 1);
        for error in [None, Some("late"), None] {
            let span = tracer.begin("receive", SpanRole::Server, None).expect("all are recorded");
            tracer.end(span, error);
        }
        assert_eq!(dropped.get(), 2);
        assert!(ended.try_recv().is_ok_and(|span| span.error.is_none()));
        drop(ended);
        let span = tracer.begin("receive", SpanRole::Server, None).expect("all are recorded");
        tracer.end(span, None);
        assert_eq!(dropped.get(), 3);
    }
}
