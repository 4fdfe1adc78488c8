//! Metrics that every drain has: who owns it, and what Redis holds for it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use spillway_queue::status::Status;
use spillway_service::drain_gauges::DrainGauges;
use spillway_service::metrics::register;

/// Topics with a label of their own; the rest is `other`.
const TOPICS_MAX: usize = 100;

/// What Redis says about the queue and one drain of it.
pub struct QueueGauges {
    drain: &'static str,
    /// 1 while this instance owns the drain.
    pub owner: IntGauge,
    drains: DrainGauges,
    bytes: IntGauge,
    limit_bytes: IntGauge,
    dead_letters: IntGauge,
    /// Consumers that read the queue.
    consumers: AtomicUsize,
}

/// Counts by topic, with a bounded number of labels.
pub struct TopicCounter {
    counters: IntCounterVec,
    known: Mutex<HashSet<String>>,
}

impl QueueGauges {
    /// Registers them for `drain`.
    pub fn new(registry: &Registry, drain: &'static str) -> Self {
        Self {
            drain,
            owner: gauge(registry, "spillway_owner", "1 while this instance owns the drain."),
            drains: DrainGauges::new(registry),
            bytes: gauge(registry, "spillway_queue_bytes", "Memory that Redis uses."),
            limit_bytes: gauge(
                registry,
                "spillway_queue_limit_bytes",
                "Redis' maxmemory; 0 = none.",
            ),
            dead_letters: gauge(registry, "spillway_dead_letters", "Dead letters held now."),
            consumers: AtomicUsize::new(0),
        }
    }

    /// Whether nobody else reads the queue. Not before Redis has said so.
    pub fn is_only_consumer(&self) -> bool {
        self.consumers.load(Ordering::Relaxed) == 1
    }

    /// What Redis says now.
    pub fn show(&self, status: &Status) {
        self.consumers.store(status.drains.len(), Ordering::Relaxed);
        self.bytes.set(status.queue.bytes.cast_signed());
        self.limit_bytes.set(status.queue.limit_bytes.cast_signed());
        self.drains.show(&status.drains);
        if let Some(own) = status.drains.iter().find(|drain| drain.name == self.drain) {
            self.dead_letters.set(own.dead_letters.cast_signed());
        }
    }
}

impl TopicCounter {
    /// Webhooks that are kept in order with their shop and topic only.
    pub fn key_fallbacks(registry: &Registry) -> Self {
        let counters = counters(
            registry,
            "spillway_key_fallback_total",
            "Webhooks without a resource id, kept in order with their shop and topic.",
            "topic",
        );
        Self { counters, known: Mutex::default() }
    }

    /// One more of a topic as a header spells it.
    pub fn count_bytes(&self, topic: Option<&[u8]>) {
        self.count(&String::from_utf8_lossy(topic.unwrap_or_default()));
    }

    /// One more of `topic`.
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

/// A gauge.
pub fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    add(registry, IntGauge::new(name, help))
}

/// A counter.
pub fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    add(registry, IntCounter::new(name, help))
}

/// Counters by one label.
pub fn counters(registry: &Registry, name: &str, help: &str, label: &str) -> IntCounterVec {
    add(registry, IntCounterVec::new(Opts::new(name, help), &[label]))
}

/// A histogram with these bounds.
pub fn histogram(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> Histogram {
    add(registry, Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
}

/// How long webhooks take through the whole of Spillway.
pub fn end_to_end(registry: &Registry) -> Histogram {
    histogram(
        registry,
        "spillway_end_to_end_seconds",
        "From the first byte received to the delivery.",
        &[0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0, 86400.0],
    )
}

/// Packs that could not be decoded.
pub fn corrupt_packs(registry: &Registry) -> IntCounter {
    counter(
        registry,
        "spillway_corrupt_packs_total",
        "Packs that could not be decoded and were set aside under a key of their own.",
    )
}

/// Pauses in force.
pub fn pauses(registry: &Registry) -> IntGauge {
    let help = "Pauses in force that an operator ordered, of a shop, a topic, a resource or all.";
    gauge(registry, "spillway_pauses", help)
}

/// Webhooks that were given up, with a series for each of `reasons` from the start.
pub fn dead_lettered(registry: &Registry, reasons: &[&str]) -> IntCounterVec {
    let counters =
        counters(registry, "spillway_dead_lettered_total", "Webhooks given up, by why.", "reason");
    reasons.iter().for_each(|reason| counters.with_label_values(&[reason]).inc_by(0));
    counters
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<C>) -> C {
    register(registry, &made.expect("BUG: a constant name is valid"))
}
