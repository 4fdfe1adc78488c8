//! Metrics of requests, of packs, and of the queue. Every label set is closed.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry,
};
use spillway_process::consumer_gauges::ConsumerGauges;
use spillway_process::metrics::{register, registry};
use spillway_queue::health::{self, RedisInfo};
use spillway_trace::Tracer;

/// All metrics of a receiver, and its tracer.
#[derive(Clone)]
pub struct ReceiverMetrics {
    /// Registry of all these metrics.
    pub registry: Registry,
    /// Gauges of the queue in Redis.
    pub queue: ReceiverQueueGauges,
    /// Webhooks without a triggered-at header.
    pub without_time: IntCounter,
    /// Tracer of webhooks, if traces are recorded.
    pub tracer: Option<Tracer>,
    /// The most frequent is the first.
    outcomes: Vec<(&'static str, IntCounter, Histogram)>,
    pack_webhooks: Histogram,
}

/// Gauges of the queue in Redis.
#[derive(Clone)]
pub struct ReceiverQueueGauges {
    /// Gauges of each registered consumer.
    pub consumers: ConsumerGauges,
    /// Shops over `SHOP_MAX_QUEUED`.
    pub shops_over: IntGauge,
    durability: IntGauge,
    bytes: IntGauge,
    limit_bytes: IntGauge,
    disk_free_bytes: Gauge,
    disk_needed_bytes: IntGauge,
}

impl ReceiverMetrics {
    /// Registers all metrics. Requests are counted by these outcomes.
    pub fn new(outcomes: &[&'static str]) -> Self {
        let registry = registry("request-receiver");
        let received = vec(&registry, "spillway_received_total", "Requests answered.", "outcome");
        let durations = HistogramOpts::new(
            "spillway_request_duration_seconds",
            "From a request's first byte to its answer.",
        )
        .buckets(vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0]);
        let durations = add(&registry, HistogramVec::new(durations, &["outcome"]));
        let outcomes = outcomes
            .iter()
            .map(|name| {
                let count = received.with_label_values(&[name]);
                (*name, count, durations.with_label_values(&[name]))
            })
            .collect();
        let without_time = IntCounter::new(
            "spillway_without_triggered_at_total",
            "Verified webhooks without a triggered-at header; REQUIRE_TIMESTAMP refuses them.",
        );
        let packs = HistogramOpts::new("spillway_pack_webhooks", "Webhooks in one stored pack.")
            .buckets(prometheus::exponential_buckets(1.0, 2.0, 12).expect("BUG: constants"));
        Self {
            queue: ReceiverQueueGauges::new(&registry),
            without_time: add(&registry, without_time),
            tracer: None,
            outcomes,
            pack_webhooks: add(&registry, Histogram::with_opts(packs)),
            registry,
        }
    }

    /// Counts a request that was answered.
    pub fn answered(&self, outcome: &str, took: Duration) {
        let found = self.outcomes.iter().find(|(name, ..)| *name == outcome);
        let (_, count, duration) = found.expect("BUG: outcomes are closed");
        count.inc();
        duration.observe(took.as_secs_f64());
    }

    /// Counts a stored pack of `count` webhooks.
    pub fn packed(&self, count: u32) {
        self.pack_webhooks.observe(f64::from(count));
    }
}

impl ReceiverQueueGauges {
    fn new(registry: &Registry) -> Self {
        let gauge = |name, help| add(registry, IntGauge::new(name, help));
        let disk_free = Gauge::new(
            "spillway_disk_free_bytes",
            "Free space on the disk that holds the AOF; NaN where Redis is on another machine, or not known.",
        );
        let gauges = Self {
            consumers: ConsumerGauges::new(registry),
            shops_over: gauge(
                "spillway_shops_over_share",
                "Shops over SHOP_MAX_QUEUED: their webhooks are answered 503 shop_queue_full.",
            ),
            durability: gauge(
                "spillway_durability",
                "3 = vouched for (REDIS_DURABILITY), 2 = Redis syncs before it answers, 1 = each second, 0 = not at all or unknown.",
            ),
            bytes: gauge("spillway_queue_bytes", "Memory that Redis uses."),
            limit_bytes: gauge("spillway_queue_limit_bytes", "Redis' maxmemory; 0 = none."),
            disk_free_bytes: add(registry, disk_free),
            disk_needed_bytes: gauge(
                "spillway_disk_needed_bytes",
                "With less disk free than this, webhooks are answered 503 queue_full.",
            ),
        };
        gauges.disk_free_bytes.set(f64::NAN);
        gauges
    }

    /// Sets the gauges to the state that Redis reports.
    pub fn show(&self, facts: &RedisInfo, is_vouched: bool) {
        self.durability.set(health::durability(facts, is_vouched) as i64);
        self.bytes.set(facts.used_bytes.cast_signed());
        self.limit_bytes.set(facts.limit_bytes.cast_signed());
        self.disk_free_bytes.set(facts.disk_free_bytes.map_or(f64::NAN, |bytes| bytes as f64));
        self.disk_needed_bytes.set(health::disk_needed_bytes(facts).cast_signed());
    }

    /// Notes that Redis can't be reached: its durability is unknown.
    pub fn unreachable(&self) {
        self.durability.set(0);
    }
}

/// Counter vector with one label.
pub fn vec(registry: &Registry, name: &str, help: &str, label: &str) -> IntCounterVec {
    add(registry, IntCounterVec::new(Opts::new(name, help), &[label]))
}

/// Registers a metric.
///
/// # Panics
/// If its name is not valid or already taken, which is a bug.
pub fn add<C: Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<C>) -> C {
    register(registry, &made.expect("BUG: a constant name is valid"))
}
