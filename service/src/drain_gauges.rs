//! What Redis says of each registered drain. Every process shows all of them: a drain that is dead
//! cannot report its own death, nor what piles up behind it.
//!
//! The label set is closed: a drain's series comes with its registration and goes when it is
//! forgotten.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{GaugeVec, IntGaugeVec, Opts, Registry};
use spillway_queue::status::DrainStatus;

use crate::metrics::register;

const LABEL: &[&str] = &["drain"];

/// A series for each registered drain.
#[derive(Clone)]
pub struct DrainGauges {
    webhooks: IntGaugeVec,
    oldest: GaugeVec,
    last_seen: GaugeVec,
    shown: Arc<Mutex<HashSet<String>>>,
}

impl DrainGauges {
    /// Registers them; there is no series before the first [`show`](Self::show).
    ///
    /// # Panics
    /// Never, unless a metric of ours is named twice.
    pub fn new(registry: &Registry) -> Self {
        let gauges = |name: &str, help: &str| {
            let made = GaugeVec::new(Opts::new(name, help), LABEL);
            register(registry, &made.expect("BUG: a constant name is valid"))
        };
        let webhooks = Opts::new("spillway_queue_webhooks", "Webhooks the drain has not settled.");
        let webhooks = IntGaugeVec::new(webhooks, LABEL).expect("BUG: a constant name is valid");
        Self {
            webhooks: register(registry, &webhooks),
            oldest: gauges(
                "spillway_queue_oldest_age_seconds",
                "Age of the oldest webhook the drain has not settled.",
            ),
            last_seen: gauges(
                "spillway_drain_last_seen_timestamp_seconds",
                "When the drain's owner was last seen, as a Unix time; 0 = never.",
            ),
            shown: Arc::default(),
        }
    }

    /// These are the registered drains now.
    pub fn show(&self, drains: &[DrainStatus]) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let names: HashSet<String> = drains.iter().map(|drain| drain.name.clone()).collect();
        for gone in shown.difference(&names) {
            // Each was shown, and is removed once.
            self.webhooks.remove_label_values(&[gone]).ok();
            self.oldest.remove_label_values(&[gone]).ok();
            self.last_seen.remove_label_values(&[gone]).ok();
        }
        for drain in drains {
            let label = [drain.name.as_str()];
            self.webhooks.with_label_values(&label).set(drain.waiting.cast_signed());
            self.oldest.with_label_values(&label).set(drain.oldest_age_seconds.unwrap_or(0.0));
            let last_seen = Duration::from_millis(drain.last_seen_ms).as_secs_f64();
            self.last_seen.with_label_values(&label).set(last_seen);
        }
        *shown = names;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::encode;

    fn drain(name: &str, waiting: u64) -> DrainStatus {
        DrainStatus { name: name.to_owned(), waiting, ..DrainStatus::default() }
    }

    #[test]
    fn a_drain_that_is_forgotten_is_shown_no_longer() {
        let registry = Registry::new();
        let gauges = DrainGauges::new(&registry);
        gauges.show(&[drain("http", 3), drain("kafka", 5)]);
        assert!(encode(&registry).contains("spillway_queue_webhooks{drain=\"kafka\"} 5"));
        gauges.show(&[drain("http", 2)]);
        let page = encode(&registry);
        assert!(page.contains("spillway_queue_webhooks{drain=\"http\"} 2"), "{page}");
        assert!(!page.contains("kafka"), "{page}");
    }
}
