//! What the receiver counts. Every label set is closed: outcomes are listed, topics are bounded,
//! secrets are those that were configured.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry,
};
use spillway_queue::health::{self, Facts};
use spillway_service::drain_gauges::DrainGauges;
use spillway_service::metrics::{register, registry};

use crate::admit::Admission;
use crate::reply::OUTCOMES;
use crate::spill::Spill;
use crate::topics::TopicMetrics;

/// All metrics of a receiver.
#[derive(Clone)]
pub struct Metrics {
    /// Where they are registered.
    pub registry: Registry,
    /// What is known of Redis.
    pub queue: QueueGauges,
    /// What is counted by topic.
    pub topics: TopicMetrics,
    outcomes: HashMap<&'static str, (IntCounter, Histogram)>,
    pack_webhooks: Histogram,
}

/// What is known of Redis.
#[derive(Clone)]
pub struct QueueGauges {
    /// Each registered drain.
    pub drains: DrainGauges,
    /// Shops over `SHOP_MAX_QUEUED`.
    pub shops_over: IntGauge,
    durability: IntGauge,
    bytes: IntGauge,
    limit_bytes: IntGauge,
    disk_free_bytes: Gauge,
    disk_needed_bytes: IntGauge,
}

impl Metrics {
    /// Registers them all, with what the secrets count.
    pub fn new(signature_matches: &IntCounterVec) -> Self {
        let registry = registry("request-receiver", env!("CARGO_PKG_VERSION"));
        let received = vec(&registry, "spillway_received_total", "Requests answered.", "outcome");
        let durations = HistogramOpts::new(
            "spillway_request_duration_seconds",
            "From a request's first byte to its answer.",
        )
        .buckets(vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0]);
        let durations = add(&registry, HistogramVec::new(durations, &["outcome"]));
        let outcomes = OUTCOMES
            .iter()
            .map(|name| {
                let handles =
                    (received.with_label_values(&[name]), durations.with_label_values(&[name]));
                (*name, handles)
            })
            .collect();
        register(&registry, signature_matches);
        let packs = HistogramOpts::new("spillway_pack_webhooks", "Webhooks in one stored pack.")
            .buckets(prometheus::exponential_buckets(1.0, 2.0, 12).expect("BUG: constants"));
        Self {
            queue: QueueGauges::new(&registry),
            topics: TopicMetrics::new(&registry),
            outcomes,
            pack_webhooks: add(&registry, Histogram::with_opts(packs)),
            registry,
        }
    }

    /// Shows the admission's bytes as `spillway_in_flight_bytes`.
    pub fn watch_in_flight(&self, admission: Admission) {
        let help = "Bytes received and not yet stored.";
        let gauge = IntGauge::new("spillway_in_flight_bytes", help).expect("BUG: a valid name");
        register(&self.registry, &InFlight { admission, gauge });
    }

    /// Shows what lies on the disk; all zero where nothing is spilled.
    pub fn watch_spill(&self, spill: Option<Arc<Spill>>) {
        register(&self.registry, &SpillGauges::new(spill));
    }

    /// A request was answered.
    pub fn answered(&self, outcome: &str, took: Duration) {
        let (count, duration) = self.outcomes.get(outcome).expect("BUG: outcomes are closed");
        count.inc();
        duration.observe(took.as_secs_f64());
    }

    /// A pack of `count` webhooks was stored.
    pub fn packed(&self, count: u32) {
        self.pack_webhooks.observe(f64::from(count));
    }
}

impl QueueGauges {
    fn new(registry: &Registry) -> Self {
        let gauge = |name, help| add(registry, IntGauge::new(name, help));
        let disk_free = Gauge::new(
            "spillway_disk_free_bytes",
            "Free disk below the AOF; NaN where Redis is on another machine, or not known.",
        );
        let gauges = Self {
            drains: DrainGauges::new(registry),
            shops_over: gauge(
                "spillway_shops_over_share",
                "Shops over SHOP_MAX_QUEUED: their webhooks are answered 503 shop_queue_full.",
            ),
            durability: gauge(
                "spillway_durability",
                "2 = Redis syncs before it answers, 1 = each second, 0 = not at all or unknown.",
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

    /// What Redis says now.
    pub fn show(&self, facts: &Facts) {
        self.durability.set(health::durability(facts) as i64);
        self.bytes.set(facts.used_bytes.cast_signed());
        self.limit_bytes.set(facts.limit_bytes.cast_signed());
        self.disk_free_bytes.set(facts.disk_free_bytes.map_or(f64::NAN, |bytes| bytes as f64));
        self.disk_needed_bytes.set(health::disk_needed_bytes(facts).cast_signed());
    }

    /// Redis can't be reached: nothing is known of its durability.
    pub fn unreachable(&self) {
        self.durability.set(0);
    }
}

/// Reads the admission when it is scraped, so that the hot path need not write a gauge.
#[derive(Clone)]
struct InFlight {
    admission: Admission,
    gauge: IntGauge,
}

impl Collector for InFlight {
    fn desc(&self) -> Vec<&prometheus::core::Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<prometheus::proto::MetricFamily> {
        self.gauge.set(i64::try_from(self.admission.in_flight_bytes()).unwrap_or(i64::MAX));
        self.gauge.collect()
    }
}

/// Reads the spill when it is scraped.
#[derive(Clone)]
struct SpillGauges {
    spill: Option<Arc<Spill>>,
    webhooks: IntGauge,
    bytes: IntGauge,
    limit_bytes: IntGauge,
    spilling: IntGauge,
    spilled: IntCounter,
    errors: IntCounter,
}

impl SpillGauges {
    fn new(spill: Option<Arc<Spill>>) -> Self {
        let gauge = |name, help| IntGauge::new(name, help).expect("BUG: a constant name is valid");
        let counter =
            |name, help| IntCounter::new(name, help).expect("BUG: a constant name is valid");
        Self {
            spill,
            webhooks: gauge("spillway_spill_webhooks", "Webhooks in SPILL_DIR, not fed to Redis."),
            bytes: gauge("spillway_spill_bytes", "Bytes in SPILL_DIR."),
            limit_bytes: gauge("spillway_spill_limit_bytes", "SPILL_MAX; 0 without SPILL_DIR."),
            spilling: gauge(
                "spillway_spilling",
                "1 while webhooks go to SPILL_DIR: Redis takes none, or what was spilled is fed first.",
            ),
            spilled: counter("spillway_spilled_total", "Webhooks stored in SPILL_DIR."),
            errors: counter(
                "spillway_spill_errors_total",
                "Writes that failed, damage that was met, and packs that Redis forgot.",
            ),
        }
    }
}

impl Collector for SpillGauges {
    fn desc(&self) -> Vec<&prometheus::core::Desc> {
        let gauges = [&self.webhooks, &self.bytes, &self.limit_bytes, &self.spilling];
        let counters = [&self.spilled, &self.errors];
        let of_gauges = gauges.into_iter().flat_map(Collector::desc);
        of_gauges.chain(counters.into_iter().flat_map(Collector::desc)).collect()
    }

    fn collect(&self) -> Vec<prometheus::proto::MetricFamily> {
        if let Some(spill) = &self.spill {
            self.webhooks.set(spill.webhooks().cast_signed());
            self.bytes.set(spill.bytes().cast_signed());
            self.limit_bytes.set(spill.limit_bytes().cast_signed());
            self.spilling.set(spill.is_spilling().into());
            // Both only grow.
            self.spilled.inc_by(spill.spilled().saturating_sub(self.spilled.get()));
            self.errors.inc_by(spill.errors().saturating_sub(self.errors.get()));
        }
        let gauges = [&self.webhooks, &self.bytes, &self.limit_bytes, &self.spilling];
        let counters = [&self.spilled, &self.errors];
        let of_gauges = gauges.into_iter().flat_map(Collector::collect);
        of_gauges.chain(counters.into_iter().flat_map(Collector::collect)).collect()
    }
}

/// Counters by one label.
pub fn vec(registry: &Registry, name: &str, help: &str, label: &str) -> IntCounterVec {
    add(registry, IntCounterVec::new(Opts::new(name, help), &[label]))
}

/// Registers what was made.
///
/// # Panics
/// When its name is not valid or taken already, which is a bug.
pub fn add<C: Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<C>) -> C {
    register(registry, &made.expect("BUG: a constant name is valid"))
}
