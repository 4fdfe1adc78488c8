//! Metrics that every consumer has: leadership, and the state of the queue in Redis.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};
use spillway_process::consumer_gauges::ConsumerGauges;
use spillway_process::metrics::register;
use spillway_queue::consumers::ConsumerName;
use spillway_queue::controls::Pause;
use spillway_queue::status::{CellStatus, ConsumerStatus};

use crate::redactions;

/// Number of topics with their own label. The others are counted as `other`.
const TOPICS_MAX: usize = 100;

/// Metrics of the queue and of one consumer.
pub struct QueueGauges {
    consumer: ConsumerName,
    /// 1 while this instance is the leader.
    pub leader: IntGauge,
    consumers: ConsumerGauges,
    bytes: IntGauge,
    limit_bytes: IntGauge,
    dead_letters: IntGauge,
    redactions: Gauge,
    redactions_refused: IntCounter,
    /// Number of registered consumers.
    registered: AtomicUsize,
}

/// Counter by topic, with a bounded number of labels.
pub struct TopicCounter {
    counters: IntCounterVec,
    known: Mutex<HashSet<String>>,
}

impl QueueGauges {
    /// Registers the metrics for `consumer`.
    pub fn new(registry: &Registry, consumer: &ConsumerName) -> Self {
        Self {
            consumer: consumer.clone(),
            leader: gauge(registry, "spillway_leader", "1 while this instance is the leader."),
            consumers: ConsumerGauges::new(registry),
            bytes: gauge(registry, "spillway_queue_bytes", "Memory that Redis uses."),
            limit_bytes: gauge(
                registry,
                "spillway_queue_limit_bytes",
                "Redis' maxmemory; 0 = none.",
            ),
            dead_letters: gauge(registry, "spillway_dead_letters", "Dead letters held now."),
            redactions: add(
                registry,
                Gauge::new(
                    "spillway_redactions_oldest_age_seconds",
                    "Age of the oldest redaction that was delivered and whose data is not purged; 0 = none.",
                ),
            ),
            redactions_refused: add(
                registry,
                IntCounter::new(
                    "spillway_redactions_refused_total",
                    "Delivered redactions that are not carried out: they name nobody, or their headers are not those \
                     of their signed body.",
                ),
            ),
            registered: AtomicUsize::new(0),
        }
    }

    /// True if no other consumer reads the queue. False until the first [`show`](Self::show).
    pub fn is_only_consumer(&self) -> bool {
        self.registered.load(Ordering::Relaxed) == 1
    }

    /// Updates the metrics from Redis' status.
    pub fn show(&self, status: &CellStatus) {
        self.registered.store(status.consumers.len(), Ordering::Relaxed);
        self.bytes.set(status.queue.bytes.cast_signed());
        self.limit_bytes.set(status.queue.limit_bytes.cast_signed());
        self.consumers.show(&status.consumers);
        self.redactions.set(status.queue.oldest_redaction_age_seconds.unwrap_or(0.0));
        let counted = self.redactions_refused.get();
        self.redactions_refused.inc_by(redactions::refused().saturating_sub(counted));
        let is_own = |consumer: &&ConsumerStatus| *consumer.name == *self.consumer;
        if let Some(own) = status.consumers.iter().find(is_own) {
            self.dead_letters.set(own.dead.letters.cast_signed());
        }
    }
}

impl TopicCounter {
    /// Counter of webhooks that are kept in order only with the others of their shop and type.
    pub fn key_fallbacks(registry: &Registry) -> Self {
        let counters = counters(
            registry,
            "spillway_key_fallback_total",
            "Webhooks without a resource id, kept in order with the others of their shop and type that have none.",
            "topic",
        );
        Self { counters, known: Mutex::default() }
    }

    /// Counts one webhook of a topic, as in its header.
    pub fn count_bytes(&self, topic: Option<&[u8]>) {
        self.count(&String::from_utf8_lossy(topic.unwrap_or_default()));
    }

    /// Counts one webhook of `topic`.
    pub fn count(&self, topic: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let label = if known.contains(topic) {
            topic
        } else if known.len() < TOPICS_MAX {
            known.insert(topic.to_owned());
            topic
        } else {
            "other"
        };
        self.counters.with_label_values(&[label]).inc();
    }
}

/// Registers a gauge.
pub fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    add(registry, IntGauge::new(name, help))
}

/// Registers a counter.
pub fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    add(registry, IntCounter::new(name, help))
}

/// Registers counters by one label.
pub fn counters(registry: &Registry, name: &str, help: &str, label: &str) -> IntCounterVec {
    add(registry, IntCounterVec::new(Opts::new(name, help), &[label]))
}

/// Registers a histogram with these bounds.
pub fn histogram(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> Histogram {
    add(registry, Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
}

/// Registers a histogram of the time that webhooks take through the whole of Spillway.
pub fn end_to_end(registry: &Registry) -> Histogram {
    histogram(
        registry,
        "spillway_end_to_end_seconds",
        "From the first byte received to the delivery.",
        &[0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0, 86400.0],
    )
}

/// Registers a counter of packs that could not be decoded.
pub fn corrupt_packs(registry: &Registry) -> IntCounter {
    counter(
        registry,
        "spillway_corrupt_packs_total",
        "Packs that could not be decoded and were set aside under a key of their own.",
    )
}

/// Counters of webhooks that the consumer's filter excludes.
#[derive(Clone)]
pub struct RouteCounters {
    /// Webhooks that the filter excludes.
    pub excluded: IntCounter,
    /// Those among them that no other consumer delivers either.
    pub unmatched: IntCounter,
}

impl RouteCounters {
    /// Registers the counters.
    pub fn new(registry: &Registry) -> Self {
        Self {
            excluded: counter(
                registry,
                "spillway_excluded_webhooks_total",
                "Webhooks settled without delivery, because the consumer's filter does not match them.",
            ),
            unmatched: counter(
                registry,
                "spillway_unmatched_webhooks_total",
                "Webhooks that the filters of all consumers exclude, whatever an archive keeps; counted by the first of them by name.",
            ),
        }
    }
}

/// Gauges of the pauses that an operator ordered.
#[derive(Clone)]
pub struct PauseGauges {
    count: IntGauge,
    all: IntGauge,
}

impl PauseGauges {
    /// Registers the gauges.
    pub fn new(registry: &Registry) -> Self {
        Self {
            count: gauge(
                registry,
                "spillway_pauses",
                "Pauses in force that an operator ordered, of a shop, a topic, a resource, an app or all.",
            ),
            all: gauge(
                registry,
                "spillway_paused_all",
                "1 while a pause of everything, which an operator ordered, is in force.",
            ),
        }
    }

    /// Shows the pauses in force.
    pub fn show(&self, pauses: &[Pause]) {
        self.count.set(i64::try_from(pauses.len()).unwrap_or(i64::MAX));
        self.all.set(pauses.iter().any(|pause| pause.filter.is_empty()).into());
    }
}

/// Registers counters of webhooks that were given up, with a series for each of `reasons` from the
/// start.
pub fn dead_lettered(registry: &Registry, reasons: &[&str]) -> IntCounterVec {
    let counters = counters(
        registry,
        "spillway_dead_lettered_total",
        "Webhooks given up, by reason.",
        "reason",
    );
    reasons.iter().for_each(|reason| counters.with_label_values(&[reason]).inc_by(0));
    counters
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<C>) -> C {
    register(registry, &made.expect("BUG: a constant name is valid"))
}
