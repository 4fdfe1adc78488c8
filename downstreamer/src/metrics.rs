//! What the downstreamer counts. Every label set is closed.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};
use spillway_queue::drains::HTTP;
use spillway_queue::status::Status;
use spillway_service::metrics::{register, registry};

/// Topics with a label of their own; the rest is `other`.
const TOPICS_MAX: usize = 100;
const RESULTS: [&str; 5] = ["delivered", "failed", "refused", "dead", "timeout"];
/// Why a webhook was given up.
pub const DEAD_REASONS: [&str; 4] = ["status", "retries_exhausted", "refused", "unsendable"];

/// All metrics of a downstreamer.
pub struct Metrics {
    /// Where they are registered.
    pub registry: Registry,
    /// 1 while this instance owns the drain.
    pub owner: IntGauge,
    /// 1 while the backend asked to be left alone, or is down.
    pub paused: IntGauge,
    /// Deliveries the backend took.
    pub delivered: IntCounter,
    /// How many may be under way.
    pub concurrency_limit: IntGauge,
    /// How many are.
    pub concurrency_in_use: IntGauge,
    /// Duplicates that were dropped.
    pub duplicates: IntCounter,
    /// Older events that a newer one stood for.
    pub coalesced: IntCounter,
    /// Packs that could not be decoded.
    pub corrupt: IntCounter,
    attempts: IntCounterVec,
    durations: Histogram,
    end_to_end: Histogram,
    fallbacks: IntCounterVec,
    fallback_topics: Mutex<HashSet<String>>,
    dead_lettered: IntCounterVec,
    dead_letters: IntGauge,
    queue: QueueGauges,
}

struct QueueGauges {
    webhooks: IntGauge,
    oldest: Gauge,
    last_seen: Gauge,
    bytes: IntGauge,
    limit_bytes: IntGauge,
}

impl Metrics {
    /// Registers them all.
    pub fn new() -> Self {
        let registry = registry("downstreamer", env!("CARGO_PKG_VERSION"));
        let attempts = counters(
            &registry,
            "spillway_delivery_attempts_total",
            "Deliveries tried, by what came of them.",
            "result",
        );
        RESULTS.iter().for_each(|result| attempts.with_label_values(&[result]).inc_by(0));
        let dead_lettered = counters(
            &registry,
            "spillway_dead_lettered_total",
            "Webhooks given up, by why.",
            "reason",
        );
        DEAD_REASONS.iter().for_each(|reason| dead_lettered.with_label_values(&[reason]).inc_by(0));
        Self {
            owner: gauge(&registry, "spillway_owner", "1 while this instance owns the drain."),
            paused: gauge(
                &registry,
                "spillway_paused",
                "1 while nothing is let out: the backend is down, refuses everything, or asked to be left alone.",
            ),
            delivered: counter(&registry, "spillway_delivered_total", "Webhooks delivered."),
            concurrency_limit: gauge(
                &registry,
                "spillway_concurrency_limit",
                "Deliveries that may be under way at once.",
            ),
            concurrency_in_use: gauge(
                &registry,
                "spillway_concurrency_in_use",
                "Deliveries under way.",
            ),
            duplicates: counter(
                &registry,
                "spillway_duplicates_total",
                "Webhooks not delivered, because the very same one was delivered before.",
            ),
            coalesced: counter(
                &registry,
                "spillway_coalesced_total",
                "Webhooks not delivered, because a newer one of their resource stood for them.",
            ),
            corrupt: counter(
                &registry,
                "spillway_corrupt_packs_total",
                "Packs that could not be decoded and were set aside under a key of their own.",
            ),
            attempts,
            durations: durations(&registry),
            end_to_end: end_to_end(&registry),
            fallbacks: counters(
                &registry,
                "spillway_key_fallback_total",
                "Webhooks without a resource id, kept in order with their shop and topic.",
                "topic",
            ),
            fallback_topics: Mutex::default(),
            dead_lettered,
            dead_letters: gauge(&registry, "spillway_dead_letters", "Dead letters held now."),
            queue: QueueGauges::new(&registry),
            registry,
        }
    }

    /// A delivery was tried.
    pub fn attempted(&self, result: &str, took: Duration) {
        self.attempts.with_label_values(&[result]).inc();
        self.durations.observe(took.as_secs_f64());
    }

    /// A webhook received at `received_at_ms` was delivered at `now_ms`.
    pub fn delivered(&self, received_at_ms: u64, now_ms: u64) {
        self.delivered.inc();
        let took = Duration::from_millis(now_ms.saturating_sub(received_at_ms));
        self.end_to_end.observe(took.as_secs_f64());
    }

    /// A webhook was given up.
    pub fn dead(&self, reason: &'static str) {
        self.dead_lettered.with_label_values(&[reason]).inc();
    }

    /// A webhook of `topic` has no resource id.
    pub fn fell_back(&self, topic: &str) {
        let mut known = self.fallback_topics.lock().unwrap_or_else(PoisonError::into_inner);
        let label = if known.contains(topic) {
            topic
        } else if known.len() < TOPICS_MAX {
            known.insert(topic.to_owned());
            topic
        } else {
            "other"
        };
        self.fallbacks.with_label_values(&[label]).inc();
    }

    /// What Redis says about the queue.
    pub fn queue(&self, status: &Status) {
        self.queue.bytes.set(status.queue.bytes.cast_signed());
        self.queue.limit_bytes.set(status.queue.limit_bytes.cast_signed());
        if let Some(own) = status.drains.iter().find(|drain| drain.name == HTTP) {
            self.queue.webhooks.set(own.waiting.cast_signed());
            self.queue.oldest.set(own.oldest_age_seconds.unwrap_or(0.0));
            self.queue.last_seen.set(Duration::from_millis(own.last_seen_ms).as_secs_f64());
            self.dead_letters.set(own.dead_letters.cast_signed());
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl QueueGauges {
    fn new(registry: &Registry) -> Self {
        let of_drain = |name: &str, help: &str| {
            let opts = Opts::new(name, help).const_label("drain", HTTP);
            add(registry, Gauge::with_opts(opts))
        };
        let webhooks = Opts::new("spillway_queue_webhooks", "Webhooks this drain has not settled.")
            .const_label("drain", HTTP);
        Self {
            webhooks: add(registry, IntGauge::with_opts(webhooks)),
            oldest: of_drain(
                "spillway_queue_oldest_age_seconds",
                "Age of the oldest webhook this drain has not settled.",
            ),
            last_seen: of_drain(
                "spillway_drain_last_seen_timestamp_seconds",
                "When the drain's owner was last seen, as a Unix time.",
            ),
            bytes: gauge(registry, "spillway_queue_bytes", "Memory that Redis uses."),
            limit_bytes: gauge(
                registry,
                "spillway_queue_limit_bytes",
                "Redis' maxmemory; 0 = none.",
            ),
        }
    }
}

fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    add(registry, IntGauge::new(name, help))
}

fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    add(registry, IntCounter::new(name, help))
}

fn durations(registry: &Registry) -> Histogram {
    histogram(
        registry,
        "spillway_delivery_duration_seconds",
        "One delivery, from connecting to the whole answer.",
        &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0],
    )
}

fn end_to_end(registry: &Registry) -> Histogram {
    histogram(
        registry,
        "spillway_end_to_end_seconds",
        "From the first byte received to the delivery.",
        &[0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0, 86400.0],
    )
}

fn counters(registry: &Registry, name: &str, help: &str, label: &str) -> IntCounterVec {
    add(registry, IntCounterVec::new(Opts::new(name, help), &[label]))
}

fn histogram(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> Histogram {
    add(registry, Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<C>) -> C {
    register(registry, &made.expect("BUG: a constant name is valid"))
}
