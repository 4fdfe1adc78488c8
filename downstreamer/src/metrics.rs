//! Metrics of the downstreamer. Every label set is closed.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};
use spillway_consumer::gauges::{
    PauseGauges, QueueGauges, RouteCounters, TopicCounter, corrupt_packs, counter, counters,
    dead_lettered, end_to_end, gauge, histogram,
};
use spillway_delivery::{Counts, Status, UndeliveredCounts};
use spillway_process::metrics::registry;
use spillway_queue::consumers::ConsumerName;
use spillway_trace::Tracer;

use crate::payload::PayloadResult;

const RESULTS: [&str; 5] = ["delivered", "failed", "refused", "dead", "timeout"];
/// Reasons for which a webhook is given up.
pub(crate) const DEAD_REASONS: [&str; 5] =
    ["status", "retries_exhausted", "expired", "refused", "unsendable"];

/// All metrics of a downstreamer, and its tracer.
pub(crate) struct DownstreamerMetrics {
    /// Registry of all these metrics.
    pub registry: Registry,
    /// Tracer of webhooks, if traces are recorded.
    pub tracer: Option<Tracer>,
    /// Gauges of leadership and of the queue in Redis.
    pub queue: Arc<QueueGauges>,
    /// 1 while nothing is sent: the backend is down, refuses everything or asked for a pause, or an
    /// operator paused everything.
    pub paused: IntGauge,
    /// 1 while the backend refuses the webhooks of more than half of the recent shops.
    pub backend_refuses: IntGauge,
    /// Webhooks that were delivered.
    pub delivered: IntCounter,
    /// Pauses in force that an operator set.
    pub pauses: PauseGauges,
    /// Webhooks that the filter excludes.
    pub routes: RouteCounters,
    /// Deliveries that may be under way at once.
    pub concurrency_limit: IntGauge,
    /// Deliveries that are under way.
    pub concurrency_in_use: IntGauge,
    /// Counters of webhooks that were settled without being delivered or given up.
    pub undelivered: UndeliveredCounters,
    /// Packs that could not be decoded.
    pub corrupt: IntCounter,
    /// Metrics of lanes.
    pub lanes: LaneMetrics,
    /// Metrics of stubs.
    pub stubs: StubMetrics,
    attempts: IntCounterVec,
    durations: Histogram,
    end_to_end: Histogram,
    fallbacks: TopicCounter,
    dead_lettered: IntCounterVec,
}

/// Metrics of lanes, and of the index's memory.
pub(crate) struct LaneMetrics {
    /// Lanes with waiting webhooks.
    pub lanes: IntGauge,
    /// Lanes that wait: nothing of them is sent.
    pub blocked: IntGauge,
    /// Webhooks in chunks.
    pub stored: IntGauge,
    /// Memory of the index.
    pub index_bytes: IntGauge,
    /// Times that a part of a lane left the index for want of room.
    pub cuts: IntCounter,
    /// Slow attempts that were cut off.
    pub cut_off: IntCounter,
}

/// Counters of webhooks that were settled without being delivered or given up, except of those that the
/// filter excludes.
pub(crate) struct UndeliveredCounters {
    duplicates: IntCounter,
    coalesced: IntCounter,
    dropped: IntCounter,
    suppressed: IntCounter,
    stale: IntCounter,
}

/// Metrics of stubs, which stand for bodies over Shopify's limit.
pub(crate) struct StubMetrics {
    results: IntCounterVec,
    expiring: IntGauge,
}

impl StubMetrics {
    fn new(registry: &Registry) -> Self {
        let results = counters(
            registry,
            "spillway_payload_stubs_total",
            "Attempts to deliver a stub, by what became of its payload.",
            "result",
        );
        for result in PayloadResult::ALL {
            results.with_label_values(&[result.label()]).inc_by(0);
        }
        Self {
            results,
            expiring: gauge(
                registry,
                "spillway_payload_stubs_expiring",
                "Stubs that wait and whose payload expires within an hour, or has expired.",
            ),
        }
    }

    /// Counts an attempt to deliver a stub.
    pub(crate) fn count(&self, result: PayloadResult) {
        self.results.with_label_values(&[result.label()]).inc();
    }
}

impl UndeliveredCounters {
    fn new(registry: &Registry) -> Self {
        Self {
            duplicates: counter(
                registry,
                "spillway_duplicates_total",
                "Webhooks not delivered, because the very same one was delivered before.",
            ),
            coalesced: counter(
                registry,
                "spillway_coalesced_total",
                "Webhooks not delivered, because a newer one of their resource stood for them.",
            ),
            dropped: counter(
                registry,
                "spillway_dropped_total",
                "Webhooks dropped by an operator.",
            ),
            suppressed: counter(
                registry,
                "spillway_suppressed_total",
                "Updates not delivered, because they show the state that was delivered last.",
            ),
            stale: counter(
                registry,
                "spillway_stale_total",
                "Updates not delivered, because they are older than one that came before.",
            ),
        }
    }

    fn counted(&self, before: &UndeliveredCounts, now: &UndeliveredCounts) {
        self.duplicates.inc_by(now.duplicates - before.duplicates);
        self.coalesced.inc_by(now.coalesced - before.coalesced);
        self.dropped.inc_by(now.dropped - before.dropped);
        self.suppressed.inc_by(now.suppressed - before.suppressed);
        self.stale.inc_by(now.stale - before.stale);
    }
}

impl LaneMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            lanes: gauge(
                registry,
                "spillway_lanes",
                "Lanes (one shop and kind each) of which something waits.",
            ),
            blocked: gauge(
                registry,
                "spillway_lanes_blocked",
                "Lanes of which nothing is sent: they fail, hang, are paused, or over their rate.",
            ),
            stored: gauge(
                registry,
                "spillway_lane_webhooks",
                "Webhooks that wait in lanes, outside the main stream.",
            ),
            index_bytes: gauge(
                registry,
                "spillway_index_bytes",
                "Memory of the index of waiting webhooks, of INDEX_MEMORY.",
            ),
            cuts: counter(
                registry,
                "spillway_windows_cut_total",
                "Times that a part of a lane left the index for want of room.",
            ),
            cut_off: counter(
                registry,
                "spillway_deliveries_cut_off_total",
                "Slow deliveries that were cut off, so that other shops got their slots.",
            ),
        }
    }
}

impl DownstreamerMetrics {
    /// Registers all metrics.
    pub(crate) fn new(consumer: &ConsumerName) -> Self {
        let registry = registry("downstreamer");
        Self {
            tracer: None,
            queue: Arc::new(QueueGauges::new(&registry, consumer)),
            paused: gauge(
                &registry,
                "spillway_paused",
                "1 while nothing is sent: the backend is down, refuses, or asked for a pause, or an operator paused everything.",
            ),
            pauses: PauseGauges::new(&registry),
            routes: RouteCounters::new(&registry),
            backend_refuses: gauge(
                &registry,
                "spillway_backend_refuses",
                "1 while the backend refuses the webhooks of more than half of the recent shops: one probe every 10 s.",
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
            undelivered: UndeliveredCounters::new(&registry),
            corrupt: corrupt_packs(&registry),
            lanes: LaneMetrics::new(&registry),
            stubs: StubMetrics::new(&registry),
            attempts: attempts(&registry),
            durations: durations(&registry),
            end_to_end: end_to_end(&registry),
            fallbacks: TopicCounter::key_fallbacks(&registry),
            dead_lettered: dead_lettered(&registry, &DEAD_REASONS),
            registry,
        }
    }

    /// Counts an attempt.
    pub(crate) fn attempted(&self, result: &str, took: Duration) {
        self.attempts.with_label_values(&[result]).inc();
        self.durations.observe(took.as_secs_f64());
    }

    /// Counts a webhook that was received at `received_at_ms` and delivered at `now_ms`.
    pub(crate) fn delivered(&self, received_at_ms: u64, now_ms: u64) {
        self.delivered.inc();
        let took = Duration::from_millis(now_ms.saturating_sub(received_at_ms));
        self.end_to_end.observe(took.as_secs_f64());
    }

    /// Counts the core's work since `before`.
    pub(crate) fn counted(&self, before: &Counts, now: &Counts) {
        self.undelivered.counted(&before.undelivered, &now.undelivered);
        self.routes.excluded.inc_by(now.undelivered.excluded - before.undelivered.excluded);
        self.corrupt.inc_by(now.chunks_corrupt - before.chunks_corrupt);
        self.lanes.cuts.inc_by(now.cuts - before.cuts);
        self.lanes.cut_off.inc_by(now.cut_off - before.cut_off);
        for (reason, count) in &now.dead {
            let known = before.dead.iter().find(|(known, _)| known == reason);
            let news = count - known.map_or(0, |(_, count)| *count);
            self.dead_lettered.with_label_values(&[reason]).inc_by(news);
        }
    }

    /// Sets the gauges to the core's state.
    pub(crate) fn show(&self, status: &Status) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.concurrency_in_use.set(number(status.in_flight));
        self.concurrency_limit.set(number(status.limit));
        self.paused.set(i64::from(status.is_paused));
        self.backend_refuses.set(i64::from(status.is_refusing));
        self.lanes.lanes.set(number(status.lanes));
        self.lanes.blocked.set(number(status.blocked_lanes));
        self.lanes.stored.set(i64::try_from(status.stored).unwrap_or(i64::MAX));
        self.lanes.index_bytes.set(number(status.index_bytes));
        self.stubs.expiring.set(number(status.stubs_expiring));
    }

    /// Counts a webhook of `topic` without a resource id.
    pub(crate) fn fell_back(&self, topic: &str) {
        self.fallbacks.count(topic);
    }
}

fn attempts(registry: &Registry) -> IntCounterVec {
    let attempts = counters(
        registry,
        "spillway_delivery_attempts_total",
        "Delivery attempts, by result.",
        "result",
    );
    RESULTS.iter().for_each(|result| attempts.with_label_values(&[result]).inc_by(0));
    attempts
}

fn durations(registry: &Registry) -> Histogram {
    histogram(
        registry,
        "spillway_delivery_duration_seconds",
        "One delivery, from connecting to the whole answer.",
        &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0],
    )
}
