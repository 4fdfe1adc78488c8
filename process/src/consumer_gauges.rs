//! Metrics of every registered consumer, from Redis' status. Every process shows all of them: a
//! dead consumer cannot report its own death, nor the webhooks that pile up for it.
//!
//! The label set is closed: a consumer's series appear with its registration and disappear when it
//! is removed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry};
use spillway_queue::status::ConsumerStatus;

use crate::metrics::register;

const LABEL: &[&str] = &["consumer"];

/// Series for each registered consumer.
#[derive(Clone)]
pub struct ConsumerGauges {
    webhooks: IntGaugeVec,
    parked: IntGaugeVec,
    dead_letters: IntGaugeVec,
    settled: IntCounterVec,
    oldest: GaugeVec,
    last_seen: GaugeVec,
    /// Consumers that are shown, each with the number of webhooks that it had settled.
    shown: Arc<Mutex<HashMap<String, u64>>>,
}

impl ConsumerGauges {
    /// Registers the metrics. There is no series before the first [`show`](Self::show).
    ///
    /// # Panics
    /// Only if one of our metrics is registered twice, which is a bug.
    pub fn new(registry: &Registry) -> Self {
        let gauges = |name: &str, help: &str| {
            let made = GaugeVec::new(Opts::new(name, help), LABEL);
            register(registry, &made.expect("BUG: a constant name is valid"))
        };
        let counts = |name: &str, help: &str| {
            let made = IntGaugeVec::new(Opts::new(name, help), LABEL);
            register(registry, &made.expect("BUG: a constant name is valid"))
        };
        let settled = Opts::new(
            "spillway_consumer_settled_total",
            "Webhooks the consumer has settled while this process ran; parked ones count.",
        );
        let settled = IntCounterVec::new(settled, LABEL).expect("BUG: a constant name is valid");
        Self {
            webhooks: counts("spillway_queue_webhooks", "Webhooks the consumer has not settled."),
            parked: counts(
                "spillway_consumer_lane_webhooks",
                "Webhooks of the consumer that wait outside the main stream.",
            ),
            dead_letters: counts(
                "spillway_consumer_dead_letters",
                "Dead letters of the consumer held now.",
            ),
            settled: register(registry, &settled),
            oldest: gauges(
                "spillway_queue_oldest_age_seconds",
                "Age of the oldest webhook the consumer has not settled.",
            ),
            last_seen: gauges(
                "spillway_consumer_last_seen_timestamp_seconds",
                "When the consumer's leader was last seen, as a Unix time; 0 = never.",
            ),
            shown: Arc::default(),
        }
    }

    /// Updates the series to the registered consumers.
    pub fn show(&self, consumers: &[ConsumerStatus]) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let names: HashSet<String> =
            consumers.iter().map(|consumer| consumer.name.clone()).collect();
        for gone in shown.keys().filter(|name| !names.contains(*name)) {
            // Each series existed, so removing it cannot fail.
            self.webhooks.remove_label_values(&[gone]).ok();
            self.parked.remove_label_values(&[gone]).ok();
            self.dead_letters.remove_label_values(&[gone]).ok();
            self.settled.remove_label_values(&[gone]).ok();
            self.oldest.remove_label_values(&[gone]).ok();
            self.last_seen.remove_label_values(&[gone]).ok();
        }
        for consumer in consumers {
            let label = [consumer.name.as_str()];
            self.webhooks.with_label_values(&label).set(consumer.waiting.cast_signed());
            self.parked.with_label_values(&label).set(consumer.parked.cast_signed());
            self.dead_letters.with_label_values(&label).set(consumer.dead.letters.cast_signed());
            // The number in Redis is another one after a restore or a new registration. A counter only grows.
            let before = shown.get(&consumer.name).copied().unwrap_or(consumer.settled);
            let more = consumer.settled.saturating_sub(before);
            self.settled.with_label_values(&label).inc_by(more);
            self.oldest.with_label_values(&label).set(consumer.oldest_age_seconds.unwrap_or(0.0));
            let last_seen = Duration::from_millis(consumer.last_seen.at_ms).as_secs_f64();
            self.last_seen.with_label_values(&label).set(last_seen);
        }
        let settled = consumers.iter().map(|consumer| (consumer.name.clone(), consumer.settled));
        *shown = settled.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::encode;

    fn consumer(name: &str, waiting: u64) -> ConsumerStatus {
        ConsumerStatus { name: name.to_owned(), waiting, ..ConsumerStatus::default() }
    }

    #[test]
    fn a_consumer_that_is_forgotten_is_shown_no_longer() {
        let registry = Registry::new();
        let gauges = ConsumerGauges::new(&registry);
        gauges.show(&[consumer("http", 3), consumer("kafka", 5)]);
        assert!(encode(&registry).contains("spillway_queue_webhooks{consumer=\"kafka\"} 5"));
        gauges.show(&[consumer("http", 2)]);
        let page = encode(&registry);
        assert!(page.contains("spillway_queue_webhooks{consumer=\"http\"} 2"), "{page}");
        assert!(!page.contains("kafka"), "{page}");
    }

    #[test]
    fn what_is_settled_only_grows() {
        let registry = Registry::new();
        let gauges = ConsumerGauges::new(&registry);
        // The queue is restored after the third one, and has another number then.
        for (settled, shown) in [(1_000, 0), (1_007, 7), (1_010, 10), (4, 10), (6, 12)] {
            gauges.show(&[ConsumerStatus { settled, parked: 2, ..consumer("http", 3) }]);
            let page = encode(&registry);
            let line = format!("spillway_consumer_settled_total{{consumer=\"http\"}} {shown}\n");
            assert!(page.contains(&line), "{line}{page}");
        }
        let page = encode(&registry);
        assert!(page.contains("spillway_consumer_lane_webhooks{consumer=\"http\"} 2"), "{page}");
    }
}
