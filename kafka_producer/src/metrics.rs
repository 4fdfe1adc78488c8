//! What the Kafka producer counts. Every label set is closed.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};
use spillway_drain::gauges::{
    QueueGauges, TopicCounter, corrupt_packs, counter, counters, dead_lettered, end_to_end, pauses,
};
use spillway_queue::drains::KAFKA;
use spillway_service::metrics::registry;

/// Why a webhook was given up.
pub const DEAD_REASONS: [&str; 2] = ["too_large", "refused"];
const OUTCOMES: [&str; 2] = ["committed", "aborted"];
const GAPS: [&str; 3] = ["ahead", "behind", "freed"];

/// All metrics of a Kafka producer.
pub struct Metrics {
    /// Where they are registered.
    pub registry: Registry,
    /// Who owns the drain, and what Redis holds for it.
    pub queue: Arc<QueueGauges>,
    /// Records committed.
    pub produced: IntCounter,
    /// Pauses in force that an operator ordered.
    pub pauses: IntGauge,
    /// Packs that could not be decoded.
    pub corrupt: IntCounter,
    /// Producers built: one for each ownership, and one more whenever its state was not known.
    pub producers: IntCounter,
    /// Webhooks without a resource id.
    pub fallbacks: TopicCounter,
    transactions: IntCounterVec,
    gaps: IntCounterVec,
    dead_lettered: IntCounterVec,
    end_to_end: Histogram,
}

impl Metrics {
    /// Registers them all.
    pub fn new() -> Self {
        let registry = registry("kafka_producer", env!("CARGO_PKG_VERSION"));
        let transactions = counters(
            &registry,
            "spillway_transactions_total",
            "Kafka transactions, by what came of them.",
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
            queue: Arc::new(QueueGauges::new(&registry, KAFKA)),
            pauses: pauses(&registry),
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

    /// A transaction with webhooks received at these times (milliseconds since the Unix epoch) was
    /// committed at `now_ms`.
    pub fn committed(&self, received_at_ms: &[u64], now_ms: u64) {
        self.transactions.with_label_values(&["committed"]).inc();
        self.produced.inc_by(received_at_ms.len() as u64);
        for received in received_at_ms {
            let took = Duration::from_millis(now_ms.saturating_sub(*received));
            self.end_to_end.observe(took.as_secs_f64());
        }
    }

    /// A transaction was aborted.
    pub fn aborted(&self) {
        self.transactions.with_label_values(&["aborted"]).inc();
    }

    /// Kafka's cursor contradicted Redis'.
    pub fn gap(&self, kind: &'static str) {
        self.gaps.with_label_values(&[kind]).inc();
    }

    /// A webhook was given up.
    pub fn dead(&self, reason: &'static str) {
        self.dead_lettered.with_label_values(&[reason]).inc();
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
