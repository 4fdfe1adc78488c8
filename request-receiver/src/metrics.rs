//! What the receiver counts. Every label set is closed: outcomes are listed, topics are bounded,
//! secrets are those that were configured.

use std::collections::HashMap;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    Opts, Registry,
};
use spillway_service::clock::wall_clock_ms;
use spillway_service::metrics::{register, registry};
use spillway_webhook::Webhook;
use spillway_webhook::shopify::Headers;

use crate::admit::Admission;
use crate::reply::OUTCOMES;

/// Topics with a label of their own; the rest is `other`.
const TOPICS_MAX: usize = 100;
const OTHER_TOPIC: &str = "other";

/// All metrics of a receiver.
#[derive(Clone)]
pub struct Metrics {
    /// Where they are registered.
    pub registry: Registry,
    /// What is known of Redis.
    pub queue: QueueGauges,
    outcomes: HashMap<&'static str, (IntCounter, Histogram)>,
    pack_webhooks: Histogram,
    accepted: IntCounterVec,
    last_accepted: GaugeVec,
}

/// What is known of Redis.
#[derive(Clone)]
pub struct QueueGauges {
    /// 2 = fsync before the answer, 1 = each second, 0 = none or unknown.
    pub durability: IntGauge,
    /// Memory Redis uses.
    pub bytes: IntGauge,
    /// Redis' `maxmemory`.
    pub limit_bytes: IntGauge,
}

/// Counters per topic, held by one shard.
pub struct Topics {
    indices: HashMap<Vec<u8>, TopicIndex>,
    known: Vec<Topic>,
    accepted: IntCounterVec,
    last_accepted: GaugeVec,
}

/// Stands for a topic, in the [`Topics`] that gave it.
#[derive(Debug, Clone, Copy)]
pub struct TopicIndex(u16);

struct Topic {
    accepted: IntCounter,
    last_accepted: Gauge,
    /// Of the batch that is being counted.
    stored: u64,
}

impl Metrics {
    /// Registers them all, with what the secrets count.
    pub fn new(signature_matches: &IntCounterVec) -> Self {
        let registry = registry("request-receiver", env!("CARGO_PKG_VERSION"));
        let gauge = |name, help| add(&registry, IntGauge::new(name, help));
        let queue = QueueGauges {
            durability: gauge(
                "spillway_durability",
                "2 = Redis syncs before it answers, 1 = each second, 0 = not at all or unknown.",
            ),
            bytes: gauge("spillway_queue_bytes", "Memory that Redis uses."),
            limit_bytes: gauge("spillway_queue_limit_bytes", "Redis' maxmemory; 0 = none."),
        };
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
        let last = Opts::new(
            "spillway_last_accepted_timestamp_seconds",
            "When a webhook of the topic was last stored, as a Unix time.",
        );
        Self {
            queue,
            outcomes,
            pack_webhooks: add(&registry, Histogram::with_opts(packs)),
            accepted: vec(&registry, "spillway_accepted_total", "Webhooks stored.", "topic"),
            last_accepted: add(&registry, GaugeVec::new(last, &["topic"])),
            registry,
        }
    }

    /// Shows the admission's bytes as `spillway_in_flight_bytes`.
    pub fn watch_in_flight(&self, admission: Admission) {
        let help = "Bytes received and not yet stored.";
        let gauge = IntGauge::new("spillway_in_flight_bytes", help).expect("BUG: a valid name");
        register(&self.registry, &InFlight { admission, gauge });
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

    /// The counters per topic.
    pub fn topics(&self) -> Topics {
        Topics {
            indices: HashMap::new(),
            known: Vec::new(),
            accepted: self.accepted.clone(),
            last_accepted: self.last_accepted.clone(),
        }
    }
}

impl Topics {
    /// What stands for the webhook's topic here.
    pub fn index_of(&mut self, webhook: &Webhook) -> TopicIndex {
        let topic = webhook.headers.topic().unwrap_or_default();
        if let Some(index) = self.indices.get(topic) {
            return *index;
        }
        let is_room = self.known.len() < TOPICS_MAX;
        let label = std::str::from_utf8(topic).ok().filter(|_| is_room).unwrap_or(OTHER_TOPIC);
        if let Some(index) = self.indices.get(label.as_bytes()) {
            return *index;
        }
        let index = TopicIndex(u16::try_from(self.known.len()).expect("BUG: topics are bounded"));
        self.indices.insert(label.into(), index);
        self.known.push(Topic {
            accepted: self.accepted.with_label_values(&[label]),
            last_accepted: self.last_accepted.with_label_values(&[label]),
            stored: 0,
        });
        index
    }

    /// Counts webhooks that were stored, by their topics.
    pub fn stored(&mut self, topics: impl Iterator<Item = TopicIndex>) {
        topics.for_each(|index| self.known[usize::from(index.0)].stored += 1);
        let now = Duration::from_millis(wall_clock_ms()).as_secs_f64();
        for topic in self.known.iter_mut().filter(|topic| topic.stored > 0) {
            topic.accepted.inc_by(std::mem::take(&mut topic.stored));
            topic.last_accepted.set(now);
        }
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

fn vec(registry: &Registry, name: &str, help: &str, label: &str) -> IntCounterVec {
    add(registry, IntCounterVec::new(Opts::new(name, help), &[label]))
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<C>) -> C {
    register(registry, &made.expect("BUG: a constant name is valid"))
}
