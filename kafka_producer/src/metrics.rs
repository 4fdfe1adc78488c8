//! Metrics of the Kafka producer. Every label set is closed.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, Registry};
use spillway_consumer::gauges::{
    PauseGauges, QueueGauges, RouteCounters, TopicCounter, corrupt_packs, counter, counters,
    dead_lettered, end_to_end,
};
use spillway_process::metrics::registry;
use spillway_queue::consumers::ConsumerName;
use spillway_trace::Tracer;

/// Reasons for which a webhook is given up.
pub(crate) const DEAD_REASONS: [&str; 2] = ["too_large", "refused"];
const OUTCOMES: [&str; 2] = ["committed", "aborted"];
const GAPS: [&str; 3] = ["ahead", "behind", "freed"];

/// All metrics of a Kafka producer, and its tracer.
pub(crate) struct ProducerMetrics {
    /// Registry of all these metrics.
    pub registry: Registry,
    /// Tracer of webhooks, if traces are recorded.
    pub tracer: Option<Tracer>,
    /// Gauges of leadership and of the queue in Redis.
    pub queue: Arc<QueueGauges>,
    /// Records that were committed.
    pub produced: IntCounter,
    /// Webhooks that the filter excludes.
    pub routes: RouteCounters,
    /// Pauses in force that an operator set.
    pub pauses: PauseGauges,
    /// Packs that could not be decoded.
    pub corrupt: IntCounter,
    /// Producers built: one for each leader, and one more whenever the state of one was not known.
    pub producers: IntCounter,
    /// Webhooks without a resource id.
    pub fallbacks: TopicCounter,
    transactions: IntCounterVec,
    gaps: IntCounterVec,
    dead_lettered: IntCounterVec,
    end_to_end: Histogram,
}

impl ProducerMetrics {
    /// Registers all metrics.
    pub(crate) fn new(consumer: &ConsumerName) -> Self {
        let registry = registry("kafka_producer");
        let transactions = counters(
            &registry,
            "spillway_transactions_total",
            "Kafka transactions, by result.",
            "outcome",
        );
        OUTCOMES.iter().for_each(|outcome| transactions.with_label_values(&[outcome]).inc_by(0));
        let gaps = counters(
            &registry,
            "spillway_cursor_gaps_total",
            "Starts at which Kafka's cursor contradicted Redis': data was lost on one side.",
            "kind",
        );
        GAPS.iter().for_each(|kind| gaps.with_label_values(&[kind]).inc_by(0));
        Self {
            tracer: None,
            queue: Arc::new(QueueGauges::new(&registry, consumer)),
            routes: RouteCounters::new(&registry),
            pauses: PauseGauges::new(&registry),
            produced: counter(
                &registry,
                "spillway_produced_total",
                "Webhooks whose record is committed in Kafka.",
            ),
            corrupt: corrupt_packs(&registry),
            producers: counter(
                &registry,
                "spillway_producers_built_total",
                "Producers built: at each take-over, and whenever the state of one was not known.",
            ),
            fallbacks: TopicCounter::key_fallbacks(&registry),
            transactions,
            gaps,
            dead_lettered: dead_lettered(&registry, &DEAD_REASONS),
            end_to_end: end_to_end(&registry),
            registry,
        }
    }

    /// Counts a transaction that was committed at `now_ms`, with webhooks received at these times
    /// (milliseconds since the Unix epoch).
    pub(crate) fn committed(&self, received_at_ms: &[u64], now_ms: u64) {
        self.transactions.with_label_values(&["committed"]).inc();
        self.produced.inc_by(received_at_ms.len() as u64);
        for received in received_at_ms {
            let took = Duration::from_millis(now_ms.saturating_sub(*received));
            self.end_to_end.observe(took.as_secs_f64());
        }
    }

    /// Counts a transaction that was aborted.
    pub(crate) fn aborted(&self) {
        self.transactions.with_label_values(&["aborted"]).inc();
    }

    /// Counts a start at which Kafka's cursor contradicted Redis'.
    pub(crate) fn gap(&self, kind: &'static str) {
        self.gaps.with_label_values(&[kind]).inc();
    }

    /// Counts a webhook that was given up.
    pub(crate) fn dead(&self, reason: &'static str) {
        self.dead_lettered.with_label_values(&[reason]).inc();
    }
}
