//! Counters by topic, with a bounded number of labels.
//!
//! Only a verified webhook makes a topic known. Before its signature is checked, a topic is a
//! stranger's claim, and a stranger may claim a new one with every request. A refused request
//! counts under its topic if that is known already, and the request was verified or refused for a
//! reason on the receiver's side. All others count under `other`. So a stranger can't make a
//! subscription look as if it failed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderMap;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, Opts, Registry};
use spillway_process::clock::wall_clock_ms;
use spillway_webhook::Webhook;
use spillway_webhook::shopify::Headers;

use crate::ignored::IgnoredBy;
use crate::metrics::{add, vec};
use crate::reply::Refusal;

/// Topics with a label, `other` included.
const TOPICS_MAX: usize = 100;
const OTHER_TOPIC: &str = "other";

/// Metrics by topic, for the whole process.
#[derive(Clone)]
pub struct TopicMetrics {
    accepted: IntCounterVec,
    last_accepted: GaugeVec,
    refused: IntCounterVec,
    refused_other: IntCounter,
    ignored: IntCounterVec,
    /// Read for each request and replaced for each new topic. Reading takes no lock.
    known: Arc<ArcSwap<KnownTopics>>,
    learning: Arc<Mutex<()>>,
}

/// Counters of refused requests, by topic.
#[derive(Clone, Default)]
struct KnownTopics {
    indices: HashMap<Vec<u8>, usize>,
    refused: Vec<IntCounter>,
}

/// Topic that a request claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicClaim {
    /// No topic header: not a request from Shopify.
    Missing,
    /// A topic that was verified before.
    Known(usize),
    /// Another topic.
    Other,
}

/// Counters by topic, held by one shard.
pub struct Topics {
    indices: HashMap<Vec<u8>, TopicIndex>,
    known: Vec<Topic>,
    metrics: TopicMetrics,
}

/// Index of a topic in the [`Topics`] that returned it.
#[derive(Debug, Clone, Copy)]
pub struct TopicIndex(u16);

struct Topic {
    accepted: IntCounter,
    last_accepted: Gauge,
    /// Webhooks of the batch that is being counted.
    stored: u64,
}

impl TopicMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        let last = Opts::new(
            "spillway_last_accepted_timestamp_seconds",
            "When a webhook of the topic was last stored, as a Unix time.",
        );
        let refused = vec(
            registry,
            "spillway_refused_total",
            "Requests not answered 200, by topic; other: a topic never verified, or a 4xx before the signature was verified.",
            "topic",
        );
        let help = "Webhooks answered 200 and not stored, by topic, and by IGNORE_TOPICS (topic) or IGNORE_SHOPS_FILE (shop).";
        let ignored = Opts::new("spillway_ignored_total", help);
        let ignored = add(registry, IntCounterVec::new(ignored, &["topic", "by"]));
        // Shown before the first one is counted.
        ignored.with_label_values(&[OTHER_TOPIC, IgnoredBy::Topic.label()]);
        Self {
            ignored,
            accepted: vec(registry, "spillway_accepted_total", "Webhooks stored.", "topic"),
            last_accepted: add(registry, GaugeVec::new(last, &["topic"])),
            refused_other: refused.with_label_values(&[OTHER_TOPIC]),
            refused,
            known: Arc::default(),
            learning: Arc::default(),
        }
    }

    /// Topic that these headers claim. Must be called before the request is taken apart: a part of
    /// the connection's buffer must not be kept.
    pub fn claim(&self, headers: &HeaderMap) -> TopicClaim {
        let Some(topic) = headers.topic() else { return TopicClaim::Missing };
        self.known
            .load()
            .indices
            .get(&*topic)
            .map_or(TopicClaim::Other, |index| TopicClaim::Known(*index))
    }

    /// Counts a request that is not answered 200.
    pub fn refused(&self, claim: TopicClaim, refusal: Refusal) {
        match claim {
            TopicClaim::Missing => {}
            TopicClaim::Known(index) if refusal.counts_under_topic() => {
                self.known.load().refused[index].inc();
            }
            TopicClaim::Known(_) | TopicClaim::Other => self.refused_other.inc(),
        }
    }

    /// Counts a verified webhook that is not stored.
    pub fn ignored(&self, headers: &HeaderMap, by: IgnoredBy) {
        let topic = headers.topic().unwrap_or_default();
        // Learning takes a lock, and what is ignored may come in floods.
        let label = match std::str::from_utf8(&topic) {
            Ok(label) if self.known.load().indices.contains_key(&*topic) => label,
            _ => self.learn(&topic),
        };
        self.ignored.with_label_values(&[label, by.label()]).inc();
    }

    /// Returns the label of a verified topic, which is the topic itself while there is room.
    fn learn<'a>(&self, topic: &'a [u8]) -> &'a str {
        let Ok(label) = std::str::from_utf8(topic) else { return OTHER_TOPIC };
        let _one_at_a_time = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.known.load();
        if known.indices.contains_key(topic) {
            return label;
        }
        // The last label is for `other`.
        if label == OTHER_TOPIC || known.refused.len() >= TOPICS_MAX - 1 {
            return OTHER_TOPIC;
        }
        let mut more = KnownTopics::clone(&known);
        more.indices.insert(topic.to_owned(), more.refused.len());
        more.refused.push(self.refused.with_label_values(&[label]));
        self.known.store(Arc::new(more));
        label
    }
}

impl Topics {
    /// No topic is known yet.
    pub fn new(metrics: TopicMetrics) -> Self {
        Self { indices: HashMap::new(), known: Vec::new(), metrics }
    }

    /// Returns the index of the webhook's topic.
    pub fn index_of(&mut self, webhook: &Webhook) -> TopicIndex {
        let topic = webhook.headers.topic().unwrap_or_default();
        if let Some(index) = self.indices.get(&*topic) {
            return *index;
        }
        let label = self.metrics.learn(&topic);
        if let Some(index) = self.indices.get(label.as_bytes()) {
            return *index;
        }
        let index = TopicIndex(u16::try_from(self.known.len()).expect("BUG: topics are bounded"));
        self.indices.insert(label.into(), index);
        self.known.push(Topic {
            accepted: self.metrics.accepted.with_label_values(&[label]),
            last_accepted: self.metrics.last_accepted.with_label_values(&[label]),
            stored: 0,
        });
        index
    }

    /// Counts stored webhooks by their topics.
    pub fn stored(&mut self, topics: impl Iterator<Item = TopicIndex>) {
        topics.for_each(|index| self.known[usize::from(index.0)].stored += 1);
        let now = Duration::from_millis(wall_clock_ms()).as_secs_f64();
        for topic in self.known.iter_mut().filter(|topic| topic.stored > 0) {
            topic.accepted.inc_by(std::mem::take(&mut topic.stored));
            topic.last_accepted.set(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn headers(topic: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-shopify-topic", topic.parse().expect("a header value"));
        headers
    }

    #[test]
    fn a_stranger_makes_no_topic_known() {
        let metrics = TopicMetrics::new(&Registry::new());
        assert_eq!(metrics.claim(&HeaderMap::new()), TopicClaim::Missing);
        assert_eq!(metrics.claim(&headers("products/update")), TopicClaim::Other);
        metrics.learn(b"products/update");
        let claim = metrics.claim(&headers("products/update"));
        assert_eq!(claim, TopicClaim::Known(0));
        metrics.refused(claim, Refusal::Overloaded);
        metrics.refused(metrics.claim(&headers("orders/create")), Refusal::Overloaded);
        metrics.refused(TopicClaim::Missing, Refusal::Overloaded);
        let count = |topic: &str| metrics.refused.with_label_values(&[topic]).get();
        assert_eq!((count("products/update"), count("other")), (1, 1));
    }

    #[test]
    fn past_a_hundred_labels_topics_are_counted_together() {
        let metrics = TopicMetrics::new(&Registry::new());
        let topics = (0..150).map(|number| format!("a/{number}"));
        let labels: HashSet<_> =
            topics.map(|topic| metrics.learn(topic.as_bytes()).to_owned()).collect();
        assert_eq!(labels.len(), TOPICS_MAX);
        assert!(labels.contains(OTHER_TOPIC));
        assert_eq!(metrics.learn(b"a/1"), "a/1");
    }
}
